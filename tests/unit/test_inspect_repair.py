"""Damage of every kind: it is found, it is mended, and no other block is lost."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random

import numpy as np
import pytest

from tests.damaged import (
    LAYOUT,
    MODELS,
    check,
    expected,
    files,
    flip,
    headers,
    held,
    living,
    make,
    owner_of,
    payload_in,
    repair,
    tombstones,
)
from tests.payload import quiet
from tierstore.disk.posix import PosixDisk
from tierstore.inspect.checkup import check_folder
from tierstore.inspect.findings import Fault
from tierstore.inspect.folder import StoreFolder
from tierstore.inspect.repair import plan_repair
from tierstore.inspect.zarr_reading import ZarrReader
from tierstore.tiers.record import HEADER

Owner = tuple[str, int]
Damage = Callable[[Path], set[Owner]]
"""Damages a folder; returns the living blocks that are lost by it."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that is only read."""
    root = tmp_path_factory.mktemp("whole")
    make(root)
    return root


@pytest.fixture
def root(whole: Path, tmp_path: Path) -> Path:
    """A copy to be damaged."""
    return Path(shutil.copytree(whole, tmp_path / "store"))


def header_in(path: Path, record: int) -> set[Owner]:
    place = headers(path)[record]
    owner = owner_of(path, place)
    flip(path, place + 24)
    return owner


def in_footer(path: Path, offset: int) -> set[Owner]:
    flip(path, offset)
    return set()


def restored_header(root: Path) -> set[Owner]:
    header_in(files(root, "sealed", "raw")[2], 3)
    return set()


def first_magic(root: Path) -> set[Owner]:
    path = files(root, "open", "raw")[0]
    place = headers(path)[0]
    owner = owner_of(path, place)
    flip(path, place)
    return owner


def header_and_footer(root: Path) -> set[Owner]:
    path = files(root, "sealed", "raw")[3]
    flip(path, -4000)
    return header_in(path, 2)


def cut(path: Path, nbytes: int) -> set[Owner]:
    lost = {owner for place in headers(path) if place + 4 * 4096 > nbytes for owner in owner_of(path, place)}
    with path.open("r+b") as file:
        file.truncate(nbytes)
    return lost


def grow(path: Path, nbytes: int) -> set[Owner]:
    with path.open("ab") as file:
        file.write(Random(1).randbytes(nbytes))
    return set()


def junk(path: Path) -> set[Owner]:
    lost = {owner for place in headers(path) for owner in owner_of(path, place)}
    path.write_bytes(Random(2).randbytes(path.stat().st_size))
    return lost


def junk_pages(path: Path) -> set[Owner]:
    with path.open("r+b") as file:
        file.seek(20 * 4096)
        file.write(Random(3).randbytes(2 * 4096))
    return set()


def stranger(root: Path) -> set[Owner]:
    path = files(root, "sealed", "raw")[0]
    path.with_name("c.17.0.0.0.0.0").write_bytes(Random(4).randbytes(8192))
    return set()


def metadata(root: Path, text: str | None) -> set[Owner]:
    path = next(root.glob("arrays/*-lz4/zarr.json"))
    if text is None:
        path.unlink()
    else:
        path.write_text(text.ljust(4096))
    return set()


def changed_metadata(root: Path) -> set[Owner]:
    path = next(root.glob("arrays/*-raw/zarr.json"))
    path.write_text(path.read_text().replace('"little"', '"big"   '))
    return set()


