"""The tier and the offline tools hold few chunk files open, however many there are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.damaged import make
from tests.payload import num_descriptors
from tierstore.disk.posix import PosixDisk
from tierstore.inspect.checkup import check_folder
from tierstore.inspect.contents import read_contents
from tierstore.inspect.folder import StoreFolder
from tierstore.testing.ssd_world import SsdWorld
from tierstore.tiers.chunkfile import slots_per_file
from tierstore.tiers.frame import aligned_buffer
from tierstore.tiers.record import RecordShape
from tierstore.types import Outcome

FILES_MAX = 3
PER_FILE = slots_per_file(64 << 10, RecordShape(100))
"""Blocks of 100 bytes in one of the world's files."""


@pytest.fixture
def world(tmp_path: Path) -> Iterator[SsdWorld]:
    """A tier on a real folder, of 32 files at most, of which three are open at a time."""
    world = SsdWorld(PosixDisk(str(tmp_path)), capacity_nbytes=2 << 20, open_files_max=FILES_MAX)
    world.pool = aligned_buffer(4 << 20)
    yield world
    world.close()


def test_a_tier_of_many_files_holds_few_of_them(world: SsdWorld, tmp_path: Path) -> None:
    tier, user = world.begin()
    names = range(25 * PER_FILE)
    for start in names[:: 5 * PER_FILE]:
        user.write(tier, names[start : start + 5 * PER_FILE])
    assert len(world.files()) == 25
    assert num_descriptors(tmp_path) <= FILES_MAX
    for start in names[::50]:
        assert set(user.read(tier, names[start : start + 50])) == {Outcome.OK}
    assert num_descriptors(tmp_path) <= FILES_MAX
    world.close()
    assert num_descriptors(tmp_path) == 0
    tier = world.start()
    most = 0

    def watch(_done_nbytes: int, _total_nbytes: int) -> None:
        nonlocal most
        most = max(most, num_descriptors(tmp_path))

    assert user.recover(tier.recover(watch)) == list(names)
    assert 0 < most <= FILES_MAX + 3 * 4  # four threads read the folder
    assert num_descriptors(tmp_path) <= FILES_MAX
    assert set(user.read(tier, [0, len(names) // 2, len(names) - 1])) == {Outcome.OK}


def test_files_are_deleted_from_continued_and_given_back_while_closed(world: SsdWorld, tmp_path: Path) -> None:
    tier, user = world.begin()
    names = range(10 * PER_FILE)
    user.write(tier, names)
    user.delete(tier, [0, 1])
    tier.discard(user.where[PER_FILE][0])
    user.write(tier, [1000])
    world.close()
    tier = world.start()
    kept = [name for name in names if name > 1 and name // PER_FILE != 1] + [1000]
    assert user.recover(tier.recover()) == kept
    for name in kept[::PER_FILE]:
        assert user.read(tier, [name]) == [Outcome.OK]
    user.write(tier, range(2000, 2000 + 3 * PER_FILE))
    while len(world.files()) > 2:
        files = sorted({extent[0] for extent in user.where.values()})
        tier.discard(files[0])
        user.where = {name: extent for name, extent in user.where.items() if extent[0] != files[0]}
    assert set(user.read(tier, list(user.where))) == {Outcome.OK}
    assert num_descriptors(tmp_path) <= FILES_MAX


def test_a_chunk_file_that_cannot_be_opened_again_costs_its_blocks_alone(world: SsdWorld, tmp_path: Path) -> None:
    tier, user = world.begin()
    names = range(10 * PER_FILE)
    user.write(tier, names)
    for path in tmp_path.glob("arrays/*/c.0.*"):
        path.unlink()
    for path in tmp_path.glob("arrays/*/c.1.*"):
        path.unlink()
        path.mkdir()
    expected = [Outcome.IO_ERROR if name < 2 * PER_FILE else Outcome.OK for name in names]
    assert user.read(tier, names) == expected
    assert user.write(tier, [1000]).outcomes.tolist() == [Outcome.OK]
    assert tier.discard(user.where[0][0]) > 0
    assert tier.sync().outcome is Outcome.OK


def test_the_offline_tools_hold_one_file_at_a_time(tmp_path: Path) -> None:
    root = tmp_path / "root"
    make(root)
    folder = StoreFolder.read(PosixDisk(str(root), read_only=True))
    most = 0

    def watch(_nbytes: int) -> None:
        nonlocal most
        most = max(most, num_descriptors(root))

    assert len([file for array in folder.arrays for file in array.files]) > 4
    read_contents(folder, watch)
    check_folder(folder, advance=watch)
    assert most == 1
    assert num_descriptors(root) == 0
