"""The engine: holds the one lock, around the planner. Takes verbs, submits jobs to links, resolves transfers.

Under the lock only the planner runs: no I/O, no device call, no callback, no logging. The engine submits jobs
and resolves transfers outside it. Called by the store and by link threads.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from tierstore.control.planner import SLICE_BLOCKS
from tierstore.errors import ClosedError
from tierstore.forks import check_owner
from tierstore.shield import Shielded, unshielded
from tierstore.transfer.base import ended
from tierstore.transfer.future import Transfer
from tierstore.transfer.timer import Alarm, Timer
from tierstore.types import Outcome

if TYPE_CHECKING:
    from tierstore.control.planner import Planner
    from tierstore.control.requests import Request
    from tierstore.transfer.base import FarSide
    from tierstore.transfer.links import Links
    from tierstore.types import CopyResult, Generation, Job, Plan, Presence, RequestId, UInt8Array

__all__ = ["Engine"]

T = TypeVar("T")
_logger = logging.getLogger(__name__)

_CLOSE_LOOK_SECONDS = 1.0
_CLOSE_LOOKS = 30
"""A close stops waiting if no job has ended in this many looks, or in one look if the SSD has stalled."""


class Engine:
    """Carries out the planner's plans.

    Args:
        planner: Called by this engine alone.
        links: The links that move blocks.
        memory: The caller's side of every open request; links read it.
        clock: Seconds; deadlines are on this clock.
        new_timer: Makes the timer that calls `expire` at the next deadline.
        shield: Runs a caller's verbs where no signal handler can interrupt them half done.

    Attributes:
        shield: As given.
        stuck: A thread hangs in a call that `close` did not wait for. The memory and files it uses must be kept.
    """

    def __init__(
        self,
        planner: Planner,
        links: Links,
        memory: dict[RequestId, FarSide],
        clock: Callable[[], float] = time.monotonic,
        new_timer: Callable[[Callable[[], float], Callable[[], float]], Alarm] = Timer,
        *,
        shield: Shielded = unshielded,
    ) -> None:
        self._planner = planner
        self._links = links
        self._memory = memory
        self._clock = clock
        self.shield = shield
        self._lock = threading.Lock()
        self._transfers: dict[RequestId, Transfer] = {}
        self._ids: dict[Transfer, RequestId] = {}
        self._timer = new_timer(clock, self.expire)
        self._closing = False
        self.stuck = False
        self._idle = threading.Event()
        self._owner_pid = os.getpid()

    @contextmanager
    def planning(self) -> Iterator[Planner]:
        """The planner, under the lock; for gauges, checks and opening generations."""
        with self._lock:
            yield self._planner

    @property
    def closed(self) -> bool:
        """Whether verbs are refused."""
        return self._closing

    def open_life(self, generation: Generation, slot_nbytes: int) -> None:
        """See `Planner.open_life`."""
        with self._lock:
            self._planner.open_life(generation, slot_nbytes)

    def end_life(self, number: int) -> None:
        """See `Planner.end_life`; returns once every block that no copy pins is gone."""
        with self._lock:
            self._planner.end_life(number)
        self._tend()

    def now(self) -> float:
        """The time on the clock of deadlines."""
        return self._clock()

    def leading(self, number: int, hashes: UInt8Array) -> int:
        """The number of blocks usable from the first, up to the first hole."""
        self._check_open()
        for first in range(0, len(hashes), SLICE_BLOCKS):
            piece = hashes[first : first + SLICE_BLOCKS]
            with self._lock:
                run = self._planner.catalogue.leading(number, piece)
            if run < len(piece):
                return first + run
        return len(hashes)

    def presence(self, number: int, hashes: UInt8Array) -> list[Presence]:
        """What is known of each block."""
        self._check_open()
        found: list[Presence] = []
        for first in range(0, len(hashes), SLICE_BLOCKS):
            with self._lock:
                found += self._planner.catalogue.lookup(number, hashes[first : first + SLICE_BLOCKS])
        return found

    def start(
        self,
        open_request: Callable[[Planner], Request | None],
        *,
        num_blocks: int,
        block_nbytes: int,
        memory: FarSide | None = None,
        deadline: float = math.inf,
    ) -> Transfer:
        """Open a request and plan it slice by slice. Never waits for a copy.

        Args:
            open_request: Called under the lock. If it returns None (too many requests are open), all is REJECTED.
            num_blocks: Blocks of the request.
            block_nbytes: Bytes of each.
            memory: The memory that the request's copies read or write.
            deadline: On the engine's clock.
        """
        self._check_open()
        transfer = Transfer(block_nbytes, self._cancel, num_blocks, None if memory is None else memory.layers)
        self.shield(lambda: self._start(transfer, open_request, num_blocks, memory, deadline))
        return transfer

    def _start(
        self,
        transfer: Transfer,
        open_request: Callable[[Planner], Request | None],
        num_blocks: int,
        memory: FarSide | None,
        deadline: float,
    ) -> None:
        with self._lock:
            self._check_open()  # again: a close waits only for the requests that were open when it began
            request = open_request(self._planner)
            if request is not None:
                self._transfers[request.request_id] = transfer
                self._ids[transfer] = request.request_id
                if memory is not None:
                    self._memory[request.request_id] = memory
                plan = self._planner.step(request, self._clock())
        if request is None:
            transfer.resolve(0, np.full(num_blocks, Outcome.REJECTED, np.uint8))
            return
        self._run(plan)
        while not request.planned:
            with self._lock:
                plan = self._planner.step(request, self._clock())
            self._run(plan)
        if deadline < math.inf and not transfer.done():
            self._timer.arm(deadline)

    def tell(self, decide: Callable[[Planner, float], tuple[T, Plan]]) -> T:
        """Call the planner under the lock and carry out the plan it returns. Never waits for a copy."""
        self._check_open()

        def tell() -> T:
            with self._lock:
                answer, plan = decide(self._planner, self._clock())
            self._run(plan)
            return answer

        return self.shield(tell)

    def look(self, judge: Callable[[Planner, float], T]) -> T:
        """Ask the planner something under the lock. It must change nothing; there is no plan to carry out."""
        self._check_open()
        with self._lock:
            return judge(self._planner, self._clock())

    def _run(self, plan: Plan) -> None:
        """Carry a plan out. A job that its link has no room for ends REJECTED at once."""
        refused: list[Job] = [job for job in plan.jobs if not self._links.of(job).submit(job, self.done)]
        self._links.reorder(plan)
        for notice in plan.notices:
            _logger.warning("%s", notice)
        for request_id, num_blocks in plan.handed:
            memory = self._memory.get(request_id)
            if memory is not None:
                memory.complete(num_blocks)
        for finished in plan.finished:
            transfer = self._transfers.pop(finished.request_id)
            del self._ids[transfer]
            self._memory.pop(finished.request_id, None)
            transfer.resolve(finished.leading, finished.outcomes)
        for job in refused:
            self.done(ended(job, Outcome.REJECTED))
        if plan.due:
            self._tend()
        self._timer.arm(plan.expire_at)
        if self._closing:
            self._notice_idle()

    def done(self, result: CopyResult) -> None:
        """A job has ended. Called by links, on their threads."""
        if self.stuck:  # the close did not wait for this call
            return
        with self._lock:
            plan = self._planner.complete(result, self._clock())
        self._run(plan)

    def _tend(self) -> None:
        more = True
        while more:
            with self._lock:
                plan, more = self._planner.tend(self._clock())
            plan.due = False
            if plan.jobs or plan.finished:
                self._run(plan)

    def _cancel(self, transfer: Transfer) -> None:
        self.shield(lambda: self._withdraw(transfer))

    def _withdraw(self, transfer: Transfer) -> None:
        with self._lock:
            request_id = self._ids.get(transfer)
            plan = None if request_id is None else self._planner.cancel(request_id, self._clock())
        if plan is not None:
            self._run(plan)

    def expire(self) -> float:
        """End requests past their deadline; returns the next deadline. Called by the timer, and by simulations."""
        with self._lock:
            plan = self._planner.expire(self._clock())
            following = self._planner.next_deadline()
        self._run(plan)
        return following

    def close(self) -> None:
        """Refuse new verbs, let open requests end, close the links. Blocks, but for no call that hangs: see `stuck`."""
        with self._lock:
            if self._closing:
                return
            self._closing = True
            self._planner.health.rest()
            memories = list(self._memory.values())
        for memory in memories:
            memory.recall()
        self._notice_idle()
        left, looks = -1, 0
        while not self._idle.wait(_CLOSE_LOOK_SECONDS) and looks < _CLOSE_LOOKS:
            with self._lock:
                before, left = left, self._planner.num_jobs
                stalled = self._planner.health.stalled and self._planner.num_requests == 0
            looks = 0 if left != before else _CLOSE_LOOKS if stalled else looks + 1
        self._timer.close()
        self.stuck = not all([link.close() for link in self._links.all()])
        for transfer in list(self._transfers.values()):
            if not transfer.done():
                transfer.abandon()

    def _notice_idle(self) -> None:
        with self._lock:
            idle = self._planner.num_requests == 0 and self._planner.num_jobs == 0
        if idle:
            self._idle.set()

    def _check_open(self) -> None:
        check_owner(self._owner_pid)
        if self._closing:
            raise ClosedError("the store is closed; open a new Store")
