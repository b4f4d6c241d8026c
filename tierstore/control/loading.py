"""Load or recompute: which blocks of a prompt are faster to load than to compute, with links and engine as now. Pure.

    consider: predicts loading from where the blocks are, the measured rate of each link and the bytes queued in it;
              compares it with computing the same tokens; picks the best head to load, or the best tail to load while
              the engine computes the head
    probe:    blocks on a slow SSD are not read, so nothing would show that it is fast again. Now and then a few are
              read, behind everything else, to measure the rate

To load nothing is always among the plans compared, so no request is predicted to end later than without a store.
Part of the planner; called by the engine under its lock.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tierstore.advice import LoadAdvice, Place
from tierstore.control.copies import read_blocks
from tierstore.control.entry import State
from tierstore.control.index import as_keys
from tierstore.control.link_rates import LinkRates
from tierstore.control.prefill import PrefillCost
from tierstore.control.requests import UNASKED, leading_run, new_request
from tierstore.types import NO_REQUEST, Priority, TierName

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tierstore.control.mind import Mind
    from tierstore.control.requests import Life
    from tierstore.types import Int64Array, Plan, UInt8Array

__all__ = ["LoadRequest", "Loading"]

_PROBE_SECONDS = 0.5
"""The SSD is probed if nothing was read for so long and a request leaves blocks on it."""

_PROBE_NBYTES = 1 << 20
_PROBE_BLOCKS_MAX = 8
_LAST_TURN = 1 << 40


@dataclass(frozen=True, slots=True, eq=False)
class LoadRequest:
    """A prompt that an engine is about to serve.

    Attributes:
        hashes: uint8[n, 32] of its blocks, in prefix order.
        computed_tokens: Tokens of its head that the engine has computed already.
        within: Seconds that loading may take.
        from_tail: Whether the engine can load the tail while it computes the head; else it loads the head.
    """

    hashes: UInt8Array
    computed_tokens: int = 0
    within: float = math.inf
    from_tail: bool = False


class Loading:
    """Advises what a request should load.

    Args:
        mind: Shared with the stories.
        tokens_per_second: Prefill speed of an engine until it reports its own; None if unknown.

    Attributes:
        rates: Rates of the links; the planner reports jobs to it.
    """

    def __init__(self, mind: Mind, tokens_per_second: float | None) -> None:
        self._mind = mind
        self.rates = LinkRates()
        self._tokens_per_second = tokens_per_second
        self._prefill: dict[bytes, PrefillCost] = {}

    def prefill(self, fingerprint: bytes) -> PrefillCost:
        """The cost of computing in one namespace, by its fingerprint."""
        return self._prefill.setdefault(fingerprint, PrefillCost(self._tokens_per_second))

    def places(self, number: int, hashes: UInt8Array) -> UInt8Array:
        """`Place` of each block, given uint8[n, 32] of one slice."""
        mind = self._mind
        entries = mind.directory.find(number, as_keys(hashes))
        host, ssd = mind.near(entries)
        places = np.full(len(hashes), Place.NOWHERE, np.uint8)
        places[ssd == State.READY] = Place.SSD
        places[host == State.FILLING] = Place.UNDER_WAY
        places[host == State.READY] = Place.HOST
        places[~mind.usable(entries, host, ssd)] = Place.NOWHERE
        return places

    def consider(self, life: Life, places: UInt8Array, wanted: LoadRequest, now: float) -> tuple[LoadAdvice, bool]:
        """Advice for blocks in these uint8[n] places, and whether a probe is due. Changes nothing."""
        leading = leading_run(places != Place.NOWHERE)
        block_tokens = life.generation.layout.block_tokens
        first = min(leading, wanted.computed_tokens // block_tokens)
        cuts = np.arange(leading - first + 1)
        seconds = _LoadSeconds(places[first:leading], life.block_nbytes, self.rates, now, self._reads_ahead_nbytes)
        start, stop = np.zeros_like(cuts), cuts
        if wanted.from_tail:
            start, stop = cuts, np.full_like(cuts, cuts[-1])
        load = seconds.between(start, stop)
        saved: float | None = None
        prefill = self.prefill(life.generation.fingerprint)
        if not prefill.known:
            best = int((load <= wanted.within).nonzero()[0][0 if wanted.from_tail else -1])
        else:
            compute = prefill.seconds_until(np.maximum((first + cuts) * block_tokens, wanted.computed_tokens))
            compute -= compute[0]
            possible = np.where(load <= wanted.within, load, np.inf)
            total = np.maximum(possible, compute) if wanted.from_tail else possible + (compute[-1] - compute)
            best = len(total) - 1 - int(total[::-1].argmin())
            saved = float(compute[stop[best]] - compute[start[best]])
        begin, end = first + int(start[best]), first + int(stop[best])
        elsewhere = (places[begin:end] != Place.HOST).nonzero()[0]
        in_host = begin + int(elsewhere[0]) if len(elsewhere) else end
        advice = LoadAdvice(leading, begin, end, float(load[best]), saved, in_host)
        return advice, self._probe_due(life, wanted, advice, now)

    def _probe_due(self, life: Life, wanted: LoadRequest, advice: LoadAdvice, now: float) -> bool:
        """Whether the advice leaves blocks unloaded, no read is in flight and none has ended for a while."""
        read = self.rates.read
        if self._mind.ssd is None or any(read.waiting_nbytes) or now - read.delivered_at < _PROBE_SECONDS:
            return False
        return len(_left(life, wanted, advice)) > 0

    @property
    def _reads_ahead_nbytes(self) -> int:
        """Most bytes of prefetch reads that can be running, ahead of a get's read."""
        return self._mind.limits.read_threads * self._mind.limits.read_batch_nbytes

    def probe(self, life: Life, wanted: LoadRequest, advice: LoadAdvice, plan: Plan, now: float) -> None:
        """If a probe is still due, read a few blocks that the advice leaves unloaded."""
        if not self._probe_due(life, wanted, advice, now):
            return
        mind = self._mind
        left = _left(life, wanted, advice)[:_PROBE_BLOCKS_MAX]
        request = new_request(NO_REQUEST, UNASKED, life, left)
        entries = mind.directory.find(life.number, request.keys)
        host, ssd = mind.near(entries)
        positions = ((host == State.ABSENT) & (ssd == State.READY)).nonzero()[0]
        positions = positions[: max(1, _PROBE_NBYTES // life.block_nbytes)]
        pages = mind.host.take(life.slot_class, len(positions), after_turn=_LAST_TURN)
        positions = positions[: len(pages)]
        if len(positions):
            request.entries[positions] = entries[positions]
            mind.host.occupy(entries[positions], pages)
            mind.host.prefetched.inflight_nbytes += len(positions) * life.block_nbytes
            read_blocks(mind, request, positions, TierName.HOST, plan, priority=Priority.PREFETCH)


def _left(life: Life, wanted: LoadRequest, advice: LoadAdvice) -> UInt8Array:
    """uint8[m, 32]: blocks that could be loaded but that the advice has computed."""
    first = min(advice.leading, wanted.computed_tokens // life.generation.layout.block_tokens)
    return np.concatenate([wanted.hashes[first : advice.first], wanted.hashes[advice.stop : advice.leading]])


class _LoadSeconds:
    """Seconds to load runs of blocks into the caller's pages; a run lies between two cuts of the prefix."""

    def __init__(
        self, places: UInt8Array, block_nbytes: int, rates: LinkRates, now: float, others_ahead_nbytes: int
    ) -> None:
        read, load = rates.read, rates.load
        self._read_wait = read.seconds_to_deliver(0, now, others_ahead_nbytes=others_ahead_nbytes)
        self._load_wait = load.seconds_to_deliver(0, now, others_ahead_nbytes=0)
        self._reads = _running(places == Place.SSD) * float(block_nbytes / max(1.0, read.nbytes_per_second(now)))
        self._waits = _running((places == Place.SSD) | (places == Place.UNDER_WAY))
        self._load_block = block_nbytes / max(1.0, load.nbytes_per_second(now))

    def between(self, start: Int64Array, stop: Int64Array) -> NDArray[np.float64]:
        """Seconds to load the blocks [start, stop) of each pair of cuts; 0 for an empty run."""
        seconds = self._load_block * (stop - start).astype(np.float64)
        seconds += self._reads[stop] - self._reads[start]
        seconds[self._waits[stop] > self._waits[start]] += self._read_wait
        seconds[stop > start] += self._load_wait
        return seconds


def _running(chosen: NDArray[np.bool_]) -> Int64Array:
    """int64[n + 1]: how many are true before each cut."""
    counts: Int64Array = np.concatenate([[0], np.cumsum(chosen)])
    return counts
