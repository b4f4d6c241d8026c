"""Passes the result of a job to the story it serves. Pure; part of the planner, which closes the job first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tierstore.control.counting import count_job
from tierstore.control.entry import State
from tierstore.control.near_copies import brought_back, kept_near
from tierstore.control.requests import FAR
from tierstore.types import CopyJob, DiscardJob, Outcome, TierName

if TYPE_CHECKING:
    from tierstore.control.gets import Gets
    from tierstore.control.mind import Mind
    from tierstore.control.puts import Puts
    from tierstore.control.requests import JobRecord
    from tierstore.control.upkeep import Upkeep
    from tierstore.control.write_back import WriteBack
    from tierstore.types import CopyResult, Int64Array, Plan

__all__ = ["Results"]


class Results:
    """The stories, by the jobs that serve them."""

    def __init__(self, mind: Mind, gets: Gets, puts: Puts, write_back: WriteBack, upkeep: Upkeep) -> None:
        self._mind = mind
        self._gets = gets
        self._puts = puts
        self._write_back = write_back
        self._upkeep = upkeep

    def take_in(self, record: JobRecord, result: CopyResult, plan: Plan, now: float) -> None:
        """Pass the result of a job to its story."""
        job = record.job
        if isinstance(job, CopyJob):
            count_job(self._mind, job, result)
            self._copied(record, job, result, plan, now)
        elif isinstance(job, DiscardJob):
            self._upkeep.discarded(job, result)
            self._write_back.parking.file_gone()
        else:
            self._upkeep.settled(result)
            self._mind.wake(record, plan, now)

    def _copied(self, record: JobRecord, job: CopyJob, result: CopyResult, plan: Plan, now: float) -> None:
        if job.dst in FAR:
            self._gets.loaded(record, result.outcomes, plan, now)
        elif job.src is job.dst:
            self._upkeep.rewritten(job, result)
        elif job.src is TierName.SSD:
            self._gets.read(record, job, result.outcomes, plan, now)
        elif job.dst is TierName.DEVICE_POOL:
            kept_near(self._mind, record, result.outcomes, plan, now)
        elif job.src is TierName.DEVICE_POOL:
            brought_back(self._mind, record, result.outcomes, plan, now)
        elif job.src in FAR:
            self._puts.stored(record, job, result.outcomes, plan, now)
        else:
            self._write_back.written(record, job, result, plan, now)
            self._spoilt(record, job.entries[result.outcomes == Outcome.CORRUPT])

    def _spoilt(self, record: JobRecord, entries: Int64Array) -> None:
        """Discard blocks in the host pool whose bytes do not match the checksum given by the writer of their slots."""
        entries = entries[self._mind.directory.host.state[entries] == State.READY]
        if len(entries):
            assert record.request is not None, "a write belongs to the request that led to it"
            self._upkeep.discard(record.request.life, entries)
