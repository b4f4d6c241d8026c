"""The client for asyncio: the same verbs, awaited on the caller's loop. Threads wait for the server.

A cancelled call returns only once no copy can touch the caller's memory any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar, Unpack

from tierstore.errors import LimitError, TierstoreError
from tierstore.service.client.client import Client
from tierstore.transfer.awaiting import settled
from tierstore.worker import Worker

if TYPE_CHECKING:
    from tierstore.advice import LoadAdvice
    from tierstore.arguments import GetOptions, PrefetchOptions, PutOptions
    from tierstore.health import TierHealth
    from tierstore.keys import Namespace
    from tierstore.service.client.client import ClientOptions
    from tierstore.service.client.handle import ClientHandle
    from tierstore.transfer.future import Transfer, TransferResult
    from tierstore.types import Presence, UInt8Array

__all__ = ["AsyncClient", "AsyncClientHandle"]

_THREADS = 4
_WAITING_MAX = 1024

T = TypeVar("T")


class _Threads:
    """Runs blocking calls to the server on threads of its own."""

    def __init__(self) -> None:
        self._worker = Worker("service-ask", capacity=_WAITING_MAX, threads=_THREADS)

    async def ask(self, task: Callable[[], T]) -> T:
        """Run a task on a thread; returns or raises what it does. A cancelled caller does not wait for it."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def work() -> None:
            try:
                value = task()
            except TierstoreError as error:
                fail(error)
            else:
                loop.call_soon_threadsafe(lambda: None if future.done() else future.set_result(value))

        def fail(error: BaseException) -> None:
            loop.call_soon_threadsafe(lambda: None if future.done() else future.set_exception(error))

        if not self._worker.submit(work, failed=fail):
            raise LimitError(f"{_WAITING_MAX} calls wait already; try later")
        return await future

    def close(self) -> None:
        """End the threads."""
        self._worker.close()


class AsyncClient:
    """A `Client` whose verbs are awaited. Takes the same arguments; construction waits for the service, briefly."""

    def __init__(self, address: str, **options: Unpack[ClientOptions]) -> None:
        self.client = Client(address, **options)
        self._threads = _Threads()

    async def namespace(self, namespace: Namespace) -> AsyncClientHandle:
        """See `Client.namespace`."""
        handle = await self._threads.ask(lambda: self.client.namespace(namespace))
        return AsyncClientHandle(handle, self._threads)

    async def flush(self) -> TransferResult:
        """See `Client.flush`."""
        return await settled(self.client.flush())

    async def metrics(self) -> dict[str, float]:
        """See `Client.metrics`."""
        return await self._threads.ask(self.client.metrics)

    async def health(self) -> dict[str, TierHealth]:
        """See `Client.health`."""
        return await self._threads.ask(self.client.health)

    async def close(self) -> None:
        """See `Client.close`."""
        await self._threads.ask(self.client.close)
        self._threads.close()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class AsyncClientHandle:
    """The verbs of `ClientHandle`, awaited; arguments and errors are the same."""

    def __init__(self, handle: ClientHandle, threads: _Threads) -> None:
        self.handle = handle
        self._threads = threads

    async def lookup(self, hashes: Sequence[bytes] | UInt8Array) -> int:
        """See `ClientHandle.lookup`."""
        return await self._threads.ask(lambda: self.handle.lookup(hashes))

    async def presence(self, hashes: Sequence[bytes] | UInt8Array) -> list[Presence]:
        """See `ClientHandle.presence`."""
        return await self._threads.ask(lambda: self.handle.presence(hashes))

    async def put(
        self, hashes: Sequence[bytes] | UInt8Array, buffers: object, **options: Unpack[PutOptions]
    ) -> TransferResult:
        """See `ClientHandle.put`."""
        return await settled(self.handle.put(hashes, buffers, **options))

    async def get(
        self, hashes: Sequence[bytes] | UInt8Array, buffers: object, **options: Unpack[GetOptions]
    ) -> TransferResult:
        """See `ClientHandle.get`."""
        return await settled(self.handle.get(hashes, buffers, **options))

    async def prefetch(
        self, hashes: Sequence[bytes] | UInt8Array, **options: Unpack[PrefetchOptions]
    ) -> TransferResult:
        """See `ClientHandle.prefetch`."""
        return await settled(self.handle.prefetch(hashes, **options))

    def may_start(self, prefetch: Transfer) -> bool:
        """See `ClientHandle.may_start`; prefetches to ask about come from `handle.prefetch`."""
        return self.handle.may_start(prefetch)

    async def hint(
        self,
        added: Iterable[tuple[int, Sequence[bytes] | UInt8Array]] = (),
        removed: Iterable[int] = (),
        *,
        session_id: int = 0,
    ) -> None:
        """See `ClientHandle.hint`."""
        await self._threads.ask(lambda: self.handle.hint(added, removed, session_id=session_id))

    async def plan_load(
        self,
        hashes: Sequence[bytes] | UInt8Array,
        *,
        computed_tokens: int = 0,
        deadline_seconds: float | None = None,
        from_tail: bool = False,
    ) -> LoadAdvice:
        """See `ClientHandle.plan_load`."""
        return await self._threads.ask(
            lambda: self.handle.plan_load(
                hashes, computed_tokens=computed_tokens, deadline_seconds=deadline_seconds, from_tail=from_tail
            )
        )

    def report_prefill(self, *, prefix_tokens: int, num_tokens: int, seconds: float) -> None:
        """See `ClientHandle.report_prefill`."""
        self.handle.report_prefill(prefix_tokens=prefix_tokens, num_tokens=num_tokens, seconds=seconds)

    async def delete(self, hashes: Sequence[bytes] | UInt8Array) -> TransferResult:
        """See `ClientHandle.delete`."""
        return await settled(self.handle.delete(hashes))

    async def clear(self) -> None:
        """See `ClientHandle.clear`."""
        await self._threads.ask(self.handle.clear)
