"""What a store tells of its service: sessions by kind, the time of each call, and which of them failed."""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest

from tests.e2e.service.stranger import stranger
from tests.e2e.service.world import client_of, served
from tests.payload import TIMEOUT_SECONDS, block_hash, namespace, rows
from tierstore.metrics import Metric
from tierstore.monitor.status import read_status
from tierstore.service._pb import tierstore_pb2 as pb
from tierstore.service.wire import METHODS

HASHES = [block_hash(number) for number in range(3)]
BLOCKS = rows(range(3), 8192)


def test_every_call_has_a_series_but_the_session_that_lasts() -> None:
    assert {*Metric.SERVICE_CALL_SECONDS.labels["call"], "OpenSession"} == set(METHODS)


def test_calls_are_timed_and_sessions_counted(tmp_path: Path) -> None:
    with (
        served(tmp_path, settings={"monitor_address": "127.0.0.1:0"}) as serving,
        client_of(serving, attach=False) as client,
        client_of(serving),
    ):
        handle = client.namespace(namespace())
        assert handle.put(HASHES, BLOCKS).result(TIMEOUT_SECONDS).ok
        assert handle.lookup(HASHES) == 3
        metrics = serving.store.read_metrics()
        assert metrics.value(Metric.SERVICE_SESSIONS, "attached") == 1
        assert metrics.value(Metric.SERVICE_SESSIONS, "streamed") == 1
        for call in ("OpenNamespace", "Put", "Lookup"):
            count, seconds = metrics.durations(Metric.SERVICE_CALL_SECONDS, call)
            assert count == 1
            assert seconds > 0
        assert metrics.total(Metric.SERVICE_FAILED_CALLS) == 0
        assert read_status(str(serving.store.monitor_address))["counts"]["service_sessions"] == 2


def test_a_call_that_is_refused_is_counted(tmp_path: Path) -> None:
    with served(tmp_path) as serving, stranger(serving.address) as visitor:
        with pytest.raises(grpc.RpcError):
            visitor.call(pb.AcquireRequest(scope=visitor.scope(), hashes=b"".join(HASHES)))
        metrics = serving.store.read_metrics()
    assert metrics.value(Metric.SERVICE_FAILED_CALLS, "Acquire") == 1
    assert metrics.durations(Metric.SERVICE_CALL_SECONDS, "Acquire")[0] == 1
