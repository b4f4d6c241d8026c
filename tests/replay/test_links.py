"""Links as a model: how long a job takes, and which one is next."""

from __future__ import annotations

import numpy as np
import pytest

from tierstore.errors import ConfigError
from tierstore.layout import KVLayout
from tierstore.replay.links import LinkModel, LinkQueue, links_from_report, parse_link
from tierstore.types import CopyJob, Generation, JobId, Priority, RequestId, TierName

GENERATION = Generation(1, bytes(32), 0, KVLayout.opaque(block_nbytes=4096))


def job(number: int, blocks: int, priority: Priority = Priority.GET) -> CopyJob:
    return CopyJob(
        job_id=JobId(number),
        generation=GENERATION,
        src=TierName.SSD,
        dst=TierName.HOST,
        entries=np.zeros(blocks, np.int64),
        hashes=np.zeros((blocks, 32), np.uint8),
        parents=None,
        src_locations=np.zeros(blocks, np.int32),
        dst_locations=np.zeros(blocks, np.int32),
        priority=priority,
        request_id=RequestId(-1),
    )


def order(queue: LinkQueue) -> list[tuple[int, float]]:
    """Which jobs begin, and when they end, each as soon as the link is free."""
    ends = []
    while (begun := queue.begin(queue.free_at)) is not None:
        ends.append((int(begun[0].job_id), begun[1]))
    return ends


def test_jobs_follow_each_other_and_their_latencies_overlap() -> None:
    queue = LinkQueue(LinkModel(1.0, latency_seconds=0.25), block_nbytes=10**9)
    queue.push(job(1, 2))
    queue.push(job(2, 3))
    assert order(queue) == [(1, 2.25), (2, 5.25)]
    assert queue.busy_seconds == 5.0


def test_a_get_goes_before_a_prefetch_and_a_lifted_one_before_both() -> None:
    queue = LinkQueue(LinkModel(1.0), block_nbytes=10**9)
    for number, priority in ((1, Priority.PREFETCH), (2, Priority.PREFETCH), (3, Priority.GET)):
        queue.push(job(number, 1, priority))
    queue.lift(JobId(2))
    queue.lift(JobId(9))
    assert [number for number, _ in order(queue)] == [2, 3, 1]


def test_a_job_that_was_withdrawn_does_not_begin() -> None:
    queue = LinkQueue(LinkModel(1.0), block_nbytes=10**9)
    queue.push(job(1, 1))
    queue.push(job(2, 1))
    assert queue.withdraw(JobId(1)) is not None
    assert queue.withdraw(JobId(1)) is None
    assert order(queue) == [(2, 1.0)]


def test_a_link_that_is_busy_begins_nothing() -> None:
    queue = LinkQueue(LinkModel(1.0), block_nbytes=10**9)
    queue.push(job(1, 2))
    queue.push(job(2, 1))
    assert queue.begin(0.0) is not None
    assert queue.begin(1.0) is None


def test_links_are_read_from_a_benchmark_and_from_text() -> None:
    report = {"rows": [{"link": "ssd.read", "gbytes_per_second": 2.5}, {"link": "ssd.get", "gbytes_per_second": 9}]}
    assert links_from_report(report, "file") == {"ssd.read": LinkModel(2.5)}
    assert parse_link("ssd.read=6.5") == ("ssd.read", LinkModel(6.5))
    assert parse_link("host.get=25,0.02") == ("host.get", LinkModel(25.0, 0.00002))


@pytest.mark.parametrize("text", ["ssd.read", "ssd.read=", "ssd.read=0", "ssd.read=1,-1", "ssd.raed=1", "ssd.read=nan"])
def test_what_is_no_link_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--link"):
        parse_link(text)


@pytest.mark.parametrize("report", [[], {"rows": []}, {"rows": [{"link": "ssd.read"}]}])
def test_what_is_no_benchmark_is_refused(report: object) -> None:
    with pytest.raises(ConfigError, match="names no link"):
        links_from_report(report, "file")
