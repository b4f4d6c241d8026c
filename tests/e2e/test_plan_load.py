"""A real store is asked what is worth loading, by an engine that is slow, fast or says nothing."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from tests.payload import SMALL, block_hash, namespace, rows, small_store
from tierstore.aio import AsyncStore
from tierstore.config import StoreConfig
from tierstore.errors import ClosedError, IdentityError
from tierstore.store import NamespaceHandle, Store
from tierstore.testing.sim_disk import SimDisk

NBYTES = 8192
TOKENS = 16
NUMBERS = range(6)
HASHES = [block_hash(number) for number in NUMBERS]


@pytest.fixture
def store() -> Iterator[Store]:
    with small_store(SimDisk()) as store:
        yield store
        store.check()


@pytest.fixture
def handle(store: Store) -> NamespaceHandle:
    """A namespace with six blocks on SSD alone."""
    handle = store.namespace(namespace())
    for numbers in (NUMBERS, range(6, 38)):
        assert handle.put([block_hash(number) for number in numbers], rows(numbers, NBYTES), durable=True).result().ok
    return handle


def test_an_engine_that_says_nothing_is_advised_to_load_all(handle: NamespaceHandle) -> None:
    advice = handle.plan_load([*HASHES, block_hash("unknown")])
    assert (advice.leading, advice.first, advice.stop, advice.recompute_seconds) == (6, 0, 6, None)
    assert advice.load_seconds > 0
    assert handle.plan_load(HASHES, deadline_seconds=0).stop == 0
    assert handle.plan_load(HASHES, computed_tokens=2 * TOKENS).first == 2


def test_a_slow_engine_loads_and_a_fast_one_computes(handle: NamespaceHandle) -> None:
    handle.report_prefill(prefix_tokens=0, num_tokens=6 * TOKENS, seconds=3600.0)
    advice = handle.plan_load(HASHES)
    assert (advice.first, advice.stop) == (0, 6)
    assert advice.recompute_seconds == pytest.approx(3600.0)
    for _report in range(100):
        handle.report_prefill(prefix_tokens=0, num_tokens=6 * TOKENS, seconds=1e-12)
    assert handle.plan_load(HASHES).stop == 0


def test_what_lies_in_host_memory_already_is_told_apart(handle: NamespaceHandle) -> None:
    assert handle.plan_load(HASHES).in_host == 0
    assert handle.get(HASHES[:2], np.empty((2, NBYTES), np.uint8)).result().ok
    advice = handle.plan_load(HASHES, computed_tokens=TOKENS)
    assert (advice.first, advice.in_host, advice.stop) == (1, 2, 6)


def test_what_computing_costs_is_known_of_one_namespace_alone(store: Store, handle: NamespaceHandle) -> None:
    handle.report_prefill(prefix_tokens=0, num_tokens=TOKENS, seconds=1.0)
    other = store.namespace(namespace(model="other"))
    assert handle.plan_load(HASHES).recompute_seconds is not None
    assert other.plan_load(HASHES).recompute_seconds is None


def test_the_settings_may_say_what_computing_costs() -> None:
    with small_store(SimDisk(), prefill_tokens_per_second=1000) as store:
        handle = store.namespace(namespace())
        assert handle.put(HASHES, rows(NUMBERS, NBYTES)).result().ok
        assert handle.plan_load(HASHES).recompute_seconds == pytest.approx(6 * TOKENS / 1000)


def test_mistakes_are_named_before_anything_happens(store: Store, handle: NamespaceHandle) -> None:
    with pytest.raises(IdentityError):
        handle.plan_load([HASHES[0], HASHES[0]])
    store.close()
    with pytest.raises(ClosedError):
        handle.plan_load(HASHES)


async def test_the_same_for_asyncio() -> None:
    async with AsyncStore(StoreConfig.load(overrides=SMALL), disk=SimDisk()) as store:
        handle = await store.namespace(namespace())
        assert (await handle.put(HASHES, rows(NUMBERS, NBYTES))).ok
        handle.report_prefill(prefix_tokens=0, num_tokens=6 * TOKENS, seconds=3600.0)
        assert handle.plan_load(HASHES).stop == 6
        prefetch = handle.handle.prefetch(HASHES)
        assert handle.may_start(prefetch)
