"""A status that no store has told: every figure known, everything in motion, and text of the test's own in it."""

from __future__ import annotations

from tierstore.metrics import Metric, Metrics
from tierstore.monitor.history import STEP_SECONDS, History
from tierstore.monitor.status import LinkStatus, Status, TierStatus, VerbStatus

__all__ = ["made_up"]

NOW = 1_800_000_000.0


def _curves_of_ten_minutes() -> History:
    """A history in which everything moves."""
    history, metrics = History(), Metrics()
    for step in range(300):
        metrics.add(Metric.LOOKUP_BLOCKS, 100)
        metrics.add(Metric.LOOKUP_HIT_BLOCKS, 60 + step % 30)
        metrics.add(Metric.GET_TOKENS, 1000)
        metrics.add(Metric.HIT_TOKENS, 500 + step, "host")
        metrics.add(Metric.HIT_TOKENS, 150, "ssd")
        for link in ("load", "store", "ssd-read", "ssd-write"):
            metrics.add(Metric.LINK_BYTES, len(link) * 10_000_000 * (step % 17 + 20), link)
        metrics.observe(Metric.REQUEST_SECONDS, 0.002 + step / 10_000, "get")
        history.add(metrics.copy(), NOW - (300 - step) * STEP_SECONDS)
    return history


def _tier(service: str, why: str, used_nbytes: int, capacity_nbytes: int) -> TierStatus:
    return TierStatus(
        service=service,
        since=NOW - 300,
        why=why,
        capacity_nbytes=capacity_nbytes,
        used_nbytes=used_nbytes,
        used_blocks=used_nbytes >> 21,
        pinned_blocks=17,
    )


def made_up(host_name: str, why: str) -> Status:
    """A status with text of one's own."""
    outcomes: dict[str, float] = {"ok": 1234567, "miss": 3, host_name: 0}
    return Status(
        format=1,
        version="1.2.3",
        host_name=host_name,
        pid=42,
        now=NOW,
        opened_at=NOW - 7260,
        settings={"ssd.dir": host_name},
        tiers={
            "host": _tier("serving", "", 48 << 30, 64 << 30),
            "ssd": _tier("writes_off", why, 1 << 39, 1 << 40),
        },
        links={
            str(link): LinkStatus(
                nbytes=5 << 40, nbytes_per_second=1.5e9, job_seconds=0.0015, inflight_jobs=3, queued_jobs=2
            )
            for link in Metric.LINK_BYTES.labels["link"]
        },
        verbs={
            verb: VerbStatus(open=3, per_second=12.5, seconds_p50=0.0023, seconds_p99=1.25, outcomes=outcomes)
            for verb in ("get", "put", "prefetch")
        },
        hit_rates={"lookup": 0.8125, "get": 0.97, "pool": 0.01, "host": 0.9, "ssd": 0.07},
        counts={
            "corrupt_blocks": 5,
            "evicted_host_blocks": 77,
            "evicted_ssd_blocks": 78,
            "prefetched_useful_blocks": 79,
            "prefetched_wasted_blocks": 80,
            "prefetched_cancelled_blocks": 81,
            "ssd_outages": 1,
            "pool_used_nbytes": 5 << 30,
            "evicted_pool_blocks": 76,
            "lent_nbytes": 3 << 30,
            "write_amplification_ratio": 1.5,
            "service_sessions": 4,
            "open_sessions": 2,
            "waiting_requests": 9,
            "window_blocks": 100,
        },
        refused={"pool_full": 3, why: 1},
        curves=_curves_of_ten_minutes().curves(),
    )
