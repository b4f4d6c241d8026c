"""The timer: it calls in time, again as often as it is told, and ends with its owner."""

from __future__ import annotations

import math
import queue
import threading
from collections.abc import Iterator

import pytest

from tierstore.testing.clock import SimClock
from tierstore.transfer.timer import Timer

NAME = "deadlines of a test"
"""Of its thread: stores of other tests may have timers too."""

PATIENCE_SECONDS = 10
"""How long a test waits for what must happen; it passes as soon as it does."""


class Expiry:
    """What the engine is to a timer: notes each call and answers what the test has laid out."""

    def __init__(self) -> None:
        self.calls: queue.SimpleQueue[float] = queue.SimpleQueue()
        self.following: list[float] = []
        self.clock = SimClock()

    def __call__(self) -> float:
        following = self.following.pop(0) if self.following else math.inf
        self.calls.put(following)
        return following

    def wait(self) -> None:
        self.calls.get(timeout=PATIENCE_SECONDS)


@pytest.fixture
def expiry() -> Expiry:
    return Expiry()


@pytest.fixture
def timer(expiry: Expiry) -> Iterator[Timer]:
    timer = Timer(expiry.clock, expiry, name=NAME)
    yield timer
    timer.close()


def running() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == NAME]


def test_a_timer_that_is_never_armed_has_no_thread(timer: Timer) -> None:
    timer.arm(math.inf)
    assert not running()


def test_calls_when_the_time_has_come(timer: Timer, expiry: Expiry) -> None:
    timer.arm(expiry.clock.now)
    expiry.wait()


def test_waits_by_the_clock_that_it_was_given(timer: Timer, expiry: Expiry) -> None:
    timer.arm(expiry.clock.now + 3600)
    assert expiry.calls.empty()
    expiry.clock.advance(3600)
    timer.arm(expiry.clock.now)
    expiry.wait()
    assert expiry.calls.empty()


def test_a_sooner_deadline_wakes_a_timer_that_waits_for_a_later_one(timer: Timer, expiry: Expiry) -> None:
    timer.arm(expiry.clock.now + 1e12)
    timer.arm(expiry.clock.now - 1)
    expiry.wait()


def test_calls_again_for_the_deadline_that_follows(timer: Timer, expiry: Expiry) -> None:
    expiry.following = [expiry.clock.now, expiry.clock.now - 1]
    timer.arm(expiry.clock.now)
    for _ in range(3):
        expiry.wait()


def test_can_be_armed_again_when_nothing_followed(timer: Timer, expiry: Expiry) -> None:
    for _ in range(3):
        timer.arm(expiry.clock.now)
        expiry.wait()


def test_close_ends_a_timer_that_waits(expiry: Expiry) -> None:
    timer = Timer(expiry.clock, expiry, name=NAME)
    timer.arm(expiry.clock.now + 1e12)
    assert running()
    timer.close()
    timer.close()
    assert not running()
    assert expiry.calls.empty()


def test_a_closed_timer_starts_no_thread(expiry: Expiry) -> None:
    timer = Timer(expiry.clock, expiry, name=NAME)
    timer.close()
    timer.arm(expiry.clock.now)
    assert not running()
