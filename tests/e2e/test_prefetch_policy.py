"""How long a request waits for its prefetch: with every policy, over a disk that the test holds back."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from tests.payload import TIMEOUT_SECONDS, block_hash, get, namespace, rows, small_store
from tierstore.config import SETTINGS
from tierstore.errors import DiskError
from tierstore.policy.prefetching import PREFETCH_POLICIES, PrefetchPolicy
from tierstore.store import NamespaceHandle, Store
from tierstore.testing.sim_disk import SimDisk

NBYTES = 8192
WAITING, OTHERS = range(6), range(6, 38)
HASHES = [block_hash(number) for number in WAITING]


class HeldDisk(SimDisk):
    """A disk whose reads wait for the test."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.gate.set()

    def failure(self, operation: str, path: str) -> DiskError | None:
        if operation == "read":
            assert self.gate.wait(TIMEOUT_SECONDS)
        return super().failure(operation, path)


@pytest.fixture
def disk() -> Iterator[HeldDisk]:
    disk = HeldDisk()
    yield disk
    disk.gate.set()


def cold_handle(store: Store) -> NamespaceHandle:
    """A namespace with blocks that lie on SSD alone."""
    handle = store.namespace(namespace())
    for numbers in (WAITING, OTHERS):
        hashes = [block_hash(number) for number in numbers]
        assert handle.put(hashes, rows(numbers, NBYTES), durable=True).result().ok
    return handle


def test_best_effort_starts_at_once_and_takes_what_has_come(disk: HeldDisk) -> None:
    with small_store(disk) as store:
        handle = cold_handle(store)
        disk.gate.clear()
        prefetch = handle.prefetch(HASHES)
        assert handle.may_start(prefetch)
        assert prefetch.result(TIMEOUT_SECONDS).leading == 0
        disk.gate.set()
        assert get(handle, HASHES, rows(WAITING, NBYTES)).ok


def test_wait_complete_starts_once_all_has_come(disk: HeldDisk) -> None:
    with small_store(disk, prefetch_policy="wait-complete") as store:
        handle = cold_handle(store)
        disk.gate.clear()
        prefetch = handle.prefetch(HASHES)
        assert not handle.may_start(prefetch)
        disk.gate.set()
        assert prefetch.result(TIMEOUT_SECONDS).ok
        assert handle.may_start(prefetch)


def test_timeout_starts_after_a_time_that_grows_with_the_request(disk: HeldDisk) -> None:
    settings = {"prefetch_timeout_seconds": 0, "prefetch_timeout_seconds_per_1k_tokens": 1}
    with small_store(disk, prefetch_policy="timeout", **settings) as store:
        handle = cold_handle(store)
        disk.gate.clear()
        prefetch = handle.prefetch(HASHES)
        result = prefetch.result(TIMEOUT_SECONDS)
        assert handle.may_start(prefetch)
        assert result.leading == 0
        assert result.seconds >= 0.09, "six blocks are 96 tokens"
        later = handle.prefetch(HASHES, deadline_seconds=TIMEOUT_SECONDS)
        assert not handle.may_start(later)
        disk.gate.set()
        assert later.result(TIMEOUT_SECONDS).ok


def test_the_policies_are_those_that_the_setting_takes() -> None:
    (setting,) = [setting for setting in SETTINGS if setting.key == "prefetch.policy"]
    for name in PREFETCH_POLICIES:
        assert setting.parse(name, "a test") == name
        assert name in setting.kind.accepts
    assert PrefetchPolicy("timeout", 2.0, 0.5).within(3000) == 3.5
    assert PrefetchPolicy("wait-complete").within(3000) is None
