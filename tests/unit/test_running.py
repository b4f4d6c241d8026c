"""A client's transfers: who does their work, and who is told of their end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from tests.payload import TIMEOUT_SECONDS
from tierstore.service.client.running import Late, Running, Warnings
from tierstore.transfer.future import TransferResult
from tierstore.types import Outcome
from tierstore.worker import Failed, Task, Worker

RESULT = TransferResult(1, np.zeros(1, np.uint8), 8, 0.0)


class Work:
    """Says which thread does it, and ends when it is told to."""

    def __init__(self) -> None:
        self.thread = ""
        self.begun = threading.Event()
        self.gate = threading.Event()

    def __call__(self, _running: Running) -> TransferResult:
        self.thread = threading.current_thread().name
        self.begun.set()
        assert self.gate.wait(TIMEOUT_SECONDS)
        return RESULT


class Answered:
    """A call whose answer has come before anybody asks for it."""

    def result(self) -> None:
        """Has none of its own."""

    def cancel(self) -> None:
        """Comes too late."""

    def cancelled(self) -> bool:
        return False

    def add_done_callback(self, callback: Callable[[object], None]) -> None:
        callback(self)


class Recorded:
    """An event that the device has recorded, and that this thread would wait for in vain."""

    handle = 1

    def done(self) -> bool:
        return False

    def wait(self, timeout: float | None = None) -> bool:
        raise AssertionError("the device waits for it")


class Drowsy(Worker):
    """Its threads are free, and take up nothing while they sleep."""

    def __init__(self, name: str, *, capacity: int, threads: int = 1) -> None:
        self.awake = threading.Event()
        super().__init__(name, capacity=capacity, threads=threads)

    def _next(self) -> tuple[Task, Failed | None] | None:
        self.awake.wait()
        return super()._next()


@pytest.fixture
def drowsy() -> Iterator[Drowsy]:
    drowsy = Drowsy("client", capacity=4)
    yield drowsy
    drowsy.awake.set()
    drowsy.close()


@pytest.fixture
def worker(drowsy: Drowsy) -> Worker:
    drowsy.awake.set()
    return drowsy


@pytest.fixture
def waiter() -> Iterator[Worker]:
    waiter = Worker("waiter", capacity=4)
    yield waiter
    waiter.close()
    assert waiter.failure is None


def running() -> Running:
    return Running(1, 8, Outcome.MISS, Warnings())


def test_who_waits_does_the_work_that_no_thread_has_begun(drowsy: Drowsy, waiter: Worker) -> None:
    work = Work()
    work.gate.set()
    transfer = running().start(drowsy, work)
    assert waiter.ask(transfer.result).ok
    assert work.thread == "waiter"


def test_who_waits_for_work_that_a_thread_has_begun_does_not_do_it_again(worker: Worker, waiter: Worker) -> None:
    work, ends = Work(), list[TransferResult]()
    transfer = running().start(worker, work)
    assert work.begun.wait(TIMEOUT_SECONDS)
    waiter.submit(lambda: ends.append(transfer.result()))
    work.gate.set()
    waiter.close()
    assert work.thread == "client"
    assert [end.ok for end in ends] == [True]


def test_who_waits_for_so_long_and_no_longer_begins_nothing(drowsy: Drowsy, waiter: Worker) -> None:
    work = Work()
    transfer = running().start(drowsy, work)
    with pytest.raises(TimeoutError):
        waiter.ask(lambda: transfer.result(0.01))
    assert not work.begun.is_set()
    work.gate.set()


def test_the_main_thread_does_no_work_that_a_signal_handler_could_tear_apart(worker: Worker) -> None:
    work = Work()
    work.gate.set()
    assert running().start(worker, work).result().ok
    assert work.thread == "client"


def test_a_client_that_closes_waits_for_work_that_a_waiter_does(drowsy: Drowsy, waiter: Worker) -> None:
    work, ends = Work(), list[TransferResult]()
    transfer = running().start(drowsy, work)
    waiter.submit(lambda: ends.append(transfer.result()))
    assert work.begun.wait(TIMEOUT_SECONDS)
    drowsy.awake.set()
    assert not drowsy.close(0.05)
    work.gate.set()
    waiter.close()
    assert drowsy.close()


def test_who_waits_with_a_lock_that_a_callback_takes_does_not_wait_for_himself(drowsy: Drowsy, waiter: Worker) -> None:
    lock, called, work = threading.Lock(), threading.Event(), Work()
    work.gate.set()
    transfer = running().start(drowsy, work)

    def call_back(_transfer: object) -> None:
        with lock:
            called.set()

    def wait() -> bool:
        with lock:
            return transfer.result().ok

    transfer.add_done_callback(call_back)
    assert waiter.ask(wait)
    drowsy.awake.set()
    assert called.wait(TIMEOUT_SECONDS)


def test_what_comes_after_a_transfer_is_left_to_the_clients_thread(drowsy: Drowsy, waiter: Worker) -> None:
    done: list[str] = []

    def work(running: Running) -> TransferResult:
        running.afterwards(lambda: done.append(threading.current_thread().name))
        return RESULT

    transfer = running().start(drowsy, work)
    assert waiter.ask(transfer.result).ok
    drowsy.awake.set()
    drowsy.close()
    assert done == ["client"]


def test_who_waits_leaves_work_where_it_is_while_threads_have_other_work(worker: Worker, waiter: Worker) -> None:
    """So that no more is under way at a time than there are threads: each holds slots of the pool, or a buffer."""
    first, second = Work(), Work()
    running().start(worker, first)
    assert first.begun.wait(TIMEOUT_SECONDS)
    transfer, ends = running().start(worker, second), list[TransferResult]()
    waiter.submit(lambda: ends.append(transfer.result()))
    assert not second.begun.wait(0.05)
    first.gate.set()
    second.gate.set()
    waiter.close()
    assert second.thread == "client"
    assert [end.ok for end in ends] == [True]


def test_a_call_that_is_answered_at_once_calls_back_on_the_clients_thread(drowsy: Drowsy, waiter: Worker) -> None:
    called: list[str] = []
    transfer = running().start(drowsy, lambda running: running.follow(Answered(), lambda _call: RESULT))
    transfer.add_done_callback(lambda _transfer: called.append(threading.current_thread().name))
    assert waiter.ask(transfer.result).ok
    drowsy.awake.set()
    drowsy.close()
    assert called == ["client"]


def test_a_transfer_that_was_cancelled_before_it_began_is_not_begun_by_who_waits(
    drowsy: Drowsy, waiter: Worker
) -> None:
    work = Work()
    transfer = running().start(drowsy, work)
    transfer.cancel()
    assert waiter.ask(transfer.result).outcomes == [Outcome.CANCELLED]
    assert not work.begun.is_set()


def test_what_work_lets_escape_ends_the_transfer_of_who_does_it(
    drowsy: Drowsy, waiter: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[threading.ExceptHookArgs] = []
    monkeypatch.setattr(threading, "excepthook", told.append)

    def work(_running: Running) -> TransferResult:
        raise AssertionError("a fault of ours")

    transfer = running().start(drowsy, work)
    assert waiter.ask(transfer.result).outcomes == [Outcome.MISS]
    assert [str(one.exc_value) for one in told] == ["a fault of ours"]


def test_what_the_device_has_recorded_is_left_to_the_device() -> None:
    running().hold([Recorded()])


def test_a_call_whose_turn_comes_too_late_is_not_begun() -> None:
    with pytest.raises(Late, match="no thread was free for it within 0 s"):
        Running(1, 8, Outcome.MISS, Warnings(), seconds=0.0).begin()


def test_the_server_is_given_no_more_of_a_deadline_than_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that used all of it answered later than its client waited, and was taken for dead."""
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    call = Running(1, 8, Outcome.MISS, Warnings(), seconds=6.0)
    assert call.left_of(5.0) == 5.0
    now += 4.0
    assert call.left_of(5.0) == 1.0
    now += 4.0
    assert 0.0 < call.left_of(5.0) < 1e-6
    assert call.left_of(0.0) == 0.0, "none was given"
