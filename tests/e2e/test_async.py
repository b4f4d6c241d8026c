"""The verbs awaited: on the caller's loop, without a thread of their own, and safe to cancel."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.payload import SENTINEL, SMALL, TIMEOUT_SECONDS, block_hash, namespace, rows
from tierstore.aio import AsyncNamespaceHandle, AsyncStore
from tierstore.config import StoreConfig
from tierstore.device.cpu import CpuEvent
from tierstore.errors import DiskError
from tierstore.testing.sim_disk import SimDisk
from tierstore.types import Outcome, Presence

if TYPE_CHECKING:
    from tierstore.types import UInt8Array

BLOCKS = [block_hash(number) for number in range(6)]
BYTES = rows(range(6), 8192)


class GatedDisk(SimDisk):
    """A disk whose reads wait for the test."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.gate.set()
        self.reached = threading.Event()

    def failure(self, operation: str, path: str) -> DiskError | None:
        if operation == "read":
            self.reached.set()
            assert self.gate.wait(TIMEOUT_SECONDS)
        return super().failure(operation, path)


@pytest.fixture
def disk() -> GatedDisk:
    return GatedDisk()


@pytest.fixture
async def store(disk: GatedDisk) -> AsyncIterator[AsyncStore]:
    async with AsyncStore(StoreConfig.load(overrides=SMALL), disk=disk) as store:
        yield store
        disk.gate.set()
        store.store.check()


@pytest.fixture
async def handle(store: AsyncStore) -> AsyncNamespaceHandle:
    return await store.namespace(namespace())


@pytest.fixture
def event(store: AsyncStore) -> Iterator[CpuEvent]:
    """What copies wait for until the test reaches it; at the latest when it ends, before the store does."""
    event = CpuEvent()
    yield event
    if not event.done():
        event.reach()


def blank() -> UInt8Array:
    return np.full_like(BYTES, SENTINEL)


async def make_cold(handle: AsyncNamespaceHandle) -> None:
    """Put the blocks on SSD, and so many others into the pool that they are nowhere else."""
    assert (await handle.put(BLOCKS, BYTES, durable=True)).ok
    for first in range(100, 132, 8):
        await handle.put([block_hash(number) for number in range(first, first + 8)], rows(range(8), 8192))


async def test_whoever_asks_again_and_again_starves_nobody_on_his_loop(handle: AsyncNamespaceHandle) -> None:
    """What ended at once was once answered without a turn of the loop: who polled for a block never saw it come."""
    turns = 0

    async def another() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    beside, found = asyncio.create_task(another()), np.zeros_like(BYTES)
    for _ in range(10):
        assert not (await handle.get(BLOCKS, found)).ok
        lease, _grant = await handle.acquire(BLOCKS)
        lease.release()
    beside.cancel()
    await asyncio.wait([beside])
    assert turns >= 20


async def test_every_verb_can_be_awaited(store: AsyncStore, handle: AsyncNamespaceHandle) -> None:
    buffer = blank()
    assert (await handle.put(BLOCKS, BYTES, durable=True)).ok
    assert (await handle.get(BLOCKS, buffer)).leading == 6
    assert np.array_equal(buffer, BYTES)
    assert (await handle.prefetch(BLOCKS)).ok
    assert (await store.flush()).ok
    assert handle.lookup(BLOCKS) == 6
    assert (await handle.delete(BLOCKS[5:])).num_ok == 1
    assert handle.presence(BLOCKS) == [*[Presence.HIT] * 5, Presence.MISS]
    await handle.clear()
    assert handle.lookup(BLOCKS) == 0


async def test_awaited_verbs_start_no_thread(store: AsyncStore, handle: AsyncNamespaceHandle) -> None:
    await make_cold(handle)
    threads = set(threading.enumerate())
    for _ in range(20):
        await asyncio.gather(handle.put(BLOCKS, BYTES), handle.get(BLOCKS, blank()), handle.prefetch(BLOCKS))
        await store.flush()
    assert set(threading.enumerate()) == threads


