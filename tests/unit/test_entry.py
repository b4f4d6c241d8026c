"""The states of a block in a tier: which changes there are, and that there are no others."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tierstore.control.entry import Places, State

if TYPE_CHECKING:
    from tierstore.types import Int64Array

ONE = np.array([1], np.int64)
STATES = (State.ABSENT, State.FILLING, State.READY, State.GONE)
ABSENT, FILLING, READY, GONE = STATES

Event = Callable[[Places, "Int64Array"], object]


def places(state: int, pins: int = 0) -> Places:
    """Three entries; the second one in this state."""
    made = Places(3)
    made.state[1], made.pins[1] = state, pins
    return made


def now(made: Places) -> tuple[int, int]:
    assert not made.state[[0, 2]].any(), "another entry has changed"
    assert not made.pins[[0, 2]].any(), "another entry has changed"
    return int(made.state[1]), int(made.pins[1])


@pytest.mark.parametrize(
    ("before", "event", "after"),
    [
        ((ABSENT, 0), Places.reserve, (FILLING, 0)),
        ((FILLING, 0), Places.filled, (READY, 0)),
        ((FILLING, 0), Places.failed, (ABSENT, 0)),
        ((FILLING, 0), Places.discard, (GONE, 1)),
        ((READY, 0), Places.pin, (READY, 1)),
        ((READY, 2), Places.pin, (READY, 3)),
        ((READY, 2), Places.unpin, (READY, 1)),
        ((READY, 1), Places.unpin, (READY, 0)),
        ((READY, 0), Places.evict, (ABSENT, 0)),
        ((READY, 0), Places.discard, (ABSENT, 0)),
        ((READY, 2), Places.discard, (GONE, 2)),
        ((GONE, 2), Places.unpin, (GONE, 1)),
        ((GONE, 1), Places.unpin, (ABSENT, 0)),
        ((ABSENT, 0), Places.discard, (ABSENT, 0)),
    ],
)
def test_an_event_leads_to_the_next_state(before: tuple[int, int], event: Event, after: tuple[int, int]) -> None:
    made = places(*before)
    event(made, ONE)
    assert now(made) == after


@pytest.mark.parametrize(
    ("event", "state", "pins"),
    [
        *((Places.reserve, state, 0) for state in (FILLING, READY, GONE)),
        *((Places.filled, state, 0) for state in (ABSENT, READY, GONE)),
        *((Places.failed, state, 0) for state in (ABSENT, READY, GONE)),
        *((Places.pin, state, 0) for state in (ABSENT, FILLING, GONE)),
        *((Places.unpin, state, 0) for state in STATES),
        *((Places.evict, state, 0) for state in (ABSENT, FILLING, GONE)),
        (Places.evict, READY, 1),
        (Places.discard, GONE, 1),
    ],
)
def test_there_is_no_other_way(event: Event, state: int, pins: int) -> None:
    with pytest.raises(AssertionError, match=r"\[1\]"):
        event(places(state, pins), ONE)


def test_a_refusal_names_the_event_and_the_state() -> None:
    with pytest.raises(AssertionError, match=r"pin needs READY: entries \[1\] are \['FILLING'\]"):
        places(FILLING).pin(ONE)


def test_unpin_says_what_is_loose_and_what_is_free() -> None:
    made = Places(4)
    made.state[:] = [READY, READY, GONE, GONE]
    made.pins[:] = [1, 2, 1, 2]
    loose, gone = made.unpin(np.arange(4, dtype=np.int64))
    assert (loose.tolist(), gone.tolist()) == ([0], [2])


def test_discard_says_what_is_free_and_what_a_copy_still_holds() -> None:
    made = Places(4)
    made.state[:] = [ABSENT, FILLING, READY, READY]
    made.pins[3] = 1
    freed, gone = made.discard(np.arange(4, dtype=np.int64))
    assert (freed.tolist(), sorted(gone.tolist())) == ([2], [1, 3])


def test_counts_entries_in_a_state() -> None:
    made = places(READY)
    assert [made.count(state) for state in STATES] == [2, 0, 1, 0]
