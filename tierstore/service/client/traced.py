"""A client's verbs as spans. Imported only by clients that trace.

The server's spans are children of these where ``monitor.tracing`` is set there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

from tierstore.monitor.spans import Propagation, spanning
from tierstore.service.client.handle import ClientHandle

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tierstore.arguments import GetOptions, PrefetchOptions, PutOptions
    from tierstore.transfer.future import Transfer
    from tierstore.types import UInt8Array

__all__ = ["Propagation", "TracedClientHandle"]


class TracedClientHandle(ClientHandle):
    """A handle whose puts, gets and prefetches are spans as a store's are: ``tierstore.client.put`` and so on."""

    def put(self, hashes: Sequence[bytes] | UInt8Array, buffers: object, **options: Unpack[PutOptions]) -> Transfer:
        """See `ClientHandle.put`."""
        durable = options.get("durable", False)
        with spanning("tierstore.client.put", self.namespace, len(hashes), asks=True, durable=durable) as followed:
            return followed(super().put(hashes, buffers, **options))

    def get(self, hashes: Sequence[bytes] | UInt8Array, buffers: object, **options: Unpack[GetOptions]) -> Transfer:
        """See `ClientHandle.get`."""
        with spanning("tierstore.client.get", self.namespace, len(hashes), asks=True) as followed:
            return followed(super().get(hashes, buffers, **options))

    def prefetch(self, hashes: Sequence[bytes] | UInt8Array, **options: Unpack[PrefetchOptions]) -> Transfer:
        """See `ClientHandle.prefetch`."""
        with spanning("tierstore.client.prefetch", self.namespace, len(hashes), asks=True) as followed:
            return followed(super().prefetch(hashes, **options))
