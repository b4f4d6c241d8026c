"""When a lease that is over is given back: behind the end of its get, and before slots are asked for again."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.e2e.service.world import Serving, client_of, served
from tests.payload import TIMEOUT_SECONDS, block_hash, namespace, rows
from tierstore.service.client.attached import AttachedPool
from tierstore.service.client.running import Running
from tierstore.service.client.session import Request

BLOCKS = [block_hash(number) for number in range(6)]
BYTES = rows(range(6), 8192)


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[Serving]:
    with served(tmp_path) as serving:
        yield serving


def test_nobody_waits_for_the_release_behind_his_get(serving: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    gate, tell = threading.Event(), AttachedPool.tell

    def tell_late(pool: AttachedPool, request: Request) -> bool:
        assert gate.wait(TIMEOUT_SECONDS), "the get waits for its release"
        return tell(pool, request)

    with client_of(serving) as client:
        handle = client.namespace(namespace())
        assert handle.put(BLOCKS, BYTES).result(TIMEOUT_SECONDS).ok
        monkeypatch.setattr(AttachedPool, "tell", tell_late)
        found = np.zeros_like(BYTES)
        assert handle.get(BLOCKS, found).result(TIMEOUT_SECONDS).ok
        assert np.array_equal(found, BYTES)
        assert serving.store.metrics()["tierstore_host_lent_bytes"] == BYTES.nbytes
        gate.set()


def test_what_is_asked_for_behind_a_get_finds_its_lease_given_back(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 32 slots half may be lent: two gets of 10 blocks at a time would not both be whole."""
    monkeypatch.setattr(Running, "afterwards", lambda _running, _task: None)  # that late
    halves = [range(10), range(10, 20)]
    with client_of(serving) as client:
        handle = client.namespace(namespace())
        for half in halves:
            assert handle.put([block_hash(n) for n in half], rows(half, 8192)).result(TIMEOUT_SECONDS).ok
        found = np.zeros_like(rows(halves[0], 8192))
        for half in halves * 2:
            assert handle.get([block_hash(n) for n in half], found).result(TIMEOUT_SECONDS).ok
