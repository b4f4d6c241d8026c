"""Models of links: a rate in bytes a second, a fixed time a job, and one queue each, the most urgent job first.

Called by `world` alone. A model without times ends every job at once; the replay then judges which blocks are kept,
not how fast they arrive.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tierstore.errors import ConfigError
from tierstore.settings import nearest

if TYPE_CHECKING:
    from tierstore.types import CopyJob, JobId

__all__ = ["LINKS", "LinkModel", "LinkQueue", "links_from_report", "parse_link"]

LINKS = {"host.put": "store", "host.get": "load", "ssd.read": "read", "ssd.write": "write"}
"""Links as `tierstore bench` names them, and as they are called here."""


@dataclass(frozen=True, slots=True)
class LinkModel:
    """How fast one link is.

    Attributes:
        gbytes_per_second: All its threads together; 1 GB is 10**9 bytes.
        latency_seconds: From the start of a job until its first byte; those of a queue overlap.
    """

    gbytes_per_second: float
    latency_seconds: float = 0.0

    def seconds(self, nbytes: float) -> float:
        """How long so many bytes keep the link busy."""
        return nbytes / (self.gbytes_per_second * 1e9)


class LinkQueue:
    """The queued jobs of one link, and the time at which the link is free.

    Args:
        model: Its speed.
        block_nbytes: Bytes that each block counts.
    """

    def __init__(self, model: LinkModel, block_nbytes: int) -> None:
        self._model = model
        self._block_nbytes = block_nbytes
        self._waiting: list[tuple[int, int, JobId]] = []
        self._jobs: dict[JobId, CopyJob] = {}
        self._num_pushed = 0
        self.free_at = 0.0
        self.busy_seconds = 0.0

    def push(self, job: CopyJob) -> None:
        """Queue a job behind those as urgent as it is."""
        self._jobs[job.job_id] = job
        self._push(job, job.priority)

    def _push(self, job: CopyJob, priority: int) -> None:
        self._num_pushed += 1
        heapq.heappush(self._waiting, (priority, self._num_pushed, job.job_id))

    def lift(self, job_id: JobId) -> None:
        """Serve a job that still waits before all others."""
        if job_id in self._jobs:
            self._push(self._jobs[job_id], -1)

    def withdraw(self, job_id: JobId) -> CopyJob | None:
        """Take a job that still waits out."""
        return self._jobs.pop(job_id, None)

    def begin(self, now: float) -> tuple[CopyJob, float] | None:
        """Begin the next job if the link is free: it, and when it ends."""
        if self.free_at > now:
            return None
        while self._waiting:
            job = self._jobs.pop(heapq.heappop(self._waiting)[2], None)
            if job is not None:
                seconds = self._model.seconds(len(job) * self._block_nbytes)
                self.free_at = now + seconds
                self.busy_seconds += seconds
                return job, self.free_at + self._model.latency_seconds
        return None


def parse_link(text: str) -> tuple[str, LinkModel]:
    """A link such as ``"ssd.read=6.5"`` (GB/s) or ``"ssd.read=6.5,0.2"`` (and ms a job).

    Raises:
        ConfigError: No such link, or no such numbers.
    """
    name, _, numbers = text.partition("=")
    if name not in LINKS:
        raise ConfigError(f'"{name}" in --link {text} is no link; {nearest(name, LINKS)}')
    try:
        speed, latency_ms = (*(float(number) for number in numbers.split(",")), 0.0)[:2]
    except ValueError:
        speed = latency_ms = -1.0
    if not 0 < speed < 1e6 or not 0 <= latency_ms < 1e6:
        raise ConfigError(f'--link is "{text}"; give NAME=GB/S or NAME=GB/S,MS, such as ssd.read=6.5,0.2')
    return name, LinkModel(speed, latency_ms / 1e3)


def links_from_report(report: object, source: str) -> Mapping[str, LinkModel]:
    """Links as `tierstore bench --bandwidth --json` measured them: its rates are of whole calls, latency included.

    Raises:
        ConfigError: It is no such report, or one without these links.
    """
    found: dict[str, LinkModel] = {}
    match report:
        case {"rows": list(rows)}:
            for row in rows:
                match row:
                    case {
                        "link": str(name),
                        "gbytes_per_second": int() | float() as speed,
                    } if name in LINKS and speed > 0:
                        found[name] = LinkModel(float(speed))
    if not found:
        raise ConfigError(f"{source} names no link; give what tierstore bench --bandwidth --json wrote")
    return found
