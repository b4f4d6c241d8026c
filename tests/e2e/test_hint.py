"""A queue told to a real store: what waits is read ahead, and mistakes are named before anything happens."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from tests.payload import SMALL, block_hash, get, namespace, rows, small_store
from tierstore.aio import AsyncStore
from tierstore.config import StoreConfig
from tierstore.errors import ClosedError, IdentityError, RankError
from tierstore.store import Store
from tierstore.testing.sim_disk import SimDisk

NBYTES = 8192
WAITING, OTHERS = range(6), range(6, 38)
HASHES = [block_hash(number) for number in WAITING]
PREFETCHED = 'tierstore_prefetched_blocks_total{fate="useful"}'


@pytest.fixture
def store() -> Iterator[Store]:
    """Blocks that wait lie on SSD alone, others fill the pool."""
    with small_store(SimDisk()) as store:
        handle = store.namespace(namespace())
        for numbers in (WAITING, OTHERS):
            hashes = [block_hash(number) for number in numbers]
            assert handle.put(hashes, rows(numbers, NBYTES), durable=True).result().ok
        yield store
        store.check()


def test_what_waits_is_read_ahead_and_comes_back_exactly(store: Store) -> None:
    handle = store.namespace(namespace())
    handle.hint(added=[(0, HASHES[:4]), (1, HASHES)])
    assert store.metrics()["tierstore_waiting_requests"] == 2
    assert get(handle, HASHES, rows(WAITING, NBYTES)).ok
    handle.hint(removed=[0, 1])
    metrics = store.metrics()
    assert metrics[PREFETCHED] == 6
    assert (metrics["tierstore_waiting_requests"], metrics["tierstore_window_blocks"]) == (0, 0)


def test_a_session_ends_and_begins_again_at_any_rank(store: Store) -> None:
    handle = store.namespace(namespace())
    handle.hint([(7, HASHES)], session_id=3)
    store.end_session(3)
    store.end_session(3)
    assert store.metrics()["tierstore_window_blocks"] == 0
    handle.hint([(2, HASHES)], session_id=3)
    assert store.metrics()["tierstore_window_blocks"] == 6


def test_mistakes_in_a_hint_are_named(store: Store) -> None:
    handle = store.namespace(namespace())
    with pytest.raises(IdentityError, match="hash 1 is hash 0 again"):
        handle.hint([(0, HASHES), (1, [HASHES[0], HASHES[0]])])
    assert store.metrics()["tierstore_window_blocks"] == 0
    handle.hint([(5, HASHES)])
    with pytest.raises(RankError, match="rank 3 of session 0 comes after rank 5"):
        handle.hint([(3, HASHES)])
    store.close()
    with pytest.raises(ClosedError):
        handle.hint([(6, HASHES)])


async def test_the_same_for_asyncio() -> None:
    async with AsyncStore(StoreConfig.load(overrides=SMALL), disk=SimDisk()) as store:
        handle = await store.namespace(namespace())
        handle.hint([(0, HASHES)])
        assert (await handle.put(HASHES, rows(WAITING, NBYTES))).ok
        buffer = np.empty((6, NBYTES), np.uint8)
        assert (await handle.get(HASHES, buffer)).ok
        handle.hint(removed=[0])
        store.end_session(0)
        assert store.store.metrics()["tierstore_window_blocks"] == 0
