"""Blocks in messages: Get and Put for clients that do not map the pool. Called by the dispatcher.

Bytes are copied between slots of the pool and messages on the server's loop, while they are still in the CPU cache from
the step before. A stream works through its blocks in windows and leases a few MiB of the pool at a time, so that a slow
client holds no more than that. Backpressure: each message waits until the one before it has been taken.
"""

from __future__ import annotations

import time
from collections import deque
from contextlib import ExitStack
from itertools import islice
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from tierstore.errors import LayoutError
from tierstore.service import convert
from tierstore.service._pb import tierstore_pb2 as pb
from tierstore.service.wire import CHUNK_NBYTES, Data, encode_data
from tierstore.transfer.awaiting import answered, granted
from tierstore.transfer.future import TransferResult
from tierstore.types import HASH_NBYTES, Outcome

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator

    from tierstore.handle import NamespaceHandle
    from tierstore.service.quotas import Quotas
    from tierstore.service.sessions import Session
    from tierstore.store import Store
    from tierstore.transfer.future import Transfer
    from tierstore.transfer.lending import Grant, Lease
    from tierstore.types import UInt8Array

    Pieces: TypeAlias = list[tuple[int, int]]

__all__ = ["BATCH_NBYTES", "Streams"]

_WINDOW_NBYTES = 32 << 20
"""Lent to a stream at a time, twice: while one window is sent the next is read from SSD."""

_WINDOWS = 2
_POOL_SHARE = 32
"""No window is larger than such a part of the pool, unless a block is."""

BATCH_NBYTES = 4 << 20
"""For as long as a lease lasts whoever takes or sends so many bytes is waited for."""


