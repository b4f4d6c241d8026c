"""Which link runs which job: one link for each way between neighbouring tiers. Called by the engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tierstore.types import CopyJob, TierName

if TYPE_CHECKING:
    from tierstore.transfer.base import Link
    from tierstore.types import Job, Plan

__all__ = ["Links"]


@dataclass(frozen=True, slots=True)
class Links:
    """One link for each way between neighbouring tiers; None without an SSD tier, or without borrowers."""

    load: Link
    store: Link
    read: Link | None = None
    write: Link | None = None
    lend: Link | None = None

    def of(self, job: Job) -> Link:
        """The link that runs a job."""
        if not isinstance(job, CopyJob) or job.dst is TierName.SSD:
            link = self.write
        elif job.src is TierName.SSD:
            link = self.read
        elif TierName.BORROWER in (job.src, job.dst):
            link = self.lend
        else:
            link = self.load if job.dst is TierName.DEVICE else self.store
        assert link is not None, f"no link runs {job!r}"
        return link

    def reorder(self, plan: Plan) -> None:
        """Lift and withdraw the queued jobs that a plan names."""
        for link in (self.read, self.write):
            if link is not None:
                for job_id in plan.lifts:
                    link.lift(job_id)
                for job_id in plan.withdraws:
                    link.withdraw(job_id)

    @property
    def num_queued(self) -> dict[str, int]:
        """Jobs that wait, by the name of their link."""
        links = {"load": self.load, "store": self.store, "ssd-read": self.read, "ssd-write": self.write}
        return {name: 0 if link is None else link.num_queued for name, link in links.items()}

    def all(self) -> list[Link]:
        """All links in the order of closing: a link that feeds others comes first."""
        return [link for link in (self.read, self.load, self.store, self.lend, self.write) if link is not None]
