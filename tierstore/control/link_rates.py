"""The rate of each link now, and the bytes queued in it. Pure; the planner reports every job that begins or ends.

A rate is the bytes of a link's last results over the time between these results while the link had work; later results
weigh more. So it includes whatever slows a job down, be it the disk, other jobs or the machine, without a model of any
of them. Time without a result counts at once, so that a stalled link is seen before its jobs end. The seconds of single
jobs would show neither how many run at a time nor that none ends.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tierstore.types import CopyJob, Priority, TierName

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tierstore.types import CopyResult, Job

__all__ = ["LinkRate", "LinkRates"]

_KEPT = 0.7
"""Weight kept by earlier results at each new one: after a dozen, little is left of even a very slow time."""

_PRIOR_SECONDS = 1e-3
"""Busy time that the initial, assumed rates weigh as much as."""

_READ_NBYTES_PER_SECOND, _LOAD_NBYTES_PER_SECOND = 1e9, 10e9
"""Initial rates: a modest NVMe disk, a modest copy. The first results correct both."""


@dataclass(slots=True)
class LinkRate:
    """One link.

    Attributes:
        nbytes: Bytes delivered, weighted.
        seconds: The busy time that took, weighted alike.
        waiting_nbytes: Bytes of jobs in flight: of gets, and of others.
        busy_since: When the link last delivered, or began to have work.
        delivered_at: When it delivered last.
    """

    nbytes: float
    seconds: float = _PRIOR_SECONDS
    waiting_nbytes: tuple[int, int] = (0, 0)
    busy_since: float = 0.0
    delivered_at: float = -math.inf

    def begin(self, nbytes: int, *, for_get: bool, now: float) -> None:
        """A job is submitted to the link."""
        if not any(self.waiting_nbytes):
            self.busy_since = now
        self._wait(nbytes, for_get=for_get)

    def end(self, nbytes: int, *, delivered_nbytes: int, for_get: bool, now: float) -> None:
        """A job of `nbytes` has ended, and delivered `delivered_nbytes` of them."""
        elapsed = max(0.0, now - self.busy_since)
        if elapsed or delivered_nbytes:
            self.nbytes = self.nbytes * _KEPT + delivered_nbytes
            self.seconds = self.seconds * _KEPT + elapsed
        self.busy_since = self.delivered_at = now
        self._wait(-nbytes, for_get=for_get)

    def _wait(self, nbytes: int, *, for_get: bool) -> None:
        gets, others = self.waiting_nbytes
        self.waiting_nbytes = (gets + nbytes, others) if for_get else (gets, others + nbytes)

    def nbytes_per_second(self, now: float) -> float:
        """The rate now; it falls with every moment in which no job ends."""
        stalled = max(0.0, now - self.busy_since) if any(self.waiting_nbytes) else 0.0
        return self.nbytes * _KEPT / (self.seconds * _KEPT + stalled)

    def seconds_to_deliver(self, nbytes: int | float, now: float, *, others_ahead_nbytes: int) -> float:
        """Seconds to deliver a get's bytes from now: behind all other gets, and the other jobs that run already."""
        gets, others = self.waiting_nbytes
        return (gets + min(others, others_ahead_nbytes) + nbytes) / max(1.0, self.nbytes_per_second(now))


class LinkRates:
    """The links that a get needs.

    Args:
        scale: Factor on the initial rates; less than 1 where a replay shrinks its blocks.

    Attributes:
        read: From SSD into a pool.
        load: From there into the caller's pages.
    """

    def __init__(self, scale: float = 1.0) -> None:
        self.read = LinkRate(_READ_NBYTES_PER_SECOND * _PRIOR_SECONDS * scale)
        self.load = LinkRate(_LOAD_NBYTES_PER_SECOND * _PRIOR_SECONDS * scale)

    def _of(self, job: Job) -> LinkRate | None:
        if not isinstance(job, CopyJob):
            return None
        if job.src is TierName.SSD and job.dst is not TierName.SSD:
            return self.read
        return self.load if (job.src, job.dst) == (TierName.HOST, TierName.DEVICE) else None

    def began(self, jobs: Iterable[Job], now: float) -> None:
        """Jobs have been planned."""
        for job in jobs:
            rate = self._of(job)
            if rate is not None:
                assert isinstance(job, CopyJob)
                nbytes = len(job) * job.generation.layout.block_nbytes
                rate.begin(nbytes, for_get=job.priority is Priority.GET, now=now)

    def ended(self, job: Job, result: CopyResult, now: float) -> None:
        """A job has ended."""
        rate = self._of(job)
        if rate is not None:
            assert isinstance(job, CopyJob)
            block_nbytes = job.generation.layout.block_nbytes
            num_good = len(job) - int(np.count_nonzero(result.outcomes))
            rate.end(
                len(job) * block_nbytes,
                delivered_nbytes=num_good * block_nbytes,
                for_get=job.priority is Priority.GET,
                now=now,
            )
