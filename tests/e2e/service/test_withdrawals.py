"""Who takes back what he has asked for, before he has heard that he has it: it is free at once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import numpy as np
import pytest

from tests.e2e.service.stranger import stranger
from tests.e2e.service.test_borrowers import attach
from tests.e2e.service.world import Serving, client_of, served
from tests.payload import TIMEOUT_SECONDS, block_hash, namespace, rows
from tierstore.service._pb import tierstore_pb2 as pb
from tierstore.service.client.copies import Copies
from tierstore.service.lending import Lending
from tierstore.service.sessions import Session, SessionLimits
from tierstore.service.wire import CHOSEN_FIRST
from tierstore.types import Outcome

if TYPE_CHECKING:
    from tierstore.types import UInt32Array

BLOCKS = [block_hash(number) for number in range(6)]
HASHES = b"".join(BLOCKS)
BYTES = rows(range(6), 8192)

FOREVER = SessionLimits(lease_seconds=100 * TIMEOUT_SECONDS)


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[Serving]:
    with served(tmp_path, limits=FOREVER) as serving:
        yield serving


@pytest.fixture
def answered(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Answers of Acquire and Reserve are made, and then are on their way for ever; set once one is."""
    made = threading.Event()

    def late(call: Callable[..., Awaitable[object]]) -> Callable[..., Awaitable[object]]:
        async def answer(*given: Any) -> object:
            response = await call(*given)
            made.set()
            await asyncio.Event().wait()
            return response

        return answer

    monkeypatch.setattr(Lending, "acquire", late(Lending.acquire))
    monkeypatch.setattr(Lending, "reserve", late(Lending.reserve))
    return made


async def nothing_lent(session: Session) -> None:
    while len(session.leases) or len(session.reservations):  # noqa: ASYNC110 - there is no event for what only tests look at
        await asyncio.sleep(0.01)


def test_a_get_withdrawn_while_its_lease_is_on_the_way_frees_it_at_once(
    answered: threading.Event, serving: Serving
) -> None:
    with client_of(serving) as client:
        assert serving.store.namespace(namespace()).put(BLOCKS, BYTES).result(TIMEOUT_SECONDS).ok
        get = client.namespace(namespace()).get(BLOCKS, np.zeros_like(BYTES))
        assert answered.wait(TIMEOUT_SECONDS)
        get.cancel()
        assert get.result(TIMEOUT_SECONDS).outcomes == [Outcome.CANCELLED] * 6
        serving.run(nothing_lent(*serving.server.sessions))


def test_a_put_withdrawn_while_its_slots_are_on_the_way_frees_them_at_once(
    answered: threading.Event, serving: Serving
) -> None:
    with client_of(serving) as client:
        put = client.namespace(namespace()).put(BLOCKS, BYTES)
        assert answered.wait(TIMEOUT_SECONDS)
        put.cancel()
        assert put.result(TIMEOUT_SECONDS).outcomes == [Outcome.CANCELLED] * 6
        serving.run(nothing_lent(*serving.server.sessions))
        assert serving.store.namespace(namespace()).put(BLOCKS, BYTES).result(TIMEOUT_SECONDS).ok


def test_a_put_withdrawn_while_it_copies_frees_its_slots_at_once(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill, filled, withdrawn = Copies.fill, threading.Event(), threading.Event()

    def fill_late(copies: Copies, *given: Any) -> UInt32Array:
        checksums = fill(copies, *given)
        filled.set()
        assert withdrawn.wait(TIMEOUT_SECONDS)
        return checksums

    monkeypatch.setattr(Copies, "fill", fill_late)
    with client_of(serving) as client:
        put = client.namespace(namespace()).put(BLOCKS, BYTES)
        assert filled.wait(TIMEOUT_SECONDS)
        put.cancel()
        withdrawn.set()
        assert put.result(TIMEOUT_SECONDS).outcomes == [Outcome.CANCELLED] * 6
        serving.run(nothing_lent(*serving.server.sessions))
        assert serving.store.namespace(namespace()).put(BLOCKS, BYTES).result(TIMEOUT_SECONDS).ok


def refused(call: Callable[[], object]) -> grpc.StatusCode:
    with pytest.raises(grpc.RpcError) as failed:
        call()
    code: grpc.StatusCode = failed.value.code()
    return code


def test_what_was_given_back_before_its_call_came_is_not_lent(serving: Serving) -> None:
    assert serving.store.namespace(namespace()).put(BLOCKS[:3], BYTES[:3]).result(TIMEOUT_SECONDS).ok
    with stranger(serving.address) as visitor, closing(attach(visitor)):
        scope, number = visitor.scope(), CHOSEN_FIRST + 7
        visitor.call(pb.ReleaseRequest(scope=visitor.session, lease_ids=[number]))
        visitor.call(pb.AbandonRequest(scope=visitor.session, reservation_id=number))
        acquire = pb.AcquireRequest(scope=scope, hashes=HASHES, lease_id=number)
        reserve = pb.ReserveRequest(scope=scope, hashes=HASHES, reservation_id=number)
        assert refused(lambda: visitor.call(acquire)) is grpc.StatusCode.NOT_FOUND
        assert refused(lambda: visitor.call(reserve)) is grpc.StatusCode.NOT_FOUND
        assert serving.store.metrics()["tierstore_host_lent_bytes"] == 0


@pytest.mark.parametrize("number", [1, CHOSEN_FIRST - 1, CHOSEN_FIRST], ids=["low", "last low", "taken"])
def test_a_number_that_is_the_servers_or_taken_cannot_be_chosen(serving: Serving, number: int) -> None:
    assert serving.store.namespace(namespace()).put(BLOCKS, BYTES).result(TIMEOUT_SECONDS).ok
    with stranger(serving.address) as visitor, closing(attach(visitor)):
        scope = visitor.scope()
        taken = visitor.call(pb.AcquireRequest(scope=scope, hashes=HASHES, lease_id=CHOSEN_FIRST))
        assert taken.lease_id == CHOSEN_FIRST  # type: ignore[attr-defined]
        again = pb.AcquireRequest(scope=scope, hashes=HASHES, lease_id=number)
        assert refused(lambda: visitor.call(again)) is grpc.StatusCode.INVALID_ARGUMENT