async def test_many_gets_of_cold_blocks_make_one_read_of_each(
    store: AsyncStore, handle: AsyncNamespaceHandle, disk: GatedDisk
) -> None:
    await make_cold(handle)
    reads = 'tierstore_link_blocks_total{link="ssd-read",outcome="ok"}'
    before, buffers = store.store.metrics()[reads], [blank() for _ in range(64)]
    disk.gate.clear()
    gets = [asyncio.create_task(handle.get(BLOCKS, buffer)) for buffer in buffers]
    await asyncio.wait(gets, timeout=0.05)
    assert not any(get.done() for get in gets)
    disk.gate.set()
    assert all(result.ok for result in await asyncio.gather(*gets))
    assert all(np.array_equal(buffer, BYTES) for buffer in buffers)
    assert store.store.metrics()[reads] - before == len(BLOCKS)


async def test_a_cancelled_get_ends_at_once_while_only_a_disk_is_waited_for(
    handle: AsyncNamespaceHandle, disk: GatedDisk
) -> None:
    await make_cold(handle)
    buffer = blank()
    disk.gate.clear()
    disk.reached.clear()
    get = asyncio.create_task(handle.get(BLOCKS, buffer))
    await asyncio.wait({get}, timeout=0)
    assert disk.reached.wait(TIMEOUT_SECONDS)
    get.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(get, TIMEOUT_SECONDS)
    disk.gate.set()
    assert (await handle.get(BLOCKS, blank())).ok
    assert (buffer == SENTINEL).all()


async def test_a_cancelled_get_returns_only_once_no_copy_can_touch_the_buffer(
    handle: AsyncNamespaceHandle, event: CpuEvent
) -> None:
    assert (await handle.put(BLOCKS, BYTES)).ok
    buffer = blank()
    get = asyncio.create_task(handle.get(BLOCKS, buffer, after=event))
    await asyncio.wait({get}, timeout=0.05)
    get.cancel()
    await asyncio.wait({get}, timeout=0.05)
    assert not get.done(), "the copy into the buffer is still to come"
    assert (buffer == SENTINEL).all()
    event.reach()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(get, TIMEOUT_SECONDS)
    buffer.fill(SENTINEL)
    assert (await handle.get(BLOCKS, blank())).ok
    assert (buffer == SENTINEL).all()


async def test_a_get_that_is_cancelled_twice_waits_for_its_copy_all_the_same(
    handle: AsyncNamespaceHandle, event: CpuEvent
) -> None:
    assert (await handle.put(BLOCKS, BYTES)).ok
    get = asyncio.create_task(handle.get(BLOCKS, blank(), after=event))
    for _ in range(2):
        await asyncio.wait({get}, timeout=0.05)
        get.cancel()
    await asyncio.wait({get}, timeout=0.05)
    assert not get.done(), "the copy into the buffer is still to come"
    event.reach()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(get, TIMEOUT_SECONDS)


async def test_a_cancelled_put_keeps_its_source_until_it_is_copied(
    handle: AsyncNamespaceHandle, event: CpuEvent
) -> None:
    source = BYTES.copy()
    put = asyncio.create_task(handle.put(BLOCKS, source, after=event))
    await asyncio.wait({put}, timeout=0.05)
    put.cancel()
    await asyncio.wait({put}, timeout=0.05)
    assert not put.done(), "the copy out of the buffer is still to come"
    event.reach()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(put, TIMEOUT_SECONDS)
    source.fill(SENTINEL)
    buffer = blank()
    leading = (await handle.get(BLOCKS, buffer)).leading
    assert np.array_equal(buffer[:leading], BYTES[:leading])


async def test_a_timeout_ends_a_get_in_time(handle: AsyncNamespaceHandle, disk: GatedDisk) -> None:
    await make_cold(handle)
    disk.gate.clear()
    result = await asyncio.wait_for(handle.get(BLOCKS, blank(), deadline_seconds=0.05), TIMEOUT_SECONDS)
    disk.gate.set()
    assert result.outcomes == [Outcome.CANCELLED] * 6
