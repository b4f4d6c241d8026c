"""Every number that the store tells about itself: one table, and the values of one store.

The planner and the engine count under the engine's lock; doors read. Every label's values are declared
here, so the series are known from the start, none appears or vanishes, and nothing a client sends can
make one. Plain numbers: no threads, no clock, no logging.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from itertools import accumulate, product
from types import MappingProxyType
from typing import TypeAlias

from tierstore.types import Outcome, TierName

__all__ = ["SECONDS_BOUNDS", "Kind", "Metric", "Metrics"]

Labels: TypeAlias = Mapping[str, tuple[str | int, ...]]

SECONDS_BOUNDS = tuple(base * 10.0**exponent for exponent in range(-5, 1) for base in (1.0, 2.0, 5.0))
"""Upper bounds of the histograms' buckets, 10 microseconds to 5 seconds; one more takes the rest."""

_LINK = ("load", "store", "lease", "reserve", "pool-load", "pool-fill", "ssd-read", "ssd-write", "ssd-rewrite")
_QUEUE = ("load", "store", "ssd-read", "ssd-write")
_VERB = ("get", "put", "prefetch")
_TIER = (TierName.DEVICE_POOL, TierName.HOST, TierName.SSD)
_WAY = ("read", "write")
_NO_LABELS: Labels = MappingProxyType({})
_NOT_STORED = (
    "pool_full",
    "index_full",
    "not_admitted",
    "head_missing",
    "write_queue_full",
    "write_budget",
    "write_refused",
    "ssd_off",
)


class Kind(StrEnum):
    """How a metric behaves."""

    COUNTER = "counter"
    """Only ever grows."""
    GAUGE = "gauge"
    """What is so now."""
    HISTOGRAM = "histogram"
    """Durations in seconds, counted in buckets of `SECONDS_BOUNDS`."""


