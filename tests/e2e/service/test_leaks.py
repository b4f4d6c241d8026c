"""What a client leaves behind when it is closed: no thread, and no connection, whatever its calls came to."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.e2e.service.test_after import Never
from tests.e2e.service.world import Serving, client_of, served
from tests.payload import TIMEOUT_SECONDS, block_hash, namespace, rows
from tierstore.client import AsyncClient
from tierstore.service.client.handle import ClientHandle
from tierstore.types import Outcome

BLOCKS = [block_hash(number) for number in range(4)]
BYTES = rows(range(4), 8192)
ROUNDS = 10
SPARE = 5
"""What a connection that has just been closed may still hold; of one that leaks two descriptors stay each round."""


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[Serving]:
    with served(tmp_path) as serving:
        assert serving.store.namespace(namespace()).put(BLOCKS, BYTES).result(TIMEOUT_SECONDS).ok
        yield serving


def held() -> tuple[int, int]:
    """Descriptors, and threads: Python's and all others."""
    return len(list(Path("/proc/self/fd").iterdir())), threading.active_count() + len(
        list(Path("/proc/self/task").iterdir())
    )


def check_flat(work: Callable[[], None]) -> None:
    """Do it again and again: what is held must not grow."""
    work()
    before = held()
    for _ in range(ROUNDS):
        work()
    after = held()
    assert after[0] < before[0] + SPARE, f"descriptors: {before[0]}, then {after[0]}"
    assert after[1] < before[1] + SPARE, f"threads: {before[1]}, then {after[1]}"


def put(kv: ClientHandle) -> None:
    assert kv.put(BLOCKS, BYTES).result(TIMEOUT_SECONDS).ok


def get(kv: ClientHandle) -> None:
    assert kv.get(BLOCKS, np.zeros_like(BYTES)).result(TIMEOUT_SECONDS).ok


def miss(kv: ClientHandle) -> None:
    assert kv.get([block_hash(99)], np.zeros_like(BYTES[:1])).result(TIMEOUT_SECONDS).leading == 0


def withdraw(kv: ClientHandle) -> None:
    event = Never()
    transfer = kv.get(BLOCKS, np.zeros_like(BYTES), after=event)
    assert event.awaited.wait(TIMEOUT_SECONDS)
    transfer.cancel()
    assert transfer.result(TIMEOUT_SECONDS).outcomes == [Outcome.CANCELLED] * 4


@pytest.mark.parametrize("attach", [True, False], ids=["in place", "streamed"])
@pytest.mark.parametrize("call", [put, get, miss, withdraw])
def test_a_client_that_is_closed_leaves_nothing(
    serving: Serving, call: Callable[[ClientHandle], None], *, attach: bool
) -> None:
    def live() -> None:
        with client_of(serving, attach=attach) as client:
            call(client.namespace(namespace()))

    check_flat(live)


async def test_an_async_client_that_is_closed_leaves_nothing(serving: Serving) -> None:
    async def live() -> None:
        async with AsyncClient(serving.address, attach=False, connect_seconds=TIMEOUT_SECONDS) as client:
            kv = await client.namespace(namespace())
            assert (await kv.get(BLOCKS, np.zeros_like(BYTES))).ok

    await live()
    before = held()
    for _ in range(ROUNDS):
        await live()
    assert held()[0] < before[0] + SPARE
    assert held()[1] < before[1] + SPARE


def test_a_service_and_its_store_that_are_closed_leave_nothing(tmp_path: Path) -> None:
    def live() -> None:
        with served(tmp_path) as serving, client_of(serving, attach=False) as client:
            put(client.namespace(namespace()))

    check_flat(live)
