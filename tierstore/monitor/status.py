"""A store's status as one JSON object, which the status page draws and `tierstore top` prints.

`describe` builds it from the store's numbers; `read_status` fetches and checks it. Its shape is `Status`; a reader may
rely on it as long as `format` is 1.
"""

from __future__ import annotations

import http.client
import json
import os
import socket
from typing import TYPE_CHECKING, Protocol, TypedDict, cast

import tierstore
from tierstore.addresses import parse_address
from tierstore.errors import AddressError
from tierstore.metrics import Metric
from tierstore.monitor.history import Curves, hit_share, ratio
from tierstore.types import Outcome, TierName

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tierstore.config import StoreConfig
    from tierstore.health import TierHealth
    from tierstore.metrics import Metrics
    from tierstore.monitor.history import History

__all__ = ["FORMAT", "LinkStatus", "Status", "TierStatus", "VerbStatus", "Watched", "describe", "read_status"]

FORMAT = 1

_TIMEOUT_SECONDS = 5.0
_NBYTES_MAX = 8 << 20


class Watched(Protocol):
    """What a monitor sees of a store."""

    @property
    def config(self) -> StoreConfig:
        """Its settings."""

    @property
    def opened_at(self) -> float:
        """Unix time."""

    def read_metrics(self) -> Metrics:
        """A copy of its metrics."""

    def health(self) -> Mapping[str, TierHealth]:
        """How its tiers are."""


class TierStatus(TypedDict):
    """One tier: see `TierHealth`, and how full it is. SSD bytes count whole files, also where blocks fill less."""

    service: str
    since: float
    why: str
    capacity_nbytes: float
    used_nbytes: float
    used_blocks: float
    pinned_blocks: float


class LinkStatus(TypedDict):
    """One link; rates and `job_seconds` (its mean) are of the last minute."""

    nbytes: float
    nbytes_per_second: float
    job_seconds: float | None
    inflight_jobs: float
    queued_jobs: float


class VerbStatus(TypedDict):
    """One verb: requests and latencies of the last minute, outcomes of its blocks since the start."""

    open: float
    per_second: float
    seconds_p50: float | None
    seconds_p99: float | None
    outcomes: dict[str, float]


class Status(TypedDict):
    """Everything. `now` and `opened_at` are Unix times; hit rates are shares of the last minute."""

    format: int
    version: str
    host_name: str
    pid: int
    now: float
    opened_at: float
    settings: dict[str, str]
    tiers: dict[str, TierStatus]
    links: dict[str, LinkStatus]
    verbs: dict[str, VerbStatus]
    hit_rates: dict[str, float | None]
    counts: dict[str, float]
    refused: dict[str, float]
    curves: Curves


def describe(watched: Watched, history: History, now: float) -> Status:
    """The status of a store at a Unix time."""
    metrics = watched.read_metrics()
    recent, seconds = history.recent(metrics, now)
    return Status(
        format=FORMAT,
        version=tierstore.__version__,
        host_name=socket.gethostname(),
        pid=os.getpid(),
        now=now,
        opened_at=watched.opened_at,
        settings={key: value for key, value, _source in watched.config.describe()},
        tiers={name: _tier(name, health, metrics, watched.config) for name, health in watched.health().items()},
        links={str(link): _link(str(link), metrics, recent, seconds) for link in Metric.LINK_BYTES.labels["link"]},
        verbs={str(verb): _verb(str(verb), metrics, recent, seconds) for verb in Metric.REQUEST_BYTES.labels["verb"]},
        hit_rates={
            "lookup": ratio(recent.value(Metric.LOOKUP_HIT_BLOCKS), recent.value(Metric.LOOKUP_BLOCKS)),
            "get": hit_share(recent, TierName.DEVICE_POOL, TierName.HOST, TierName.SSD),
            "pool": hit_share(recent, TierName.DEVICE_POOL),
            "host": hit_share(recent, TierName.HOST),
            "ssd": hit_share(recent, TierName.SSD),
        },
        counts=_counts(metrics),
        refused={
            str(reason): metrics.value(Metric.NOT_STORED_BLOCKS, reason)
            for reason in Metric.NOT_STORED_BLOCKS.labels["reason"]
        },
        curves=history.curves(),
    )


