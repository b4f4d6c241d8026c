"""Verbs of an embedded store as spans. Imported only if ``monitor.tracing`` is set.

A span begins with the call and ends with the transfer. The store then makes these handles instead of `NamespaceHandle`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

from tierstore.handle import NamespaceHandle
from tierstore.monitor.spans import spanning

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tierstore.arguments import GetOptions, PrefetchOptions, PutOptions, ReserveOptions
    from tierstore.transfer.future import Transfer
    from tierstore.transfer.lending import Lease, Reservation
    from tierstore.types import UInt8Array

__all__ = ["TracedHandle"]


class TracedHandle(NamespaceHandle):
    """A handle whose puts, gets, prefetches, leases and reservations are spans: ``tierstore.put`` and so on.

    Attributes of a span: ``tierstore.model`` and ``tierstore.blocks`` from the start; ``tierstore.leading``,
    ``tierstore.nbytes`` and ``tierstore.outcome.ok``, ``.miss``, … with the number of blocks, at the end. An outcome
    other than OK is no error of the span; an exception is.
    """

    def put(self, hashes: Sequence[bytes] | UInt8Array, buffers: object, **options: Unpack[PutOptions]) -> Transfer:
        """See `NamespaceHandle.put`."""
        with spanning("tierstore.put", self.namespace, len(hashes), durable=options.get("durable", False)) as followed:
            return followed(super().put(hashes, buffers, **options))

    def get(self, hashes: Sequence[bytes] | UInt8Array, buffers: object, **options: Unpack[GetOptions]) -> Transfer:
        """See `NamespaceHandle.get`."""
        with spanning("tierstore.get", self.namespace, len(hashes)) as followed:
            return followed(super().get(hashes, buffers, **options))

    def prefetch(self, hashes: Sequence[bytes] | UInt8Array, **options: Unpack[PrefetchOptions]) -> Transfer:
        """See `NamespaceHandle.prefetch`."""
        with spanning("tierstore.prefetch", self.namespace, len(hashes)) as followed:
            return followed(super().prefetch(hashes, **options))

    def acquire(self, hashes: Sequence[bytes] | UInt8Array, *, deadline_seconds: float | None = None) -> Lease:
        """See `NamespaceHandle.acquire`; the span ends with the lease."""
        with spanning("tierstore.acquire", self.namespace, len(hashes)) as followed:
            lease = super().acquire(hashes, deadline_seconds=deadline_seconds)
            followed(lease.transfer)
            return lease

    def reserve(self, hashes: Sequence[bytes] | UInt8Array, **options: Unpack[ReserveOptions]) -> Reservation:
        """See `NamespaceHandle.reserve`; the span ends with the put."""
        with spanning(
            "tierstore.reserve", self.namespace, len(hashes), durable=options.get("durable", False)
        ) as followed:
            reservation = super().reserve(hashes, **options)
            followed(reservation.transfer)
            return reservation
