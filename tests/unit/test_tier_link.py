"""Links to a tier: what a worker does next, what it does in one call, and that every job is answered once."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from tierstore.errors import DiskError
from tierstore.layout import KVLayout
from tierstore.testing.engine_world import chain
from tierstore.testing.gated_tier import NO_EXTENTS, GatedTier
from tierstore.transfer import tier_link
from tierstore.transfer.tier_link import ReadLink, WriteLink
from tierstore.types import (
    CopyJob,
    CopyResult,
    DiscardJob,
    Generation,
    Job,
    JobId,
    Outcome,
    Priority,
    ProbeJob,
    RequestId,
    SyncJob,
    TierName,
)

PATIENCE_SECONDS = 10
"""How long a test waits for what must happen; it passes as soon as it does."""

GENERATION = Generation(0, bytes(32), 0, KVLayout.opaque(block_nbytes=64))


class Answers:
    """What a link has answered, in order."""

    def __init__(self) -> None:
        self.results: list[CopyResult] = []

    def __call__(self, result: CopyResult) -> None:
        self.results.append(result)

    @property
    def job_ids(self) -> list[int]:
        return [result.job_id for result in self.results]

    def outcomes(self) -> dict[int, Outcome]:
        return {result.job_id: Outcome(result.outcomes[0]) for result in self.results}


def read_job(job_id: int, priority: Priority = Priority.GET) -> CopyJob:
    return copy_job(job_id, 1, priority=priority, src=TierName.SSD, dst=TierName.HOST)


def write_job(job_id: int, count: int = 1) -> CopyJob:
    return copy_job(job_id, count, priority=Priority.WRITE_BACK, src=TierName.HOST, dst=TierName.SSD)


def copy_job(job_id: int, count: int, *, priority: Priority, src: TierName, dst: TierName) -> CopyJob:
    places = np.arange(count, dtype=np.int32)
    return CopyJob(
        job_id=JobId(job_id),
        generation=GENERATION,
        src=src,
        dst=dst,
        entries=places.astype(np.int64),
        hashes=chain("link", count),
        parents=None,
        src_locations=places,
        dst_locations=places,
        priority=priority,
        request_id=RequestId(-1),
    )


@pytest.fixture
def tier() -> Iterator[GatedTier]:
    tier = GatedTier()
    yield tier
    tier.opened.set()


@pytest.fixture
def answers() -> Answers:
    return Answers()


@contextmanager
def busy_reads(tier: GatedTier, answers: Answers, *, capacity: int = 8) -> Iterator[ReadLink]:
    """A read link whose one thread is in a read, job 0; at the end it finishes everything."""
    link = ReadLink(tier, name="ssd-read", threads=1, capacity=capacity)
    assert link.submit(read_job(0), answers)
    assert tier.entered.wait(PATIENCE_SECONDS)
    yield link
    tier.opened.set()
    link.close()


@contextmanager
def busy_writes(tier: GatedTier, answers: Answers, *, capacity: int = 16) -> Iterator[WriteLink]:
    """A write link whose thread is in a write, job 0; at the end it finishes everything."""
    link = WriteLink(tier, name="ssd-write", capacity=capacity)
    assert link.submit(write_job(0), answers)
    assert tier.entered.wait(PATIENCE_SECONDS)
    yield link
    tier.opened.set()
    link.close()


def test_a_read_is_answered_with_what_the_tier_says(tier: GatedTier, answers: Answers) -> None:
    with busy_reads(tier, answers):
        assert answers.results == []
    assert answers.outcomes() == {0: Outcome.CORRUPT}
    assert answers.results[0].seconds > 0


def test_reads_of_gets_go_before_prefetches(tier: GatedTier, answers: Answers) -> None:
    with busy_reads(tier, answers) as link:
        link.submit(read_job(1, Priority.PREFETCH), answers)
        link.submit(read_job(2, Priority.GET), answers)
        link.submit(read_job(3, Priority.GET), answers)
    assert answers.job_ids == [0, 2, 3, 1]


def test_a_lifted_prefetch_goes_before_others_and_is_read_once(tier: GatedTier, answers: Answers) -> None:
    with busy_reads(tier, answers) as link:
        for job_id in (1, 2, 3):
            link.submit(read_job(job_id, Priority.PREFETCH), answers)
        link.lift(JobId(3))
        link.lift(JobId(99))
    assert answers.job_ids == [0, 3, 1, 2]


def test_a_withdrawn_read_is_answered_cancelled_and_never_made(tier: GatedTier, answers: Answers) -> None:
    with busy_reads(tier, answers) as link:
        link.submit(read_job(1), answers)
        link.lift(JobId(1))
        link.withdraw(JobId(1))
        assert answers.outcomes() == {1: Outcome.CANCELLED}
    assert tier.calls == [("read", [0])]
    assert answers.job_ids == [1, 0]


def test_a_read_that_runs_is_not_withdrawn(tier: GatedTier, answers: Answers) -> None:
    with busy_reads(tier, answers) as link:
        link.withdraw(JobId(0))
        assert answers.results == []
    assert answers.outcomes() == {0: Outcome.CORRUPT}


def test_a_full_read_link_refuses_and_does_not_answer(tier: GatedTier, answers: Answers) -> None:
    with busy_reads(tier, answers, capacity=1) as link:
        assert link.submit(read_job(1), answers)
        assert not link.submit(read_job(2), answers)
        link.withdraw(JobId(2))
    assert answers.job_ids == [0, 1]


def test_a_closed_link_refuses(tier: GatedTier, answers: Answers) -> None:
    with busy_reads(tier, answers) as reads:
        pass
    with busy_writes(tier, answers) as writes:
        pass
    assert not reads.submit(read_job(1), answers)
    assert not writes.submit(write_job(1), answers)
    assert answers.job_ids == [0, 0]


@pytest.fixture
def hooked(monkeypatch: pytest.MonkeyPatch) -> list[type[BaseException]]:
    """What workers told `threading.excepthook`."""
    told: list[type[BaseException]] = []
    monkeypatch.setattr(threading, "excepthook", lambda args: told.append(args.exc_type))
    return told


def test_a_read_that_raises_is_an_io_error(tier: GatedTier, answers: Answers, hooked: list[object]) -> None:
    tier.broken = DiskError("read", "c.0")
    with busy_reads(tier, answers):
        pass
    assert answers.outcomes() == {0: Outcome.IO_ERROR}
    assert hooked == [DiskError]


def test_a_call_that_raises_fails_every_write_in_it_and_no_other(
    tier: GatedTier, answers: Answers, hooked: list[object]
) -> None:
    tier.broken = DiskError("write", "c.0")
    with busy_writes(tier, answers) as link:
        for job in (write_job(1), write_job(2), SyncJob(JobId(3))):
            link.submit(job, answers)
    assert tier.calls == [("write", [0]), ("write", [1, 2]), ("sync", [])]
    assert answers.outcomes() == dict.fromkeys(range(4), Outcome.IO_ERROR)
    assert len(hooked) == 3


def test_neighbouring_writes_are_one_call_and_neighbouring_syncs_one_sync(tier: GatedTier, answers: Answers) -> None:
    jobs: list[Job] = [write_job(1), write_job(2), SyncJob(JobId(3)), SyncJob(JobId(4)), write_job(5)]
    with busy_writes(tier, answers) as link:
        for job in jobs:
            assert link.submit(job, answers)
    assert tier.calls == [("write", [0]), ("write", [1, 2]), ("sync", []), ("write", [5])]
    assert answers.job_ids == [0, 1, 2, 3, 4, 5]


def test_a_sync_comes_after_every_write_before_it(tier: GatedTier, answers: Answers) -> None:
    with busy_writes(tier, answers) as link:
        link.submit(SyncJob(JobId(1)), answers)
        link.submit(write_job(2), answers)
        link.submit(SyncJob(JobId(3)), answers)
    assert [name for name, _ in tier.calls] == ["write", "sync", "write", "sync"]


def test_files_are_discarded_one_by_one_in_their_turn(tier: GatedTier, answers: Answers) -> None:
    jobs: list[Job] = [write_job(1), DiscardJob(JobId(2), 8), DiscardJob(JobId(3), 9), write_job(4)]
    with busy_writes(tier, answers) as link:
        for job in jobs:
            link.submit(job, answers)
    assert tier.calls[1:] == [("write", [1]), ("discard", [8]), ("discard", [9]), ("write", [4])]
    assert [result.dst_free_nbytes for result in answers.results] == [99, 99, 77, 77, 99]


def test_a_sync_behind_a_discard_is_a_call_of_its_own(tier: GatedTier, answers: Answers) -> None:
    with busy_writes(tier, answers) as link:
        link.submit(DiscardJob(JobId(1), 8), answers)
        link.submit(SyncJob(JobId(2)), answers)
    assert tier.calls[1:] == [("discard", [8]), ("sync", [])]
    assert answers.job_ids == [0, 1, 2]


def test_a_call_writes_a_bounded_number_of_blocks(
    tier: GatedTier, answers: Answers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tier_link, "_WRITE_BLOCKS_MAX", 4)
    with busy_writes(tier, answers) as link:
        for job_id, count in ((1, 2), (2, 2), (3, 1), (4, 9), (5, 1)):
            link.submit(write_job(job_id, count), answers)
    assert [numbers for _, numbers in tier.calls] == [[0], [1, 2], [3], [4], [5]]


def test_a_write_is_answered_with_all_that_the_tier_says(tier: GatedTier, answers: Answers) -> None:
    with busy_writes(tier, answers):
        pass
    (result,) = answers.results
    assert (result.dst_locations, result.dst_free_nbytes, result.encoded_nbytes) == (NO_EXTENTS, 99, 5)
    assert result.seconds > 0


def test_a_full_write_link_refuses_and_forgets_the_job(tier: GatedTier, answers: Answers) -> None:
    with busy_writes(tier, answers, capacity=1) as link:
        assert link.submit(write_job(1), answers)
        assert not link.submit(write_job(2), answers)
    assert answers.job_ids == [0, 1]


class FullAtOnce:
    """A worker that had room a moment ago, and whose turn under way takes the new job along."""

    room = 1

    def submit(self, task: threading.Thread, priority: int = 0, failed: object = None) -> bool:
        task()  # type: ignore[operator]
        return False


def test_a_job_that_an_earlier_turn_took_along_is_not_refused_too(tier: GatedTier, answers: Answers) -> None:
    tier.opened.set()
    with busy_writes(tier, answers) as link:
        worker, link._worker = link._worker, FullAtOnce()  # type: ignore[assignment]
        assert link.submit(write_job(1), answers)
        link._worker = worker
    assert sorted(answers.job_ids) == [0, 1]


def test_a_write_that_has_not_begun_is_withdrawn_and_none_is_lifted(tier: GatedTier, answers: Answers) -> None:
    with busy_writes(tier, answers) as link:
        link.submit(write_job(1), answers)
        link.submit(write_job(2), answers)
        link.lift(JobId(2))
        link.withdraw(JobId(1))
        link.withdraw(JobId(0))
        assert answers.outcomes() == {1: Outcome.CANCELLED}
    assert answers.job_ids == [1, 0, 2]
    assert tier.calls == [("write", [0]), ("write", [2])]


def test_a_probe_is_answered_with_what_it_found_and_goes_alone(tier: GatedTier, answers: Answers) -> None:
    with busy_writes(tier, answers) as link:
        link.submit(SyncJob(JobId(1)), answers)
        link.submit(ProbeJob(JobId(2)), answers)
        link.submit(SyncJob(JobId(3)), answers)
    assert tier.calls[1:] == [("sync", []), ("probe", []), ("sync", [])]
    assert answers.results[2].outcomes.tolist() == [Outcome.OK, Outcome.OK]
    assert answers.results[2].dst_free_nbytes == 55
