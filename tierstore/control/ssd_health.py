"""How far the SSD tier takes part: what turns writes and reads off, and when a probe may turn them on. Pure.

    SERVING     --a write, sync or new file fails, calls take seconds, no write ends-->       WRITES_OFF
    any         --reads fail in a row, take seconds, or none ends though some are under way--> READS_OFF
    any of both --a probe reads and writes-->                                                  SERVING
    READS_OFF   --a probe reads, but does not write-->                                         WRITES_OFF

Told by `outage` of every SSD job that begins and ends. Probes are backed off by doubling; the back-off is
forgotten once the tier has served for a while. It changes nothing but itself.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tierstore.health import Service
from tierstore.types import CopyJob, Outcome, TierName

if TYPE_CHECKING:
    from tierstore.health import Fault
    from tierstore.types import CopyResult, Job

__all__ = ["SsdHealth"]

_READ_FAILURES_MAX = 3
"""Reads that may fail in a row: one bad spot on a disk is no sick disk."""

_SLOW_CALLS_MAX = 3
"""Slow calls in a row that are borne; a single one may be the disk's own housekeeping."""

_WRITE_PATIENCE = 3
"""Writes are larger than reads and wait for syncs: they may take so many times longer."""

_SLOW_NBYTES_PER_SECOND = 4 << 20
"""What a large call may take beyond a small one before it counts as slow."""

_BACKOFF_SECONDS = (0.5, 30.0)
"""Before the first probe, and at most."""

_CALM_SECONDS = 60.0
"""Trouble that comes back sooner than this after a recovery is the same trouble."""


@dataclass(slots=True)
class _Way:
    """Jobs of one direction.

    Attributes:
        patience_seconds: Between two jobs that end while some are under way.
        under_way: Submitted and not ended.
        moved_at: When one ended last, or the first of them began.
        slow: Slow ones in a row.
        stalled: Found to have stalled, and not moved since.
    """

    patience_seconds: float
    under_way: int = 0
    moved_at: float = 0.0
    slow: int = 0
    stalled: bool = False

    def began(self, now: float) -> None:
        if not self.under_way:
            self.moved_at = now
        self.under_way += 1

    def moved(self, now: float) -> None:
        self.moved_at = now
        self.stalled = False

    @property
    def stalls_at(self) -> float:
        return self.moved_at + self.patience_seconds if self.under_way and not self.stalled else math.inf


