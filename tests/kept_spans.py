"""The spans that this process ends, kept: a process has one tracer provider, and can be given no second one."""

from __future__ import annotations

from functools import cache

import pytest

pytest.importorskip("opentelemetry.sdk")

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

__all__ = ["exporter", "spans"]


@cache
def _provided() -> InMemorySpanExporter:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    return exporter


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    """What has been kept since the test began."""
    _provided().clear()
    return _provided()


def spans(exporter: InMemorySpanExporter) -> dict[str, ReadableSpan]:
    """By name; the last of each."""
    return {span.name: span for span in exporter.get_finished_spans()}
