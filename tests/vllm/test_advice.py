"""What a scheduler learns of a prompt's blocks: at once from a store in its process, after a while from another one."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import pytest

from tests.payload import TIMEOUT_SECONDS, block_hash, namespace, rows, small_store
from tierstore.connectors.vllm.advice import NOTHING, Found, Here, Kept, There, fit
from tierstore.store import NamespaceHandle, Store
from tierstore.testing.sim_disk import SimDisk

NBYTES = 8192
HASHES = [block_hash(number) for number in range(6)]


@pytest.fixture
def store() -> Iterator[Store]:
    with small_store(SimDisk()) as store:
        yield store


@pytest.fixture
def handle(store: Store) -> NamespaceHandle:
    """Four of six blocks are kept, two of them in host memory."""
    handle = store.namespace(namespace())
    for numbers in (range(4), range(6, 38)):
        assert handle.put([block_hash(number) for number in numbers], rows(numbers, NBYTES), durable=True).result().ok
    assert handle.get(HASHES[:2], np.empty((2, NBYTES), np.uint8)).result().ok
    return handle


def kept(*handles: NamespaceHandle, window: int | None = None) -> list[Kept]:
    """Shards of one group of layers."""
    return [Kept(handle, 0, window, number) for number, handle in enumerate(handles)]


def answered(advisor: There, first: int) -> Found:
    """Ask until there is an answer, as a scheduler does in every step."""
    told = threading.Event()
    while (found := advisor.find("a", HASHES, first)) is None:
        advisor.tell(lambda _handle: told.set())  # behind the question, on the same thread
        assert told.wait(TIMEOUT_SECONDS)
        told.clear()
    return found


def test_a_store_in_the_process_answers_at_once(handle: NamespaceHandle) -> None:
    advisor = Here(kept(handle))
    assert advisor.find("a", HASHES, 0) == Found(head=0, leading=4, stop=4, in_host=2)
    assert advisor.find("a", HASHES, 1) == Found(head=1, leading=3, stop=3, in_host=1)


def test_a_service_is_asked_when_a_request_comes_and_answers_the_same(handle: NamespaceHandle) -> None:
    advisor = There(kept(handle))
    advisor.begin("a", HASHES)
    assert answered(advisor, 0) == Found(head=0, leading=4, stop=4, in_host=2) == advisor.last("a")
    assert answered(advisor, 1) == Found(head=1, leading=3, stop=3, in_host=1), "asked anew behind another head"
    advisor.forget("a")
    assert advisor.last("a") == NOTHING
    advisor.close()


def test_a_block_counts_where_every_shard_has_it(store: Store, handle: NamespaceHandle) -> None:
    other = store.namespace(namespace(model="another shard"))
    assert other.put(HASHES[:1], rows(range(1), NBYTES)).result().ok
    assert Here(kept(handle, other)).find("a", HASHES, 0) == Found(head=0, leading=1, stop=1, in_host=1)


def test_a_group_with_a_window_needs_its_last_blocks_alone(store: Store, handle: NamespaceHandle) -> None:
    other = store.namespace(namespace(model="its windowed layers"))
    assert other.put(HASHES[1:3], rows(range(1, 3), NBYTES)).result().ok
    here = Here([*kept(handle), *kept(other, window=2)])
    assert here.find("a", HASHES, 0) == Found(head=0, leading=3, stop=3, in_host=0)


def test_a_prefix_is_as_long_as_every_window_before_its_end_is_whole() -> None:
    chance = np.random.default_rng(3)
    for _round in range(300):
        windows = [(int(chance.integers(1, 6)), chance.random(20) < 0.8) for _window in range(3)]
        stop = int(chance.integers(0, 21))
        right = [
            end for end in range(stop + 1) if all(there[max(0, end - length) : end].all() for length, there in windows)
        ]
        assert fit(windows, stop) == max(right)


def test_every_group_and_shard_has_a_queue_of_its_own(store: Store, handle: NamespaceHandle) -> None:
    """One that was told of a request before the others would else be the only one that keeps its blocks."""
    other = store.namespace(namespace(model="another shard"))
    here = Here(kept(handle, other))
    told: list[int] = []

    def tell(one: Kept) -> None:
        one.handle.hint(added=[(0, HASHES)], session_id=one.queue)
        told.append(one.queue)

    here.tell(tell)
    assert told == [0, 1]


def test_a_store_that_is_closed_holds_nothing(store: Store, handle: NamespaceHandle) -> None:
    here, there = Here(kept(handle)), There(kept(handle))
    store.close()
    assert here.find("a", HASHES, 0) == NOTHING
    assert answered(there, 0) == NOTHING
    there.close()
