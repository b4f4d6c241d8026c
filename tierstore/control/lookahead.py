"""Scheduler look-ahead: engines say which requests wait, nearest first; their blocks are kept and read early.

    hint:   requests join or leave the queue, a slice at a time, and their blocks join or leave the window
    pump:   read blocks that only SSD holds, in the order of the queue, into slots that no earlier request needs;
            within the prefetch budget, and for as many requests as the pool has room for
    leave:  return the blocks of ended hints to the eviction policy, unless another waiting request names them

A session is one engine's queue. Sessions take turns, a request each, so that a long queue does not delay a
short one (start-time fair queueing; Goyal, Vin and Cheng 1996). The order of eviction is the idea of
AttentionStore (Gao et al., USENIX ATC 2024). Pure; called by the planner.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from tierstore.control.copies import read_blocks
from tierstore.control.entry import State
from tierstore.control.requests import Unasked, leading_run, new_request
from tierstore.errors import RankError
from tierstore.metrics import Metric
from tierstore.types import NO_REQUEST, Outcome, Priority, TierName

if TYPE_CHECKING:
    from tierstore.control.mind import Mind
    from tierstore.control.requests import JobRecord, Life, Request
    from tierstore.control.window import Hint
    from tierstore.types import Int64Array, Plan, UInt8Array

    Waiting: TypeAlias = tuple[int, UInt8Array]
    """The rank of a waiting request, and uint8[n, 32] hashes."""

__all__ = ["Lookahead", "hint_slices"]

_LEAVE_BLOCKS = 512
"""Blocks taken out of the window in one lock hold."""


def hint_slices(added: Iterable[Waiting], slice_blocks: int) -> Iterator[list[Waiting]]:
    """Cut waiting requests into one or more lists of at most `slice_blocks` hashes; a rank may continue in the next."""
    piece: list[Waiting] = []
    room = slice_blocks
    for rank, hashes in added:
        for first in range(0, len(hashes), slice_blocks):
            part = hashes[first : first + slice_blocks]
            if len(part) > room:
                yield piece
                piece, room = [], slice_blocks
            piece.append((rank, part))
            room -= len(part)
    yield piece


@dataclass(slots=True, eq=False)
class _Session:
    """One engine's queue."""

    last_rank: int = -1
    last_turn: int = 0
    waiting: dict[int, list[Hint]] = field(default_factory=dict)


class _ReadingAhead(Unasked):
    """The story of hints. Blocks that came are kept by the window; others are read later, or by the get.

    Attributes:
        refused: Whether the link refused the read that has just ended, because it was full.
    """

    refused = False

    def arrived(self, request: Request, positions: Int64Array, record: JobRecord, plan: Plan, now: float) -> None:
        """Note whether the link refused the read."""
        assert record.outcomes is not None
        self.refused = bool(record.outcomes[0] == Outcome.REJECTED)


