"""A whole store on a disk that fails, hangs or loses files: no exception, no wrong byte, no endless wait."""

from __future__ import annotations

import errno
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from tests.payload import SENTINEL, TIMEOUT_SECONDS, block_hash, get, namespace, num_pins, rows, small_store
from tests.volume import told
from tierstore.errors import DiskError
from tierstore.health import Service
from tierstore.store import NamespaceHandle, Store
from tierstore.testing.sim_disk import SimDisk
from tierstore.types import Outcome

OK, MISS, REJECTED, CORRUPT, IO_ERROR, CANCELLED = Outcome
BLOCK_NBYTES = 8192
STALL_SECONDS = 0.2
QUICK_SECONDS = 8.0
"""What nobody who hangs may keep a close from: a look for stalls, and the patience of links."""


@pytest.fixture
def disk() -> Iterator[SimDisk]:
    disk = SimDisk()
    yield disk
    disk.heal()


def put(handle: NamespaceHandle, numbers: range, *, durable: bool = True) -> list[Outcome]:
    transfer = handle.put([block_hash(n) for n in numbers], rows(numbers, BLOCK_NBYTES), durable=durable)
    return transfer.result(TIMEOUT_SECONDS).outcomes


def ask(handle: NamespaceHandle, numbers: range, deadline_seconds: float | None = None) -> list[Outcome]:
    """Get blocks; every leading one has its own bytes, and no other row is written."""
    expected = rows(numbers, BLOCK_NBYTES)
    buffer = expected.copy()
    buffer[:] = SENTINEL
    hashes = [block_hash(n) for n in numbers]
    result = handle.get(hashes, buffer, deadline_seconds=deadline_seconds).result(TIMEOUT_SECONDS)
    assert (buffer[: result.leading] == expected[: result.leading]).all()
    assert (buffer[result.leading :] == SENTINEL).all()
    return result.outcomes


def evict_all(store: Store, handle: NamespaceHandle) -> None:
    """Push every block out of the host pool, so that what comes back comes from SSD."""
    store.flush().result(TIMEOUT_SECONDS)
    assert put(handle, range(1000, 1032), durable=False) == [OK] * 32
    store.flush().result(TIMEOUT_SECONDS)


def service(store: Store) -> Service:
    return store.health()["ssd"].service


