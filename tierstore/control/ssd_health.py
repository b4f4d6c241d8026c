"""The health of the SSD tier: when writes and reads are turned off, and when a probe may turn them on. Pure.

    SERVING     --a write, sync or new file fails, calls take seconds, no write ends-->       WRITES_OFF
    any         --reads fail in a row, take seconds, or none ends though some are in flight--> READS_OFF
    either off  --a probe reads and writes-->                                                  SERVING
    READS_OFF   --a probe reads, but does not write-->                                         WRITES_OFF

`outage` reports every SSD job that begins or ends. Each failed probe doubles the back-off before the next; it is
reset once the tier has served for a while. This module only decides; `outage` acts.
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
"""Failed reads in a row that turn reads off: one bad spot does not make a disk unhealthy."""

_SLOW_CALLS_MAX = 3
"""Slow calls in a row that turn reads or writes off; a single one may be the disk's own housekeeping."""

_WRITE_PATIENCE = 3
"""Factor on the patience for writes: they are larger than reads and wait for syncs."""

_SLOW_NBYTES_PER_SECOND = 4 << 20
"""A call may take one second more for so many bytes before it counts as slow."""

_BACKOFF_SECONDS = (0.5, 30.0)
"""Back-off before the first probe, and its maximum."""

_CALM_SECONDS = 60.0
"""An outage sooner than this after a recovery continues the one before: its back-off goes on."""


@dataclass(slots=True)
class _Way:
    """Jobs of one direction: reads or writes.

    Attributes:
        patience_seconds: It stalls if no job ends for so long while some are in flight.
        under_way: Jobs in flight.
        moved_at: When a job last ended, or when the first in flight began.
        slow: Slow jobs in a row.
        stalled: Found to have stalled, and no job has ended since.
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
        stall_seconds: Reads stall if none ends for so long while some are in flight; 0: never.

    Attributes:
        service: Which of reads and writes are on.
        since: When `service` last changed, on the store's clock; minus infinity if it never has.
        why: The reason, in words; empty while it serves.
        full: Whether writes are off because the SSD is full, so that discarding a chunk file may help.
        notices: Messages for the operator, until `outage` takes them.
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
        """Whether jobs queued for the write worker may wait for ever."""
        return self._writes.stalled

    @property
    def reads_well(self) -> bool:
        """Whether the read before the last one succeeded: then a failure is a bad spot, not an unhealthy disk."""
        return self.reads_on and self._read_failures <= 1

    @property
    def stalled(self) -> bool:
        """Whether some call into the tier may never come back."""
        return self._reads.stalled or self._writes.stalled

    def rest(self) -> None:
        """Probe no more: the store is closing."""
        self._resting = True

    def found_short(self, why: str, now: float) -> None:
        """The tier was opened without room for a write."""
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
        """Turn off reads or writes that have stalled by now."""
        for way, service, verb in (
            (self._writes, Service.WRITES_OFF, "write"),
            (self._reads, Service.READS_OFF, "read"),
        ):
            if way.stalls_at <= now:
                way.stalled = True
                self._turn(service, f"no {verb} has ended for {way.patience_seconds:g} s", now)

    def next_deadline(self) -> float:
        """When to call `look` and `take_probe` next; infinity if neither is wanted."""
        return min(
            self._reads.stalls_at,
            self._writes.stalls_at,
            math.inf if self._probing or self._resting else self._probe_at,
        )

    def hasten(self, now: float) -> None:
        """A file was discarded: after a full SSD, probe at once."""
        if self.full and self._probe_at < math.inf:
            self.full = False  # only once in an outage: if one file does not help, no other is discarded for it
            self._probe_at = now

    def take_probe(self, now: float) -> bool:
        """Whether a probe is due; if so it counts as in flight from now on."""
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
        """Lower the service, unless it is as low already."""
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
