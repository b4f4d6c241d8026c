"""A client's own copies into an attached pool: their checksums, and that none outlives the put that made it."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import closing
from typing import TYPE_CHECKING

import numpy as np
import pytest
from crc32c import crc32c

from tests.payload import TIMEOUT_SECONDS, namespace, rows
from tierstore.device.binding import bind_for
from tierstore.device.cpu import CallersStream, CpuDevice, CpuEvent
from tierstore.errors import DeviceError
from tierstore.service.client import copies as module
from tierstore.service.client.copies import Copies
from tierstore.transfer.caller_memory import CallerMemory
from tierstore.types import PAGE_NBYTES
from tierstore.worker import Worker

if TYPE_CHECKING:
    from tierstore.device.base import Event, Stream
    from tierstore.device.paged_kv import PagedKV
    from tierstore.types import Int32Array, Int64Array, UInt8Array

NBYTES = 8192 - 64
NUM_BLOCKS = 64


class FailingDevice(CpuDevice):
    """Refuses the third copy."""

    def __init__(self) -> None:
        super().__init__()
        self.num_stores = 0
        self.refused: Future[None] = Future()

    def store(
        self,
        host: UInt8Array,
        slots: Int32Array,
        kv: PagedKV,
        block_ids: Int64Array,
        stream: Stream,
        *,
        groups: range | None = None,
        after: Sequence[Event] = (),
    ) -> None:
        self.num_stores += 1
        if self.num_stores == 3:
            self.refused.set_result(None)
            raise DeviceError("the third copy is refused")
        super().store(host, slots, kv, block_ids, stream, groups=groups, after=after)


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """A piece is a block, so that few blocks are many pieces."""
    monkeypatch.setattr(module, "_PIECE_NBYTES", 1)


def memory_of(device: CpuDevice, blocks: UInt8Array, after: Sequence[CpuEvent] = ()) -> CallerMemory:
    kv = bind_for(blocks, namespace(NBYTES), device)
    return CallerMemory.check(kv, len(blocks), None, after, written=False)


def test_blocks_lie_where_they_were_promised_room_and_have_their_checksums() -> None:
    blocks, device = rows(range(NUM_BLOCKS), NBYTES), CpuDevice()
    pool = np.zeros((2 * NUM_BLOCKS, 2 * PAGE_NBYTES), np.uint8)
    places = np.random.default_rng(0).permutation(2 * NUM_BLOCKS)[: NUM_BLOCKS - 1]
    positions = np.arange(1, NUM_BLOCKS)
    with closing(Copies(device)) as copies:
        checksums = copies.fill(pool.reshape(-1), places * 2 * PAGE_NBYTES, memory_of(device, blocks), positions)
    assert (pool[places, :NBYTES] == blocks[1:]).all()
    assert checksums.tolist() == [crc32c(block.data) for block in blocks[1:]]
    assert not np.delete(pool, places, axis=0).any()


def test_a_put_that_fails_ends_after_the_last_copy_that_it_has_begun() -> None:
    blocks, device, gate = rows(range(NUM_BLOCKS), NBYTES), FailingDevice(), CpuEvent()
    pool = np.zeros((NUM_BLOCKS, 2 * PAGE_NBYTES), np.uint8)
    memory, places = memory_of(device, blocks, [gate]), np.arange(NUM_BLOCKS)
    opened: list[bool] = []
    found: list[tuple[bool, int]] = []

    def put() -> None:
        with pytest.raises(DeviceError, match="third copy"):
            copies.fill(pool.reshape(-1), places * 2 * PAGE_NBYTES, memory, places)
        found.append((bool(opened), int(pool.any(axis=1).sum())))

    with closing(Copies(device)) as copies:
        worker = Worker("test-put", capacity=1)
        worker.submit(put)
        device.refused.result(TIMEOUT_SECONDS)
        opened.append(True)
        gate.reach()
        assert worker.close(TIMEOUT_SECONDS)
    assert worker.failure is None
    assert found == [(True, 2)]


class HalfFailingDevice(CpuDevice):
    """Copies on one thread wait for the test; those on the other, the first that comes, fail."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = CpuEvent()
        self.failed: Future[None] = Future()

    def load(
        self,
        host: UInt8Array,
        slots: Int32Array,
        kv: PagedKV,
        block_ids: Int64Array,
        stream: Stream | CallersStream,
        *,
        groups: range | None = None,
        after: Sequence[Event] = (),
    ) -> list[Event]:
        if threading.current_thread().name.startswith("client-load"):
            self.gate.wait(TIMEOUT_SECONDS)
            return super().load(host, slots, kv, block_ids, stream, groups=groups, after=after)
        self.failed.set_result(None)
        raise DeviceError("this copy is refused")


def loaded_memory(device: CpuDevice, found: UInt8Array) -> CallerMemory:
    kv = bind_for(found, namespace(NBYTES), device)
    return CallerMemory.check(kv, len(found), None, (), written=True)


def test_a_load_that_two_threads_share_brings_every_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SPLIT_NBYTES", 1)
    blocks, device = rows(range(NUM_BLOCKS), NBYTES), CpuDevice()
    pool = np.zeros((2 * NUM_BLOCKS, 2 * PAGE_NBYTES), np.uint8)
    places = np.random.default_rng(0).permutation(2 * NUM_BLOCKS)[:NUM_BLOCKS]
    pool[places, :NBYTES] = blocks
    with closing(Copies(device)) as copies:
        for count in (1, 5, NUM_BLOCKS):
            found = np.zeros_like(blocks)
            memory = loaded_memory(device, found)
            copies.bring(pool.reshape(-1), places[:count] * 2 * PAGE_NBYTES, memory)
            assert (found[:count] == blocks[:count]).all()
            assert not found[count:].any()
            assert memory.layers is not None
            memory.layers.complete(count)
            assert memory.layers.event(0).wait(TIMEOUT_SECONDS)


@pytest.mark.parametrize("count", [1, 2, 7, 64, 1000])
def test_a_shared_load_is_cut_into_parts_that_get_smaller_and_leave_nothing_out(count: int) -> None:
    parts = module._shared(count)
    sizes = [part.stop - part.start for part in parts]
    assert [block for part in parts for block in range(count)[part]] == list(range(count))
    assert sum(sizes) == count, "layers would wait for blocks that do not come"
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] <= max(1, count // 32), "one thread would wait for the other's last part"
    assert len(parts) <= 16


def test_a_load_that_fails_ends_after_the_copies_of_who_shares_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SPLIT_NBYTES", 1)
    blocks, device = rows(range(NUM_BLOCKS), NBYTES), HalfFailingDevice()
    pool, places = np.ones((NUM_BLOCKS, 2 * PAGE_NBYTES), np.uint8), np.arange(NUM_BLOCKS)
    found, opened, seen = np.zeros_like(blocks), list[bool](), list[bool]()

    def get() -> None:
        with pytest.raises(DeviceError, match="refused"):
            copies.bring(pool.reshape(-1), places * 2 * PAGE_NBYTES, loaded_memory(device, found))
        seen.append(bool(opened) and found.any(axis=1).sum() > NUM_BLOCKS // 2)

    with closing(Copies(device)) as copies:
        worker = Worker("test-get", capacity=1)
        worker.submit(get)
        device.failed.result(TIMEOUT_SECONDS)
        opened.append(True)
        device.gate.reach()
        assert worker.close(TIMEOUT_SECONDS)
    assert worker.failure is None
    assert seen == [True]