class Lookahead:
    """The queues of all sessions, merged into one order of turns."""

    def __init__(self, mind: Mind) -> None:
        self._mind = mind
        self._window = mind.directory.window
        self._sessions: dict[int, _Session] = {}
        self._turns: list[int] = []  # of waiting requests, ascending
        self._turn_now = 0
        self._waiting_nbytes = 0
        self._leaving: deque[Hint] = deque()
        self._reading = _ReadingAhead()

    def gauge(self) -> None:
        """Bring the gauges up to date."""
        self._mind.metrics.set(Metric.OPEN_SESSIONS, len(self._sessions))
        self._mind.metrics.set(Metric.WAITING_REQUESTS, len(self._turns))
        self._mind.metrics.set(Metric.WINDOW_BLOCKS, self._window.num_blocks)

    @property
    def due(self) -> bool:
        """Whether ended hints are still in the window, for `leave` to take out."""
        return bool(self._leaving)

    def hint(self, session_id: int, life: Life, added: Sequence[Waiting], removed: Sequence[int]) -> None:
        """Take in how a queue has changed.

        Args:
            session_id: The session, in the caller's own numbering; its first hint begins it.
            life: The generation of the blocks.
            added: (rank, uint8[n, 32] distinct hashes in prefix order) of waiting requests, nearest first; in one
                lock hold a slice of hashes, see `hint_slices`. Ranks only grow; the newest one may be named again
                with the blocks that follow.
            removed: Ranks that wait no longer: given up, or started with their get open. Unknown ones are skipped.
                `leave` takes their blocks out of the window.

        Raises:
            RankError: A rank is older than the newest of its session, or of two namespaces. Ranks before it in the
                list are taken in.
        """
        self._remove(session_id, removed)
        for rank, hashes in added:
            self._add(session_id, life, rank, hashes)

    def _add(self, session_id: int, life: Life, rank: int, hashes: UInt8Array) -> None:
        session = self._sessions.setdefault(session_id, _Session())
        hints = session.waiting.get(rank, [])
        if rank < session.last_rank or (hints and hints[0].request.life is not life):
            raise RankError(
                f"rank {rank} of session {session_id} comes after rank {session.last_rank}; ranks only grow, and the "
                "blocks of one are of one namespace"
            )
        if rank == session.last_rank and not hints:
            return  # it has left meanwhile
        if not hints:
            session.last_rank = rank
            session.last_turn = max(session.last_turn, self._turn_now) + 1
            session.waiting[rank] = hints
            insort(self._turns, session.last_turn)
        mind = self._mind
        fits = min(len(hashes), self._window.room)
        mind.metrics.add(Metric.UNHINTED_BLOCKS, len(hashes) - fits)
        request = new_request(NO_REQUEST, self._reading, life, hashes[:fits])
        entries = mind.directory.find(life.number, request.keys)
        hint, fresh = self._window.add(request, session.last_turn, entries, hints[-1] if hints else None)
        hints.append(hint)
        self._waiting_nbytes += fits * life.block_nbytes
        for room, pool in mind.rooms:
            room.await_use(life.class_in(pool), fresh)

    def _remove(self, session_id: int, ranks: Iterable[int]) -> None:
        session = self._sessions.get(session_id)
        if session is None:
            return
        for rank in ranks:
            hints = session.waiting.pop(rank, [])
            if hints:
                self._turns.pop(bisect_left(self._turns, hints[0].turn))
                self._turn_now = max(self._turn_now, hints[0].turn)
            for hint in hints:
                self._waiting_nbytes -= len(hint.request) * hint.request.life.block_nbytes
                hint.request.done = True
            self._leaving.extend(hints)

    def end_session(self, session_id: int) -> None:
        """An engine has gone: remove its whole queue."""
        session = self._sessions.get(session_id)
        if session is not None:
            self._remove(session_id, list(session.waiting))
            del self._sessions[session_id]

    def end_life(self, number: int) -> None:
        """A generation has ended: remove its requests from all queues."""
        for session_id, session in self._sessions.items():
            ranks = [rank for rank, hints in session.waiting.items() if hints[0].request.life.number == number]
            self._remove(session_id, ranks)

    def leave(self, plan: Plan) -> bool:
        """Take a bounded number of ended hints out of the window; true if more are left."""
        budget = _LEAVE_BLOCKS
        while self._leaving and budget > 0:
            hint = self._leaving.popleft()
            budget -= max(1, len(hint.request))
            released = self._window.remove(hint)
            for room, pool in self._mind.rooms:
                room.release_use(hint.request.life.class_in(pool), released)
        if budget < _LEAVE_BLOCKS and self._mind.host.prefetched.inflight_nbytes:
            self._mind.withdraw(plan)
        return self.due

    def pump(self, plan: Plan) -> None:
        """Read ahead in the order of the queue, until the budget, the slots or the requests within reach run out."""
        mind = self._mind
        refused, self._reading.refused = self._reading.refused, False
        if mind.ssd is None or refused:  # a link that is full would only refuse again
            return
        while (hint := self._window.nearest()) is not None:
            hint.whole = hint.previous is None or hint.previous.whole
            if hint.whole:
                budget_nbytes = mind.limits.prefetch_inflight_nbytes_max - mind.host.prefetched.inflight_nbytes
                if budget_nbytes < hint.request.life.block_nbytes or not self._within_reach(hint):
                    return
                if not self._fetch(hint, budget_nbytes // hint.request.life.block_nbytes, plan):
                    return
            self._window.fetched()

    def _within_reach(self, hint: Hint) -> bool:
        """Whether this request and all before it, at the mean size of all, fit into the prefetch share of the pool."""
        share_nbytes = self._mind.limits.prefetch_share * self._mind.host.pool_nbytes
        ahead = bisect_left(self._turns, hint.turn)
        return not ahead or (ahead + 1) * self._waiting_nbytes <= share_nbytes * len(self._turns)

    def _fetch(self, hint: Hint, count_max: int, plan: Plan) -> bool:
        """Read the first blocks of a hint that only SSD holds; false if blocks are left for another call."""
        mind, request = self._mind, hint.request
        slot_class = request.life.slot_class
        entries = self._window.entries(hint)
        host, ssd = mind.near(entries)
        usable = mind.usable(entries, host, ssd)
        run = leading_run(usable)
        hint.whole = run == len(usable)
        missing = (host[:run] == State.ABSENT).nonzero()[0]
        if not len(missing):
            return True
        count = min(len(missing), count_max, mind.host.num_ahead(slot_class, mind.limits.prefetch_share))
        pages = mind.host.take(slot_class, count, after_turn=hint.turn)
        read = missing[: len(pages)]
        if len(read):
            request.entries[read] = entries[read]
            mind.host.occupy(entries[read], pages)
            mind.host.prefetched.inflight_nbytes += len(read) * request.life.block_nbytes
            read_blocks(mind, request, read, TierName.HOST, plan, priority=Priority.PREFETCH)
        return len(read) == len(missing)
