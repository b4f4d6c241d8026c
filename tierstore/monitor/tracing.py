"""Spans of OpenTelemetry around verbs, where ``monitor.tracing`` is set; else this room is not even imported.

A span begins with the call, as a child of the caller's own, and ends with the transfer, on whichever thread that is. It
goes to the tracer provider that the program has configured; there is no exporter and no sampling here. Made by the
store instead of `NamespaceHandle`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Unpack

import tierstore
from tierstore.errors import ConfigError
from tierstore.handle import NamespaceHandle

try:
    from opentelemetry import trace
except ModuleNotFoundError as error:
    raise ConfigError(
        "monitor.tracing needs OpenTelemetry, which is not installed: pip install 'tierstore[tracing]', or turn it off"
    ) from error

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opentelemetry.util.types import AttributeValue

    from tierstore.arguments import GetOptions, PrefetchOptions, PutOptions, ReserveOptions
    from tierstore.transfer.future import Transfer
    from tierstore.transfer.lending import Lease, Reservation
    from tierstore.types import UInt8Array

__all__ = ["TracedHandle"]


class TracedHandle(NamespaceHandle):
    """A handle whose puts, gets, prefetches, leases and reservations are spans: ``tierstore.put`` and so on.

    Attributes of a span: ``tierstore.model`` and ``tierstore.blocks`` from the start; ``tierstore.leading``,
    ``tierstore.nbytes`` and ``tierstore.outcome.ok``, ``.miss``, … with the number of blocks, at the end. What ends
    otherwise than OK is an outcome, no error of the span; a call that raises is one.
    """

    def put(self, hashes: Sequence[bytes] | UInt8Array, buffers: object, **options: Unpack[PutOptions]) -> Transfer:
        """See `NamespaceHandle.put`."""
        with self._span("put", len(hashes), durable=options.get("durable", False)) as followed:
            return followed(super().put(hashes, buffers, **options))

    def get(self, hashes: Sequence[bytes] | UInt8Array, buffers: object, **options: Unpack[GetOptions]) -> Transfer:
        """See `NamespaceHandle.get`."""
        with self._span("get", len(hashes)) as followed:
            return followed(super().get(hashes, buffers, **options))

    def prefetch(self, hashes: Sequence[bytes] | UInt8Array, **options: Unpack[PrefetchOptions]) -> Transfer:
        """See `NamespaceHandle.prefetch`."""
        with self._span("prefetch", len(hashes)) as followed:
            return followed(super().prefetch(hashes, **options))

    def acquire(self, hashes: Sequence[bytes] | UInt8Array, *, deadline_seconds: float | None = None) -> Lease:
        """See `NamespaceHandle.acquire`; the span ends with the lease."""
        with self._span("acquire", len(hashes)) as followed:
            lease = super().acquire(hashes, deadline_seconds=deadline_seconds)
            followed(lease.transfer)
            return lease

    def reserve(self, hashes: Sequence[bytes] | UInt8Array, **options: Unpack[ReserveOptions]) -> Reservation:
        """See `NamespaceHandle.reserve`; the span ends with the put."""
        with self._span("reserve", len(hashes), durable=options.get("durable", False)) as followed:
            reservation = super().reserve(hashes, **options)
            followed(reservation.transfer)
            return reservation

    @contextmanager
    def _span(self, verb: str, num_blocks: int, **more: AttributeValue) -> Iterator[Callable[[Transfer], Transfer]]:
        """A span that ends with the transfer that it is given, or with what the call raises."""
        known = {"model": self.namespace.model, "blocks": num_blocks, **more}
        attributes = {f"tierstore.{name}": value for name, value in known.items()}
        span = trace.get_tracer("tierstore", tierstore.__version__).start_span(
            f"tierstore.{verb}", attributes=attributes
        )
        with ExitStack() as ending:
            ending.callback(span.end)
            with trace.use_span(span):
                yield partial(_followed, span)
            ending.pop_all()


def _followed(span: trace.Span, transfer: Transfer) -> Transfer:
    """End the span when the transfer ends."""

    def end(_transfer: Transfer) -> None:
        result = transfer.result(0)
        span.set_attributes({"tierstore.leading": result.leading, "tierstore.nbytes": result.nbytes})
        for outcome, count in Counter(result.outcomes).items():
            span.set_attribute(f"tierstore.outcome.{outcome.name.lower()}", count)
        span.end()

    transfer.add_done_callback(end)
    return transfer
