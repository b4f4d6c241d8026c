"""A link in the test's own hands: it keeps its jobs until the test says which one ends next, and how.

For tests of the engine and the planner: it keeps the contract of `tierstore.transfer.base.Link` without a
thread. What moves is the affair of a medium, which is told when a job is taken and asked when it ends.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

import numpy as np

from tierstore.transfer.base import num_outcomes
from tierstore.types import Outcome

if TYPE_CHECKING:
    from tierstore.health import Fault
    from tierstore.transfer.base import Done
    from tierstore.types import CopyResult, Job, JobId, UInt8Array

__all__ = ["Medium", "SimLink"]


class Medium(Protocol):
    """What jobs move between."""

    def begin(self, job: Job) -> None:
        """A link has taken a job: from now on its destination is undefined and its source must stay."""

    def end(self, job: Job, outcomes: UInt8Array) -> CopyResult:
        """Do what a job says for the blocks whose outcome is OK, and answer it."""


class SimLink:
    """Jobs taken and not ended.

    Args:
        medium: What the jobs move between.
        on_taken: Called after each job taken, before `submit` returns: what other threads do meanwhile.
        on_ended: Called after each job answered, outside every lock: a place to check invariants.

    Attributes:
        capacity: Jobs beyond which `submit` refuses.
        jobs: Taken and not ended, oldest first.
        begun: Ids of jobs that can no longer be withdrawn.
        lifted: Ids that were lifted while they were here, in order.
        num_ended: Jobs answered.
    """

    def __init__(
        self,
        medium: Medium,
        *,
        on_taken: Callable[[], None] | None = None,
        on_ended: Callable[[], None] | None = None,
    ) -> None:
        self._medium = medium
        self._on_taken = on_taken
        self._on_ended = on_ended
        self._done: dict[JobId, Done] = {}
        self._closed = False
        self.capacity = 1 << 20
        self.jobs: list[Job] = []
        self.begun: set[JobId] = set()
        self.lifted: list[JobId] = []
        self.num_ended = 0

    @property
    def num_queued(self) -> int:
        """Jobs that have not begun."""
        return len(self.jobs) - len(self.begun)

    def submit(self, job: Job, done: Done) -> bool:
        """Take a job; False where the link is full or closed."""
        if self._closed or len(self.jobs) >= self.capacity:
            return False
        assert job.job_id not in self._done, f"job {job.job_id} is submitted twice"
        self._medium.begin(job)
        self._done[job.job_id] = done
        self.jobs.append(job)
        if self._on_taken is not None:
            self._on_taken()
        return True

    def end(
        self,
        job: Job | None = None,
        outcomes: Outcome | Sequence[Outcome] = Outcome.OK,
        *,
        fault: Fault | None = None,
        seconds: float = 0.0,
        in_doubt: tuple[int, ...] = (),
    ) -> None:
        """Answer a job, the oldest where none is named: one outcome for all of its blocks, or one a block.

        Args:
            job: Which.
            outcomes: How it ended.
            fault: What the medium said, if it failed.
            seconds: How long it took.
            in_doubt: Files that a sync could not make durable.
        """
        assert self.jobs, "no job waits in this link"
        job = self.jobs[0] if job is None else job
        self.jobs.remove(job)
        self.begun.discard(job.job_id)
        self.num_ended += 1
        count = num_outcomes(job)
        codes = np.full(count, outcomes) if isinstance(outcomes, Outcome) else np.array(outcomes)
        assert len(codes) == count, f"{len(codes)} outcomes for {count} blocks"
        told = self._medium.end(job, codes.astype(np.uint8))
        result = replace(told, fault=fault, seconds=seconds, in_doubt=in_doubt)
        self._done.pop(job.job_id)(result)
        if self._on_ended is not None:
            self._on_ended()

    def begin(self, job: Job) -> None:
        """From now on the job runs, and cannot be withdrawn."""
        self.begun.add(job.job_id)

    def lift(self, job_id: JobId) -> None:
        """Remember that a job was lifted."""
        if job_id in self._done:
            self.lifted.append(job_id)

    def withdraw(self, job_id: JobId) -> None:
        """Answer a job CANCELLED where it has not begun."""
        if job_id not in self.begun:
            for job in [job for job in self.jobs if job.job_id == job_id]:
                self.end(job, Outcome.CANCELLED)

    def close(self) -> bool:
        """Finish what was taken, and refuse what comes."""
        while self.jobs:
            self.end()
        self._closed = True
        return True