class SsdHealth:
    """The state of one tier.

    Args:
        stall_seconds: How long reads under way may go without one that ends; 0 for ever.

    Attributes:
        service: How far the tier takes part.
        since: From which moment of the store's clock on; minus infinity where it has never been otherwise.
        why: In words; empty while it serves.
        full: Whether giving a chunk file back might bring it back.
        notices: What an operator should read, until somebody takes it.
    """

    def __init__(self, stall_seconds: float) -> None:
        patience = stall_seconds or math.inf
        self._slow_seconds = patience / 2
        self._reads, self._writes = _Way(patience), _Way(patience * _WRITE_PATIENCE)
        self._read_failures = 0
        self._failure_told_at = -math.inf
        self._backoff = _BACKOFF_SECONDS[0]
        self._probe_at = math.inf
        self._probing = False
        self._resting = False
        self.service = Service.SERVING
        self.since = -math.inf
        self.why = ""
        self.full = False
        self.notices: list[str] = []

    @property
    def reads_on(self) -> bool:
        """Whether blocks on SSD are served."""
        return self.service is not Service.READS_OFF

    @property
    def writes_on(self) -> bool:
        """Whether blocks are written to SSD."""
        return self.service is Service.SERVING

    @property
    def writes_stalled(self) -> bool:
        """Whether whatever is queued behind the write worker may wait for ever."""
        return self._writes.stalled

    @property
    def reads_well(self) -> bool:
        """Whether the last read but one brought something: what failed now is a bad spot rather than a sick disk."""
        return self.reads_on and self._read_failures <= 1

    @property
    def stalled(self) -> bool:
        """Whether some call into the tier may never come back."""
        return self._reads.stalled or self._writes.stalled

    def rest(self) -> None:
        """Probe no more: the store is closing."""
        self._resting = True

    def found_short(self, why: str, now: float) -> None:
        """The tier opens, and could take nothing."""
        self._turn(Service.WRITES_OFF, why, now)

    def began(self, job: Job, now: float) -> None:
        """A job is submitted to one of the links of the tier."""
        self._way(job).began(now)

    def ended(self, job: Job, result: CopyResult, now: float) -> None:
        """A job has ended, or was withdrawn or refused before it began."""
        way = self._way(job)
        way.under_way -= 1
        began = result.seconds > 0 or result.fault is not None
        none_is_ok = np.count_nonzero(result.outcomes) == len(result.outcomes)
        if not began and none_is_ok and np.isin(result.outcomes, (Outcome.CANCELLED, Outcome.REJECTED)).all():
            return
        way.moved(now)
        nbytes = len(job) * job.generation.layout.block_nbytes if isinstance(job, CopyJob) else 0
        slow = result.seconds > self._slow_seconds + nbytes / _SLOW_NBYTES_PER_SECOND
        way.slow = way.slow + 1 if slow else 0
        if way is self._reads:
            self._read(result, now)
        else:
            self._written(job, result, now)

    def _read(self, result: CopyResult, now: float) -> None:
        failed = bool(np.count_nonzero(result.outcomes)) and bool((result.outcomes == Outcome.IO_ERROR).all())
        self._read_failures = self._read_failures + 1 if failed else 0
        if failed and self.reads_on and now - self._failure_told_at > _CALM_SECONDS:
            self._failure_told_at = now
            self.notices.append(f"blocks on SSD cannot be read and are misses: {_said(result.fault)}")
        if self._read_failures >= _READ_FAILURES_MAX:
            self._turn(Service.READS_OFF, _said(result.fault), now)
        elif self._reads.slow >= _SLOW_CALLS_MAX:
            self._turn(Service.READS_OFF, f"reads take {result.seconds:.1f} s", now)

    def _written(self, job: Job, result: CopyResult, now: float) -> None:
        rewritten = isinstance(job, CopyJob) and job.src is TierName.SSD  # what it could not read is no failed write
        lost = bool(np.count_nonzero(result.outcomes)) and bool((result.outcomes == Outcome.IO_ERROR).any())
        if result.fault is not None or (lost and not rewritten):
            self.full |= self.writes_on and result.fault is not None and result.fault.full
            self._turn(Service.WRITES_OFF, _said(result.fault), now)
        elif self._writes.slow >= _SLOW_CALLS_MAX:
            self._turn(Service.WRITES_OFF, f"writes take {result.seconds:.1f} s", now)

    def look(self, now: float) -> None:
        """Find what has stalled by now."""
        for way, service, verb in (
            (self._writes, Service.WRITES_OFF, "write"),
            (self._reads, Service.READS_OFF, "read"),
        ):
            if way.stalls_at <= now:
                way.stalled = True
                self._turn(service, f"no {verb} has ended for {way.patience_seconds:g} s", now)

    def next_deadline(self) -> float:
        """When to `look`, or to ask for a probe; infinity where neither is wanted."""
        return min(
            self._reads.stalls_at,
            self._writes.stalls_at,
            math.inf if self._probing or self._resting else self._probe_at,
        )

    def hasten(self, now: float) -> None:
        """Something was given back: a probe may find room at once."""
        if self.full and self._probe_at < math.inf:
            self.full = False  # once an outage: what does not help once is not given away again
            self._probe_at = now

    def take_probe(self, now: float) -> bool:
        """Whether a probe is due; it is under way from then on."""
        if self._probing or self._resting or now < self._probe_at:
            return False
        self._probing = True
        return True

    def probed(self, result: CopyResult, now: float) -> None:
        """A probe has ended."""
        self._probing = False
        reads, writes = Outcome(int(result.outcomes[0])), Outcome(int(result.outcomes[-1]))
        slow = result.seconds > self._slow_seconds
        if reads is Outcome.OK and not slow and not self._reads.stalled:
            if writes is Outcome.OK:
                self._recover(now)
                return
            if not self.reads_on:
                self._read_failures = self._reads.slow = 0
                self.service, self.since = Service.WRITES_OFF, now
                self.notices.append("reads from SSD are on again, writes stay off")
        if slow:
            self.why = f"a probe took {result.seconds:.1f} s"
        elif result.fault is not None:
            self.why = result.fault.text
        self._backoff = min(2 * self._backoff, _BACKOFF_SECONDS[1])
        self._probe_at = now + self._backoff

    def _recover(self, now: float) -> None:
        self.notices.append(f"the SSD is well again: reads and writes are on, after {now - self.since:.1f} s")
        self.service, self.since, self.why, self.full = Service.SERVING, now, "", False
        self._read_failures = self._reads.slow = self._writes.slow = 0
        self._probe_at = math.inf

    def _turn(self, service: Service, why: str, now: float) -> None:
        """Go down to a service, unless it is as low already."""
        if service is self.service or not self.reads_on:
            return
        if self.writes_on:
            calm = now - self.since > _CALM_SECONDS
            self._backoff = _BACKOFF_SECONDS[0] if calm else min(2 * self._backoff, _BACKOFF_SECONDS[1])
            self._probe_at = now + self._backoff
        off = "writes to SSD are off" if service is Service.WRITES_OFF else "reads from SSD are off, writes too"
        self.notices.append(f"{off}: {why}; it is probed until it is well again")
        self.service, self.since, self.why = service, now, why

    def _way(self, job: Job) -> _Way:
        return self._reads if isinstance(job, CopyJob) and job.dst is not TierName.SSD else self._writes


def _said(fault: Fault | None) -> str:
    return "the disk failed" if fault is None else fault.text
