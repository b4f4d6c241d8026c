"""A model of an engine: requests queue, one at a time is prefilled, and its blocks are put.

The next request gets the part of its prefix that the store holds and advises to load; its deadline is the time that
computing that part would take. The engine computes the rest of the prompt at a fixed number of tokens a second. Then
the first token is there, and the whole chain is put. If no speed is given, nothing takes time: all held blocks are
loaded, and requests are served as they come. Called by `run`.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from tierstore.control.loading import LoadRequest
from tierstore.control.lookahead import hint_slices
from tierstore.control.planner import SLICE_BLOCKS
from tierstore.metrics import Metric
from tierstore.replay.world import LIFE
from tierstore.types import TierName

if TYPE_CHECKING:
    from collections.abc import Callable

    from tierstore.policy.prefetching import PrefetchPolicy
    from tierstore.replay.trace import Trace
    from tierstore.replay.world import World
    from tierstore.types import Finished, RequestId, UInt8Array

__all__ = ["ARRIVED", "Engine", "Queueing"]

ARRIVED = -1
"""A look-ahead over what has arrived while the engine is busy, and nothing more."""

_SESSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Queueing:
    """How requests are served.

    Attributes:
        tokens_per_second: Speed of prefill; infinite if computing takes no time.
        lookahead: Requests after the one being served that the store is told of; `ARRIVED` for those that wait.
        prefetch: How long a request waits for the prefetch of its blocks, which begins as it arrives; None for none.
    """

    tokens_per_second: float = np.inf
    lookahead: int = 0
    prefetch: PrefetchPolicy | None = None

    @property
    def advised(self) -> bool:
        """Whether the engine asks what is worth loading."""
        return bool(np.isfinite(self.tokens_per_second))


class Engine:
    """Serves a trace.

    Attributes:
        leading: int64[n]; blocks of each request that came from the store.
        on_host: int64[n]; held blocks that it asked for, in host memory.
        on_ssd: int64[n]; held blocks that it asked for, on SSD.
        passed_over: int64[n]; held blocks that were cheaper to compute than to load.
        service_seconds: float64[n]; from its turn to the end of the prefill.
        ttft_seconds: float64[n]; from arrival to the end of the prefill.
    """

    def __init__(self, trace: Trace, world: World, queueing: Queueing) -> None:
        self._trace = trace
        self._world = world
        self._queueing = queueing
        self._waiting: deque[int] = deque()
        self._prefetching: dict[int, RequestId] = {}
        self._busy = False
        self._began = 0.0
        self._deadline = np.inf
        self._told = 0
        self._served, self._served_hashes = -1, trace.hashes[:0]
        self.leading = np.zeros(len(trace), np.int64)
        self.on_host = np.zeros(len(trace), np.int64)
        self.on_ssd = np.zeros(len(trace), np.int64)
        self.passed_over = np.zeros(len(trace), np.int64)
        self.service_seconds = np.zeros(len(trace), np.float64)
        self.ttft_seconds = np.zeros(len(trace), np.float64)

    def serve(self, on_progress: Callable[[int], None]) -> None:
        """Serve every request; `on_progress` is told how many block references have been served."""
        world, arrivals = self._world, self._trace.seconds.tolist()
        arrived = 0
        while True:
            world.settle()
            index = None if self._busy else self._next()
            if index is not None:
                on_progress(int(self._trace.starts[index]))
                self._begin(index)
            elif arrived < len(arrivals) and arrivals[arrived] <= world.next_event:
                world.now = max(world.now, arrivals[arrived])
                self._arrive(arrived)
                arrived += 1
            elif world.next_event < np.inf:
                world.advance()
            else:
                break
        on_progress(len(self._trace.blocks))
        assert not self._busy, "a request waits for a job that nobody planned"

    def _next(self) -> int | None:
        """Take the first request out of the queue that may start."""
        policy = self._queueing.prefetch
        for place, index in enumerate(self._waiting):
            if policy is None or not policy.waits or index not in self._prefetching:
                del self._waiting[place]
                return index
        return None

    def _hashes(self, index: int) -> UInt8Array:
        """uint8[n, 32] of one request; those of the one being served are kept, for it asks several times."""
        if index == self._served:
            return self._served_hashes
        return self._trace.hashes.take(self._trace.request(index), axis=0)

    def _arrive(self, index: int) -> None:
        self._waiting.append(index)
        if self._busy and self._queueing.lookahead == ARRIVED:
            self._hint([index], [])
        policy = self._queueing.prefetch
        if policy is not None and (self._busy or policy.waits):
            self._prefetch(index, policy)

    def _prefetch(self, index: int, policy: PrefetchPolicy) -> None:
        within = policy.within(int(self._trace.num_tokens[index]))
        deadline = np.inf if within is None else self._world.now + within
        request_id = self._world.prefetch(self._hashes(index), deadline, partial(self._prefetched, index))
        if request_id is not None:
            self._prefetching[index] = request_id

    def _prefetched(self, index: int, finished: Finished) -> None:
        self._prefetching.pop(index, None)

    def _begin(self, index: int) -> None:
        self._busy = True
        self._served_hashes, self._served = self._hashes(index), index
        self._began, self._deadline = self._world.now, np.inf
        prefetch = self._prefetching.pop(index, None)
        if prefetch is not None:
            self._world.cancel(prefetch)
        self._get(index)
        if self._queueing.lookahead == ARRIVED:
            self._hint([], [index])
        elif self._queueing.lookahead:
            visible = min(len(self._trace), index + 1 + self._queueing.lookahead)
            self._hint(range(max(self._told, index + 1), visible), [index])
            self._told = visible

    def _hint(self, added: range | list[int], removed: list[int]) -> None:
        world = self._world
        for piece in hint_slices(((index, self._hashes(index)) for index in added), SLICE_BLOCKS):
            world.run(world.planner.hint(_SESSION, LIFE, added=piece, removed=removed, now=world.now))
            removed = []

    def _get(self, index: int) -> None:
        """Get the part of a request that is worth loading, in several turns if the pool lacks room for all of it."""
        metrics, lead, hashes = self._world.metrics, int(self.leading[index]), self._hashes(index)
        stop = self._stop(index, hashes, lead) if self._queueing.advised else len(hashes)
        if stop <= lead:
            self._compute(index)
            return
        before = [int(metrics.value(Metric.HIT_BLOCKS, tier)) for tier in (TierName.HOST, TierName.SSD)]
        self._world.get(hashes[lead:stop], self._deadline, partial(self._loaded, index))
        self.on_host[index] += int(metrics.value(Metric.HIT_BLOCKS, TierName.HOST)) - before[0]
        self.on_ssd[index] += int(metrics.value(Metric.HIT_BLOCKS, TierName.SSD)) - before[1]

    def _stop(self, index: int, hashes: UInt8Array, lead: int) -> int:
        """The block at which loading stops to pay. The first answer also sets the deadline of the request's gets."""
        now, lead_tokens = self._world.now, lead * self._trace.block_tokens
        advice = self._world.advise(LoadRequest(hashes, lead_tokens, within=max(0.0, self._deadline - now)))
        assert advice.recompute_seconds is not None, "the engine's speed is given"
        self._deadline = min(self._deadline, now + advice.recompute_seconds)
        self.passed_over[index] = advice.leading - advice.stop
        return advice.stop

    def _loaded(self, index: int, finished: Finished) -> None:
        self.leading[index] += finished.leading
        if finished.leading and self._world.has_ssd and self._holds_more(index):
            self._world.at(self._world.now, partial(self._get, index))
        else:
            self._compute(index)

    def _compute(self, index: int) -> None:
        trace = self._trace
        held = min(int(self.leading[index]) * trace.block_tokens, int(trace.num_tokens[index]))
        seconds = (int(trace.num_tokens[index]) - held) / self._queueing.tokens_per_second
        self._world.at(self._world.now + seconds, partial(self._computed, index))

    def _holds_more(self, index: int) -> bool:
        """Whether the store holds the block at which a get has stopped, for want of room."""
        rest = self._hashes(index)[int(self.leading[index]) :][:1]
        return len(rest) > 0 and self._world.planner.catalogue.leading(LIFE, rest) > 0

    def _computed(self, index: int) -> None:
        self.service_seconds[index] = self._world.now - self._began
        self.ttft_seconds[index] = self._world.now - self._trace.seconds[index]
        if self.leading[index] < len(self._trace.request(index)):
            self._put(index, 0)
        else:
            self._busy = False

    def _put(self, index: int, start: int) -> None:
        """Put the chain. With an SSD, in pieces that easily fit the pool, each written before the next is put."""
        hashes, piece = self._hashes(index), self._world.piece_blocks
        stop = min(len(hashes), start + piece)
        self._world.put(hashes, slice(start, stop), lambda finished: None)
        if stop < len(hashes):
            self._world.at(self._world.now, partial(self._put, index, stop))
        else:
            self._busy = False
