"""One of the threads that work with a store while its life may end at any moment.

It alone puts, deletes and clears the blocks of its space, so that the order of its calls is the order that counts;
a second space is shared with the others, who put the same bytes there. Made by `load`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Final

import numpy as np

from bench.torture.blocks import NUMBERS, SHARED, Block, block_hash, block_nbytes, rows
from bench.torture.journal import Journal
from bench.torture.knowledge import Fault, judge
from tierstore.errors import DiskError
from tierstore.store import NamespaceHandle, Store, Transfer
from tierstore.types import Outcome, Presence

if TYPE_CHECKING:
    from bench.torture.knowledge import Fate
    from tierstore.types import UInt8Array

__all__ = ["SENTINEL", "TIMEOUT_SECONDS", "Caller"]

SENTINEL: Final = 0xA5
"""What a destination is filled with before a get."""

TIMEOUT_SECONDS: Final = 240.0
"""What takes longer hangs; generous, for a machine may be stopped for a while."""

_NOT_STORED: Final = "tierstore_not_stored_blocks_total"

_MOODS: Final = ((40, 25, 10, 6, 5, 4, 6), (70, 10, 5, 10, 1, 1, 3), (35, 5, 45, 5, 5, 1, 1), (30, 45, 3, 8, 5, 8, 1))
"""How often a caller puts, gets, deletes, puts what is shared, looks, prefetches and flushes."""


@dataclass(frozen=True, slots=True, eq=False)
class _Asked:
    """A verb under way: what was asked for, what was known then, and its transfer."""

    verb: str
    space: int
    numbers: list[int]
    fates: list[Fate]
    transfer: Transfer
    buffer: UInt8Array | None = None


class Caller:
    """See above.

    Args:
        journal: Told of everything.
        store: The store.
        handles: Of every space.
        space: Its own.
        rng: Draws its steps.
        ended: Whether the life has ended.
        answered: Called behind every answer that promises something for good; may end the life.
        durable_shared: Whether it may ask for shared blocks to be durable.
    """

    def __init__(
        self,
        journal: Journal,
        store: Store,
        handles: Sequence[NamespaceHandle],
        space: int,
        rng: Random,
        *,
        ended: Callable[[], bool],
        answered: Callable[[], None],
        durable_shared: bool,
    ) -> None:
        self._ended = ended
        self._answered = answered
        self._journal = journal
        self._store = store
        self._handles = handles
        self._space = space
        self._rng = rng
        self._durable_shared = durable_shared
        self._asked: list[_Asked] = []
        self._stored: list[_Asked] = []
        self._num_not_stored = self._not_stored()

    def work(self, steps: int) -> None:
        """Do so many steps, or as many as the life has."""
        verbs = (self._put, self._get, self._delete, self._put_shared, self._look, self._prefetch, self._flush)
        mood = self._rng.choice(_MOODS)
        for _ in range(steps):
            if self._ended():
                break
            verb = self._rng.choices(verbs, mood)[0]
            verb()
            if self._rng.random() < 0.03:
                self._clear()
            if self._rng.random() < 0.6:
                self._settle()
        self._settle()

    def _draw(self) -> list[int]:
        """A run of numbers."""
        first, count = self._rng.randrange(NUMBERS), self._rng.randrange(1, 9)
        return [(first + step) % NUMBERS for step in range(count)]

    def _put(self) -> None:
        self._start_put(self._space, self._draw(), durable=self._rng.random() < 0.5)

    def _put_shared(self) -> None:
        self._start_put(SHARED, self._draw(), durable=self._durable_shared and self._rng.random() < 0.5)

    def _start_put(self, space: int, numbers: list[int], *, durable: bool) -> None:
        self._journal.say("put", space, numbers)
        fates = self._journal.fates(space, numbers)
        blocks = [Block(space, number) for number in numbers]
        buffer = rows(blocks, [fate.incarnation for fate in fates])
        transfer = self._handles[space].put([block_hash(number) for number in numbers], buffer, durable=durable)
        self._asked.append(_Asked("durable" if durable else "put", space, numbers, fates, transfer, buffer))

    def _get(self) -> None:
        space = SHARED if self._rng.random() < 0.2 else self._space
        numbers = self._draw()
        fates = self._journal.fates(space, numbers)
        buffer = np.full((len(numbers), block_nbytes(space)), SENTINEL, np.uint8)
        deadline = self._rng.choice((None, None, None, 0.0, 0.001))
        transfer = self._handles[space].get([block_hash(n) for n in numbers], buffer, deadline_seconds=deadline)
        if self._rng.random() < 0.1:
            transfer.cancel()
        self._asked.append(_Asked("get", space, numbers, fates, transfer, buffer))

    def _delete(self) -> None:
        numbers = self._draw()
        self._journal.say("delete", self._space, numbers)
        fates = self._journal.fates(self._space, numbers)
        handle = self._handles[self._space]
        transfer = handle.delete([block_hash(number) for number in numbers])
        if any(found is not Presence.MISS for found in handle.presence([block_hash(number) for number in numbers])):
            self._journal.say("fault", Fault.RESURRECTED, f"blocks of {self._space} are known behind their delete")
        self._asked.append(_Asked("delete", self._space, numbers, fates, transfer))

    def _look(self) -> None:
        """Nothing that was deleted is known."""
        fates = self._journal.fates(self._space, range(NUMBERS))
        presence = self._handles[self._space].presence([block_hash(number) for number in range(NUMBERS)])
        for number, (fate, found) in enumerate(zip(fates, presence, strict=True)):
            if found is not Presence.MISS and not fate.alive:
                self._journal.say("fault", Fault.RESURRECTED, f"{Block(self._space, number)} is known: {fate}")

    def _prefetch(self) -> None:
        numbers = self._draw()
        transfer = self._handles[self._space].prefetch([block_hash(number) for number in numbers])
        if self._rng.random() < 0.3:
            transfer.cancel()
        self._asked.append(_Asked("prefetch", self._space, numbers, [], transfer))

    def _flush(self) -> None:
        """What was put before it is durable behind it, unless a block was dropped on its way."""
        self._settle()
        if self._store.flush().result(TIMEOUT_SECONDS).ok and self._not_stored() == self._num_not_stored:
            for asked in self._stored:
                self._journal.say("kept", asked.space, asked.numbers, [fate.ticket for fate in asked.fates])
            self._answered()
        self._stored.clear()

    def _clear(self) -> None:
        self._journal.say("clear", self._space)
        try:
            self._handles[self._space].clear()
        except DiskError:
            if not self._ended():
                raise
        else:
            self._journal.say("cleared", self._space)
            self._answered()

    def _settle(self) -> None:
        """Wait for what is under way, and say what was acknowledged."""
        asked, self._asked = self._asked, []
        for one in asked:
            codes = one.transfer.result(TIMEOUT_SECONDS).codes.tolist()
            if one.verb == "get":
                self._judge(one)
            good = (Outcome.OK, Outcome.MISS) if one.verb == "delete" else (Outcome.OK,)
            rows_kept = [row for row, code in enumerate(codes) if code in good]
            numbers = [one.numbers[row] for row in rows_kept]
            if one.verb == "durable" and numbers:
                self._journal.say("kept", one.space, numbers, [one.fates[row].ticket for row in rows_kept])
                self._answered()
            elif one.verb == "delete" and numbers:
                self._journal.say("deleted", one.space, numbers, [one.fates[row].deletes for row in rows_kept])
                self._answered()
            elif one.verb == "put" and numbers == one.numbers and (one.space != SHARED or self._durable_shared):
                self._stored.append(one)

    def _judge(self, asked: _Asked) -> None:
        """The rows of a get: the leading ones are right, the others untouched."""
        leading, buffer = asked.transfer.result().leading, asked.buffer
        assert buffer is not None
        if (buffer[leading:] != SENTINEL).any():
            self._journal.say("fault", Fault.WRONG, "a row behind the leading ones was written")
        known = (
            self._journal.fates(SHARED, asked.numbers) if asked.space == SHARED else asked.fates
        )  # others put it too
        for number, fate, row in zip(asked.numbers[:leading], known, buffer, strict=False):
            wrong = judge(Block(asked.space, number), fate, row)
            if wrong is not None:
                self._journal.say("fault", *wrong)

    def _not_stored(self) -> float:
        return sum(value for name, value in self._store.metrics().items() if name.startswith(_NOT_STORED))
