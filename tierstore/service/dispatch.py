"""Dispatches gRPC calls: authenticates the caller, finds the session, applies limits, maps errors to statuses.

The server registers the handlers made here. Every call goes through this module and the guard, so that no module
behind it can forget a check. Messages are written, not yielded: if a client goes away between two messages, gRPC leaves
a generator open, with everything it holds.
"""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import aclosing
from typing import TYPE_CHECKING, TypeVar

import grpc
from grpc import aio

import tierstore
from tierstore.errors import IdentityError, LimitError, TierstoreError, UnavailableError, VersionError
from tierstore.service._pb import tierstore_pb2 as pb
from tierstore.service.guard import Guard
from tierstore.service.status import ERROR_KEY, code_of
from tierstore.service.streams import BATCH_NBYTES
from tierstore.service.wire import CHUNK_NBYTES, HASHES_MAX, METHODS, PROTOCOL, SERVICE_NAME, Data

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
    from typing import TypeAlias

    from tierstore.service.rooms import Rooms
    from tierstore.service.security import Authority, Principal
    from tierstore.service.sessions import Session

    Context: TypeAlias = "grpc.aio.ServicerContext[object, object]"

__all__ = ["Dispatcher"]

_logger = logging.getLogger(__name__)

T = TypeVar("T")
R = TypeVar("R")

_HELLO_SECONDS = 10.0
_NAME_CHARACTERS = 64


class Dispatcher:
    """Every call at one address.

    Args:
        rooms: Where calls are answered.
        authority: Tells who calls.
    """

    def __init__(self, rooms: Rooms, authority: Authority) -> None:
        self._rooms = rooms
        self._authority = authority
        self._guard = Guard(rooms)

    def handlers(self) -> grpc.GenericRpcHandler[object, object]:
        """For the server."""
        made: dict[str, grpc.RpcMethodHandler[object, object]] = {}
        for name, method in METHODS.items():
            codec = (method.decode_request, method.encode_response)
            if name == "OpenSession":
                made[name] = grpc.stream_stream_rpc_method_handler(self._open_session, *codec)
            elif name == "Put":
                made[name] = grpc.stream_unary_rpc_method_handler(self._continuing(self._put), *codec)
            elif name == "Get":
                made[name] = grpc.unary_stream_rpc_method_handler(self._continuing(self._get), *codec)
            else:
                made[name] = grpc.unary_unary_rpc_method_handler(self._continuing(self._unary(name)), *codec)
        return grpc.method_handlers_generic_handler(SERVICE_NAME, made)

    def _continuing(self, handler: Callable[[T, Context], Awaitable[R]]) -> Callable[[T, Context], Awaitable[R]]:
        """The handler, whose spans belong to the caller's trace where traces are made here."""
        propagation = self._rooms.propagation
        if propagation is None:
            return handler

        async def continuing(request: T, context: Context) -> R:
            with propagation.continuing(dict(context.invocation_metadata() or ())):
                return await handler(request, context)

        return continuing

    def _unary(self, name: str) -> Callable[[object, Context], Awaitable[object]]:
        async def answer(request: object, context: Context) -> object:
            try:
                return await self._guard.answer(name, request, lambda: self._principal(context))
            except TierstoreError as error:
                return await _abort(context, error)

        return answer

    async def _get(self, request: pb.GetRequest, context: Context) -> None:
        try:
            with self._guard.admitted("Get", request, lambda: self._principal(context)) as session:
                async with aclosing(self._rooms.streams.get(session, request)) as messages:
                    async for few in messages:
                        await self._patiently(_write(context, few))
        except TierstoreError as error:
            await _abort(context, error)
        except aio.InternalError:
            _logger.debug("a client went away in the middle of a get")

    async def _put(self, requests: AsyncIterator[pb.PutRequest | Data], context: Context) -> object:
        try:
            principal = self._principal(context)
            first = await anext(requests, None)
            if not isinstance(first, pb.PutRequest) or first.WhichOneof("part") != "begin":
                raise IdentityError("the first message of a put says whose blocks follow; send PutBegin")
            with self._guard.admitted("Put", first.begin, lambda: principal) as session:
                return await self._rooms.streams.put(session, first.begin, self._data_of(requests))
        except TierstoreError as error:
            return await _abort(context, error)

    async def _open_session(self, requests: AsyncIterator[pb.OpenSessionRequest], context: Context) -> None:
        sessions = self._rooms.sessions
        try:
            principal = self._principal(context)
            hello = await _hello(requests)
            session = sessions.open(principal, hello.client_name[:_NAME_CHARACTERS])
        except TierstoreError as error:
            await _abort(context, error)
            return
        _logger.info("session opened by %s (%s)", principal.name, session.name)
        leaving = asyncio.create_task(_left(requests, session))
        try:
            await context.write(pb.OpenSessionResponse(opened=self._opened(session)))
            while (notice := await session.notices.get()) is not None:
                await context.write(pb.OpenSessionResponse(notice=notice))
        except aio.InternalError:
            _logger.debug("a client went away")
        finally:
            leaving.cancel()
            sessions.close(session)
            _logger.info("session of %s (%s) ended", principal.name, session.name)

    def _opened(self, session: Session) -> pb.SessionOpened:
        return pb.SessionOpened(
            session_id=session.session_id,
            boot_id=self._rooms.boot_id,
            protocol=PROTOCOL,
            server_version=tierstore.__version__,
            chunk_nbytes=CHUNK_NBYTES,
            hashes_max=HASHES_MAX,
            lease_seconds=self._rooms.sessions.limits.lease_seconds,
            prefetch_waits=self._rooms.prefetch_waits,
            pool_attachable=self._rooms.may_attach(session),
        )

    def _principal(self, context: Context) -> Principal:
        self._guard.check_open()
        metadata = dict(context.invocation_metadata() or ())
        return self._authority.principal(metadata)

    async def _data_of(self, requests: AsyncIterator[pb.PutRequest | Data]) -> AsyncIterator[Data]:
        """The data of a put, message by message; none of them is empty."""
        nbytes, waited = 0, 0.0
        while True:
            begun = time.perf_counter()
            part = await self._patiently(anext(requests, None), waited)
            if part is None:
                return
            if isinstance(part, pb.PutRequest):
                raise IdentityError("a put begins once; behind PutBegin send data")
            nbytes, waited = nbytes + len(part), waited + time.perf_counter() - begun
            if nbytes >= BATCH_NBYTES:
                nbytes, waited = 0, 0.0
            if part:
                yield part

    async def _patiently(self, step: Awaitable[T], waited_seconds: float = 0.0) -> T:
        """Run one step of a stream, a few MiB. A client that delays it for longer than a lease lasts is cut off."""
        seconds = self._rooms.sessions.limits.lease_seconds
        try:
            async with asyncio.timeout(seconds - waited_seconds):
                return await step
        except TimeoutError as error:
            raise LimitError(
                f"less than {BATCH_NBYTES >> 20} MiB have moved in {seconds:g} s; the stream is cut off"
            ) from error


