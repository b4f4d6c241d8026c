"""Verbs that move blocks or wait for a disk: each is a transfer on one of the client's threads.

Called by the handle. Blocks move in place if the pool is attached, otherwise in messages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tierstore.errors import TierstoreError
from tierstore.service import convert
from tierstore.service._pb import tierstore_pb2 as pb
from tierstore.service.client.blocks import Sink, Source
from tierstore.service.client.in_place import InPlace
from tierstore.service.client.running import Running
from tierstore.service.client.session import result_of
from tierstore.service.client.streamed import stream_get, stream_put
from tierstore.types import HASH_NBYTES, Outcome

if TYPE_CHECKING:
    from collections.abc import Callable

    from tierstore.keys import Namespace
    from tierstore.service.client.calling import Calling
    from tierstore.service.client.session import Answer, LiveSession, Request
    from tierstore.transfer.caller_memory import CallerMemory
    from tierstore.transfer.future import Transfer, TransferResult

__all__ = ["Moving"]

_Timed = pb.PutBegin | pb.GetRequest | pb.PrefetchRequest


class Moving:
    """See the module.

    Args:
        calling: What all verbs of the client share.
        namespace: Whose blocks; None for verbs of the whole store.
    """

    def __init__(self, calling: Calling, namespace: Namespace | None) -> None:
        self._calling = calling
        self._namespace = namespace

    def put(self, begin: pb.PutBegin, memory: CallerMemory) -> Transfer:
        """In place or streamed; REJECTED where the service does not answer."""

        def put(session: LiveSession, running: Running) -> TransferResult:
            in_place = self._in_place(session)
            if in_place is not None:
                return in_place.put(running, _reserve(begin), memory)
            source = Source(self._calling.copies, memory, len(begin.hashes) // HASH_NBYTES)
            return stream_put(session, running, begin, source, patience=self._calling.patience)

        return self._start(put, begin, memory, failed=Outcome.REJECTED)

    def get(self, request: pb.GetRequest, memory: CallerMemory) -> Transfer:
        """In place or streamed; MISS where the service does not answer."""

        def get(session: LiveSession, running: Running) -> TransferResult:
            in_place = self._in_place(session)
            if in_place is not None:
                return in_place.get(running, _acquire(request), memory)
            sink = Sink(self._calling.copies, memory, len(request.hashes) // HASH_NBYTES)
            return stream_get(session, running, request, sink, patience=self._calling.patience)

        return self._start(get, request, memory, failed=Outcome.MISS)

    def prefetch(self, request: pb.PrefetchRequest) -> Transfer:
        """Begun on a thread, which does not wait for its end."""
        patience = self._calling.patience

        def prefetch(session: LiveSession, running: Running) -> None:
            ticket = session.call(request, pb.PrefetchResponse, patience.call).prefetch_id
            asked = pb.WatchPrefetchRequest(scope=request.scope, prefetch_id=ticket)
            watch = session.begin(asked, pb.WatchPrefetchResponse, running.left(patience.call))

            def ended(call: Answer[pb.WatchPrefetchResponse]) -> TransferResult:
                if call.cancelled():
                    cancel = pb.CancelPrefetchRequest(scope=request.scope, prefetch_id=ticket)
                    session.forget(cancel, patience.call)
                return convert.to_result(result_of(call).result)

            running.follow(watch, ended)

        return self._start(prefetch, request, None, failed=Outcome.MISS)

    def delete(self, request: pb.DeleteRequest) -> Transfer:
        """IO_ERROR where the service does not answer: the blocks may be found again after a restart."""

        def delete(session: LiveSession, running: Running) -> TransferResult:
            call = session.begin(request, pb.DeleteResponse, running.left(self._calling.patience.call))
            with running.calling(call):
                return convert.to_result(result_of(call).result)

        return self._start(delete, request, None, failed=Outcome.IO_ERROR)

    def flush(self) -> Transfer:
        """IO_ERROR where the service does not answer."""
        request = pb.FlushRequest()

        def flush(session: LiveSession, running: Running) -> TransferResult:
            call = session.begin(request, pb.FlushResponse, running.left(self._calling.patience.call))
            with running.calling(call):
                return convert.to_result(result_of(call).result)

        return self._start(flush, request, None, failed=Outcome.IO_ERROR)

    def _in_place(self, session: LiveSession) -> InPlace | None:
        pool = self._calling.pool(session)
        calling = self._calling
        return None if pool is None else InPlace(session, pool, calling.copies, calling.patience)

    def _start(
        self,
        move: Callable[[LiveSession, Running], TransferResult | None],
        request: Request,
        memory: CallerMemory | None,
        *,
        failed: Outcome,
    ) -> Transfer:
        """Run a verb on a thread, with a session to which its request is addressed."""
        calling = self._calling
        count = len(getattr(request, "hashes", bytes(HASH_NBYTES))) // HASH_NBYTES
        block_nbytes = 0 if self._namespace is None else self._namespace.layout.block_nbytes
        layers = None if memory is None else memory.layers
        seconds = calling.patience.of(getattr(request, "deadline_seconds", 0.0))
        running = Running(count, block_nbytes, failed, calling.warnings, layers, seconds=seconds)
        try:
            calling.connection.session()
        except TierstoreError as error:
            running.fail(error)
            return running.transfer

        def work(running: Running) -> TransferResult | None:
            running.begin()
            if isinstance(request, _Timed):
                request.deadline_seconds = running.left_of(request.deadline_seconds)

            def within(session: LiveSession) -> TransferResult | None:
                session.address(request, self._namespace, calling.patience.call)
                return move(session, running)

            return calling.connection.judged(within)

        propagation = calling.propagation
        return running.start(calling.worker, work if propagation is None else propagation.carried(work))


def _reserve(begin: pb.PutBegin) -> pb.ReserveRequest:
    return pb.ReserveRequest(
        scope=begin.scope,
        hashes=begin.hashes,
        parent=begin.parent,
        durable=begin.durable,
        deadline_seconds=begin.deadline_seconds,
    )


def _acquire(request: pb.GetRequest) -> pb.AcquireRequest:
    return pb.AcquireRequest(scope=request.scope, hashes=request.hashes, deadline_seconds=request.deadline_seconds)
