"""Which chunk file goes: by what stands in it among all blocks, wherever it stands among the files."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from tierstore.control import coldest as coldest_module
from tierstore.control.coldest import ages, coldest, without_new
from tierstore.control.directory import Directory
from tierstore.control.entry import State
from tierstore.control.ssd_room import SsdRoom
from tierstore.metrics import Metrics
from tierstore.types import Extents

if TYPE_CHECKING:
    from tierstore.types import Int64Array

FILE_BLOCKS = 64
FILES = {3: FILE_BLOCKS, 1: FILE_BLOCKS, 7: FILE_BLOCKS, 2: FILE_BLOCKS}


def held(directory: Directory, file: int, used: int) -> Int64Array:
    """A file full of blocks used at one time, in prefix order."""
    keys = np.zeros((FILE_BLOCKS, 4), np.uint64)
    keys[:, 0], keys[:, 1] = np.arange(FILE_BLOCKS), file
    entries = directory.add(1, keys)
    directory.ssd.state[entries] = State.READY
    directory.ssd_file[entries] = file
    directory.last_use[entries] = used
    directory.depth[entries] = np.arange(FILE_BLOCKS)
    return entries


def directory_of(last_uses: list[int]) -> tuple[Directory, list[Int64Array]]:
    directory = Directory(1024)
    return directory, [held(directory, file, used) for file, used in zip(FILES, last_uses, strict=True)]


@pytest.mark.parametrize("position", range(4))
def test_the_file_used_longest_ago_goes_wherever_it_stands(position: int) -> None:
    last_uses = [50, 60, 70, 80]
    last_uses[position] = 10
    directory, _ = directory_of(last_uses)
    assert coldest(directory, FILES, 0.5).file == list(FILES)[position]


@pytest.mark.parametrize(("count", "old"), [(2, 1), (3, 1), (4, 2), (8, 6), (32, 28)])
def test_new_files_never_go(count: int, old: int) -> None:
    """A durable put was refused whose blocks a full SSD had given up between its writes and its sync."""
    assert list(without_new(dict.fromkeys(range(count), FILE_BLOCKS))) == list(range(old))


def test_of_files_used_together_the_one_deepest_in_its_chain_goes() -> None:
    directory, entries = directory_of([10, 10, 10, 10])
    for first, own in zip((0, 192, 64, 128), entries, strict=True):
        directory.depth[own] = np.arange(first, first + FILE_BLOCKS)
    assert coldest(directory, FILES, 0.5).file == 1


@pytest.mark.parametrize("share", [0.0, 0.25, 0.5])
def test_no_more_of_it_is_warm_than_may_be_written_again(share: float) -> None:
    directory, entries = directory_of([10, 10, 10, 10])
    leaving = coldest(directory, FILES, share)
    own = entries[list(FILES).index(leaving.file)]
    assert np.count_nonzero(ages(directory, own) > leaving.warm_above) <= share * FILE_BLOCKS


def test_what_a_waiting_request_needs_is_younger_than_all() -> None:
    directory, entries = directory_of([10, 50, 60, 70])
    directory.next_use[entries[0]] = 1
    assert coldest(directory, FILES, 0.5).file == 1
    assert ages(directory, entries[0]).min() > ages(directory, entries[3]).max()


def test_a_file_of_which_nothing_is_known_goes_first() -> None:
    directory, _ = directory_of([50, 60, 70, 80])
    assert coldest(directory, {**FILES, 9: 0}, 0.5).file == 9


def test_a_sample_of_the_blocks_finds_the_same_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coldest_module, "_SAMPLE_ENTRIES", 32)
    directory, _ = directory_of([50, 60, 10, 80])
    assert coldest(directory, FILES, 0.5).file == 7


@pytest.mark.parametrize(("free_nbytes", "following"), [(1, 3), (100, 2)], ids=["gave nothing", "gave room"])
def test_where_a_file_gave_no_room_the_oldest_goes_next(free_nbytes: int, following: int) -> None:
    directory = Directory(1024)
    room = SsdRoom(directory, 1000, 0.0, Metrics())
    for file, used in ((3, 80), (1, 10), (2, 20), (4, 90), (5, 90)):
        entries = held(directory, file, used)
        directory.ssd.state[entries] = State.FILLING
        places = Extents(np.full(FILE_BLOCKS, file, np.int32), *(np.zeros(FILE_BLOCKS, np.uint32) for _ in range(3)))
        room.written(entries, places)
    room.free_nbytes = 1
    leaving = []
    for _ in range(2):
        while room.forgetting:
            room.reclaim()
        gone = room.take_empty()
        assert gone is not None
        leaving.append(gone)
        room.discarded(gone, free_nbytes)
    assert leaving == [1, following]