DAMAGES: dict[str, tuple[Damage, Fault]] = {
    "payload, sealed, raw": (lambda root: payload_in(files(root, "sealed", "raw")[2], 3), Fault.PAYLOAD),
    "payload, sealed, lz4": (lambda root: payload_in(files(root, "sealed", "lz4")[2], 3), Fault.PAYLOAD),
    "payload, open, raw": (lambda root: payload_in(files(root, "open", "raw")[0], 0), Fault.PAYLOAD),
    "payload, open, lz4": (lambda root: payload_in(files(root, "open", "lz4")[0], 0), Fault.PAYLOAD),
    "header, sealed": (restored_header, Fault.HEADER),
    "header, open": (lambda root: header_in(files(root, "open", "raw")[0], 0), Fault.STRAY),
    "magic, open": (first_magic, Fault.STRAY),
    "header and footer": (header_and_footer, Fault.FOOTER),
    "key table": (lambda root: in_footer(files(root, "sealed", "raw")[3], -4000), Fault.FOOTER),
    "trailer": (lambda root: in_footer(files(root, "sealed", "raw")[3], -4 - 16 * 7 - 64), Fault.FOOTER),
    "index": (lambda root: in_footer(files(root, "sealed", "raw")[3], -40), Fault.INDEX),
    "index checksum": (lambda root: in_footer(files(root, "sealed", "lz4")[1], -1), Fault.INDEX),
    "sealed cut to whole records": (lambda root: cut(files(root, "sealed", "raw")[3], 16 * 4096), Fault.FOOTER),
    "sealed cut inside a record": (lambda root: cut(files(root, "sealed", "raw")[3], 18 * 4096 + 7), Fault.FOOTER),
    "sealed cut to nothing": (lambda root: cut(files(root, "sealed", "raw")[3], 0), Fault.FOOTER),
    "open cut behind its records": (lambda root: cut(files(root, "open", "raw")[0], 16 * 4096), Fault.LENGTH),
    "open cut to nothing": (lambda root: cut(files(root, "open", "raw")[0], 0), Fault.LENGTH),
    "sealed with junk behind": (lambda root: grow(files(root, "sealed", "raw")[2], 5000), Fault.FOOTER),
    "open with junk behind": (lambda root: grow(files(root, "open", "raw")[0], 8192), Fault.LENGTH),
    "sealed all junk": (lambda root: junk(files(root, "sealed", "lz4")[0]), Fault.FOOTER),
    "open all junk": (lambda root: junk(files(root, "open", "raw")[0]), Fault.STRAY),
    "junk behind the records of an open file": (lambda root: junk_pages(files(root, "open", "raw")[0]), Fault.STRAY),
    "a file of another program": (stranger, Fault.FOOTER),
    "no zarr.json": (lambda root: metadata(root, None), Fault.METADATA),
    "junk in zarr.json": (lambda root: metadata(root, "{"), Fault.METADATA),
    "zarr.json of another byte order": (changed_metadata, Fault.METADATA),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_found_and_mended_without_loss_of_another_block(name: str, root: Path) -> None:
    damage, fault = DAMAGES[name]
    with quiet():
        lost = damage(root)
        found = check(root)
        assert fault in {finding.fault for finding in found.findings}, found.findings
        done = repair(root)
        assert done
        assert (
            check_folder(StoreFolder.read(PosixDisk(str(root))), zarr=ZarrReader(str(root)), share="all").findings == []
        )
        assert repair(root) == []
        for model in MODELS:
            missing = expected() - living(root, model)
            assert missing == {number for own, number in lost if own == model} & expected(), done
        assert check(root).findings == []


@pytest.mark.parametrize("seed", range(24))
def test_any_flipped_bit_costs_at_most_the_block_it_lies_in(seed: int, root: Path) -> None:
    random = Random(seed)
    path = random.choice(files(root, "sealed") + files(root, "open"))
    places = headers(path) + tombstones(path)
    near = random.choice([*places, path.stat().st_size - 4096])
    flip(
        path,
        near + random.choice([random.randrange(256), 4096 + random.randrange(4096), random.randrange(4096)]) % 8192,
    )
    with quiet():
        findings = check(root).findings
        done = repair(root)
        assert bool(done) == bool(findings)
        assert check(root).findings == []
        dropped = [line for line in done if ": drop " in line or ": wipe " in line]
        for model in MODELS:
            found = living(root, model)
            assert found <= expected(), "a deleted block is back"
            assert len(expected() - found) <= len(dropped)


def test_a_mended_header_is_the_one_that_was_written(root: Path) -> None:
    path = files(root, "sealed", "raw")[1]
    before = path.read_bytes()
    for place in headers(path) + tombstones(path):
        flip(path, place + 24)
    assert {finding.fault for finding in check(root).findings} == {Fault.HEADER}
    assert len(repair(root)) == 7
    assert path.read_bytes() == before


@pytest.mark.parametrize("state", ["sealed", "open"])
@pytest.mark.parametrize("copies", [1, 2])
def test_a_deletion_is_undone_where_both_its_records_are_damaged(root: Path, state: str, copies: int) -> None:
    path = next(path for path in files(root, state) if tombstones(path))
    places = tombstones(path)[:2]
    for place in places[:copies]:
        flip(path, place + 4096 + 3)
    findings = check(root).findings
    assert [finding.fault for finding in findings] == ([Fault.COPY] if copies == 1 else [Fault.PAYLOAD] * 2)
    lines = [line for line in repair(root) if ": drop " in line]
    assert ["which are undone" in line for line in lines] == [copies == 2] * copies
    assert check(root).findings == []
    back = {number for model in MODELS for number in living(root, model) - expected()}
    assert bool(back) == (copies == 2)


def test_a_file_is_never_sealed_in_place_of_another(root: Path) -> None:
    path, other = files(root, "open", "raw")[0], files(root, "sealed", "raw")[0]
    cut(path, 16 * 4096)
    target = other.with_name(f"c.{path.name.split('-')[1]}.0.0.0.0.0")
    shutil.copy(other, target)
    with held(root) as disk:
        mends, (line,) = plan_repair(StoreFolder.read(disk))
    assert mends == []
    assert target.name in line


def test_a_sealed_file_that_waits_for_its_name_is_whole(root: Path) -> None:
    path = files(root, "sealed", "raw")[3]
    uuid = np.frombuffer(path.read_bytes()[:4096], np.uint8).view(HEADER)["file_uuid"].tobytes().hex()
    path.rename(path.with_name(f"open-3-{uuid}"))
    assert check(root).findings == []
    assert repair(root) == []
    for model in MODELS:
        assert living(root, model) == expected()


def test_a_block_that_zarr_does_not_see_is_found(root: Path) -> None:
    reader = ZarrReader(str(root))
    assert check_folder(StoreFolder.read(PosixDisk(str(root))), zarr=reader, share="all").findings == []
    raw = next(root.glob("arrays/*-raw"))
    assert "other bytes" in reader.differs(raw.name, 0, memoryview(bytes(LAYOUT.block_nbytes)))
    assert "cannot read" in reader.differs(raw.name, 1 << 20, memoryview(b""))
    assert "cannot read" in reader.differs("nothing", 0, memoryview(b""))
