"""What a client's copies wait for does not come: the call ends in its time all the same, and holds nothing."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pytest

from tests.e2e.service.test_withdrawals import nothing_lent
from tests.e2e.service.world import Serving, client_of, served
from tests.payload import TIMEOUT_SECONDS, block_hash, namespace, rows
from tierstore.service.client.handle import ClientHandle
from tierstore.service.sessions import SessionLimits
from tierstore.transfer.future import Transfer
from tierstore.types import Outcome

NBYTES = 8192
BLOCKS = [block_hash(number) for number in range(6)]
BYTES = rows(range(6), NBYTES)

WAYS = pytest.mark.parametrize("attach", [True, False], ids=["in place", "streamed"])


class Never:
    """An event of work that never ends, until the test lets it."""

    def __init__(self) -> None:
        self.awaited = threading.Event()
        self._come = threading.Event()

    def done(self) -> bool:
        return self._come.is_set()

    def wait(self, timeout: float | None = None) -> bool:
        self.awaited.set()
        return self._come.wait(timeout)

    def come(self) -> None:
        self._come.set()


Verb: TypeAlias = Callable[[ClientHandle, Never], Transfer]


def put(kv: ClientHandle, event: Never) -> Transfer:
    return kv.put(BLOCKS, BYTES, after=event)


def get(kv: ClientHandle, event: Never) -> Transfer:
    return kv.get(BLOCKS, np.zeros_like(BYTES), after=event)


VERBS = pytest.mark.parametrize(("verb", "failed"), [(put, Outcome.REJECTED), (get, Outcome.MISS)], ids=["put", "get"])


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[Serving]:
    with served(tmp_path, limits=SessionLimits(lease_seconds=100 * TIMEOUT_SECONDS)) as serving:
        yield serving


def prepare(serving: Serving, verb: Verb) -> None:
    if verb is not put:
        assert serving.store.namespace(namespace()).put(BLOCKS, BYTES).result(TIMEOUT_SECONDS).ok


@WAYS
@VERBS
def test_a_call_whose_event_never_comes_ends_in_its_time_and_gives_back_what_it_was_lent(
    serving: Serving, caplog: pytest.LogCaptureFixture, verb: Verb, failed: Outcome, *, attach: bool
) -> None:
    prepare(serving, verb)
    event = Never()
    with client_of(serving, attach=attach, transfer_seconds=1.0) as client, caplog.at_level(logging.WARNING):
        kv = client.namespace(namespace())
        assert verb(kv, event).result(TIMEOUT_SECONDS).outcomes == [failed] * 6
        assert event.awaited.is_set()
        serving.run(nothing_lent(*serving.server.sessions))
        assert serving.store.namespace(namespace()).lookup(BLOCKS) == (0 if verb is put else 6)
        assert kv.lookup(BLOCKS[:1]) == (0 if verb is put else 1), "the server is not to blame, and is asked on"
    assert "a call was given up: the event that its copies wait for has not come within 1 s" in caplog.text


@WAYS
@VERBS
def test_a_call_that_waits_for_its_event_can_be_withdrawn(
    serving: Serving, verb: Verb, failed: Outcome, *, attach: bool
) -> None:
    prepare(serving, verb)
    event = Never()
    with client_of(serving, attach=attach) as client:
        call = verb(client.namespace(namespace()), event)
        assert event.awaited.wait(TIMEOUT_SECONDS)
        call.cancel()
        assert call.result(TIMEOUT_SECONDS).outcomes == [Outcome.CANCELLED] * 6
        serving.run(nothing_lent(*serving.server.sessions))


@WAYS
@VERBS
def test_a_client_is_closed_while_a_call_waits_for_its_event(
    serving: Serving, verb: Verb, failed: Outcome, *, attach: bool
) -> None:
    prepare(serving, verb)
    event = Never()
    with client_of(serving, attach=attach, transfer_seconds=10 * TIMEOUT_SECONDS) as client:
        call = verb(client.namespace(namespace()), event)
        assert event.awaited.wait(TIMEOUT_SECONDS)
    assert call.result(0.0).outcomes == [Outcome.CANCELLED] * 6


@WAYS
@pytest.mark.parametrize("verb", [put, get])
def test_a_call_whose_event_comes_in_time_holds_nobody_else_up(serving: Serving, verb: Verb, *, attach: bool) -> None:
    """Not in the way of another one's copies, as it would be where a stream of the device waited for it."""
    assert serving.store.namespace(namespace()).put(BLOCKS, BYTES).result(TIMEOUT_SECONDS).ok
    event, others = Never(), [block_hash(number) for number in range(10, 14)]
    with client_of(serving, attach=attach) as client:
        kv = client.namespace(namespace())
        serving.store.namespace(namespace()).delete(BLOCKS if verb is put else others).result(TIMEOUT_SECONDS)
        call = verb(kv, event)
        assert event.awaited.wait(TIMEOUT_SECONDS)
        for _ in range(4):  # each of a client's streams has had its turn
            assert kv.put(others, rows(range(10, 14), NBYTES)).result(TIMEOUT_SECONDS).ok
            assert kv.get(others, np.zeros((4, NBYTES), np.uint8)).result(TIMEOUT_SECONDS).ok
            assert kv.delete(others).result(TIMEOUT_SECONDS).ok
        assert not call.done()
        event.come()
        assert call.result(TIMEOUT_SECONDS).ok


def test_a_get_that_outlasts_its_lease_claims_no_block_whose_slot_has_become_anothers(tmp_path: Path) -> None:
    """It copies the other block's bytes, and must tell so."""
    others, found, event = [block_hash(number) for number in range(20, 29)], np.zeros_like(BYTES), Never()
    with served(tmp_path, limits=SessionLimits(lease_seconds=0.2)) as serving, client_of(serving) as client:
        own = serving.store.namespace(namespace())
        assert own.put(BLOCKS, BYTES, durable=True).result(TIMEOUT_SECONDS).ok
        call = client.namespace(namespace()).get(BLOCKS, found, after=event)
        assert event.awaited.wait(TIMEOUT_SECONDS)
        serving.run(nothing_lent(*serving.server.sessions))
        assert own.delete(BLOCKS[3:]).result(TIMEOUT_SECONDS).ok
        assert own.put(others, rows(range(20, 29), NBYTES)).result(TIMEOUT_SECONDS).ok
        event.come()
        assert call.result(TIMEOUT_SECONDS).outcomes == [Outcome.OK] * 3 + [Outcome.MISS] * 3
    assert np.array_equal(found[:3], BYTES[:3])
    assert not (found[3:] == BYTES[3:]).all(axis=1).any(), "the slots have not been given to others"
