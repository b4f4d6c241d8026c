"""Format 1 as a folder: what today's code writes is what lies in the golden folder, and what it reads from there."""

from __future__ import annotations

import re
import uuid
from itertools import count
from pathlib import Path

import numpy as np
import pytest

from tierstore.testing.block_user import BlockUser
from tierstore.testing.sim_disk import SimDisk
from tierstore.testing.ssd_world import SsdWorld
from tierstore.types import PAGE_NBYTES, Outcome

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "data" / "format1" / "folder-pairs"
BEFORE = GOLDEN.with_name("folder")
"""Of the time when each tombstone was written once."""

ARRAY = "arrays/db26bee5e8d7d72e794e69e1228fa31661f4f46a21a7f28d516e8598a222680a-raw"
SUFFIX = ".bin"
"""Behind the name of each golden file."""

FILE_NBYTES = 12 * PAGE_NBYTES
"""Room for five blocks of 100 bytes, or for three and the two tombstones of a deletion."""


def small_world() -> SsdWorld:
    return SsdWorld(capacity_nbytes=8 * FILE_NBYTES, file_nbytes=FILE_NBYTES)


def paths(disk: SimDisk, folder: str = "") -> list[str]:
    """Every file of a disk but the lock."""
    found: list[str] = []
    for entry in disk.look(folder).entries:
        path = f"{folder}/{entry.name}".lstrip("/")
        found += paths(disk, path) if entry.is_folder else [path]
    return [path for path in found if path != "LOCK"]


def golden_files(golden: Path = GOLDEN) -> dict[str, bytes]:
    """What lies in a golden folder, by path."""
    found = {path.relative_to(golden): path.read_bytes() for path in golden.rglob(f"*{SUFFIX}")}
    return {str(path).removesuffix(SUFFIX): content for path, content in found.items()}


def written_folder(monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """Three blocks and two tombstones in a sealed file, and a block in an open one: every byte, by path."""
    numbers = count(1)
    monkeypatch.setattr(uuid, "uuid4", lambda: uuid.UUID(int=next(numbers)))
    world = small_world()
    tier, user = world.begin()
    user.write(tier, [1, 2, 3])
    user.delete(tier, [2])
    user.write(tier, [4])
    tier.close()
    return {path: world.sim.contents(path) for path in paths(world.sim)}


def test_what_is_written_is_the_golden_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    written, golden = written_folder(monkeypatch), golden_files()
    assert sorted(written) == sorted(golden)
    for path, content in golden.items():
        assert written[path] == content, path


@pytest.mark.parametrize("golden", [GOLDEN, BEFORE], ids=lambda golden: golden.name)
def test_a_golden_folder_is_read(golden: Path, caplog: pytest.LogCaptureFixture) -> None:
    world = small_world()
    for path, content in golden_files(golden).items():
        world.sim.create(path, len(content)).close()
        world.sim.replace(path, content)
    before = paths(world.sim)
    tier = world.start()
    user = BlockUser(world.pool, world.generation())
    assert user.recover(tier.recover()) == [1, 3, 4]
    assert user.read(tier, [1, 3, 4]) == [Outcome.OK] * 3
    assert paths(world.sim) == before
    assert not caplog.messages
    assert user.write(tier, [5]).outcomes.tolist() == [Outcome.OK]
    assert user.where[5][1] == 2, "the open file is continued"
    assert len(world.files()) == 2
    world.kill()


def test_the_worked_example_shows_the_golden_trailer_and_index() -> None:
    end = golden_files()[f"{ARRAY}/c.0.0"][-(64 + 5 * 16 + 4) :]
    text = (ROOT / "docs" / "format.md").read_text("utf-8")
    lines = re.findall(r"^\+([0-9a-f]{4})((?:  [0-9a-f]{2}(?: [0-9a-f]{2})*){1,2})(?:  |$)", text, re.MULTILINE)
    assert len(lines) == 10
    for offset, row in lines:
        assert end[int(offset, 16) :][: len(bytes.fromhex(row))] == bytes.fromhex(row), offset


def test_the_golden_index_points_at_the_blocks() -> None:
    content = golden_files()[f"{ARRAY}/c.0.0"]
    index = np.frombuffer(content[-4 - 16 * 5 : -4], "<u8").reshape(5, 2).tolist()
    assert index == [[4096, 104], [12_288, 104], [20_480, 104], *[[2**64 - 1, 2**64 - 1]] * 2]
