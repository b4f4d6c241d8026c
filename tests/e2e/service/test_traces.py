"""A call of a client's and what the server does for it are one trace, by whichever way they go."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("opentelemetry.sdk")

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.e2e.service.world import Serving, client_of, served
from tests.kept_spans import exporter, spans
from tests.payload import TIMEOUT_SECONDS, block_hash, namespace, rows
from tests.processes import program
from tierstore.client import AsyncClient
from tierstore.service.client.pool_calls import PoolCalls

__all__ = ["exporter"]

BLOCKS = [block_hash(number) for number in range(4)]
BYTES = rows(range(4), 8192)


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[Serving]:
    with served(tmp_path, settings={"monitor_tracing": True}) as serving:
        yield serving


def check_family(parent: ReadableSpan, child: ReadableSpan) -> None:
    assert parent.context is not None
    assert child.context is not None
    assert child.parent is not None
    assert (child.context.trace_id, child.parent.span_id) == (parent.context.trace_id, parent.context.span_id)


@pytest.mark.parametrize(
    ("attach", "over_grpc"), [(True, False), (True, True), (False, False)], ids=["socket", "in place", "streamed"]
)
def test_a_clients_span_and_the_servers_are_one_trace(
    serving: Serving,
    exporter: InMemorySpanExporter,
    monkeypatch: pytest.MonkeyPatch,
    *,
    attach: bool,
    over_grpc: bool,
) -> None:
    if over_grpc:
        monkeypatch.setattr(PoolCalls, "ask", lambda *_given: None)
    with client_of(serving, attach=attach, tracing=True) as client:
        kv = client.namespace(namespace())
        with trace.get_tracer("engine").start_as_current_span("request"):
            assert kv.put(BLOCKS, BYTES).result(TIMEOUT_SECONDS).ok
            assert kv.get(BLOCKS, np.zeros_like(BYTES)).result(TIMEOUT_SECONDS).ok
            assert kv.prefetch(BLOCKS).result(TIMEOUT_SECONDS).ok
    found = spans(exporter)
    for asked, done in (("put", "reserve"), ("get", "acquire"), ("prefetch", "prefetch")):
        check_family(found["request"], found[f"tierstore.client.{asked}"])
        check_family(found[f"tierstore.client.{asked}"], found[f"tierstore.{done}"])
    attributes = found["tierstore.client.get"].attributes or {}
    assert (attributes["tierstore.leading"], attributes["tierstore.outcome.ok"]) == (4, 4)


def test_who_waits_and_does_the_work_himself_does_it_for_the_callers_span(
    serving: Serving, exporter: InMemorySpanExporter
) -> None:
    with client_of(serving, tracing=True) as client:
        kv, tracer = client.namespace(namespace()), trace.get_tracer("engine")
        with tracer.start_as_current_span("request"):
            transfer = kv.put(BLOCKS, BYTES)
        with tracer.start_as_current_span("another"):
            assert transfer.result(TIMEOUT_SECONDS).ok
    found = spans(exporter)
    check_family(found["request"], found["tierstore.client.put"])
    check_family(found["tierstore.client.put"], found["tierstore.reserve"])


async def test_an_awaited_call_belongs_to_its_tasks_span(serving: Serving, exporter: InMemorySpanExporter) -> None:
    async with AsyncClient(serving.address, tracing=True, call_seconds=TIMEOUT_SECONDS) as client:
        kv = await client.namespace(namespace())
        with trace.get_tracer("engine").start_as_current_span("request"):
            assert (await kv.put(BLOCKS, BYTES)).ok
    found = spans(exporter)
    check_family(found["request"], found["tierstore.client.put"])
    check_family(found["tierstore.client.put"], found["tierstore.reserve"])


@pytest.mark.parametrize("attach", [True, False])
def test_calls_of_who_does_not_trace_begin_traces_of_their_own(
    serving: Serving, exporter: InMemorySpanExporter, *, attach: bool
) -> None:
    with client_of(serving, attach=attach) as client, trace.get_tracer("engine").start_as_current_span("request"):
        assert client.namespace(namespace()).put(BLOCKS, BYTES).result(TIMEOUT_SECONDS).ok
    found = spans(exporter)
    assert set(found) == {"request", "tierstore.reserve"}
    assert found["tierstore.reserve"].parent is None


def test_a_server_that_does_not_trace_serves_who_does(tmp_path: Path, exporter: InMemorySpanExporter) -> None:
    with served(tmp_path) as serving, client_of(serving, tracing=True) as client:
        assert client.namespace(namespace()).put(BLOCKS, BYTES).result(TIMEOUT_SECONDS).ok
    assert set(spans(exporter)) == {"tierstore.client.put"}


WITHOUT = """
sys.modules["opentelemetry"] = None
from tierstore.client import Client
from tierstore.errors import ConfigError
import tierstore.service.server
with Client(f"unix:{folder}/nobody", connect_seconds=0.1) as client:
    client.namespace(namespace()).put([bytes(32)], rows(range(1), 8192)).result()
try:
    Client(f"unix:{folder}/nobody", tracing=True)
except ConfigError as error:
    print(error, flush=True)
"""


def test_only_a_traced_client_needs_opentelemetry_and_says_so(tmp_path: Path) -> None:
    with program(WITHOUT, tmp_path) as (process, output):
        assert "needs OpenTelemetry, which is not installed" in output.readline()
        assert process.wait(TIMEOUT_SECONDS) == 0
