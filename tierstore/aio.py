"""The store for asyncio: the same verbs, awaited on the caller's loop. Makes no thread and no loop of its own.

A cancelled call returns only once no copy can touch the caller's memory.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Unpack

from tierstore.handle import NO_PARENT, NamespaceHandle
from tierstore.store import Store
from tierstore.transfer.awaiting import settled

if TYPE_CHECKING:
    from tierstore.advice import LoadAdvice
    from tierstore.arguments import GetOptions, PrefetchOptions, PutOptions
    from tierstore.config import StoreConfig
    from tierstore.device.base import Device
    from tierstore.disk.base import Disk
    from tierstore.keys import Namespace
    from tierstore.transfer.future import Transfer, TransferResult
    from tierstore.transfer.lending import Grant, Lease, Reservation
    from tierstore.types import Presence, UInt8Array

__all__ = ["AsyncNamespaceHandle", "AsyncStore", "settled"]


class AsyncStore:
    """A `Store` whose verbs are awaited. Takes the same arguments; construction blocks."""

    def __init__(
        self,
        config: StoreConfig | str | os.PathLike[str] | None = None,
        *,
        disk: Disk | None = None,
        device: Device | None = None,
        device_pool: object = None,
        **settings: object,
    ) -> None:
        self.store = Store(config, disk=disk, device=device, device_pool=device_pool, **settings)

    async def namespace(self, namespace: Namespace) -> AsyncNamespaceHandle:
        """See `Store.namespace`; the manifest is written on the loop's executor."""
        return AsyncNamespaceHandle(await asyncio.to_thread(self.store.namespace, namespace))

    async def flush(self) -> TransferResult:
        """See `Store.flush`."""
        return await settled(self.store.flush())

    def end_session(self, session_id: int) -> None:
        """See `Store.end_session`; there is nothing to await."""
        self.store.end_session(session_id)

    async def close(self) -> None:
        """See `Store.close`; waits on the loop's executor."""
        await asyncio.to_thread(self.store.close)

    async def __aenter__(self) -> AsyncStore:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class AsyncNamespaceHandle:
    """The verbs of `NamespaceHandle`, awaited; arguments and errors are the same."""

    def __init__(self, handle: NamespaceHandle) -> None:
        self.handle = handle

    def lookup(self, hashes: Sequence[bytes] | UInt8Array) -> int:
        """See `NamespaceHandle.lookup`; answered from memory, so there is nothing to await."""
        return self.handle.lookup(hashes)

    def presence(self, hashes: Sequence[bytes] | UInt8Array) -> list[Presence]:
        """See `NamespaceHandle.presence`."""
        return self.handle.presence(hashes)

    async def put(
        self, hashes: Sequence[bytes] | UInt8Array, buffers: object, **options: Unpack[PutOptions]
    ) -> TransferResult:
        """See `NamespaceHandle.put`."""
        return await settled(self.handle.put(hashes, buffers, **options))

    async def get(
        self, hashes: Sequence[bytes] | UInt8Array, buffers: object, **options: Unpack[GetOptions]
    ) -> TransferResult:
        """See `NamespaceHandle.get`."""
        return await settled(self.handle.get(hashes, buffers, **options))

    async def acquire(
        self, hashes: Sequence[bytes] | UInt8Array, *, deadline_seconds: float | None = None
    ) -> tuple[Lease, Grant]:
        """See `NamespaceHandle.acquire`; cancelling the call releases the lease."""
        lease = self.handle.acquire(hashes, deadline_seconds=deadline_seconds)
        try:
            return lease, await asyncio.wrap_future(lease.granted)
        except asyncio.CancelledError:
            lease.release()
            raise

    def reserve(
        self,
        hashes: Sequence[bytes] | UInt8Array,
        *,
        parent: bytes = NO_PARENT,
        durable: bool = False,
        deadline_seconds: float | None = None,
    ) -> Reservation:
        """See `NamespaceHandle.reserve`; planned at once, so there is nothing to await. `settled` awaits its put."""
        return self.handle.reserve(hashes, parent=parent, durable=durable, deadline_seconds=deadline_seconds)

    async def prefetch(
        self, hashes: Sequence[bytes] | UInt8Array, **options: Unpack[PrefetchOptions]
    ) -> TransferResult:
        """See `NamespaceHandle.prefetch`."""
        return await settled(self.handle.prefetch(hashes, **options))

    def may_start(self, prefetch: Transfer) -> bool:
        """See `NamespaceHandle.may_start`; prefetches to ask about come from `handle.prefetch`."""
        return self.handle.may_start(prefetch)

    def hint(
        self,
        added: Iterable[tuple[int, Sequence[bytes] | UInt8Array]] = (),
        removed: Iterable[int] = (),
        *,
        session_id: int = 0,
    ) -> None:
        """See `NamespaceHandle.hint`; taken in at once, so there is nothing to await."""
        self.handle.hint(added, removed, session_id=session_id)

    def plan_load(
        self,
        hashes: Sequence[bytes] | UInt8Array,
        *,
        computed_tokens: int = 0,
        deadline_seconds: float | None = None,
        from_tail: bool = False,
    ) -> LoadAdvice:
        """See `NamespaceHandle.plan_load`; answered from memory, so there is nothing to await."""
        return self.handle.plan_load(
            hashes, computed_tokens=computed_tokens, deadline_seconds=deadline_seconds, from_tail=from_tail
        )

    def report_prefill(self, *, prefix_tokens: int, num_tokens: int, seconds: float) -> None:
        """See `NamespaceHandle.report_prefill`."""
        self.handle.report_prefill(prefix_tokens=prefix_tokens, num_tokens=num_tokens, seconds=seconds)

    async def delete(self, hashes: Sequence[bytes] | UInt8Array) -> TransferResult:
        """See `NamespaceHandle.delete`."""
        return await settled(self.handle.delete(hashes))

    async def clear(self) -> None:
        """See `NamespaceHandle.clear`; the manifest is written on the loop's executor."""
        await asyncio.to_thread(self.handle.clear)