class Metric(Enum):
    """The table: kind, meaning, and the values of each label in the order in which callers give them.

    A name ends in its unit. Outside it is ``tierstore_<name>``, counters with ``_total`` behind.
    """

    __hash__ = object.__hash__  # members are singletons; the default hashes the name, in Python, at every count

    LOOKUP_BLOCKS = Kind.COUNTER, "Blocks asked for by lookups."
    LOOKUP_HIT_BLOCKS = Kind.COUNTER, "Blocks of lookups that were usable, up to the first hole."
    REQUEST_BLOCKS = (
        Kind.COUNTER,
        "Blocks of requests that ended, by outcome.",
        {"verb": _VERB, "outcome": tuple(Outcome)},
    )
    REQUEST_BYTES = Kind.COUNTER, "Bytes of blocks that ended OK.", {"verb": _VERB}
    REQUEST_SECONDS = Kind.HISTOGRAM, "Time from a request's first plan to its end.", {"verb": _VERB}
    LENT_SECONDS = (
        Kind.HISTOGRAM,
        "Time of a get or put whose caller copies by itself in slots that it is lent, until it gives them back.",
        {"verb": ("get", "put")},
    )
    OPEN_REQUESTS = Kind.GAUGE, "Requests that have not ended.", {"verb": _VERB}
    GET_TOKENS = Kind.COUNTER, "Tokens of the blocks that gets asked for."
    HIT_TOKENS = (
        Kind.COUNTER,
        "Tokens of the blocks of gets, by the tier that held them when they were asked for; each counts once.",
        {"tier": _TIER},
    )
    HIT_BLOCKS = (
        Kind.COUNTER,
        "Blocks of gets, by the tier that held them when they were asked for; each counts once.",
        {"tier": _TIER},
    )
    NOT_STORED_BLOCKS = Kind.COUNTER, "Blocks that a tier did not take, by reason.", {"reason": _NOT_STORED}
    PREFETCHED_BLOCKS = (
        Kind.COUNTER,
        "Prefetched blocks that a get used, that were evicted unused, or that were withdrawn.",
        {"fate": ("useful", "wasted", "cancelled")},
    )
    UNHINTED_BLOCKS = Kind.COUNTER, "Blocks of waiting requests for which the look-ahead window had no room."
    OPEN_SESSIONS = Kind.GAUGE, "Sessions of engines that have said which requests wait, and have not ended."
    WAITING_REQUESTS = Kind.GAUGE, "Requests that engines have said wait."
    WINDOW_BLOCKS = Kind.GAUGE, "Distinct blocks that waiting requests need, held or not."
    EVICTED_BLOCKS = Kind.COUNTER, "Blocks evicted to make room.", {"tier": _TIER}
    SSD_WRITTEN_BLOCKS = (
        Kind.COUNTER,
        "Blocks written to SSD that have been read from there, or that left it unread.",
        {"fate": ("useful", "wasted")},
    )
    SSD_REWRITTEN_BLOCKS = Kind.COUNTER, "Blocks written to SSD again so that their old file could go."
    SSD_ENCODED_BYTES = (
        Kind.COUNTER,
        "Bytes that blocks took on SSD as they were encoded; over their own bytes, the compression ratio.",
        {"written": ("first", "again")},
    )
    SSD_WRITE_AMPLIFICATION_RATIO = (
        Kind.GAUGE,
        "Encoded bytes written to SSD over those written for the first time; 0 before the first write.",
    )
    DELETED_BLOCKS = Kind.COUNTER, "Blocks that deletes made unknown."
    RECLAIMED_FILES = Kind.COUNTER, "Chunk files taken back to make room."
    LINK_BLOCKS = (
        Kind.COUNTER,
        "Blocks that a link moved, by outcome: corrupt and unreadable ones are ssd-read's.",
        {"link": _LINK, "outcome": tuple(Outcome)},
    )
    LINK_BYTES = Kind.COUNTER, "Bytes that a link moved.", {"link": _LINK}
    LINK_JOB_SECONDS = Kind.HISTOGRAM, "Time of a job in its link's worker.", {"link": _LINK}
    CODEC_SECONDS = Kind.COUNTER, "Time of threads that encoded or decoded blocks.", {"verb": ("encode", "decode")}
    LINK_INFLIGHT_JOBS = Kind.GAUGE, "Jobs submitted to a link and not ended.", {"link": _LINK}
    LINK_QUEUED_JOBS = Kind.GAUGE, "Jobs that wait in a link, for its thread or on its stream.", {"link": _QUEUE}
    HOST_USED_BLOCKS = Kind.GAUGE, "Blocks that are, or are on their way to be, in the host pool."
    HOST_FREE_BLOCKS = (
        Kind.GAUGE,
        "Blocks that free slots can take; unclaimed memory counts in the largest size.",
    )
    HOST_PINNED_BLOCKS = Kind.GAUGE, "Blocks in the host pool that jobs, requests or leases hold."
    HOST_LENT_BYTES = Kind.GAUGE, "Bytes of host slots that others copy from or fill by themselves."
    HOST_USED_BYTES = Kind.GAUGE, "Bytes of host slots in use."
    HOST_REGISTERED_BYTES = (
        Kind.GAUGE,
        "Bytes of the host pool that a GPU copies from and to by itself; 0 where the system refused, and on a CPU.",
    )
    DEVICE_POOL_USED_BYTES = Kind.GAUGE, "Bytes of slots in use in the device pool."
    HOST_FREE_BYTES = Kind.GAUGE, "Bytes of the host pool that are in no slot in use."
    SSD_USED_BLOCKS = Kind.GAUGE, "Blocks that can be read from SSD."
    SSD_USED_BYTES = Kind.GAUGE, "Bytes that chunk files take."
    SSD_FREE_BYTES = Kind.GAUGE, "Bytes that the SSD tier can take before it must reclaim."
    SSD_ON = Kind.GAUGE, "1 where the SSD is read, or written; 0 where trouble has turned that off.", {"way": _WAY}
    SSD_OUTAGES = Kind.COUNTER, "How often trouble has turned reading or writing off.", {"way": _WAY}
    SSD_PROBES = Kind.COUNTER, "Probes of an SSD that is off, by what they found.", {"found": ("ok", "failed")}

    def __init__(self, kind: Kind, meaning: str, labels: Labels = _NO_LABELS) -> None:
        self.kind = kind
        self.meaning = meaning
        self.labels = labels
        self.full_name = f"tierstore_{self.name.lower()}{'_total' if kind is Kind.COUNTER else ''}"


@dataclass(slots=True)
class _Durations:
    """One series of a histogram."""

    seconds: float = 0.0
    counts: list[int] = field(default_factory=lambda: [0] * (len(SECONDS_BOUNDS) + 1))


