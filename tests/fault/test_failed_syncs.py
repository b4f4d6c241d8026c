"""Syncs that fail once: what was written before them is served, and whoever puts it again is not told a lie."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random

import pytest

from tests.payload import TIMEOUT_SECONDS, block_hash, get, namespace, num_pins, quiet, rows, small_store
from tests.volume import told
from tierstore.errors import DiskError
from tierstore.store import NamespaceHandle, Store
from tierstore.testing.sim_disk import SimDisk
from tierstore.types import Outcome

OK, MISS, REJECTED, CORRUPT, IO_ERROR, CANCELLED = Outcome
BLOCK_NBYTES = 8192
FILE_BLOCKS = 7
"""As many as fill one chunk file of `tests.payload.SMALL`."""


@pytest.fixture
def disk() -> SimDisk:
    """A disk with a folder that knows the array already: the next sync is one of blocks."""
    disk = SimDisk()
    with small_store(disk) as store:
        assert put(store.namespace(namespace()), range(900, 901)) == [OK]
        assert store.namespace(namespace()).delete([block_hash(900)]).result(TIMEOUT_SECONDS).ok
    return disk


def put(handle: NamespaceHandle, numbers: range, *, durable: bool = True) -> list[Outcome]:
    transfer = handle.put([block_hash(n) for n in numbers], rows(numbers, BLOCK_NBYTES), durable=durable)
    return transfer.result(TIMEOUT_SECONDS).outcomes


def ask(handle: NamespaceHandle, numbers: range) -> list[Outcome]:
    """How a get of each block by itself ends; every byte that comes is compared."""
    return [get(handle, [block_hash(n)], rows([n], BLOCK_NBYTES)).outcomes[0] for n in numbers]


def flush(store: Store) -> list[Outcome]:
    return store.flush().result(TIMEOUT_SECONDS).outcomes


@contextmanager
def one_failing_sync(disk: SimDisk) -> Iterator[None]:
    """The next sync fails; go on once the disk has been found well again."""
    with until_well():
        disk.fail_call(1, errno=errno.EIO, only="sync")
        yield


@contextmanager
def until_well() -> Iterator[None]:
    """Go on once the disk has been found well again."""
    with told("the SSD is well again") as well:
        yield
        assert well.wait(TIMEOUT_SECONDS)


def evict_all(handle: NamespaceHandle) -> None:
    """Push every block out of the host pool, so that what comes back comes from SSD."""
    assert put(handle, range(1000, 1032), durable=False) == [OK] * 32


def after_power_loss(disk: SimDisk, numbers: range) -> list[Outcome]:
    """What the next start finds."""
    disk.crash(Random(0), torn=False)
    with small_store(disk) as store:
        outcomes = ask(store.namespace(namespace()), numbers)
        store.check()
    return outcomes


def test_a_durable_put_repeated_after_a_failed_sync_lasts(disk: SimDisk) -> None:
    store = small_store(disk)
    handle = store.namespace(namespace())
    with one_failing_sync(disk):
        assert put(handle, range(3)) == [IO_ERROR] * 3
    assert ask(handle, range(3)) == [OK] * 3
    assert put(handle, range(3)) == [OK] * 3
    store.check()
    assert num_pins(store) == 0
    assert after_power_loss(disk, range(3)) == [OK] * 3


def test_a_durable_put_of_blocks_that_were_written_back_before_anothers_sync_failed_lasts(disk: SimDisk) -> None:
    store = small_store(disk)
    handle = store.namespace(namespace())
    assert put(handle, range(3), durable=False) == [OK] * 3
    with one_failing_sync(disk):
        assert put(handle, range(3, 5)) == [IO_ERROR] * 2
    assert put(handle, range(3)) == [OK] * 3
    assert after_power_loss(disk, range(3)) == [OK] * 3


def test_what_is_put_again_after_a_failed_flush_is_durable_with_the_next_one(disk: SimDisk) -> None:
    store = small_store(disk)
    handle = store.namespace(namespace())
    assert put(handle, range(3), durable=False) == [OK] * 3
    with one_failing_sync(disk):
        assert flush(store) == [IO_ERROR]
    assert put(handle, range(3), durable=False) == [OK] * 3
    assert flush(store) == [OK]
    assert after_power_loss(disk, range(3)) == [OK] * 3


def test_a_durable_put_of_blocks_in_a_full_file_that_could_not_be_synced_lasts(disk: SimDisk) -> None:
    store = small_store(disk)
    handle = store.namespace(namespace())
    assert put(handle, range(FILE_BLOCKS), durable=False) == [OK] * FILE_BLOCKS
    with one_failing_sync(disk):
        assert put(handle, range(FILE_BLOCKS, FILE_BLOCKS + 1)) == [IO_ERROR]
    assert put(handle, range(FILE_BLOCKS)) == [OK] * FILE_BLOCKS
    assert after_power_loss(disk, range(FILE_BLOCKS)) == [OK] * FILE_BLOCKS


def test_a_durable_put_of_blocks_that_a_start_has_found_and_could_not_sync_lasts(disk: SimDisk) -> None:
    store = small_store(disk)
    with one_failing_sync(disk):
        assert put(store.namespace(namespace()), range(3)) == [IO_ERROR] * 3
    disk.kill()
    disk.fail_call(1, errno=errno.EIO, only="sync")
    with quiet():
        store = small_store(disk)
    handle = store.namespace(namespace())
    assert ask(handle, range(3)) == [OK] * 3
    with until_well():
        assert put(handle, range(3)) == [IO_ERROR] * 3, "nobody was told of it yet"
    assert put(handle, range(3)) == [OK] * 3
    assert after_power_loss(disk, range(3)) == [OK] * 3


def test_what_a_failed_sync_leaves_in_doubt_is_read_from_ssd_all_the_same(disk: SimDisk) -> None:
    store = small_store(disk)
    handle = store.namespace(namespace())
    with one_failing_sync(disk):
        assert put(handle, range(3)) == [IO_ERROR] * 3
    evict_all(handle)
    reads = disk.calls_of("read")
    assert ask(handle, range(3)) == [OK] * 3
    assert disk.calls_of("read") > reads
    evict_all(handle)
    assert put(handle, range(3)) == [OK] * 3, "of a block that only SSD holds"
    assert after_power_loss(disk, range(3)) == [OK] * 3


def test_a_delete_repeated_after_a_failed_sync_lasts(disk: SimDisk) -> None:
    store = small_store(disk)
    handle = store.namespace(namespace())
    assert put(handle, range(3)) == [OK] * 3
    with one_failing_sync(disk):
        assert handle.delete([block_hash(0)]).result(TIMEOUT_SECONDS).outcomes == [IO_ERROR]
    assert handle.delete([block_hash(0)]).result(TIMEOUT_SECONDS).outcomes == [MISS]
    assert after_power_loss(disk, range(3)) == [MISS, OK, OK]


def test_a_durable_put_behind_a_clear_that_failed_lasts(disk: SimDisk) -> None:
    store = small_store(disk)
    handle = store.namespace(namespace())
    disk.fail_call(1, errno=0, only="rename")  # the next epoch is written down, and reported as failed
    disk.fail_call(2, errno=errno.EIO, only="rename")  # nor can the one be put back that this run goes on with
    with pytest.raises(DiskError):
        handle.clear()
    outcomes = put(handle, range(3))
    found = after_power_loss(disk, range(3))
    assert found == [OK] * 3 or OK not in outcomes
    assert outcomes == [OK] * 3
