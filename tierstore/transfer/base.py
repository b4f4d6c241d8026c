"""The seam between the engine and what moves blocks: a link, one way between two neighbouring tiers.

Called by the engine outside its lock. A link never blocks its caller, answers every job it took exactly
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
    """The caller's side of a request: what its copies are made from or to."""

    @property
    def layers(self) -> Layers | None:
        """Told of every load into the caller's memory; None where nobody waits for single ones."""

    def complete(self, num_blocks: int) -> None:
        """So many of its blocks were handed to jobs, some of which may still have to be submitted; no more will be."""

    def recall(self) -> None:
        """The store closes: end soon whatever only the caller could end."""


class Link(Protocol):
    """Moves blocks one way."""

    @property
    def num_queued(self) -> int:
        """Jobs taken that wait for the link's thread, or on its stream; from any thread."""

    def submit(self, job: Job, done: Done) -> bool:
        """Take a job; False where there is no room for it, and then `done` is never called. Never blocks."""

    def lift(self, job_id: JobId) -> None:
        """Serve a queued job before others of its kind; nothing happens where it is not queued any more."""

    def withdraw(self, job_id: JobId) -> None:
        """Answer a job CANCELLED if it is still queued."""

    def close(self) -> bool:
        """Finish what was taken and end the threads. Blocks. False where one hangs in a call and is left behind."""


def ended(job: Job, outcome: Outcome) -> CopyResult:
    """The result of a job that ended the same way for every block."""
    return CopyResult(job.job_id, np.full(num_outcomes(job), outcome, np.uint8))


def num_outcomes(job: Job) -> int:
    """How many outcomes answer a job."""
    if isinstance(job, CopyJob | TombstoneJob):
        return len(job)
    return 2 if isinstance(job, ProbeJob) else 1
