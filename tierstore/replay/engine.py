"""An engine as a model: requests queue, one at a time is prefilled, and what it computes is put.

The request whose turn has come gets what the store holds of its prefix; the rest of its prompt is computed, at
so many tokens a second; then its first token is there, and its whole chain is put. Where no speed is given
nothing takes time and requests are served as they come. Called by `run`.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from tierstore.control.lookahead import hint_slices
from tierstore.control.planner import SLICE_BLOCKS
from tierstore.metrics import Metric
from tierstore.replay.world import LIFE
from tierstore.types import TierName

if TYPE_CHECKING:
    from collections.abc import Callable

    from tierstore.replay.trace import Trace
    from tierstore.replay.world import World
    from tierstore.types import Finished, UInt8Array

__all__ = ["ARRIVED", "Engine", "Queueing"]

ARRIVED = -1
"""A look-ahead over what has arrived while the engine is busy, and nothing more."""

_SESSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Queueing:
    """How requests are served.

    Attributes:
        tokens_per_second: Prefill; infinite where computing takes no time.
        lookahead: Requests after the one being served that the store is told of; `ARRIVED` for those that wait.
        prefetch: Each request's blocks are prefetched as it arrives.
    """

    tokens_per_second: float = np.inf
    lookahead: int = 0
    prefetch: bool = False


class Engine:
    """Serves a trace.

    Attributes:
        leading: int64[n]; blocks of each request that came from the store.
        on_host: int64[n]; of the blocks that it asked for and that were held, those in host memory.
        on_ssd: int64[n]; and those on SSD.
        ttft_seconds: float64[n]; from arrival to the end of the prefill.
    """

    def __init__(self, trace: Trace, world: World, queueing: Queueing) -> None:
        self._trace = trace
        self._world = world
        self._queueing = queueing
        self._waiting: deque[int] = deque()
        self._busy = False
        self._told = 0
        self.leading = np.zeros(len(trace), np.int64)
        self.on_host = np.zeros(len(trace), np.int64)
        self.on_ssd = np.zeros(len(trace), np.int64)
        self.ttft_seconds = np.zeros(len(trace), np.float64)

    def serve(self, on_progress: Callable[[int], None]) -> None:
        """Serve every request; `on_progress` is told how many block references have been served."""
        world, arrivals = self._world, self._trace.seconds.tolist()
        arrived = 0
        while True:
            world.settle()
            if not self._busy and self._waiting:
                index = self._waiting.popleft()
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

    def _hashes(self, index: int) -> UInt8Array:
        return self._trace.hashes[self._trace.request(index)]

    def _arrive(self, index: int) -> None:
        self._waiting.append(index)
        if self._busy and self._queueing.lookahead == ARRIVED:
            self._hint([index], [])
        if self._busy and self._queueing.prefetch:
            self._world.prefetch(self._hashes(index))

    def _begin(self, index: int) -> None:
        self._busy = True
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
        """Get what is held of the rest of a request; more than the pool has room for comes in several turns."""
        metrics, lead = self._world.metrics, int(self.leading[index])
        before = [int(metrics.value(Metric.HIT_BLOCKS, tier)) for tier in (TierName.HOST, TierName.SSD)]
        self._world.get(self._hashes(index)[lead:], partial(self._loaded, index))
        self.on_host[index] += int(metrics.value(Metric.HIT_BLOCKS, TierName.HOST)) - before[0]
        self.on_ssd[index] += int(metrics.value(Metric.HIT_BLOCKS, TierName.SSD)) - before[1]

    def _loaded(self, index: int, finished: Finished) -> None:
        self.leading[index] += finished.leading
        if finished.leading and self._world.has_ssd and self._holds_more(index):
            self._world.at(self._world.now, partial(self._get, index))
            return
        trace = self._trace
        held = min(int(self.leading[index]) * trace.block_tokens, int(trace.num_tokens[index]))
        seconds = (int(trace.num_tokens[index]) - held) / self._queueing.tokens_per_second
        self._world.at(self._world.now + seconds, partial(self._computed, index))

    def _holds_more(self, index: int) -> bool:
        """Whether the store holds the block at which a get has stopped, for want of room."""
        rest = self._hashes(index)[int(self.leading[index]) :][:1]
        return len(rest) > 0 and self._world.planner.catalogue.leading(LIFE, rest) > 0

    def _computed(self, index: int) -> None:
        self.ttft_seconds[index] = self._world.now - self._trace.seconds[index]
        if self.leading[index] < len(self._trace.request(index)):
            self._put(index, 0)
        else:
            self._busy = False

    def _put(self, index: int, start: int) -> None:
        """Put the chain; before an SSD in pieces that the pool holds with ease, each written before the next comes."""
        hashes, piece = self._hashes(index), self._world.piece_blocks
        stop = min(len(hashes), start + piece)
        self._world.put(hashes[start:stop], lambda finished: None)
        if stop < len(hashes):
            self._world.at(self._world.now, partial(self._put, index, stop))
        else:
            self._busy = False