class Streams:
    """See the module.

    Args:
        store: Whose verbs they are.
        quotas: Asked before anything is taken.
    """

    def __init__(self, store: Store, quotas: Quotas) -> None:
        self._store = store
        self._quotas = quotas

    async def get(self, session: Session, request: pb.GetRequest) -> AsyncGenerator[Iterable[bytes | pb.GetResponse]]:
        """Messages of data, a few at a time, then the result."""
        handle = session.namespaces.find(request.scope.namespace_handle)
        hashes = convert.to_hashes(request.hashes)
        window, clock = self._window(handle), _Deadline(request.deadline_seconds)
        codes, leading = np.full(len(hashes), Outcome.MISS, np.uint8), 0
        block_nbytes = handle.namespace.stored_layout.block_nbytes
        leases: deque[tuple[Lease, int]] = deque()
        starts = iter(range(0, len(hashes), window))
        with ExitStack() as held:
            most = min(len(hashes), _WINDOWS * window) * block_nbytes
            held.enter_context(self._quotas.inflight(session.principal, most))
            held.callback(_release_all, leases)
            while True:
                for first in islice(starts, _WINDOWS - len(leases)):
                    wanted = hashes[first : first + window]
                    leases.append((handle.acquire(wanted, deadline_seconds=clock.left), len(wanted)))
                if not leases:
                    break
                lease, num_wanted = leases[0]
                grant = await granted(lease)
                for messages in self._messages(grant, block_nbytes):
                    yield messages
                leases.popleft()[0].release()
                leading += len(grant)
                if len(grant) < num_wanted:
                    break
        codes[:leading] = Outcome.OK
        result = TransferResult(leading, codes, leading * block_nbytes, clock.seconds)
        yield [pb.GetResponse(result=convert.from_result(result))]

    def _messages(self, grant: Grant, block_nbytes: int) -> Iterator[Iterator[bytes]]:
        """The blocks of a lease as messages, a few at a time; each is made when the one before it has been taken."""
        pool = memoryview(self._store.pool.view.data)
        for batch in _batches(grant.offsets.tolist(), block_nbytes):
            yield (encode_data([pool[start:end] for start, end in pieces], put=False) for pieces in batch)

    async def put(self, session: Session, begin: pb.PutBegin, messages: AsyncIterator[Data]) -> pb.PutResponse:
        """Consume the bytes that the put needs, message by message, and answer."""
        handle = session.namespaces.find(begin.scope.namespace_handle)
        hashes = convert.to_hashes(begin.hashes)
        putting = _Put(handle, begin, self._store.pool.view)
        window, block_nbytes = self._window(handle), handle.namespace.stored_layout.block_nbytes
        all_held = len(hashes) > 0 and handle.lookup(hashes) == len(hashes)
        if not all_held:
            await self._quotas.take(session.principal, len(hashes) * block_nbytes)
        with self._quotas.inflight(session.principal, min(len(hashes), window) * block_nbytes):
            await putting.run(hashes, window, messages, all_held=all_held)
        return pb.PutResponse(result=convert.from_result(await putting.result(len(hashes))))

    def _window(self, handle: NamespaceHandle) -> int:
        """Blocks lent at a time."""
        nbytes = min(_WINDOW_NBYTES, self._store.pool.nbytes // _POOL_SHARE)
        return max(1, nbytes // handle.namespace.stored_layout.block_nbytes)


class _Put:
    """One put: windows that are reserved, filled and committed one after another."""

    def __init__(self, handle: NamespaceHandle, begin: pb.PutBegin, pool: UInt8Array) -> None:
        self._handle = handle
        self._durable = begin.durable
        self._parent = begin.parent or bytes(HASH_NBYTES)
        self._clock = _Deadline(begin.deadline_seconds)
        self._pool = pool
        self._block_nbytes = handle.namespace.stored_layout.block_nbytes
        self._transfers: list[Transfer] = []

    async def run(self, hashes: UInt8Array, window: int, messages: AsyncIterator[Data], *, all_held: bool) -> None:
        """Until every block is committed, or no more of them are taken."""
        source = _Bytes(messages)
        if all_held and await self._put_window(hashes, None):
            return
        for first in range(0, len(hashes), window):
            if not await self._put_window(hashes[first : first + window], source):
                return
            self._parent = hashes[min(first + window, len(hashes)) - 1].tobytes()
        await source.check_end()

    async def _put_window(self, hashes: UInt8Array, source: _Bytes | None) -> bool:
        """Put one window. False if no later block would be taken or, without a source, if not all of it is held."""
        reservation = self._handle.reserve(
            hashes, parent=self._parent, durable=self._durable, deadline_seconds=self._clock.left
        )
        grant = reservation.granted.result(0)
        committed = False
        try:
            if source is None and len(grant):
                return False
            if source is not None:
                await self._fill(grant, len(hashes), source)
            transfer = reservation.commit()
            committed = True
        finally:
            if not committed:
                reservation.abandon()
        self._transfers.append(transfer)
        if not self._durable:
            await answered(transfer)
        return source is None or not (transfer.done() and transfer.result(0).leading < len(hashes))

    async def _fill(self, grant: Grant, num_blocks: int, source: _Bytes) -> None:
        """Copy what the slots need out of the stream, message by message; what is held already is passed over."""
        offsets = np.full(num_blocks, -1, np.int64)
        offsets[grant.positions] = grant.offsets
        slots, nbytes = offsets.tolist(), self._block_nbytes
        done, end = 0, num_blocks * nbytes
        while done < end:
            block, within = divmod(done, nbytes)
            part = await source.take(nbytes - within)
            if slots[block] >= 0:
                start = slots[block] + within
                np.copyto(self._pool[start : start + len(part)], np.frombuffer(part, np.uint8))
            done += len(part)

    async def result(self, num_blocks: int) -> TransferResult:
        """How it ended, once all that was committed has."""
        results = [await answered(transfer) for transfer in self._transfers]
        codes = np.full(num_blocks, Outcome.REJECTED, np.uint8)
        done = [result.codes for result in results]
        if done:
            ended = np.concatenate(done)
            codes[: len(ended)] = ended
        bad = (codes != Outcome.OK).nonzero()[0]
        leading = int(bad[0]) if len(bad) else num_blocks
        nbytes = (num_blocks - len(bad)) * self._block_nbytes
        return TransferResult(leading, codes, nbytes, self._clock.seconds)


class _Bytes:
    """The data of a put, as it comes."""

    def __init__(self, messages: AsyncIterator[Data]) -> None:
        self._messages = messages
        self._rest = Data(memoryview(b""))

    async def take(self, most: int) -> Data:
        """What has come, at most so many bytes. Raises LayoutError where nothing more comes."""
        part = self._rest
        if not part:
            try:
                part = await anext(self._messages)
            except StopAsyncIteration as error:
                raise LayoutError("the put's data ended before the end of its blocks; send all of them") from error
        self._rest = Data(part[most:])
        return Data(part[:most])

    async def check_end(self) -> None:
        """Raise LayoutError where there is more."""
        if self._rest or await anext(self._messages, None) is not None:
            raise LayoutError("the put has more data than its blocks have bytes")


def _batches(offsets: list[int], block_nbytes: int) -> Iterator[list[Pieces]]:
    """Where the bytes of messages lie in the pool, by (start, end); so many messages at once as `BATCH_NBYTES` says."""
    batch: list[Pieces] = []
    pieces: Pieces = []
    room = CHUNK_NBYTES
    for offset in offsets:
        start, end = offset, offset + block_nbytes
        while start < end:
            stop = min(end, start + room)
            pieces.append((start, stop))
            room -= stop - start
            start = stop
            if room == 0:
                batch.append(pieces)
                pieces, room = [], CHUNK_NBYTES
                if len(batch) * CHUNK_NBYTES >= BATCH_NBYTES:
                    yield batch
                    batch = []
    if pieces:
        batch.append(pieces)
    if batch:
        yield batch


def _release_all(leases: deque[tuple[Lease, int]]) -> None:
    for lease, _ in leases:
        lease.release()


class _Deadline:
    """What is left of the time that a request may take."""

    def __init__(self, seconds: float) -> None:
        self._begun = time.perf_counter()
        self._seconds = convert.to_seconds(seconds)

    @property
    def seconds(self) -> float:
        """Since it began."""
        return time.perf_counter() - self._begun

    @property
    def left(self) -> float | None:
        """None where there is no deadline."""
        return None if self._seconds is None else max(self._seconds - self.seconds, 0.0)
