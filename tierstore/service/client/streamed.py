"""Get and put in messages, for clients that do not map the pool. Called on the client's threads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import grpc

from tierstore.errors import UnavailableError
from tierstore.service import convert
from tierstore.service._pb import tierstore_pb2 as pb
from tierstore.service.client.session import result_of
from tierstore.service.status import error_of
from tierstore.transfer.future import TransferResult
from tierstore.types import Outcome

if TYPE_CHECKING:
    from tierstore.service.client.blocks import Sink, Source
    from tierstore.service.client.calling import Patience
    from tierstore.service.client.running import Running
    from tierstore.service.client.session import LiveSession, Streaming
    from tierstore.service.wire import Data

__all__ = ["stream_get", "stream_put"]


def stream_get(
    session: LiveSession, running: Running, request: pb.GetRequest, sink: Sink, *, patience: Patience
) -> TransferResult:
    """Load what the server sends. Blocks.

    Raises:
        ServiceError: The call failed.
        Withdrawn: The caller has cancelled, or the events that the copies wait for have not come in time.
    """
    running.hold(sink.after)  # before the call: the server keeps slots for it
    call = session.get(request, running.left(patience.call))
    try:
        with running.calling(call):
            for part in _parts(call):
                if isinstance(part, pb.GetResponse):
                    return _agreed(convert.to_result(part.result), sink.finish())
                sink.write(part)
            raise UnavailableError("the server ended a get without a result")
    finally:
        sink.finish()
        _see_off(call)


def _agreed(result: TransferResult, num_whole: int) -> TransferResult:
    """The server's result, cut to the blocks that arrived whole."""
    if result.leading <= num_whole:
        return result
    codes = result.codes.copy()
    codes[num_whole:] = Outcome.MISS
    return TransferResult(num_whole, codes, result.nbytes, result.seconds)


def stream_put(
    session: LiveSession, running: Running, begin: pb.PutBegin, source: Source, *, patience: Patience
) -> TransferResult:
    """Send what the server takes. Blocks. Raises as `stream_get` does."""
    running.hold(source.after)

    def messages() -> Iterator[pb.PutRequest | bytes]:
        yield pb.PutRequest(begin=begin)
        yield from source.messages(session.opened.chunk_nbytes)

    call = session.put(messages(), running.left(patience.call))
    try:
        with running.calling(call):
            response = result_of(call)
    finally:
        source.finish()
    return convert.to_result(response.result)


def _see_off(call: Streaming) -> None:
    """Drain gRPC's remaining events of a call that has ended or was cancelled.

    With single-threaded streams only the caller receives a call's events. Until all are taken, gRPC keeps the call and
    its connection, even if the channel is closed. For a cancelled call gRPC has no public way to take them.
    """
    state, take = getattr(call, "_state", None), getattr(call, "_consume_next_event", None)
    while state is not None and take is not None and state.due:
        take()


def _parts(call: Streaming) -> Iterator[Data | pb.GetResponse]:
    try:
        yield from call
    except grpc.RpcError as failed:
        raise error_of(failed) from failed