def _tier(name: str, health: TierHealth, metrics: Metrics, config: StoreConfig) -> TierStatus:
    host = name == TierName.HOST
    used = metrics.value(Metric.HOST_USED_BYTES if host else Metric.SSD_USED_BYTES)
    return TierStatus(
        service=health.service,
        since=health.since,
        why=health.why,
        capacity_nbytes=used + metrics.value(Metric.HOST_FREE_BYTES) if host else config.ssd.size,
        used_nbytes=used,
        used_blocks=metrics.value(Metric.HOST_USED_BLOCKS if host else Metric.SSD_USED_BLOCKS),
        pinned_blocks=metrics.value(Metric.HOST_PINNED_BLOCKS) if host else 0,
    )


def _link(link: str, metrics: Metrics, recent: Metrics, seconds: float) -> LinkStatus:
    num_jobs, job_seconds = recent.durations(Metric.LINK_JOB_SECONDS, link)
    queues = Metric.LINK_QUEUED_JOBS.labels["link"]
    return LinkStatus(
        nbytes=metrics.value(Metric.LINK_BYTES, link),
        nbytes_per_second=round(recent.value(Metric.LINK_BYTES, link) / seconds),
        job_seconds=job_seconds / num_jobs if num_jobs else None,
        inflight_jobs=metrics.value(Metric.LINK_INFLIGHT_JOBS, link),
        queued_jobs=metrics.value(Metric.LINK_QUEUED_JOBS, link) if link in queues else 0,
    )


def _verb(verb: str, metrics: Metrics, recent: Metrics, seconds: float) -> VerbStatus:
    num_ended, _seconds = recent.durations(Metric.REQUEST_SECONDS, verb)
    return VerbStatus(
        open=metrics.value(Metric.OPEN_REQUESTS, verb),
        per_second=round(num_ended / seconds, 2),
        seconds_p50=recent.quantile(Metric.REQUEST_SECONDS, 0.5, verb),
        seconds_p99=recent.quantile(Metric.REQUEST_SECONDS, 0.99, verb),
        outcomes={outcome.name.lower(): metrics.value(Metric.REQUEST_BLOCKS, verb, outcome) for outcome in Outcome},
    )


def _counts(metrics: Metrics) -> dict[str, float]:
    corrupt = sum(
        metrics.value(Metric.LINK_BLOCKS, link, Outcome.CORRUPT) for link in Metric.LINK_BLOCKS.labels["link"]
    )
    return {
        "corrupt_blocks": corrupt,
        "evicted_pool_blocks": metrics.value(Metric.EVICTED_BLOCKS, TierName.DEVICE_POOL),
        "evicted_host_blocks": metrics.value(Metric.EVICTED_BLOCKS, TierName.HOST),
        "evicted_ssd_blocks": metrics.value(Metric.EVICTED_BLOCKS, TierName.SSD),
        "prefetched_useful_blocks": metrics.value(Metric.PREFETCHED_BLOCKS, "useful"),
        "prefetched_wasted_blocks": metrics.value(Metric.PREFETCHED_BLOCKS, "wasted"),
        "prefetched_cancelled_blocks": metrics.value(Metric.PREFETCHED_BLOCKS, "cancelled"),
        "ssd_outages": metrics.total(Metric.SSD_OUTAGES),
        "pool_used_nbytes": metrics.value(Metric.DEVICE_POOL_USED_BYTES),
        "lent_nbytes": metrics.value(Metric.HOST_LENT_BYTES),
        "write_amplification_ratio": metrics.value(Metric.SSD_WRITE_AMPLIFICATION_RATIO),
        "service_sessions": metrics.total(Metric.SERVICE_SESSIONS),
        "open_sessions": metrics.value(Metric.OPEN_SESSIONS),
        "waiting_requests": metrics.value(Metric.WAITING_REQUESTS),
        "window_blocks": metrics.value(Metric.WINDOW_BLOCKS),
    }


def read_status(address: str) -> Status:
    """Ask a monitor at ``host:port`` for its status. Blocks for some seconds at most.

    Raises:
        AddressError: Nothing answers there, or it is no monitor of this version.
    """
    host, port = parse_address(address)
    connection = http.client.HTTPConnection(host, port, timeout=_TIMEOUT_SECONDS)
    try:
        connection.request("GET", "/status.json")
        answer = connection.getresponse()
        body = answer.read(_NBYTES_MAX)
    except (OSError, http.client.HTTPException) as error:
        raise AddressError(
            f"no store answers at {address} ({error}); start one with monitor.address = {address}, or name another"
        ) from error
    finally:
        connection.close()
    try:
        status = json.loads(body) if answer.status == http.HTTPStatus.OK else None
    except ValueError:
        status = None
    if not isinstance(status, dict) or status.get("format") != FORMAT:
        raise AddressError(
            f"what answers at {address} is no tierstore, or one of another version; name another address"
        )
    return cast("Status", status)
