"""Sealing: a full file gets its footer and its name, and is the same to its readers whatever fails on the way."""

from __future__ import annotations

import errno
import json
from collections.abc import Iterator

import pytest

from tierstore.testing.ssd_world import SsdWorld
from tierstore.tiers.chunkfile import slots_per_file
from tierstore.tiers.record import RecordShape
from tierstore.tiers.whole_file import replace_whole
from tierstore.types import Outcome

OK, IO_ERROR = Outcome.OK, Outcome.IO_ERROR
PER_FILE = slots_per_file(64 << 10, RecordShape(100))
"""Blocks of 100 bytes in one of the world's files."""


@pytest.fixture
def world() -> Iterator[SsdWorld]:
    world = SsdWorld()
    yield world
    world.kill()


def kinds(world: SsdWorld) -> list[str]:
    """Names of all chunk files, those of open ones without their uuid."""
    return sorted(path.rpartition("/")[2].rpartition("-")[0] or path.rpartition("/")[2] for path in world.files())


def test_a_file_is_sealed_when_the_next_record_needs_another_one(world: SsdWorld) -> None:
    tier, user = world.begin()
    user.write(tier, range(PER_FILE))
    assert kinds(world) == ["open-0"]
    reads = user.read(tier, range(PER_FILE))
    user.write(tier, [PER_FILE])
    assert kinds(world) == ["c.0.0", "open-1"]
    assert user.read(tier, range(PER_FILE)) == reads == [OK] * PER_FILE


def test_a_start_reads_the_footers_of_sealed_files_alone(world: SsdWorld) -> None:
    tier, user = world.begin()
    user.write(tier, range(5 * PER_FILE))
    tier.close()
    for path in world.files():
        if "/c." in path:
            content = world.sim.contents(path)
            world.sim.replace(path, bytes(len(content) - 8192) + content[-8192:])
    tier = world.start()
    assert user.recover(tier.recover()) == list(range(5 * PER_FILE))
    assert set(user.read(tier, range(PER_FILE))) == {Outcome.CORRUPT}, "no block is believed for its key alone"


def test_a_sealed_file_whose_footer_is_lost_is_scanned(world: SsdWorld, caplog: pytest.LogCaptureFixture) -> None:
    tier, user = world.begin()
    user.write(tier, range(2 * PER_FILE + 1))
    tier.close()
    path = min(world.files())
    content = world.sim.contents(path)
    world.sim.replace(path, content[:-4096] + bytes(4096))
    tier = world.start()
    assert user.recover(tier.recover()) == list(range(2 * PER_FILE + 1))
    assert set(user.read(tier, range(2 * PER_FILE + 1))) == {OK}
    assert f"{path} has no footer that verifies" in caplog.text
    assert path in world.files()


def test_without_metadata_every_file_is_scanned_and_the_array_begun_again(world: SsdWorld) -> None:
    tier, user = world.begin()
    user.write(tier, range(2 * PER_FILE + 1))
    tier.close()
    array = min(world.files()).rpartition("/")[0]
    before = world.sim.contents(f"{array}/zarr.json")
    world.sim.remove(f"{array}/zarr.json")
    tier = world.start()
    assert user.recover(tier.recover()) == list(range(2 * PER_FILE + 1))
    assert user.write(tier, [99]).outcomes.tolist() == [OK]
    assert world.sim.contents(f"{array}/zarr.json") == before
    assert set(user.read(tier, [*range(2 * PER_FILE + 1), 99])) == {OK}


def test_an_open_file_without_room_for_its_footer_is_neither_continued_nor_sealed() -> None:
    world = SsdWorld(capacity_nbytes=4 << 20, file_nbytes=256 << 10)
    tier, user = world.begin()
    names = range(slots_per_file(world.file_nbytes, RecordShape(100)))
    user.write(tier, names)
    (path,) = world.files()
    world.close()
    metadata_path = f"{path.rpartition('/')[0]}/zarr.json"
    metadata = json.loads(world.sim.contents(metadata_path))
    metadata["attributes"]["tierstore"]["slots_per_file"] = 900
    metadata["shape"][0] = 900 * 16
    replace_whole(world.disk, metadata_path, json.dumps(metadata).encode(), padding=b" ")
    tier = world.start()
    assert user.recover(tier.recover()) == list(names)
    assert user.write(tier, [99]).outcomes.tolist() == [OK]
    assert user.where[99][0] != user.where[0][0]
    assert path in world.files()
    world.kill()


def test_older_open_files_are_sealed_when_a_start_finds_them(world: SsdWorld) -> None:
    tier, user = world.begin()
    user.write(tier, range(PER_FILE))
    world.sim.fail_call(1, errno=errno.EIO, only="rename")
    user.write(tier, [PER_FILE])
    assert sorted(path.rpartition("/")[2][:6] for path in world.files()) == ["open-0", "open-1"]
    tier.close()
    tier = world.start()
    assert user.recover(tier.recover()) == list(range(PER_FILE + 1))
    assert sorted(path.rpartition("/")[2][:6] for path in world.files()) == ["c.0.0", "open-1"]
    assert set(user.read(tier, range(PER_FILE + 1))) == {OK}


@pytest.mark.parametrize("code", [errno.EIO, 0])
@pytest.mark.parametrize("only", ["write", "sync", "rename"])
def test_a_file_that_could_not_be_sealed_is_read_and_goes_whole(world: SsdWorld, only: str, code: int) -> None:
    tier, user = world.begin()
    user.write(tier, range(PER_FILE))
    world.sim.fail_call(1, errno=code, only=only)
    assert user.write(tier, [PER_FILE]).outcomes.tolist() == [OK]
    assert set(user.read(tier, range(PER_FILE + 1))) == {OK}
    assert len(world.files()) == 2
    tier.discard(user.where[0][0])
    assert len(world.files()) == 1
    assert tier.sync().outcome is (IO_ERROR if only == "sync" else OK)
    assert user.recover(world.start().recover()) == [PER_FILE]


def test_a_file_whose_name_a_folder_has_taken_gives_all_its_bytes_back(world: SsdWorld) -> None:
    tier, user = world.begin()
    user.write(tier, range(PER_FILE))
    (path,) = world.files()
    world.sim.create(f"{path.rpartition('/')[0]}/c.0.0/thing", 0)
    free_nbytes = user.write(tier, [PER_FILE]).dst_free_nbytes
    assert set(user.read(tier, range(PER_FILE + 1))) == {OK}
    assert free_nbytes is not None
    assert tier.discard(user.where[0][0]) == free_nbytes + world.file_nbytes
    assert path not in world.files()
