"""Real file systems that are full: of the store's own files, of others', of inodes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.payload import TIMEOUT_SECONDS, block_hash, chunk_nbytes, get, namespace, num_pins, rows, small_store
from tests.volume import fill, free_nbytes, told, use_up_inodes, volume
from tierstore.health import Service
from tierstore.store import NamespaceHandle, Store
from tierstore.types import Outcome

BLOCK_NBYTES = 8192
FILE_NBYTES = 128 << 10
"""As in `tests.payload.SMALL`: 15 blocks with their headers and a footer do not fit, 14 do."""


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    with volume(tmp_path / "volume", "size=4m,nr_inodes=64") as folder:
        yield folder


def put(handle: NamespaceHandle, first: int, count: int = 7) -> list[Outcome]:
    """Put blocks durably."""
    numbers = range(first, first + count)
    transfer = handle.put([block_hash(n) for n in numbers], rows(numbers, BLOCK_NBYTES), durable=True)
    return transfer.result(TIMEOUT_SECONDS).outcomes


def put_until_refused(store: Store, handle: NamespaceHandle, first: int) -> int:
    """Put blocks durably until the SSD takes no more; returns the number of the next one."""
    for start in range(first, first + 700, 7):
        if Outcome.REJECTED in put(handle, start) and store.health()["ssd"].service is not Service.SERVING:
            return start + 7
    pytest.fail("the SSD takes everything")


def served(handle: NamespaceHandle, numbers: range) -> int:
    """How many of these blocks come back, each with its own bytes."""
    return sum(get(handle, [block_hash(n)], rows([n], BLOCK_NBYTES)).ok for n in numbers)


def test_a_volume_filled_from_outside_stops_writes_before_the_floor_and_room_brings_them_back(place: Path) -> None:
    floor_nbytes = 1 << 20
    with small_store(ssd_dir=place / "kv", ssd_size="3 MiB", ssd_free_floor=floor_nbytes) as store:
        handle = store.namespace(namespace())
        assert put(handle, 0) == [Outcome.OK] * 7
        filler = fill(place, leave_nbytes=floor_nbytes - FILE_NBYTES)
        left_nbytes = free_nbytes(place)
        following = put_until_refused(store, handle, 7)
        assert free_nbytes(place) == left_nbytes, "the store has gone on below the floor"
        health = store.health()["ssd"]
        assert health.service is Service.WRITES_OFF
        assert "free_floor" in health.why
        assert served(handle, range(7)) == 7, "what is on SSD is served all the same"
        assert put(handle, following) == [Outcome.REJECTED] * 7
        with told("the SSD is well again") as well:
            filler.unlink()
            assert well.wait(TIMEOUT_SECONDS)
        assert put(handle, following) == [Outcome.OK] * 7
        assert store.health()["ssd"].service is Service.SERVING
        assert num_pins(store) == 0


def test_a_volume_too_small_for_two_chunk_files_is_off_from_the_start_and_room_brings_it_on(place: Path) -> None:
    filler = fill(place, leave_nbytes=2 * FILE_NBYTES - (16 << 10))
    with told("the SSD is well again") as well, small_store(ssd_dir=place / "kv") as store:
        health = store.health()["ssd"]
        assert health.service is Service.WRITES_OFF
        assert "too few for two chunk files" in health.why
        handle = store.namespace(namespace())
        assert put(handle, 0) == [Outcome.REJECTED] * 7
        assert handle.put([block_hash(0)], rows([0], BLOCK_NBYTES)).result(TIMEOUT_SECONDS).ok, "host memory takes it"
        filler.unlink()
        assert well.wait(TIMEOUT_SECONDS)
        assert put(handle, 0) == [Outcome.OK] * 7


def test_a_volume_for_two_chunk_files_is_off_once_the_one_that_it_takes_is_full(place: Path) -> None:
    filler = fill(place, leave_nbytes=5 * FILE_NBYTES // 2)
    with told("the SSD is well again") as well, small_store(ssd_dir=place / "kv") as store:
        assert store.health()["ssd"].service is Service.SERVING
        handle = store.namespace(namespace())
        following = put_until_refused(store, handle, 0)
        assert "too few for two chunk files" in store.health()["ssd"].why
        assert served(handle, range(7)) == 7
        filler.unlink()
        assert well.wait(TIMEOUT_SECONDS)
        assert put(handle, following) == [Outcome.OK] * 7


def test_a_block_that_only_another_file_would_take_leaves_writes_on_while_the_one_there_is_takes_others(
    place: Path,
) -> None:
    """Room for two files, one in reserve: blocks of another layout, which need a file of their own, get none."""
    fill(place, leave_nbytes=5 * FILE_NBYTES // 2)
    with small_store(ssd_dir=place / "kv") as store:
        handle, other = store.namespace(namespace()), store.namespace(namespace(BLOCK_NBYTES // 2))
        assert put(handle, 0, 1) == [Outcome.OK]
        theirs = rows([100], BLOCK_NBYTES // 2)
        assert other.put([block_hash(100)], theirs, durable=True).result(TIMEOUT_SECONDS).outcomes == [Outcome.REJECTED]
        assert store.health()["ssd"].service is Service.SERVING
        assert put(handle, 1, 2) == [Outcome.OK] * 2
        put_until_refused(store, handle, 3)
        assert "too few for two chunk files" in store.health()["ssd"].why


def test_below_the_floor_no_file_is_given_back_for_blocks_that_none_would_help_to_room(place: Path) -> None:
    """The current file of another layout still takes some: no reason to go on for those that need a file."""
    floor_nbytes = 2 << 20
    with small_store(ssd_dir=place / "kv", ssd_size="3 MiB", ssd_free_floor=floor_nbytes) as store:
        handle, other = store.namespace(namespace()), store.namespace(namespace(BLOCK_NBYTES // 2))
        theirs = rows([1000], BLOCK_NBYTES // 2)
        assert other.put([block_hash(1000)], theirs, durable=True).result(TIMEOUT_SECONDS).ok
        for first in range(0, 63, 7):
            assert put(handle, first) == [Outcome.OK] * 7
        kept_nbytes = chunk_nbytes(place / "kv")
        fill(place, leave_nbytes=FILE_NBYTES // 2)
        put_until_refused(store, handle, 100)
        assert "free_floor" in store.health()["ssd"].why
        assert chunk_nbytes(place / "kv") == kept_nbytes
        assert served(handle, range(63)) == 63


def test_a_file_that_is_taken_up_again_with_room_is_no_shortage(place: Path) -> None:
    fill(place, leave_nbytes=5 * FILE_NBYTES // 2)
    with small_store(ssd_dir=place / "kv") as store:
        assert put(store.namespace(namespace()), 0, 2) == [Outcome.OK] * 2
    with small_store(ssd_dir=place / "kv") as store:
        assert store.health()["ssd"].service is Service.SERVING
        handle = store.namespace(namespace())
        assert put(handle, 2, 2) == [Outcome.OK] * 2
        assert served(handle, range(4)) == 4


def test_enospc_with_a_floor_of_next_to_nothing_is_lived_with_by_giving_files_back(place: Path) -> None:
    with small_store(ssd_dir=place / "kv", ssd_size="16 MiB", ssd_free_floor="4 KiB") as store:
        handle = store.namespace(namespace())
        outcomes = [outcome for first in range(0, 700, 7) for outcome in put(handle, first)]
        assert set(outcomes) <= {Outcome.OK, Outcome.REJECTED}
        assert outcomes.count(Outcome.OK) > 500, "the volume holds about 430: older ones have made room"
        assert served(handle, range(690, 700)) > 0
        store.check()
        assert num_pins(store) == 0


def test_without_inodes_puts_are_refused_and_gets_and_lookups_go_on(place: Path) -> None:
    with small_store(ssd_dir=place / "kv", ssd_size="2 MiB") as store:
        handle = store.namespace(namespace())
        assert put(handle, 0) == [Outcome.OK] * 7
        fillers = use_up_inodes(place)
        following = put_until_refused(store, handle, 7)
        assert "ENOSPC" in store.health()["ssd"].why
        assert handle.lookup([block_hash(0)]) == 1
        assert served(handle, range(7)) == 7
        with told("the SSD is well again") as well:
            for filler in fillers.iterdir():
                filler.unlink()
            assert well.wait(TIMEOUT_SECONDS)
        assert put(handle, following) == [Outcome.OK] * 7


def test_the_folder_never_takes_more_than_its_size_over_a_restart(place: Path) -> None:
    for life in range(3):
        with small_store(ssd_dir=place / "kv", ssd_size="1 MiB") as store:
            handle = store.namespace(namespace())
            for first in range(life * 210, (life + 1) * 210, 7):
                put(handle, first)
                assert chunk_nbytes(place / "kv") <= 1 << 20
            assert store.metrics()["tierstore_ssd_used_bytes"] <= 1 << 20


def test_close_on_a_full_volume_is_an_end_in_order(place: Path) -> None:
    with small_store(ssd_dir=place / "kv", ssd_size="3 MiB") as store:
        handle = store.namespace(namespace())
        assert put(handle, 0) == [Outcome.OK] * 7
        filler = fill(place, leave_nbytes=0)
    filler.unlink()
    with small_store(ssd_dir=place / "kv", ssd_size="3 MiB") as store:
        assert served(store.namespace(namespace()), range(7)) == 7


def test_a_store_opens_on_a_full_volume_and_serves_what_is_there(place: Path) -> None:
    with small_store(ssd_dir=place / "kv", ssd_size="3 MiB") as store:
        assert put(store.namespace(namespace()), 0) == [Outcome.OK] * 7
    fill(place, leave_nbytes=0)
    with small_store(ssd_dir=place / "kv", ssd_size="3 MiB") as store:
        handle = store.namespace(namespace())
        assert served(handle, range(7)) == 7
        assert set(put(handle, 100, 40)) <= {Outcome.OK, Outcome.REJECTED}
