"""Leases and reservations of a real store: slots that others copy from and fill, in this process and in another."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from crc32c import crc32c

from tests.payload import TIMEOUT_SECONDS, block_hash, get, namespace, num_pins, rows, small_store
from tierstore.aio import AsyncStore, settled
from tierstore.store import NamespaceHandle, Store
from tierstore.transfer.lending import Grant
from tierstore.types import Outcome, Presence

if TYPE_CHECKING:
    from tierstore.types import UInt8Array

NBYTES = 8192
HASHES = [block_hash(position) for position in range(6)]
BLOCKS = rows(range(6), NBYTES)


def slots(store: Store, grant: Grant) -> UInt8Array:
    """uint8[k, NBYTES]: a copy of what lies in granted slots."""
    return np.stack([store.pool.view[offset : offset + NBYTES] for offset in grant.offsets.tolist()])


def fill(store: Store, grant: Grant, blocks: UInt8Array) -> None:
    """Write the blocks that were granted slots into them."""
    for position, offset in zip(grant.positions.tolist(), grant.offsets.tolist(), strict=True):
        store.pool.view[offset : offset + NBYTES] = blocks[position]


def put(handle: NamespaceHandle, hashes: list[bytes], blocks: UInt8Array) -> None:
    assert handle.put(hashes, blocks).result(TIMEOUT_SECONDS).ok


def test_a_lease_shows_the_blocks_where_they_lie() -> None:
    with small_store() as store:
        handle = store.namespace(namespace())
        put(handle, HASHES[:4], BLOCKS[:4])
        lease = handle.acquire(HASHES)
        grant = lease.granted.result(TIMEOUT_SECONDS)
        assert grant.positions.tolist() == [0, 1, 2, 3]
        assert np.array_equal(slots(store, grant), BLOCKS[:4])
        assert num_pins(store) > 0
        lease.release()
        lease.release()
        assert num_pins(store) == 0


def test_a_lease_brings_what_lies_on_ssd(tmp_path: Path) -> None:
    with small_store(ssd_dir=tmp_path / "kv") as store:
        assert store.namespace(namespace()).put(HASHES, BLOCKS, durable=True).result(TIMEOUT_SECONDS).ok
    with small_store(ssd_dir=tmp_path / "kv") as store:
        lease = store.namespace(namespace()).acquire(HASHES)
        assert np.array_equal(slots(store, lease.granted.result(TIMEOUT_SECONDS)), BLOCKS)
        lease.release()


def test_a_lease_released_before_it_is_granted_holds_nothing(tmp_path: Path) -> None:
    with small_store(ssd_dir=tmp_path / "kv") as store:
        assert store.namespace(namespace()).put(HASHES, BLOCKS, durable=True).result(TIMEOUT_SECONDS).ok
    with small_store(ssd_dir=tmp_path / "kv") as store:
        lease = store.namespace(namespace()).acquire(HASHES)
        lease.release()
        lease.granted.result(TIMEOUT_SECONDS)
        store.flush().result(TIMEOUT_SECONDS)
        store.check()
    assert lease.granted.done()


def test_a_committed_reservation_is_a_put(tmp_path: Path) -> None:
    with small_store(ssd_dir=tmp_path / "kv") as store:
        handle = store.namespace(namespace())
        put(handle, HASHES[:2], BLOCKS[:2])
        reservation = handle.reserve(HASHES, durable=True)
        grant = reservation.granted.result(0)
        assert grant.positions.tolist() == [2, 3, 4, 5]
        assert handle.presence(HASHES[2:]) == [Presence.PENDING] * 4
        fill(store, grant, BLOCKS)
        assert reservation.commit().result(TIMEOUT_SECONDS).ok
        assert get(handle, HASHES, BLOCKS).leading == 6
    with small_store(ssd_dir=tmp_path / "kv") as store:
        assert get(store.namespace(namespace()), HASHES, BLOCKS).leading == 6


def test_an_abandoned_reservation_leaves_nothing() -> None:
    with small_store() as store:
        handle = store.namespace(namespace())
        reservation = handle.reserve(HASHES)
        waiting = handle.get(HASHES, np.empty_like(BLOCKS))
        assert reservation.abandon().result(TIMEOUT_SECONDS).outcomes == [Outcome.CANCELLED] * 6
        assert waiting.result(TIMEOUT_SECONDS).leading == 0
        assert handle.lookup(HASHES) == 0
        assert reservation.commit().result(TIMEOUT_SECONDS).leading == 0  # too late
        store.check()


def test_a_store_closes_though_slots_are_lent() -> None:
    with small_store() as store:
        handle = store.namespace(namespace())
        put(handle, HASHES[:2], BLOCKS[:2])
        lease, reservation = handle.acquire(HASHES[:2]), handle.reserve(HASHES[2:])
        grant = lease.granted.result(TIMEOUT_SECONDS)
        numbers = store.pool.generations
        pages = grant.offsets // 4096
        assert np.array_equal(numbers[pages], grant.generations)
    assert not (numbers[pages] == grant.generations).any()  # whoever still copies learns that it is worth nothing
    assert reservation.commit().result(0).outcomes == [Outcome.CANCELLED] * 4
    lease.release()


def test_a_slot_given_to_another_block_has_another_generation() -> None:
    with small_store() as store:
        handle = store.namespace(namespace())
        put(handle, HASHES, BLOCKS)
        lease = handle.acquire(HASHES)
        grant = lease.granted.result(TIMEOUT_SECONDS)
        lease.release()
        others = [block_hash(("other", position)) for position in range(32)]
        put(handle, others, rows(others, NBYTES))
        assert not (store.pool.generations[grant.offsets // 4096] == grant.generations).any()


def test_another_process_copies_in_place() -> None:
    program = """
