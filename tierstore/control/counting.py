"""Metrics of requests and jobs that have ended, and gauges of how full everything is. Pure.

Called by the planner and by `results`; a story counts by itself what it alone knows. A request or a job costs one
histogram entry. The gauges cost a pass over the directory; only doors ask for them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tierstore.control.entry import State
from tierstore.metrics import Metric
from tierstore.types import Outcome, TierName

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tierstore.control.mind import Mind
    from tierstore.control.requests import Request
    from tierstore.metrics import Metrics
    from tierstore.types import CopyJob, CopyResult, UInt8Array

__all__ = ["count_job", "count_request", "count_written", "gauge"]

_OUTCOMES = tuple(Outcome)
_OK = Outcome.OK

_LINK_NAMES = {
    (TierName.HOST, TierName.DEVICE): "load",
    (TierName.DEVICE, TierName.HOST): "store",
    (TierName.HOST, TierName.BORROWER): "lease",
    (TierName.BORROWER, TierName.HOST): "reserve",
    (TierName.DEVICE_POOL, TierName.DEVICE): "pool-load",
    (TierName.DEVICE, TierName.DEVICE_POOL): "pool-fill",
    (TierName.DEVICE_POOL, TierName.HOST): "pool-return",
    (TierName.SSD, TierName.HOST): "ssd-read",
    (TierName.SSD, TierName.DEVICE_POOL): "ssd-direct",
    (TierName.HOST, TierName.SSD): "ssd-write",
    (TierName.SSD, TierName.SSD): "ssd-rewrite",
}


def count_request(mind: Mind, request: Request, now: float) -> None:
    """Count a request that has ended; one without a verb, such as a flush, counts for nothing."""
    verb = request.story.verb
    if not verb:
        return
    life, metrics = request.life, mind.metrics
    num_ok = _count(metrics, Metric.REQUEST_BLOCKS, verb, request.outcomes)
    metrics.add(Metric.REQUEST_BYTES, num_ok * life.block_nbytes, verb)
    lasted = Metric.LENT_SECONDS if request.far is TierName.BORROWER else Metric.REQUEST_SECONDS
    metrics.observe(lasted, max(0.0, now - request.begun), verb)


def count_job(mind: Mind, job: CopyJob, result: CopyResult) -> None:
    """Count a copy job that has ended, by its link."""
    link = _LINK_NAMES[job.src, job.dst]
    num_ok = _count(mind.metrics, Metric.LINK_BLOCKS, link, result.outcomes)
    mind.metrics.add(Metric.LINK_BYTES, num_ok * job.generation.layout.block_nbytes, link)
    mind.metrics.observe(Metric.LINK_JOB_SECONDS, result.seconds, link)


def count_written(mind: Mind, result: CopyResult, written: str) -> None:
    """Count the bytes that blocks took on disk; `written` says whether for the first time or again."""
    if result.encoded_nbytes:
        mind.metrics.add(Metric.SSD_ENCODED_BYTES, result.encoded_nbytes, written)


def _count(metrics: Metrics, blocks: Metric, label: str, outcomes: UInt8Array) -> int:
    """Count blocks by outcome; returns how many are OK."""
    num_ok = len(outcomes)
    if np.count_nonzero(outcomes):
        counts = np.bincount(outcomes, minlength=len(_OUTCOMES)).tolist()
        num_ok = counts[_OK]
        for outcome in _OUTCOMES[1:]:
            metrics.add(blocks, counts[outcome], label, outcome)
    metrics.add(blocks, num_ok, label, _OK)
    return num_ok


def gauge(mind: Mind, requests: Sequence[Request]) -> None:
    """Bring the gauges up to date; `requests` are those that have not ended."""
    metrics, directory, slots = mind.metrics, mind.directory, mind.host.slots
    known = slice(0, directory.high_water)
    metrics.set(Metric.HOST_PINNED_BLOCKS, int(np.count_nonzero(directory.host.pins[known])))
    metrics.set(Metric.HOST_USED_BLOCKS, slots.num_used)
    metrics.set(Metric.HOST_FREE_BLOCKS, slots.num_free)
    metrics.set(Metric.HOST_USED_BYTES, mind.host.used_nbytes)
    metrics.set(Metric.HOST_FREE_BYTES, mind.host.pool_nbytes - mind.host.used_nbytes)
    if mind.device is not None:
        metrics.set(Metric.DEVICE_POOL_USED_BYTES, mind.device.used_nbytes)
    for way, link in _LINK_NAMES.items():
        metrics.set(Metric.LINK_INFLIGHT_JOBS, mind.jobs.num_copies(*way), link)
    verbs = [request.story.verb for request in requests]
    for verb in Metric.OPEN_REQUESTS.labels["verb"]:
        metrics.set(Metric.OPEN_REQUESTS, verbs.count(str(verb)), verb)
    if mind.ssd is not None:
        metrics.set(Metric.SSD_USED_BLOCKS, int(np.count_nonzero(directory.ssd.state[known] == State.READY)))
        metrics.set(Metric.SSD_FREE_BYTES, mind.ssd.free_nbytes)
        first, again = (metrics.value(Metric.SSD_ENCODED_BYTES, written) for written in ("first", "again"))
        metrics.set(Metric.SSD_WRITE_AMPLIFICATION_RATIO, (first + again) / first if first else 0)
        metrics.set(Metric.SSD_ON, mind.health.reads_on, "read")
        metrics.set(Metric.SSD_ON, mind.health.writes_on, "write")
