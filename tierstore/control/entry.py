"""The states of a block in a tier; no other module changes one. Pure; called by the directory's users.

    ABSENT  --reserve-->  FILLING            a slot or a write is promised; look-ups say PENDING
    FILLING --filled-->   READY, pins 0      visible
    FILLING --failed-->   ABSENT
    FILLING --discard-->  GONE, pins 1       the copy in flight is its one pin; its result is dropped
    READY   --pin, unpin--> READY, pins ±1
    READY, pins 0 --evict, discard--> ABSENT
    READY, pins>0 --discard-->        GONE   detached from its key; freed at the last unpin
    GONE    --unpin to pins 0-->      ABSENT

Every transition takes a batch of distinct entries and asserts that each of them may make it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tierstore.types import Int64Array

__all__ = ["Places", "State"]


class State:
    """The state of one block in one tier. Plain ints: naming an enum member costs more than most steps here."""

    ABSENT: Final = 0
    FILLING: Final = 1
    READY: Final = 2
    GONE: Final = 3
    NAMES: Final = ("ABSENT", "FILLING", "READY", "GONE")


class Places:
    """State and pins of every entry in one tier: two columns."""

    def __init__(self, capacity: int) -> None:
        self.state = np.zeros(capacity, np.uint8)
        self.pins = np.zeros(capacity, np.int32)

    def count(self, state: int) -> int:
        """Entries in a state. Reads the whole column; for checks and gauges."""
        return int(np.count_nonzero(self.state == state))

    def loose(self, entries: Int64Array) -> NDArray[np.bool_]:
        """Which entries are READY and unpinned: these may be evicted, as policy and window order them."""
        loose: NDArray[np.bool_] = (self.state[entries] == State.READY) & (self.pins[entries] == 0)
        return loose

    def _expect(self, entries: Int64Array, state: int, event: str) -> None:
        states = self.state[entries]
        assert np.count_nonzero(states == state) == len(entries), (
            f"{event} needs {State.NAMES[state]}: entries {entries[states != state].tolist()[:8]} are "
            f"{[State.NAMES[other] for other in states[states != state].tolist()[:8]]}"
        )

    def reserve(self, entries: Int64Array) -> None:
        """ABSENT → FILLING."""
        self._expect(entries, State.ABSENT, "reserve")
        self.state[entries] = State.FILLING

    def filled(self, entries: Int64Array) -> None:
        """FILLING → READY, unpinned."""
        self._expect(entries, State.FILLING, "filled")
        self.state[entries] = State.READY

    def failed(self, entries: Int64Array) -> None:
        """FILLING → ABSENT."""
        self._expect(entries, State.FILLING, "failed")
        self.state[entries] = State.ABSENT

    def pin(self, entries: Int64Array) -> None:
        """READY → READY with one pin more."""
        self._expect(entries, State.READY, "pin")
        self.pins[entries] += 1

    def unpin(self, entries: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Take one pin off READY or GONE entries.

        Returns:
            (READY entries that are now unpinned, GONE entries that are now ABSENT).
        """
        pins = self.pins[entries] - 1
        assert not np.count_nonzero(pins < 0), f"unpin of unpinned entries {entries[pins < 0].tolist()[:8]}"
        self.pins[entries] = pins
        loose = entries if not np.count_nonzero(pins) else entries[pins == 0]
        if not len(loose):
            return loose, loose
        states = self.state[loose]
        if np.count_nonzero(states == State.READY) == len(loose):
            return loose, loose[:0]
        gone = loose[states == State.GONE]
        self.state[gone] = State.ABSENT
        return loose[states == State.READY], gone

    def evict(self, entries: Int64Array) -> None:
        """READY without pins → ABSENT."""
        self._expect(entries, State.READY, "evict")
        assert not np.count_nonzero(self.pins[entries]), (
            f"evict of pinned entries {entries[self.pins[entries] > 0].tolist()[:8]}"
        )
        self.state[entries] = State.ABSENT

    def discard(self, entries: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Drop entries in any state but GONE; ABSENT ones are skipped.

        Returns:
            (entries that were READY without pins and are now ABSENT, entries that are now GONE).
        """
        states = self.state[entries]
        assert (states != State.GONE).all(), (
            f"discard of entries already gone {entries[states == State.GONE].tolist()[:8]}"
        )
        filling = entries[states == State.FILLING]
        self.pins[filling] = 1
        ready = entries[states == State.READY]
        pinned = self.pins[ready] > 0
        gone = np.concatenate([filling, ready[pinned]])
        freed = ready[~pinned]
        self.state[gone] = State.GONE
        self.state[freed] = State.ABSENT
        return freed, gone
