"""Verbs as spans of OpenTelemetry: children of the caller's, ended by the transfer, and nothing at all when off."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("opentelemetry.sdk")

from opentelemetry import trace
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.kept_spans import exporter, spans
from tests.payload import TIMEOUT_SECONDS, block_hash, get, namespace, rows, small_store
from tests.processes import program
from tierstore.aio import AsyncStore
from tierstore.config import StoreConfig
from tierstore.errors import LayoutError
from tierstore.handle import NamespaceHandle
from tierstore.store import Store

__all__ = ["exporter"]

NUMBERS = range(4)
HASHES = [block_hash(number) for number in NUMBERS]
BLOCKS = rows(NUMBERS, 8192)


def traced(folder: Path) -> Store:
    return small_store(ssd_dir=folder, monitor_tracing=True)


def test_a_verb_is_a_span_with_what_came_of_it(exporter: InMemorySpanExporter, tmp_path: Path) -> None:
    with traced(tmp_path) as store:
        handle = store.namespace(namespace())
        assert handle.put(HASHES, BLOCKS, durable=True).result(TIMEOUT_SECONDS).ok
        assert handle.prefetch([*HASHES, block_hash("absent")]).result(TIMEOUT_SECONDS).leading == 4
        assert get(handle, HASHES, BLOCKS).ok
    found = spans(exporter)
    assert set(found) == {"tierstore.put", "tierstore.prefetch", "tierstore.get"}
    assert dict(found["tierstore.put"].attributes or {}) == {
        "tierstore.model": "model",
        "tierstore.blocks": 4,
        "tierstore.durable": True,
        "tierstore.leading": 4,
        "tierstore.nbytes": 4 * 8192,
        "tierstore.outcome.ok": 4,
    }
    prefetched = dict(found["tierstore.prefetch"].attributes or {})
    assert (prefetched["tierstore.outcome.ok"], prefetched["tierstore.outcome.miss"]) == (4, 1)
    assert all(span.status.is_ok or span.status.is_unset for span in found.values())


def test_leases_and_reservations_are_spans_until_they_end(exporter: InMemorySpanExporter, tmp_path: Path) -> None:
    with traced(tmp_path) as store:
        handle = store.namespace(namespace())
        reservation = handle.reserve(HASHES, durable=True)
        assert spans(exporter) == {}
        assert reservation.commit().result(TIMEOUT_SECONDS).ok
        lease = handle.acquire([*HASHES, block_hash("absent")])
        assert len(lease.granted.result(TIMEOUT_SECONDS)) == 4
        assert set(spans(exporter)) == {"tierstore.reserve"}
        lease.release()
    found = {name: dict(span.attributes or {}) for name, span in spans(exporter).items()}
    reserved, acquired = found["tierstore.reserve"], found["tierstore.acquire"]
    assert (reserved["tierstore.durable"], reserved["tierstore.outcome.ok"]) == (True, 4)
    assert (acquired["tierstore.leading"], acquired["tierstore.outcome.miss"]) == (4, 1)


def test_a_span_is_a_child_of_the_callers(exporter: InMemorySpanExporter, tmp_path: Path) -> None:
    with traced(tmp_path) as store:
        with trace.get_tracer("engine").start_as_current_span("request") as request:
            store.namespace(namespace()).put(HASHES, BLOCKS).result(TIMEOUT_SECONDS)
        assert trace.get_current_span() is not request
    put = spans(exporter)["tierstore.put"]
    assert put.parent is not None
    assert put.parent.span_id == request.get_span_context().span_id


def test_a_span_ends_with_its_transfer(exporter: InMemorySpanExporter, tmp_path: Path) -> None:
    with traced(tmp_path) as store:
        transfer = store.namespace(namespace()).get([block_hash("absent")], BLOCKS[:1])
        seconds = transfer.result(TIMEOUT_SECONDS).seconds
    span = spans(exporter)["tierstore.get"]
    assert span.end_time is not None
    assert span.start_time is not None
    assert span.end_time - span.start_time >= 1e9 * seconds * 0.5


def test_a_call_that_raises_ends_its_span_as_an_error(exporter: InMemorySpanExporter, tmp_path: Path) -> None:
    with traced(tmp_path) as store, pytest.raises(LayoutError):
        store.namespace(namespace()).put(HASHES, BLOCKS[:2])
    span = spans(exporter)["tierstore.put"]
    assert not span.status.is_ok
    assert [event.name for event in span.events] == ["exception"]


async def test_awaited_verbs_are_spans_too(exporter: InMemorySpanExporter, tmp_path: Path) -> None:
    config = StoreConfig.load(
        env={}, overrides={"host_size": "1 MiB", "host_slab_size": "64 KiB", "monitor_tracing": True}
    )
    async with AsyncStore(config) as store:
        handle = await store.namespace(namespace())
        assert (await handle.put(HASHES, BLOCKS)).ok
    assert set(spans(exporter)) == {"tierstore.put"}


def test_a_store_that_is_not_traced_makes_no_span(exporter: InMemorySpanExporter, tmp_path: Path) -> None:
    with small_store(ssd_dir=tmp_path) as store:
        handle = store.namespace(namespace())
        assert type(handle) is NamespaceHandle
        assert handle.put(HASHES, BLOCKS).result(TIMEOUT_SECONDS).ok
    assert spans(exporter) == {}


WITHOUT = """
sys.modules["opentelemetry"] = None
with small_store(ssd_dir=folder) as store:
    store.namespace(namespace())
from tierstore.errors import ConfigError
try:
    small_store(ssd_dir=folder, monitor_tracing=True)
except ConfigError as error:
    print(error, flush=True)
"""


def test_only_a_traced_store_needs_opentelemetry_and_says_so(tmp_path: Path) -> None:
    with program(WITHOUT, tmp_path) as (process, output):
        assert "needs OpenTelemetry, which is not installed" in output.readline()
        assert process.wait(TIMEOUT_SECONDS) == 0


LOGGED = """
import logging
with small_store(ssd_dir=folder, log_format="json", monitor_address="127.0.0.1:0") as store:
    logging.getLogger("tierstore.asked").warning("two\\nlines")
"""


def test_a_store_writes_its_log_as_json_where_it_is_told_to(tmp_path: Path) -> None:
    script = f"from tests.payload import *\nfolder = {str(tmp_path)!r}\n{LOGGED}"
    ran = subprocess.run(
        [sys.executable, "-c", script], cwd=Path(__file__).parents[2], capture_output=True, text=True, check=True
    )
    lines = [json.loads(line) for line in ran.stderr.splitlines()]
    assert any(line["message"].startswith("metrics and status at http://127.0.0.1:") for line in lines)
    assert "two\nlines" in [line["message"] for line in lines]