import json, mmap, sys
import numpy as np
fd, nbytes, offsets = int(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[3])
pool = np.frombuffer(mmap.mmap(fd, nbytes), np.uint8)
for source, target in offsets:
    pool[target:target + 8192] = pool[source:source + 8192]
"""
    with small_store(host_shared=True) as store:
        handle = store.namespace(namespace())
        put(handle, HASHES[:3], BLOCKS[:3])
        lease, reservation = handle.acquire(HASHES[:3]), handle.reserve(HASHES[3:])
        sources, targets = lease.granted.result(TIMEOUT_SECONDS).offsets, reservation.granted.result(0).offsets
        pairs = str(np.stack([sources, targets], 1).tolist())
        command = [sys.executable, "-c", program, str(store.pool.fd), str(store.pool.file_nbytes), pairs]
        subprocess.run(command, check=True, pass_fds=[store.pool.fd], timeout=60)
        lease.release()
        assert reservation.commit().result(TIMEOUT_SECONDS).ok
        assert get(handle, HASHES, np.concatenate([BLOCKS[:3], BLOCKS[:3]])).leading == 6


async def test_lending_is_awaited() -> None:
    async with AsyncStore(host_size="256 KiB", host_slab_size="64 KiB") as store:
        handle = await store.namespace(namespace())
        reservation = handle.reserve(HASHES)
        fill(store.store, reservation.granted.result(0), BLOCKS)
        assert (await settled(reservation.commit())).ok
        lease, grant = await handle.acquire(HASHES)
        assert np.array_equal(slots(store.store, grant), BLOCKS)
        lease.release()


async def test_a_cancelled_acquire_holds_nothing() -> None:
    async with AsyncStore(host_size="256 KiB", host_slab_size="64 KiB") as store:
        handle = await store.namespace(namespace())
        reservation = handle.reserve(HASHES)
        waiting = asyncio.create_task(handle.acquire(HASHES))
        await asyncio.sleep(0)
        waiting.cancel()
        assert isinstance((await asyncio.gather(waiting, return_exceptions=True))[0], asyncio.CancelledError)
        fill(store.store, reservation.granted.result(0), BLOCKS)
        assert (await settled(reservation.commit())).ok
        assert num_pins(store.store) == 0


@pytest.mark.parametrize("codec", ["raw", "lz4"])
def test_a_block_that_is_not_what_its_borrower_said_goes_to_no_disk(tmp_path: Path, codec: str) -> None:
    checksums = np.array([crc32c(block) for block in BLOCKS], np.uint32)
    with small_store(ssd_dir=tmp_path / "kv", codec_name=codec) as store:
        handle = store.namespace(namespace())
        reservation = handle.reserve(HASHES, durable=True)
        grant = reservation.granted.result(0)
        fill(store, grant, BLOCKS)
        store.pool.view[grant.offsets[4]] ^= 1
        result = reservation.commit(checksums[grant.positions]).result(TIMEOUT_SECONDS)
        assert result.outcomes == [Outcome.OK] * 4 + [Outcome.CORRUPT, Outcome.OK]
        assert handle.lookup(HASHES) == 4  # nor is it given to anybody
        put(handle, HASHES, BLOCKS)
        assert store.flush().result(TIMEOUT_SECONDS).ok
    with small_store(ssd_dir=tmp_path / "kv") as store:
        assert get(store.namespace(namespace()), HASHES, BLOCKS).leading == 6


def test_what_a_borrower_said_of_a_block_is_forgotten_with_it(tmp_path: Path) -> None:
    with small_store(ssd_dir=tmp_path / "kv") as store:
        handle = store.namespace(namespace())
        reservation = handle.reserve(HASHES, durable=True)
        fill(store, reservation.granted.result(0), BLOCKS)
        checksums = np.array([crc32c(block) for block in BLOCKS], np.uint32)
        assert reservation.commit(checksums).result(TIMEOUT_SECONDS).ok
        assert handle.delete(HASHES).result(TIMEOUT_SECONDS).ok
        assert handle.put(HASHES, BLOCKS[::-1], durable=True).result(TIMEOUT_SECONDS).ok
