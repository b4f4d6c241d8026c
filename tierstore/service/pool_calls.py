"""Calls about slots, over the pool's socket, from clients that map the pool. They avoid the cost of HTTP/2.

The pool socket makes one of these for each connection, on the server's loop. After a malformed message no more calls
are read from that peer, but its connection stays open: it may touch its slots as long as it is open.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, TypeAlias, cast

from google.protobuf.message import DecodeError

from tierstore.errors import AccessError, LimitError, ServiceError, TierstoreError, VersionError
from tierstore.service._pb import tierstore_pb2 as pb
from tierstore.service.frames import Frames, framed
from tierstore.service.status import code_of

if TYPE_CHECKING:
    from tierstore.monitor.spans import Propagation
    from tierstore.service.security import Principal
    from tierstore.service.sessions import Session

__all__ = ["Answering", "PoolCalls"]

_logger = logging.getLogger(__name__)

Answering: TypeAlias = "Callable[[str, object, Callable[[], Principal]], Awaitable[object]]"
"""Answers a call by its name; see `tierstore.service.guard.Guard`."""

_UNDER_WAY_MAX = 16
"""Calls of one connection; while there are so many, no more are begun, nor read."""


class PoolCalls(asyncio.Protocol):
    """See the module.

    Args:
        answer: What answers.
        session: Whose connection it is.
        propagation: Of traces; None where nothing is traced.

    Attributes:
        gone: Set once the connection has ended.
    """

    def __init__(self, answer: Answering, session: Session, propagation: Propagation | None) -> None:
        self._answer = answer
        self._session = session
        self._propagation = propagation
        self._frames = Frames()
        self._waiting: deque[pb.PoolCall] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._deaf = self._full = False
        self._transport: asyncio.Transport | None = None
        self.gone = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It begins."""
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, _error: Exception | None) -> None:
        """It has ended, and with it its calls."""
        self._waiting.clear()
        for task in self._tasks:
            task.cancel()
        self.gone.set()

    def close(self) -> None:
        """End it."""
        if self._transport is not None:
            self._transport.abort()

    def pause_writing(self) -> None:
        """Backpressure: the peer does not read its answers, so no more of its calls are read."""
        self._full = True
        self._listen()

    def resume_writing(self) -> None:
        """It does again."""
        self._full = False
        self._listen()

    def data_received(self, data: bytes) -> None:
        """A part of the stream."""
        if self._deaf:
            return
        try:
            self._waiting.extend(map(pb.PoolCall.FromString, self._frames.feed(data)))
        except (LimitError, DecodeError) as error:
            self._deaf = True
            _logger.warning("%s is not listened to any more: %s", self._session.name, error)
        self._begin()

    def _begin(self) -> None:
        """Start waiting calls, up to the limit in flight. All that wait came in with one read."""
        while self._waiting and len(self._tasks) < _UNDER_WAY_MAX:
            call = self._waiting.popleft()
            task = asyncio.get_running_loop().create_task(self._work(call))
            self._tasks.add(task)
            task.add_done_callback(partial(self._ended, call.number))
        self._listen()

    def _ended(self, number: int, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._begin()
        if not task.cancelled() and (error := task.exception()) is not None:
            _logger.error("a call of %s failed", self._session.name, exc_info=error)
            self._send(pb.PoolAnswer(number=number, error=_error(ServiceError("the server has failed; see its log"))))

    def _listen(self) -> None:
        """Resume or pause reading, by how many calls and answers are pending."""
        if self._transport is None or self._transport.is_closing():
            return
        if self._full or len(self._tasks) >= _UNDER_WAY_MAX:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def _send(self, answer: pb.PoolAnswer) -> None:
        if answer.number and self._transport is not None and not self._transport.is_closing():
            self._transport.write(framed(answer.SerializeToString()))

    async def _work(self, call: pb.PoolCall) -> None:
        answer = pb.PoolAnswer(number=call.number)
        try:
            await self._fill(answer, call)
        except TierstoreError as error:
            answer.error.CopyFrom(_error(error))
        self._send(answer)

    async def _fill(self, answer: pb.PoolAnswer, call: pb.PoolCall) -> None:
        kind = call.WhichOneof("call")
        if kind is None:
            raise VersionError(
                "this server does not know the call; install the same version of tierstore on both sides"
            )
        request = getattr(call, kind)
        if request.scope.session_id != self._session.session_id:
            raise AccessError("over the socket of a session its own calls go, and no others")
        traced = self._propagation
        with nullcontext() if traced is None else traced.continuing(call.trace_context):
            response = await self._answer(kind.capitalize(), request, lambda: self._session.principal)
        getattr(answer, kind).CopyFrom(response)


def _error(error: TierstoreError) -> pb.PoolError:
    number: int = code_of(error).value[0]
    return pb.PoolError(code=number, name=type(error).__name__, text=" ".join(str(error).split()))
