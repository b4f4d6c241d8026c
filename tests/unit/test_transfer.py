"""Transfers: they end once, tell everybody, and cancel through the engine."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from tests.processes import in_child
from tierstore.errors import ForkError
from tierstore.transfer.future import Transfer
from tierstore.types import Outcome
from tierstore.worker import Worker

CODES = np.array([Outcome.OK, Outcome.OK, Outcome.MISS], np.uint8)


def refuse(_transfer: Transfer) -> None:
    raise AssertionError("nothing is to be cancelled here")


def test_a_result_tells_the_prefix_the_outcomes_and_the_bytes() -> None:
    transfer = Transfer(100, refuse)
    assert not transfer.done()
    transfer.resolve(2, CODES)
    result = transfer.result()
    assert transfer.done()
    assert (result.leading, result.outcomes) == (2, [Outcome.OK, Outcome.OK, Outcome.MISS])
    assert (result.nbytes, result.ok) == (200, False)
    assert result.seconds >= 0


def test_a_result_is_ok_when_every_block_is() -> None:
    transfer = Transfer(1, refuse)
    transfer.resolve(2, CODES[:2])
    assert transfer.result().ok


def test_a_transfer_that_has_not_ended_says_so_and_goes_on() -> None:
    transfer = Transfer(1, refuse)
    with pytest.raises(TimeoutError, match="has not ended after 0 s"):
        transfer.result(0)
    transfer.resolve(2, CODES)
    assert transfer.result(0).leading == 2


def test_who_gave_up_waiting_leaves_nothing_behind() -> None:
    transfer = Transfer(1, refuse)
    for _ in range(3):
        with pytest.raises(TimeoutError):
            transfer.result(0)
    assert not transfer._sleepers


def test_every_waiter_is_woken() -> None:
    transfer, waiting = Transfer(1, refuse), threading.Semaphore(0)
    waiters = Worker("waiter", capacity=4, threads=4)

    def wait() -> None:
        waiting.release()
        assert transfer.result().leading == 2

    for _ in range(4):
        assert waiters.submit(wait)
    for _ in range(4):
        waiting.acquire()
    transfer.resolve(2, CODES)
    waiters.close()
    assert waiters.failure is None


def test_a_transfer_ends_once() -> None:
    transfer = Transfer(1, refuse)
    transfer.resolve(2, CODES)
    with pytest.raises(AssertionError, match="ends once"):
        transfer.resolve(2, CODES)


def test_callbacks_are_called_once_each_in_the_order_in_which_they_came() -> None:
    transfer = Transfer(1, refuse)
    called: list[str] = []
    transfer.add_done_callback(lambda _transfer: called.append("first"))
    transfer.add_done_callback(lambda _transfer: called.append("second"))
    assert called == []
    transfer.resolve(2, CODES)
    assert called == ["first", "second"]
    transfer.add_done_callback(lambda _transfer: called.append("late"))
    assert called == ["first", "second", "late"]


def test_a_callback_sees_the_result() -> None:
    transfer = Transfer(1, refuse)
    seen: list[int] = []
    transfer.add_done_callback(lambda ended: seen.append(ended.result(0).leading))
    transfer.resolve(2, CODES)
    assert seen == [2]


def test_a_callback_may_add_another() -> None:
    transfer = Transfer(1, refuse)
    called: list[str] = []
    transfer.add_done_callback(lambda ended: ended.add_done_callback(lambda _transfer: called.append("inner")))
    transfer.resolve(2, CODES)
    assert called == ["inner"]


def test_cancel_goes_to_the_engine_until_it_has_ended() -> None:
    cancelled: list[Transfer] = []
    transfer = Transfer(1, cancelled.append)
    transfer.cancel()
    transfer.resolve(2, CODES)
    transfer.cancel()
    assert cancelled == [transfer]


def test_an_abandoned_transfer_tells_every_block_cancelled() -> None:
    transfer = Transfer(4096, lambda _transfer: None, num_blocks=3)
    transfer.abandon()
    assert transfer.result(0).outcomes == [Outcome.CANCELLED] * 3


def test_a_transfer_under_way_is_cancelled_by_the_process_that_it_belongs_to_alone() -> None:
    """What withdraws it would write to descriptors that a fork has closed, or wait for threads that it has not."""
    transfer = Transfer(1, refuse)

    def cancel() -> None:
        with pytest.raises(ForkError):
            transfer.cancel()

    assert in_child(cancel) == 0
