"""A store whose n-th disk call fails, for every n: no wrong byte, no hang, no durable block lost to a power loss."""

from __future__ import annotations

import errno
from random import Random

import pytest

from tests.payload import TIMEOUT_SECONDS, block_hash, get, namespace, num_pins, quiet, rows, small_store
from tierstore.errors import DiskError, FolderError
from tierstore.store import NamespaceHandle, Store
from tierstore.testing.sim_disk import SimDisk
from tierstore.types import Outcome, Presence

KEPT, CLEARED = namespace(8192, "kept"), namespace(8192, "cleared")
EVICTED = 'tierstore_evicted_blocks_total{tier="ssd"}'
FREE_NBYTES = "tierstore_ssd_free_bytes"
FILE_NBYTES, RECORD_NBYTES = 128 << 10, 16 << 10


class Life:
    """One scenario over one disk; `durable` is what must be there after the next start."""

    def __init__(self, disk: SimDisk) -> None:
        self.disk = disk
        self.durable: set[int] = set()
        self.num_evicted = 0.0
        self.num_clears = 0
        self.cleared_durable = False
        """Whether the cleared namespace has a durable block."""

    def run(self) -> None:
        """One run of the store; ends early where it refuses to open. Only documented errors are caught."""
        try:
            store = small_store(self.disk)
        except (DiskError, FolderError):
            assert self.disk.num_open == 0
            return
        with store:
            self.use(store)
        self.forget_reclaimed(store)
        assert num_pins(store) == 0
        assert self.disk.num_open == 0

    def use(self, store: Store) -> None:
        """Every verb: blocks that are durable, evicted, read again, deleted, prefetched, reclaimed and cleared."""
        try:
            kept, cleared = store.namespace(KEPT), store.namespace(CLEARED)
        except DiskError:
            return
        self.put(store, kept, range(6), durable=True)
        self.put(store, kept, range(6, 12), durable=False)
        store.flush().result(TIMEOUT_SECONDS)
        for first in range(12, 40, 7):
            self.put(store, kept, range(first, first + 7), durable=False)
        self.get(kept, range(6))
        kept.delete([block_hash(number) for number in range(28, 34)]).result(TIMEOUT_SECONDS)
        kept.prefetch([block_hash(number) for number in range(6, 12)]).result(TIMEOUT_SECONDS)
        self.get(kept, range(6, 12))
        for first in range(44, 76, 8):
            self.put(store, kept, range(first, first + 8), durable=True)
        self.fill_a_file(store, kept)
        self.put(store, kept, range(106, 109), durable=True)
        self.clear(cleared)
        store.check()

    def put(self, store: Store, handle: NamespaceHandle, numbers: range, *, durable: bool) -> None:
        hashes = [block_hash(number) for number in numbers]
        result = handle.put(hashes, rows(numbers, 8192), durable=durable).result(TIMEOUT_SECONDS)
        assert set(result.outcomes) <= {Outcome.OK, Outcome.REJECTED, Outcome.IO_ERROR}
        if durable:
            self.durable |= {n for n, outcome in zip(numbers, result.outcomes, strict=True) if outcome is Outcome.OK}
        self.forget_reclaimed(store)
        store.check()

    def fill_a_file(self, store: Store, handle: NamespaceHandle) -> None:
        """Put until a file is reclaimed, and so much room is won that the next six blocks reclaim none."""
        before = store.metrics()[EVICTED]
        for number in range(76, 106):
            self.put(store, handle, range(number, number + 1), durable=True)
            now = store.metrics()
            if now[EVICTED] != before and now[FREE_NBYTES] >= FILE_NBYTES + 6 * RECORD_NBYTES:
                return

    def get(self, handle: NamespaceHandle, numbers: range) -> None:
        result = get(handle, [block_hash(number) for number in numbers], rows(numbers, 8192))
        assert Outcome.CORRUPT not in result.outcomes

    def clear(self, handle: NamespaceHandle) -> None:
        """Clear a namespace between two durable puts of one block, whose bytes say how often it was cleared."""
        handle.put([block_hash(0)], rows([self.owner], 8192), durable=True).result(TIMEOUT_SECONDS)
        try:
            handle.clear()
        except DiskError:
            pass
        else:
            self.num_clears += 1
            assert handle.presence([block_hash(0)]) == [Presence.MISS]
            handle.put([block_hash(0)], rows([self.owner], 8192)).result(TIMEOUT_SECONDS)
        again = handle.put([block_hash(1)], rows([self.owner], 8192), durable=True).result(TIMEOUT_SECONDS)
        self.cleared_durable = again.ok

    @property
    def owner(self) -> object:
        return ("cleared", self.num_clears)

    def forget_reclaimed(self, store: Store) -> None:
        """Whatever the durable puts up to now have pushed out of the SSD need not be there any more."""
        num_evicted = store.metrics()[EVICTED]
        if num_evicted != self.num_evicted:
            self.num_evicted = num_evicted
            self.durable.clear()
            self.cleared_durable = False

    def verify_after_restart(self) -> None:
        """The disk is whole again: open, and find every durable block with its own bytes."""
        self.disk.heal()
        with small_store(self.disk) as store:
            kept, cleared = store.namespace(KEPT), store.namespace(CLEARED)
            for number in sorted(self.durable):
                assert get(kept, [block_hash(number)], rows([number], 8192)).ok, f"block {number} is lost"
            for number in range(109):
                get(kept, [block_hash(number)], rows([number], 8192))
            assert get(cleared, [block_hash(1)], rows([self.owner], 8192)).ok or not self.cleared_durable
            get(cleared, [block_hash(0)], rows([self.owner], 8192))
            store.check()
            assert store.flush().result(TIMEOUT_SECONDS).ok
            assert num_pins(store) == 0


