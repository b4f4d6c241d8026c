"""The values of a store's metrics; `tierstore.metric_table` declares the metrics.

The planner and the engine count under the engine's lock; all others read copies. Plain numbers: no threads, no clock,
no logging.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate, product

from tierstore.metric_table import SECONDS_BOUNDS, Kind, Metric
from tierstore.types import Outcome

__all__ = ["SECONDS_BOUNDS", "Kind", "Metric", "Metrics"]


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

    def add_all(self, others: Metrics) -> None:
        """Count what others have counted too, series by series; gauges add up."""
        for metric, series in others._values.items():
            for labels, value in series.items():
                self._values[metric][labels] += value
        for metric, durations in others._durations.items():
            for labels, one in durations.items():
                ours = self._durations[metric][labels]
                ours.seconds += one.seconds
                ours.counts = [count + more for count, more in zip(ours.counts, one.counts, strict=True)]

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
