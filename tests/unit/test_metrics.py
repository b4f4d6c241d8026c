"""The table of metrics and the values of one store."""

from __future__ import annotations

import re

import pytest

from tierstore.metrics import SECONDS_BOUNDS, Kind, Metric, Metrics
from tierstore.types import Outcome, TierName


def test_every_series_is_there_from_the_start() -> None:
    values = Metrics().snapshot()
    assert values['tierstore_link_blocks_total{link="ssd-read",outcome="io_error"}'] == 0
    assert values['tierstore_link_job_seconds_count{link="store"}'] == 0
    assert set(values.values()) == {0}


def test_a_counter_sums_each_series_apart() -> None:
    metrics = Metrics()
    metrics.add(Metric.HIT_BLOCKS, 40, TierName.HOST)
    metrics.add(Metric.HIT_BLOCKS, 20, "ssd")
    metrics.add(Metric.HIT_BLOCKS, 10, TierName.SSD)
    assert metrics.value(Metric.HIT_BLOCKS, "host") == 40
    assert metrics.snapshot()['tierstore_hit_blocks_total{tier="ssd"}'] == 30


def test_an_outcome_may_be_given_as_its_number() -> None:
    metrics = Metrics()
    metrics.add(Metric.LINK_BLOCKS, 2, "load", int(Outcome.CORRUPT))
    assert metrics.value(Metric.LINK_BLOCKS, "load", Outcome.CORRUPT) == 2


def test_a_gauge_is_set_and_moved_both_ways() -> None:
    metrics = Metrics()
    metrics.set(Metric.LINK_INFLIGHT_JOBS, 5, "load")
    metrics.add(Metric.LINK_INFLIGHT_JOBS, -2, "load")
    assert metrics.value(Metric.LINK_INFLIGHT_JOBS, "load") == 3


def test_a_truth_is_written_as_a_number() -> None:
    metrics = Metrics()
    metrics.set(Metric.SSD_ON, True, "read")
    assert 'tierstore_ssd_on{way="read"} 1\n' in metrics.render()


def test_a_counter_never_falls_and_is_never_set() -> None:
    metrics = Metrics()
    with pytest.raises(AssertionError, match="cannot fall by 1"):
        metrics.add(Metric.RECLAIMED_FILES, -1)
    with pytest.raises(AssertionError, match="only gauges are set"):
        metrics.set(Metric.RECLAIMED_FILES, 1)


@pytest.mark.parametrize("labels", [(), ("tape",), ("host", "ok")])
def test_labels_outside_the_table_are_refused(labels: tuple[str, ...]) -> None:
    metrics = Metrics()
    with pytest.raises(AssertionError, match="no series"):
        metrics.add(Metric.EVICTED_BLOCKS, 1, *labels)
    with pytest.raises(AssertionError, match="no series"):
        metrics.value(Metric.EVICTED_BLOCKS, *labels)
    with pytest.raises(AssertionError, match="no series"):
        metrics.set(Metric.LINK_INFLIGHT_JOBS, 1, *labels)
    with pytest.raises(AssertionError, match="no series"):
        metrics.observe(Metric.LINK_JOB_SECONDS, 1.0, *labels)


def test_two_stores_count_apart() -> None:
    first, second = Metrics(), Metrics()
    first.add(Metric.LOOKUP_BLOCKS, 3)
    first.observe(Metric.LINK_JOB_SECONDS, 1.0, "load")
    assert set(second.snapshot().values()) == {0}


def test_a_copy_stays_as_it_was() -> None:
    metrics = Metrics()
    metrics.add(Metric.LOOKUP_BLOCKS, 3)
    metrics.observe(Metric.LINK_JOB_SECONDS, 1.0, "load")
    copied, text = metrics.copy(), metrics.render()
    metrics.add(Metric.LOOKUP_BLOCKS, 1)
    metrics.observe(Metric.LINK_JOB_SECONDS, 2.0, "load")
    assert copied.render() == text != metrics.render()
    copied.add(Metric.LOOKUP_BLOCKS, 10)
    assert metrics.value(Metric.LOOKUP_BLOCKS) == 4


def test_a_histogram_counts_a_duration_in_every_bucket_that_holds_it() -> None:
    metrics = Metrics()
    for seconds in (0.0, SECONDS_BOUNDS[0], 0.003, 60.0):
        metrics.observe(Metric.LINK_JOB_SECONDS, seconds, "load")
    lines = dict(line.rsplit(" ", 1) for line in metrics.render().splitlines() if 'seconds_bucket{link="load"' in line)
    counts = {key.split('le="')[1].rstrip('"}'): int(value) for key, value in lines.items()}
    assert counts["1e-05"] == 2
    assert (counts["0.002"], counts["0.005"], counts["5"]) == (2, 3, 3)
    assert counts["+Inf"] == 4
    assert metrics.snapshot()['tierstore_link_job_seconds_sum{link="load"}'] == pytest.approx(60.00301)


