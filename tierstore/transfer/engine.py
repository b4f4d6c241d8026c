"""The engine: the one lock, around the planner. Verbs in, jobs to links, results back, transfers resolved.

Under the lock nothing but the planner runs: no I/O, no device call, no callback, no logging. Jobs are
submitted and transfers resolved outside it. Called by the store and by link threads.
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
"""A close goes on without jobs of which none has ended in so many looks, or in one where the SSD has stalled."""


class Engine:
    """Runs the planner's plans.

    Args:
        planner: The mind; nobody else calls it.
        links: What moves blocks.
        memory: The caller's side of every open request; links read it.
        clock: Seconds; deadlines count on it.
        new_timer: Makes what calls `expire` when the next deadline has come.
        shield: Runs a caller's verbs where no signal handler can tear them apart.

    Attributes:
        shield: As given.
        stuck: A thread hangs in a call that `close` did not wait for: what it uses must be left as it is.
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
        """See `Planner.end_life`; returns once the last block that no copy holds is gone."""
        with self._lock:
            self._planner.end_life(number)
        self._tend()

    def now(self) -> float:
        """The time that deadlines count on."""
        return self._clock()

    def leading(self, number: int, hashes: UInt8Array) -> int:
        """Blocks from the first that are usable without a hole."""
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
            open_request: Called under the lock; its None (too many requests are open) is REJECTED.
            num_blocks: Blocks of the request.
            block_nbytes: Bytes of each.
            memory: What the request's copies are made from or to.
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
            self._check_open()  # again: whoever closes has waited for all requests that he could see
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
        """Have the planner take something in or decide it, and carry out what follows. Never waits for a copy."""
        self._check_open()

        def tell() -> T:
            with self._lock:
                answer, plan = decide(self._planner, self._clock())
            self._run(plan)
            return answer

        return self.shield(tell)

    def look(self, judge: Callable[[Planner, float], T]) -> T:
        """What the planner says of something, at this time; it changes nothing by that, and nothing follows."""
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
        if self.stuck:  # a call has come back that the close did not wait for
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
        """End what is past its deadline; returns the next one. Called by the timer, and by simulations."""
        with self._lock:
            plan = self._planner.expire(self._clock())
            following = self._planner.next_deadline()
        self._run(plan)
        return following

    def close(self) -> None:
        """Refuse new verbs, let what is under way end, close the links. Blocks, yet for no call that hangs: `stuck`."""
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