class Metrics:
    """The values of one store. Not locked: every call is made under the engine's lock.

    Labels are given by position, in the table's order: ``add(Metric.LINK_BLOCKS, 3, "load", Outcome.OK)``.
    """

    def __init__(self) -> None:
        self._values: dict[Metric, dict[tuple[str | int, ...], float]] = {}
        self._durations: dict[Metric, dict[tuple[str | int, ...], _Durations]] = {}
        for metric in Metric:
            series = list(product(*metric.labels.values()))
            if metric.kind is Kind.HISTOGRAM:
                self._durations[metric] = {labels: _Durations() for labels in series}
            else:
                self._values[metric] = dict.fromkeys(series, 0)

    def add(self, metric: Metric, value: float, *labels: str | int) -> None:
        """Count `value` more; less than 0 for gauges alone."""
        assert value >= 0 or metric.kind is Kind.GAUGE, f"{metric} cannot fall by {-value}"
        series = self._values[metric]
        assert labels in series, _unknown(metric, labels)
        series[labels] += value

    def set(self, metric: Metric, value: float, *labels: str | int) -> None:
        """Say what a gauge is now."""
        assert metric.kind is Kind.GAUGE, f"{metric} is a {metric.kind}; only gauges are set"
        series = self._values[metric]
        assert labels in series, _unknown(metric, labels)
        series[labels] = +value  # a truth too is written as a number

    def observe(self, metric: Metric, seconds: float, *labels: str | int) -> None:
        """Count one duration."""
        assert labels in self._durations[metric], _unknown(metric, labels)
        durations = self._durations[metric][labels]
        durations.seconds += seconds
        durations.counts[bisect_left(SECONDS_BOUNDS, seconds)] += 1

    def value(self, metric: Metric, *labels: str | int) -> float:
        """A counter or gauge now."""
        assert labels in self._values[metric], _unknown(metric, labels)
        return self._values[metric][labels]

    def copy(self) -> Metrics:
        """The values as they are now, to be read without the lock."""
        copied = Metrics.__new__(Metrics)
        copied._values = {metric: series.copy() for metric, series in self._values.items()}
        copied._durations = {
            metric: {labels: _Durations(one.seconds, one.counts.copy()) for labels, one in series.items()}
            for metric, series in self._durations.items()
        }
        return copied

    def since(self, earlier: Metrics) -> Metrics:
        """What was counted after an earlier copy; gauges as they are now."""
        counted = self.copy()
        for metric, series in counted._values.items():
            if metric.kind is Kind.COUNTER:
                for labels in series:
                    series[labels] -= earlier._values[metric][labels]
        for metric, durations in counted._durations.items():
            for labels, one in durations.items():
                before = earlier._durations[metric][labels]
                one.seconds -= before.seconds
                one.counts = [now - then for now, then in zip(one.counts, before.counts, strict=True)]
        return counted

    def total(self, metric: Metric) -> float:
        """A counter or gauge now, over all its series."""
        return sum(self._values[metric].values())

    def durations(self, metric: Metric, *labels: str | int) -> tuple[int, float]:
        """How many durations were counted, and how many seconds they took together."""
        assert labels in self._durations[metric], _unknown(metric, labels)
        one = self._durations[metric][labels]
        return sum(one.counts), one.seconds

    def quantile(self, metric: Metric, share: float, *labels: str | int) -> float | None:
        """Seconds that this share of the durations stayed below, linear within a bucket; None where there are none.

        Beyond the last bound it is that bound.
        """
        assert labels in self._durations[metric], _unknown(metric, labels)
        counts = self._durations[metric][labels].counts
        rank, below = share * sum(counts), 0
        for index, count in enumerate(counts[:-1]):
            if count and below + count >= rank:
                low = SECONDS_BOUNDS[index - 1] if index else 0.0
                return low + (SECONDS_BOUNDS[index] - low) * (rank - below) / count
            below += count
        return SECONDS_BOUNDS[-1] if counts[-1] else None

    def snapshot(self) -> dict[str, float]:
        """Every series by its name outside, such as ``tierstore_link_bytes_total{link="load"}``; no buckets."""
        return {name: value for metric in Metric for name, value in self._samples(metric) if "_bucket{" not in name}

    def render(self) -> str:
        """All of it in Prometheus's text format, version 0.0.4."""
        lines = []
        for metric in Metric:
            lines += [f"# HELP {metric.full_name} {metric.meaning}", f"# TYPE {metric.full_name} {metric.kind}"]
            lines += [f"{name} {value}" for name, value in self._samples(metric)]
        return "\n".join(lines) + "\n"

    def _samples(self, metric: Metric) -> Iterator[tuple[str, float]]:
        if metric.kind is not Kind.HISTOGRAM:
            for labels, value in self._values[metric].items():
                yield metric.full_name + _braced(metric, labels), value
            return
        for labels, durations in self._durations[metric].items():
            bounds = [*(f"{bound:g}" for bound in SECONDS_BOUNDS), "+Inf"]
            for bound, count in zip(bounds, accumulate(durations.counts), strict=True):
                yield f"{metric.full_name}_bucket{_braced(metric, labels, le=bound)}", count
            yield f"{metric.full_name}_sum{_braced(metric, labels)}", durations.seconds
            yield f"{metric.full_name}_count{_braced(metric, labels)}", sum(durations.counts)


def _unknown(metric: Metric, labels: tuple[str | int, ...]) -> str:
    return f"{metric} has no series {labels}; its labels are {dict(metric.labels)}"


def _braced(metric: Metric, labels: tuple[str | int, ...], **more: str) -> str:
    texts = {name: _text(value) for name, value in zip(metric.labels, labels, strict=True)} | more
    pairs = [f'{name}="{text}"' for name, text in texts.items()]
    return f"{{{','.join(pairs)}}}" if pairs else ""


def _text(value: str | int) -> str:
    return value.name.lower() if isinstance(value, Outcome) else str(value)