async def _hello(requests: AsyncIterator[pb.OpenSessionRequest]) -> pb.OpenSessionRequest:
    """The client's first message; raises if the client does not speak the protocol."""
    try:
        async with asyncio.timeout(_HELLO_SECONDS):
            hello = await anext(requests, None)
    except TimeoutError as error:
        raise UnavailableError(f"no first message came within {_HELLO_SECONDS:g} s") from error
    if hello is None or hello.protocol != PROTOCOL:
        theirs = "none" if hello is None else f"{hello.protocol} (client {hello.client_version[:_NAME_CHARACTERS]!r})"
        raise VersionError(
            f"this server ({tierstore.__version__}) speaks protocol {PROTOCOL}, the client {theirs}; "
            "install the same version of tierstore on both sides"
        )
    return hello


async def _left(requests: AsyncIterator[pb.OpenSessionRequest], session: Session) -> None:
    """End the session's stream when the client closes its side."""
    async for _ in requests:
        pass
    session.tell(None)


async def _write(context: Context, messages: Iterable[bytes | pb.GetResponse]) -> None:
    for message in messages:
        await context.write(message)


async def _abort(context: Context, error: TierstoreError) -> object:
    """End the call with the status that says what was wrong; returns nothing, but raises."""
    metadata: Mapping[str, str] = {ERROR_KEY: type(error).__name__}
    await context.abort(code_of(error), " ".join(str(error).split()), tuple(metadata.items()))