def test_the_text_is_what_prometheus_reads() -> None:
    metrics = Metrics()
    metrics.add(Metric.LINK_BYTES, 1 << 40, "store")
    text = metrics.render()
    assert text.endswith("\n")
    assert 'tierstore_link_bytes_total{link="store"} 1099511627776\n' in text
    assert "# TYPE tierstore_ssd_used_bytes gauge\ntierstore_ssd_used_bytes 0\n" in text
    sample = re.compile(r'[a-z][a-z_]*(\{[a-z]+="[^"\\]+"(,[a-z]+="[^"\\]+")*\})? [0-9.e+-]+')
    comment = re.compile(r"# (HELP|TYPE) [a-z][a-z_]* .+")
    for line in text.splitlines():
        assert sample.fullmatch(line) or comment.fullmatch(line), line


def test_prometheus_own_reader_finds_every_metric_of_the_table() -> None:
    parser = pytest.importorskip("prometheus_client.parser")
    metrics = Metrics()
    metrics.observe(Metric.REQUEST_SECONDS, 0.003, "get")
    families = {family.name: family for family in parser.text_string_to_metric_families(metrics.render())}
    assert set(families) == {metric.full_name.removesuffix("_total") for metric in Metric}
    for metric in Metric:
        family = families[metric.full_name.removesuffix("_total")]
        assert (family.type, family.documentation) == (metric.kind, metric.meaning)
    buckets = {
        sample.labels["le"]: sample.value
        for sample in families["tierstore_request_seconds"].samples
        if sample.name.endswith("_bucket") and sample.labels["verb"] == "get"
    }
    assert (buckets["0.002"], buckets["0.005"], buckets["+Inf"]) == (0, 1, 1)


def test_every_sample_is_rendered_once() -> None:
    names = [line.rsplit(" ", 1)[0] for line in Metrics().render().splitlines() if not line.startswith("#")]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("metric", [metric for metric in Metric if metric is not Metric.SSD_ON])
def test_a_name_ends_in_its_unit(metric: Metric) -> None:
    unit = metric.name.rsplit("_", 1)[1]
    assert unit in {
        "BLOCKS",
        "BYTES",
        "CALLS",
        "FILES",
        "JOBS",
        "OUTAGES",
        "PROBES",
        "RATIO",
        "REQUESTS",
        "SECONDS",
        "SESSIONS",
        "TOKENS",
    }
    assert unit == "SECONDS" or metric.kind is not Kind.HISTOGRAM


def observed(*durations: float) -> Metrics:
    metrics = Metrics()
    for seconds in durations:
        metrics.observe(Metric.REQUEST_SECONDS, seconds, "get")
    return metrics


def test_what_was_counted_since_leaves_gauges_as_they_are() -> None:
    metrics = observed(0.5)
    metrics.add(Metric.LOOKUP_BLOCKS, 3)
    metrics.set(Metric.HOST_FREE_BYTES, 7)
    earlier = metrics.copy()
    metrics.add(Metric.LOOKUP_BLOCKS, 4)
    metrics.set(Metric.HOST_FREE_BYTES, 5)
    metrics.observe(Metric.REQUEST_SECONDS, 2.0, "get")
    counted = metrics.since(earlier)
    assert (counted.value(Metric.LOOKUP_BLOCKS), counted.value(Metric.HOST_FREE_BYTES)) == (4, 5)
    assert counted.durations(Metric.REQUEST_SECONDS, "get") == (1, 2.0)
    assert metrics.value(Metric.LOOKUP_BLOCKS) == 7


def test_a_total_is_over_all_series() -> None:
    metrics = Metrics()
    metrics.add(Metric.EVICTED_BLOCKS, 3, "host")
    metrics.add(Metric.EVICTED_BLOCKS, 4, "ssd")
    assert metrics.total(Metric.EVICTED_BLOCKS) == 7


@pytest.mark.parametrize(
    ("durations", "share", "expected"),
    [
        ((), 0.5, None),
        ((0.003,), 0.5, 0.0035),  # in the middle of its bucket of 2 to 5 ms
        ((0.003,) * 99 + (0.3,), 0.5, 0.002 + 0.003 * 50 / 99),
        ((0.003,) * 99 + (0.3,), 0.99, 0.005),
        ((0.003,) * 99 + (0.3,), 1.0, 0.5),
        ((60.0,), 0.5, 5.0),
        ((0.000001,), 1.0, 1e-5),
    ],
)
def test_a_quantile_is_read_from_the_buckets(
    durations: tuple[float, ...], share: float, expected: float | None
) -> None:
    found = observed(*durations).quantile(Metric.REQUEST_SECONDS, share, "get")
    assert found == (None if expected is None else pytest.approx(expected))


def test_what_others_have_counted_is_added_series_by_series() -> None:
    ours, theirs = observed(0.5), observed(0.003, 0.5)
    ours.add(Metric.SERVICE_FAILED_CALLS, 1, "Get")
    theirs.add(Metric.SERVICE_FAILED_CALLS, 2, "Get")
    theirs.set(Metric.SERVICE_SESSIONS, 4, "attached")
    ours.add_all(theirs)
    assert ours.value(Metric.SERVICE_FAILED_CALLS, "Get") == 3
    assert ours.value(Metric.SERVICE_SESSIONS, "attached") == 4
    num_requests, seconds = ours.durations(Metric.REQUEST_SECONDS, "get")
    assert (num_requests, seconds) == (3, 0.5 + 0.003 + 0.5)
    assert theirs.durations(Metric.REQUEST_SECONDS, "get")[0] == 2
