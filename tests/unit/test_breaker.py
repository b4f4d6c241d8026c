"""The breaker of a client: who may call while the service does not answer."""

from __future__ import annotations

from tierstore.service.client.breaker import Breaker
from tierstore.testing.clock import SimClock


def opened(clock: SimClock) -> Breaker:
    """A breaker whose time has come."""
    breaker = Breaker(clock)
    breaker.failed()
    assert breaker.refuses
    clock.advance(1.0)
    return breaker


def test_asking_takes_nobodys_turn() -> None:
    breaker = opened(SimClock())
    assert [breaker.refuses, breaker.refuses, breaker.enters()] == [False, False, True]


def test_one_call_is_let_through_until_it_has_ended() -> None:
    clock = SimClock()
    breaker = opened(clock)
    assert [breaker.enters(), breaker.enters()] == [True, False]
    breaker.succeeded()
    assert [breaker.enters(), breaker.enters()] == [True, True]


def test_a_call_that_was_withdrawn_leaves_its_turn_to_the_next() -> None:
    breaker = opened(SimClock())
    assert breaker.enters()
    breaker.withdrawn()
    assert [breaker.enters(), breaker.enters()] == [True, False]


def test_a_withdrawn_call_opens_nothing() -> None:
    breaker = Breaker(SimClock())
    breaker.withdrawn()
    assert not breaker.refuses


def test_who_answers_again_is_asked_at_once_and_pauses_begin_anew() -> None:
    clock = SimClock()
    breaker = Breaker(clock)
    for _ in range(20):
        breaker.failed()
    breaker.revived()
    assert breaker.enters()
    breaker.failed()
    clock.advance(0.2)
    assert breaker.enters()
