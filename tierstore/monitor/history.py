"""History of a store's metrics: ten minutes as a few curves, the last minute as counts. Pure: no clock, no I/O.

Fed by `watching` every `STEP_SECONDS`. Keeps a bounded number of points, and copies of the metrics for one minute.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TypedDict

from tierstore.metrics import Metric, Metrics
from tierstore.types import TierName

__all__ = ["POINTS_MAX", "RECENT_SECONDS", "STEP_SECONDS", "Curves", "History", "hit_share", "ratio"]

STEP_SECONDS = 2.0
POINTS_MAX = 300
RECENT_SECONDS = 60.0

_LINKS = tuple(str(link) for link in Metric.LINK_BYTES.labels["link"])


class Curves(TypedDict):
    """One value for each point, oldest first; None where there was nothing to measure.

    `at` is Unix time in seconds. Shares are from 0 to 1; `pool_hits` is that of the device pool. Links are in bytes a
    second.
    """

    at: list[float]
    lookup_hits: list[float | None]
    pool_hits: list[float | None]
    host_hits: list[float | None]
    ssd_hits: list[float | None]
    host_used: list[float | None]
    get_seconds_p99: list[float | None]
    links: dict[str, list[float]]


@dataclass(frozen=True, slots=True)
class _Point:
    at: float
    lookup_hits: float | None
    pool_hits: float | None
    host_hits: float | None
    ssd_hits: float | None
    host_used: float | None
    get_seconds_p99: float | None
    links: tuple[float, ...]


class History:
    """The recent past of the metrics."""

    def __init__(self) -> None:
        self._points: deque[_Point] = deque(maxlen=POINTS_MAX)
        self._copies: deque[tuple[float, Metrics]] = deque(maxlen=int(RECENT_SECONDS / STEP_SECONDS) + 1)

    def add(self, metrics: Metrics, at: float) -> None:
        """Add a copy of the metrics at a Unix time. If the clock has stepped backwards, the history starts over."""
        if self._copies and at <= self._copies[-1][0]:
            self._points.clear()
            self._copies.clear()
        if self._copies:
            before, earlier = self._copies[-1]
            self._points.append(_point(metrics.since(earlier), at, at - before))
        self._copies.append((at, metrics))

    def recent(self, metrics: Metrics, at: float) -> tuple[Metrics, float]:
        """Counts of the last minute (or since the start, if that is later), and the seconds that they cover."""
        before, earlier = self._copies[0] if self._copies else (at, metrics)
        return metrics.since(earlier), max(at - before, 1e-9)

    def curves(self) -> Curves:
        """Every curve."""
        points = list(self._points)
        return Curves(
            at=[round(point.at, 1) for point in points],
            lookup_hits=[point.lookup_hits for point in points],
            pool_hits=[point.pool_hits for point in points],
            host_hits=[point.host_hits for point in points],
            ssd_hits=[point.ssd_hits for point in points],
            host_used=[point.host_used for point in points],
            get_seconds_p99=[point.get_seconds_p99 for point in points],
            links={link: [point.links[index] for point in points] for index, link in enumerate(_LINKS)},
        )


def _point(counted: Metrics, at: float, seconds: float) -> _Point:
    used, free = counted.value(Metric.HOST_USED_BYTES), counted.value(Metric.HOST_FREE_BYTES)
    return _Point(
        at=at,
        lookup_hits=ratio(counted.value(Metric.LOOKUP_HIT_BLOCKS), counted.value(Metric.LOOKUP_BLOCKS)),
        pool_hits=hit_share(counted, TierName.DEVICE_POOL),
        host_hits=hit_share(counted, TierName.HOST),
        ssd_hits=hit_share(counted, TierName.SSD),
        host_used=ratio(used, used + free),
        get_seconds_p99=counted.quantile(Metric.REQUEST_SECONDS, 0.99, "get"),
        links=tuple(round(counted.value(Metric.LINK_BYTES, link) / seconds) for link in _LINKS),
    )


def hit_share(counted: Metrics, *tiers: TierName) -> float | None:
    """The share of the tokens requested by gets that these tiers held; None if none were requested."""
    hits = sum(counted.value(Metric.HIT_TOKENS, tier) for tier in tiers)
    share = ratio(hits, counted.value(Metric.GET_TOKENS))
    return None if share is None else min(share, 1.0)  # a sample may fall between two slices of a get


def ratio(part: float, whole: float) -> float | None:
    """A share, rounded to what a chart can show; None if the whole is 0."""
    return round(part / whole, 4) if whole else None
