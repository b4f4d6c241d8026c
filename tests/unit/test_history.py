"""The curves of the last minutes: shares and rates between two looks at the metrics."""

from __future__ import annotations

import pytest

from tierstore.metrics import Metric, Metrics
from tierstore.monitor.history import POINTS_MAX, RECENT_SECONDS, STEP_SECONDS, History


def looked(history: History, metrics: Metrics, at: float) -> None:
    history.add(metrics.copy(), at)


def asked(metrics: Metrics, *, tokens: int, host: int, ssd: int = 0) -> None:
    metrics.add(Metric.GET_TOKENS, tokens)
    metrics.add(Metric.HIT_TOKENS, host, "host")
    metrics.add(Metric.HIT_TOKENS, ssd, "ssd")


def test_one_look_makes_no_point() -> None:
    history = History()
    looked(history, Metrics(), 100.0)
    assert history.curves()["at"] == []


def test_shares_are_of_what_was_asked_for_between_two_looks() -> None:
    history, metrics = History(), Metrics()
    asked(metrics, tokens=1000, host=1000)
    looked(history, metrics, 100.0)
    asked(metrics, tokens=200, host=50, ssd=30)
    metrics.add(Metric.LOOKUP_BLOCKS, 10)
    metrics.add(Metric.LOOKUP_HIT_BLOCKS, 4)
    metrics.set(Metric.HOST_USED_BYTES, 3 << 30)
    metrics.set(Metric.HOST_FREE_BYTES, 1 << 30)
    looked(history, metrics, 102.0)
    curves = history.curves()
    assert curves["at"] == [102.0]
    assert (curves["host_hits"], curves["ssd_hits"], curves["lookup_hits"]) == ([0.25], [0.15], [0.4])
    assert curves["host_used"] == [0.75]


def test_where_nobody_asked_there_is_a_gap() -> None:
    history, metrics = History(), Metrics()
    looked(history, metrics, 100.0)
    looked(history, metrics, 102.0)
    curves = history.curves()
    assert (curves["host_hits"], curves["lookup_hits"], curves["get_seconds_p99"]) == ([None], [None], [None])
    assert curves["links"]["load"] == [0.0]


def test_links_give_bytes_a_second() -> None:
    history, metrics = History(), Metrics()
    looked(history, metrics, 100.0)
    metrics.add(Metric.LINK_BYTES, 3000, "ssd-read")
    looked(history, metrics, 102.5)
    assert history.curves()["links"]["ssd-read"] == [1200.0]


def test_the_recent_is_a_minute_or_what_there_is() -> None:
    history, metrics = History(), Metrics()
    metrics.add(Metric.LOOKUP_BLOCKS, 5)
    looked(history, metrics, 0.0)
    metrics.add(Metric.LOOKUP_BLOCKS, 1)
    recent, seconds = history.recent(metrics, 10.0)
    assert (recent.value(Metric.LOOKUP_BLOCKS), seconds) == (1, 10.0)
    for step in range(1, 100):
        metrics.add(Metric.LOOKUP_BLOCKS, 1)
        looked(history, metrics, step * STEP_SECONDS)
    recent, seconds = history.recent(metrics, 99 * STEP_SECONDS)
    assert seconds == RECENT_SECONDS
    assert recent.value(Metric.LOOKUP_BLOCKS) == RECENT_SECONDS / STEP_SECONDS


def test_a_history_of_nothing_has_seen_nothing() -> None:
    metrics = Metrics()
    metrics.add(Metric.LOOKUP_BLOCKS, 5)
    recent, seconds = History().recent(metrics, 10.0)
    assert recent.value(Metric.LOOKUP_BLOCKS) == 0
    assert seconds > 0


def test_old_points_go() -> None:
    history, metrics = History(), Metrics()
    for step in range(POINTS_MAX + 10):
        looked(history, metrics, step * STEP_SECONDS)
    curves = history.curves()
    assert len(curves["at"]) == POINTS_MAX
    assert curves["at"][-1] == (POINTS_MAX + 9) * STEP_SECONDS


def test_a_clock_that_was_set_back_begins_a_new_history() -> None:
    history, metrics = History(), Metrics()
    for at in (100.0, 102.0, 50.0, 52.0):
        looked(history, metrics, at)
    assert history.curves()["at"] == [pytest.approx(52.0)]
