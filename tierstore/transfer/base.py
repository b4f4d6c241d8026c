"""The interface between the engine and its links. A link moves blocks one way between two neighbouring tiers.

The engine calls links outside its lock. A link never blocks its caller. It answers every job it took exactly
once, on a thread of its own, and owns the threads or the stream it needs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, TypeAlias

import numpy as np

from tierstore.types import CopyJob, CopyResult, Outcome, ProbeJob, TombstoneJob

if TYPE_CHECKING:
    from tierstore.transfer.layers import Layers
    from tierstore.types import Job, JobId

__all__ = ["Done", "FarSide", "Link", "ended", "num_outcomes"]

Done: TypeAlias = Callable[[CopyResult], None]


class FarSide(Protocol):
    """The caller's side of a request: the memory that its copies read or write."""

    @property
    def layers(self) -> Layers | None:
        """Told of every load into the caller's memory; None if nobody waits for single page groups."""

    def complete(self, num_blocks: int) -> None:
        """The request's jobs cover `num_blocks` blocks and no job will be added; some may not be submitted yet."""

    def recall(self) -> None:
        """The store closes: end soon whatever otherwise only the caller could end."""


class Link(Protocol):
    """Moves blocks one way."""

    @property
    def num_queued(self) -> int:
        """Jobs that wait for the link's thread or on its stream; from any thread."""

    def submit(self, job: Job, done: Done) -> bool:
        """Take a job. False if there is no room for it; then `done` is never called. Never blocks."""

    def lift(self, job_id: JobId) -> None:
        """Serve a queued job before others of its kind; does nothing if it is no longer queued."""

    def withdraw(self, job_id: JobId) -> None:
        """Answer a job CANCELLED if it is still queued."""

    def close(self) -> bool:
        """Finish the jobs taken and end the threads. Blocks. False if a thread hangs in a call and is left behind."""


def ended(job: Job, outcome: Outcome) -> CopyResult:
    """The result of a job that ended the same way for every block."""
    return CopyResult(job.job_id, np.full(num_outcomes(job), outcome, np.uint8))


def num_outcomes(job: Job) -> int:
    """The number of outcomes in a job's result."""
    if isinstance(job, CopyJob | TombstoneJob):
        return len(job)
    return 2 if isinstance(job, ProbeJob) else 1