def count_calls(only: str) -> int:
    """Calls of one operation in a scenario where none fails, which shows that it does what it is meant to do."""
    disk = SimDisk()
    life = Life(disk)
    life.run()
    assert life.durable >= {106, 107, 108}
    assert life.cleared_durable
    assert life.num_evicted > 0
    num_calls = disk.calls_of(only)
    assert num_calls > 0
    return num_calls


OPERATIONS = ("create", "look", "lock", "read", "write", "sync", "rename", "remove")
FAULTS = [
    *(pytest.param(errno.EIO, operation, id=f"{operation} fails") for operation in OPERATIONS),
    *(
        pytest.param(0, operation, id=f"{operation} ends halfway")
        for operation in ("read", "write", "rename", "remove")
    ),
    *(pytest.param(errno.ENOSPC, operation, id=f"{operation} finds no space") for operation in ("create", "write")),
]


@pytest.mark.parametrize(("code", "only"), FAULTS)
def test_one_failing_call_loses_nothing_durable(code: int, only: str) -> None:
    for n in range(1, count_calls(only) + 2):
        disk = SimDisk()
        disk.fail_call(n, errno=code, only=only)
        live(disk)


@pytest.mark.parametrize(("code", "only"), FAULTS)
def test_an_operation_that_fails_from_some_call_on_loses_nothing_durable(code: int, only: str) -> None:
    num_calls = count_calls(only)
    for n in range(1, num_calls + 1, max(1, num_calls // 8)):
        disk = SimDisk()
        disk.fail_from(n, errno=code, only=only)
        live(disk)


@pytest.mark.parametrize("code", [errno.EIO, 0, errno.ENOSPC])
def test_a_disk_that_fails_from_some_call_on_loses_nothing_durable(code: int) -> None:
    for n in range(1, 160, 9):
        disk = SimDisk()
        disk.fail_from(n, errno=code)
        live(disk)


def live(disk: SimDisk) -> None:
    """One life over a disk that fails and then loses power, the next over the same disk healed."""
    life = Life(disk)
    with quiet():
        life.run()
    disk.crash(Random(disk.calls))
    life.verify_after_restart()


def test_a_start_that_fails_loses_nothing_durable() -> None:
    disk = SimDisk()
    life = Life(disk)
    life.run()
    for n in range(1, 200):
        before = disk.calls
        disk.fail_call(n, errno=errno.EIO)
        with quiet():
            start(disk)
        if disk.calls - before < n:
            return
        life.verify_after_restart()
    pytest.fail("a start of a store with a few files takes more than 200 calls")


def start(disk: SimDisk) -> None:
    """Open, read a block, close; or fail as documented and hold nothing."""
    try:
        with small_store(disk) as store:
            get(store.namespace(KEPT), [block_hash(90)], rows([90], 8192))
    except (DiskError, FolderError):
        assert disk.num_open == 0


def test_a_durable_block_outlives_a_clear_that_failed_once_it_had_taken_effect() -> None:
    disk = SimDisk()
    with small_store(disk) as store:
        handle = store.namespace(KEPT)
        disk.fail_call(1, errno=0, only="rename")
        with pytest.raises(DiskError):
            handle.clear()
        assert handle.put([block_hash(1)], rows([1], 8192), durable=True).result(TIMEOUT_SECONDS).ok
    with small_store(disk) as store:
        assert get(store.namespace(KEPT), [block_hash(1)], rows([1], 8192)).ok


def test_a_durable_put_larger_than_the_ssd_is_acknowledged_for_no_more_than_that() -> None:
    numbers = range(150)
    with small_store(SimDisk(), host_size="2 MiB") as store:
        put = store.namespace(KEPT).put([block_hash(n) for n in numbers], rows(numbers, 8192), durable=True)
        outcomes = put.result(TIMEOUT_SECONDS).outcomes
        reclaimed = int(store.metrics()[EVICTED])
    assert outcomes.count(Outcome.OK) < 8 * 7, "all files were full and one of them was given back before the sync"
    assert outcomes.count(Outcome.REJECTED) == len(numbers) - outcomes.count(Outcome.OK)
    assert reclaimed
