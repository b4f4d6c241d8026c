"""Building blocks of policies with several queues: linked queues of entries, states of entries, and ghosts.

Used by the policies of this package alone. Queues and states are columns over entries, so that a policy takes a
few bytes an entry. Single steps go through memoryviews, which are several times faster than indexing an array.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from tierstore.types import Int64Array, UInt8Array

__all__ = ["NOBODY", "Ghosts", "Holding", "Queues"]

NOBODY = -1
"""The entry where there is none."""

_ABSENT, _SHIELDED, _PASSED, _EVICTABLE = 0, 1, 2, 3
"""PASSED is shielded, and has been met by a search for victims, which need not meet it again."""


class Holding:
    """Which entries a policy holds, and which of them are evictable.

    Attributes:
        num_held: Entries held.
        num_evictable: Held entries that are not shielded.
        state_of: The state of each entry; read directly where a call for each entry would dominate the cost.
    """

    def __init__(self, capacity: int) -> None:
        assert capacity >= 1, f"a policy over {capacity} entries; it needs at least 1"
        self.capacity = capacity
        self.num_held = 0
        self.num_evictable = 0
        self._states = np.zeros(capacity, np.uint8)
        self.state_of = self._states.data

    def add(self, entries: Int64Array) -> list[int]:
        """Hold entries that are not held yet, evictable; returns them as a list."""
        added: list[int] = entries.tolist()
        assert not added or 0 <= min(added) <= max(added) < self.capacity, (
            f"entries outside 0…{self.capacity - 1}: {entries}"
        )
        assert len(set(added)) == len(added), f"an entry is inserted twice: {entries}"
        assert not np.count_nonzero(self._states[entries]), f"already held: {entries[self._states[entries] != _ABSENT]}"
        self._states[entries] = _EVICTABLE
        self.num_held += len(added)
        self.num_evictable += len(added)
        return added

    def named(self, entries: Int64Array) -> list[int]:
        """Held entries as a list."""
        self._states_of(entries)
        names: list[int] = entries.tolist()
        return names

    def _states_of(self, entries: Int64Array) -> UInt8Array:
        states: UInt8Array = self._states[entries]
        assert np.count_nonzero(states) == len(states), f"not held: {entries[states == _ABSENT]}"
        return states

    def drop(self, entries: Int64Array) -> list[int]:
        """Hold these entries no longer; returns them as a list."""
        states = self._states_of(entries)
        dropped: list[int] = entries.tolist()
        assert len(set(dropped)) == len(dropped), f"an entry is removed twice: {entries}"
        self.num_held -= len(dropped)
        self.num_evictable -= int(np.count_nonzero(states == _EVICTABLE))
        self._states[entries] = _ABSENT
        return dropped

    def set_evictable(self, entries: Int64Array, evictable: bool) -> list[int]:
        """Shield held entries, or stop shielding them; returns passed entries that searches must visit again."""
        states, back = self._states_of(entries), list[int]()
        if evictable:
            changed = entries[states != _EVICTABLE]
            passed = states == _PASSED
            if np.count_nonzero(passed):
                back = list(dict.fromkeys(entries[passed].tolist()))
            self._states[changed] = _EVICTABLE
            self.num_evictable += len(set(changed.tolist()))
        else:
            changed = entries[states == _EVICTABLE]
            self._states[changed] = _SHIELDED
            self.num_evictable -= len(set(changed.tolist()))
        return back

    def is_evictable(self, entry: int) -> bool:
        """Whether one held entry may be named."""
        return self.state_of[entry] == _EVICTABLE

    def pass_over(self, entry: int) -> None:
        """Let searches skip a shielded entry until it is exposed."""
        self.state_of[entry] = _PASSED

    def meet_all_again(self, entries: list[int]) -> None:
        """As `meet_again`, of several."""
        state_of = self.state_of
        for entry in entries:
            if state_of[entry] == _PASSED:
                state_of[entry] = _SHIELDED

    def meet_again(self, entry: int) -> None:
        """Let searches visit an entry again, because it is about to leave its place."""
        if self.state_of[entry] == _PASSED:
            self.state_of[entry] = _SHIELDED


class Queues:
    """Queues 0 … num_queues-1 of held entries, oldest to newest; an entry is in at most one of them.

    Each queue is a ring, closed by a node of its own behind the nodes of the entries. A batch takes a third of the
    time of as many single steps. Searches pass the shielded entries at a queue's head only once, because look-ahead
    shields thousands of old entries for long.
    """

    def __init__(self, holding: Holding, num_queues: int) -> None:
        capacity = holding.capacity
        older, newer = (np.zeros(capacity + num_queues, np.int32) for _ in range(2))
        ends = np.arange(capacity, capacity + num_queues, dtype=np.int32)
        older[ends] = newer[ends] = ends
        self._holding = holding
        self._older, self._newer = older.data, newer.data
        self._queue = np.zeros(capacity, np.uint8).data
        self._begin: list[int] = ends.tolist()  # of each queue; everything older is shielded, this one included
        self._capacity = capacity
        self.lengths = [0] * num_queues

    def queue_of(self, entry: int) -> int:
        """The queue that an entry is in; meaningless for an entry in no queue."""
        return self._queue[entry]

    def queues_of(self, entries: list[int]) -> list[int]:
        """The queue of each entry; all of them are in one."""
        queue_of = self._queue
        return [queue_of[entry] for entry in entries]

    def append(self, queue: int, entries: list[int]) -> None:
        """Make entries that are in no queue the newest of one, in order."""
        older, newer, queue_of = self._older, self._newer, self._queue
        end = self._capacity + queue
        newest = older[end]
        for entry in entries:
            newer[newest] = entry
            older[entry] = newest
            queue_of[entry] = queue
            newest = entry
        newer[newest] = end
        older[end] = newest
        self.lengths[queue] += len(entries)

    def prepend(self, queue: int, entry: int) -> None:
        """Make an entry that is in no queue the oldest of one."""
        end = self._capacity + queue
        newer = self._newer[end]
        self._older[entry], self._newer[entry] = end, newer
        self._newer[end] = self._older[newer] = entry
        self._queue[entry] = queue
        self._begin[queue] = end
        self.lengths[queue] += 1

    def unlink(self, entries: list[int]) -> list[int]:
        """Take entries out of their queues; returns these queues."""
        older, newer, begin = self._older, self._newer, self._begin
        queues = self.queues_of(entries)
        for entry, queue in zip(entries, queues, strict=True):
            before, behind = older[entry], newer[entry]
            newer[before] = behind
            older[behind] = before
            if begin[queue] == entry:
                begin[queue] = before
        for queue in range(len(self.lengths)):
            self.lengths[queue] -= queues.count(queue)
        return queues

    def move(self, queue: int, entries: list[int]) -> None:
        """Make distinct entries of any queue the newest of one, in order."""
        older, newer, end = self._older, self._newer, self._capacity + queue
        self._holding.meet_all_again(entries)
        for run in self._runs(entries):
            oldest, newest, own = run[0], run[-1], self._queue[run[0]]
            before, behind = older[oldest], newer[newest]
            newer[before], older[behind] = behind, before
            last = older[end]
            newer[last], older[oldest], newer[newest], older[end] = oldest, last, end, newest
            if self._begin[own] in run:
                self._begin[own] = before
            self.lengths[own] -= len(run)
            self.lengths[queue] += len(run)
            for entry in run if own != queue else ():
                self._queue[entry] = queue

    def _runs(self, entries: list[int]) -> Iterator[list[int]]:
        """Split entries into runs that are neighbours already, in order, such as most prefixes; a run moves as one."""
        newer, first = self._newer, 0
        for place in range(1, len(entries)):
            if newer[entries[place - 1]] != entries[place]:
                yield entries[first:place]
                first = place
        if entries:
            yield entries[first:]

    def set_evictable(self, entries: Int64Array, evictable: bool) -> None:
        """Shield held entries from searches, or stop shielding them; they keep their places."""
        for entry in self._holding.set_evictable(entries, evictable):
            self._begin[self._queue[entry]] = self._capacity + self._queue[entry]

    def first(self, queue: int) -> int:
        """The oldest evictable entry of a queue, or NOBODY."""
        begin, newer, holding = self._begin[queue], self._newer, self._holding
        while (entry := newer[begin]) < self._capacity and not holding.is_evictable(entry):
            holding.pass_over(entry)
            begin = entry
        self._begin[queue] = begin
        return self._entry(entry)

    def oldest(self, queue: int, count: int) -> list[int]:
        """The `count` oldest evictable entries of a queue, or as many as there are."""
        newer, capacity, state_of = self._newer, self._capacity, self._holding.state_of
        entry, found = self.first(queue), list[int]()
        while 0 <= entry < capacity and len(found) < count:
            if state_of[entry] == _EVICTABLE:
                found.append(entry)
            entry = newer[entry]
        return found

    def after(self, entry: int) -> int:
        """The next newer evictable entry of the same queue, or NOBODY."""
        newer, capacity, is_evictable = self._newer, self._capacity, self._holding.is_evictable
        while (entry := newer[entry]) < capacity and not is_evictable(entry):
            pass
        return self._entry(entry)

    def newer(self, entry: int) -> int:
        """The next newer entry of the same queue, evictable or not, or NOBODY."""
        return self._entry(self._newer[entry])

    def _entry(self, node: int) -> int:
        return node if node < self._capacity else NOBODY


class Ghosts:
    """Tags of evicted blocks, the oldest forgotten first; some 120 bytes each."""

    def __init__(self) -> None:
        self._turns: dict[int, int] = {}
        self._order: deque[tuple[int, int]] = deque()  # a tag that came again or was discarded is stale here
        self._turn = 0

    def __len__(self) -> int:
        return len(self._turns)

    def __contains__(self, tag: int) -> bool:
        return tag in self._turns

    def known(self, tags: list[int]) -> bool:
        """Whether any of these tags is remembered."""
        return not self._turns.keys().isdisjoint(tags)

    def add(self, tags: list[int]) -> None:
        """Remember tags as the newest."""
        for tag in tags:
            self._turn += 1
            self._turns[tag] = self._turn
            self._order.append((tag, self._turn))

    def discard(self, tag: int) -> None:
        """Forget a tag, where it is remembered."""
        self._turns.pop(tag, None)

    def trim(self, count: int) -> None:
        """Forget the oldest until at most `count` are left."""
        turns, order = self._turns, self._order
        surplus = len(turns) - max(0, count)
        while order:
            tag, turn = order[0]
            if turns.get(tag) == turn:
                if surplus <= 0:
                    return
                surplus -= 1
                del turns[tag]
            order.popleft()