@pytest.mark.parametrize("code", [errno.EIO, errno.EROFS, errno.EACCES, errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("operation", ["create", "write", "sync"])
def test_a_disk_that_takes_nothing_turns_writes_off_and_comes_back_by_itself(
    disk: SimDisk, operation: str, code: int
) -> None:
    with small_store(disk) as store:
        handle = store.namespace(namespace())
        assert put(handle, range(7)) == [OK] * 7  # one file is full
        evict_all(store, handle)
        with told("writes to SSD are off") as off, told("the SSD is well again") as well:
            disk.fail_from(1, errno=code, only=operation)
            refused = put(handle, range(10, 24))
            assert set(refused) <= {OK, REJECTED, IO_ERROR}
            assert set(refused) != {OK}
            assert off.wait(TIMEOUT_SECONDS)
            assert service(store) is Service.WRITES_OFF
            assert errno.errorcode[code] in store.health()["ssd"].why or operation == "sync"
            assert put(handle, range(30, 33)) == [REJECTED] * 3
            assert put(handle, range(30, 33), durable=False) == [OK] * 3
            assert ask(handle, range(3)) == [OK] * 3
            disk.heal()
            assert well.wait(TIMEOUT_SECONDS)
        assert put(handle, range(40, 43)) == [OK] * 3
        assert store.health()["ssd"].why == ""
        store.check()
        assert num_pins(store) == 0


def test_a_disk_that_gives_nothing_turns_reads_off_and_comes_back_with_every_block(disk: SimDisk) -> None:
    with small_store(disk) as store:
        handle = store.namespace(namespace())
        assert put(handle, range(14)) == [OK] * 14
        evict_all(store, handle)
        with told("reads from SSD are off") as off, told("the SSD is well again") as well:
            disk.fail_from(1, errno=errno.EIO, only="read")
            for number in range(3):
                assert ask(handle, range(number, number + 1)) == [IO_ERROR]
            assert off.wait(TIMEOUT_SECONDS)
            calls = disk.calls_of("read")
            assert ask(handle, range(7)) == [MISS] * 7
            assert handle.lookup([block_hash(0)]) == 0
            assert disk.calls_of("read") == calls or service(store) is not Service.READS_OFF
            disk.heal()
            assert well.wait(TIMEOUT_SECONDS)
        assert ask(handle, range(14)) == [OK] * 14


def test_a_read_that_hangs_ends_no_get_without_a_deadline_for_longer_than_the_stall(disk: SimDisk) -> None:
    with small_store(disk, ssd_stall_seconds=STALL_SECONDS) as store:
        handle = store.namespace(namespace())
        assert put(handle, range(7)) == [OK] * 7
        evict_all(store, handle)
        disk.hang("read")
        assert ask(handle, range(7), deadline_seconds=0.05) == [CANCELLED] * 7
        assert ask(handle, range(7)) == [MISS] * 7
        assert service(store) is Service.READS_OFF
        assert handle.lookup([block_hash(0)]) == 0
        assert put(handle, range(50, 57), durable=False) == [OK] * 7, "slots that are still being filled are not reused"
        with told("the SSD is well again") as well:
            disk.heal()
            assert well.wait(TIMEOUT_SECONDS)
        assert ask(handle, range(7)) == [OK] * 7
        assert num_pins(store) == 0


def test_a_prefetch_from_a_disk_that_gives_nothing_ends_at_once_and_its_blocks_can_be_put(disk: SimDisk) -> None:
    with small_store(disk) as store:
        handle = store.namespace(namespace())
        hashes = [block_hash(n) for n in range(14)]
        assert put(handle, range(14)) == [OK] * 14
        evict_all(store, handle)
        disk.fail_from(1, errno=errno.EACCES, only="read")
        assert OK not in handle.prefetch(hashes).result(TIMEOUT_SECONDS).outcomes
        assert put(handle, range(14), durable=False) == [OK] * 14
        assert ask(handle, range(14)) == [OK] * 14
        assert store.metrics()["tierstore_host_pinned_blocks"] == 0


def test_a_pool_that_is_all_taken_by_reads_that_hang_refuses_at_once(disk: SimDisk) -> None:
    with small_store(disk, ssd_size="2 MiB") as store:
        handle = store.namespace(namespace())
        for first in range(0, 35, 7):
            assert put(handle, range(first, first + 7)) == [OK] * 7
        evict_all(store, handle)
        disk.hang("read")
        hashes = [block_hash(n) for n in range(32)]
        stalled = handle.get(hashes, rows(range(32), BLOCK_NBYTES))
        begun, spent = time.monotonic(), time.process_time()
        assert ask(handle, range(32, 35), deadline_seconds=2) == [MISS] * 3
        assert put(handle, range(60, 63), durable=False) == [REJECTED] * 3
        assert time.monotonic() - begun < 2
        assert time.process_time() - spent < 1
        disk.heal()
        assert stalled.result(TIMEOUT_SECONDS).ok
        assert ask(handle, range(32, 35)) == [OK] * 3


def test_a_write_that_hangs_ends_durable_puts_flushes_and_deletes(disk: SimDisk) -> None:
    with small_store(disk, ssd_stall_seconds=STALL_SECONDS) as store:
        handle = store.namespace(namespace())
        assert put(handle, range(7)) == [OK] * 7
        disk.hang("write")
        assert put(handle, range(10, 12)) == [REJECTED] * 2
        assert store.flush().result(TIMEOUT_SECONDS).outcomes == [IO_ERROR]
        assert handle.delete([block_hash(0)]).result(TIMEOUT_SECONDS).outcomes == [REJECTED]
        assert ask(handle, range(1, 4)) == [OK] * 3
        with told("the SSD is well again") as well:
            disk.heal()
            assert well.wait(TIMEOUT_SECONDS)
        assert put(handle, range(20, 23)) == [OK] * 3


@pytest.mark.parametrize("operation", ["read", "write", "sync"])
def test_close_waits_for_no_call_that_hangs(disk: SimDisk, operation: str) -> None:
    store = small_store(disk, ssd_stall_seconds=STALL_SECONDS)
    handle = store.namespace(namespace())
    assert put(handle, range(7)) == [OK] * 7
    evict_all(store, handle)
    disk.hang(operation)
    waiting = [handle.get([block_hash(0)], rows([0], BLOCK_NBYTES))]
    waiting.append(handle.put([block_hash(90)], rows([90], BLOCK_NBYTES), durable=True))
    begun = time.monotonic()
    store.close()
    assert time.monotonic() - begun < QUICK_SECONDS
    assert all(transfer.done() for transfer in waiting)
    disk.heal()
    disk.crash(Random(0))
    with small_store(disk) as store:
        assert ask(store.namespace(namespace()), range(7)) == [OK] * 7


def test_chunk_files_removed_under_load_are_misses_and_later_puts_work(tmp_path: Path) -> None:
    rng = Random(18)
    with small_store(ssd_dir=tmp_path, ssd_stall_seconds=0) as store:
        handle = store.namespace(namespace())
        for turn in range(40):
            first = turn * 7
            assert set(put(handle, range(first, first + 7))) <= {OK, REJECTED, IO_ERROR}
            chunks = sorted(tmp_path.glob("arrays/*/[co]*"))
            if chunks and turn % 2:
                rng.choice(chunks).unlink(missing_ok=True)
            oldest = max(0, first - 49)
            assert CORRUPT not in ask(handle, range(oldest, oldest + 3))
        store.check()
    with small_store(ssd_dir=tmp_path) as store:
        handle = store.namespace(namespace())
        assert OK in put(handle, range(5000, 5007))
        get(handle, [block_hash(270)], rows([270], BLOCK_NBYTES))


def test_a_namespace_that_cannot_be_written_down_leaves_nothing_however_often_it_is_tried(disk: SimDisk) -> None:
    with small_store(disk) as store:
        lives = store.engine._planner._lives
        disk.fail_from(1, errno=errno.EIO)
        for _ in range(20):
            with pytest.raises(DiskError):
                store.namespace(namespace())
        assert not lives
        disk.heal()
        handle = store.namespace(namespace())
        assert handle.put([block_hash(0)], rows([0], 8192)).result(TIMEOUT_SECONDS).ok
        assert len(lives) == 1
