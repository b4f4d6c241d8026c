"""A session with a server, as its client sees it: how calls are made within it.

Made by the connection, used by the verbs, on any thread. It may end at any time; then every call fails.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeAlias, TypeVar, cast

import grpc

from tierstore.errors import UnavailableError
from tierstore.service import convert
from tierstore.service._pb import tierstore_pb2 as pb
from tierstore.service.status import error_of
from tierstore.service.wire import CHOSEN_FIRST, HASHES_MAX, METHODS
from tierstore.types import HASH_NBYTES

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from tierstore.keys import Namespace
    from tierstore.monitor.spans import Propagation
    from tierstore.service.wire import Data

    _Unary: TypeAlias = grpc.UnaryUnaryMultiCallable[object, object]

__all__ = ["Answer", "LiveSession", "Request", "Streaming", "result_of"]

M = TypeVar("M", bound="Message")
A = TypeVar("A", covariant=True)


class Request(Protocol):
    """A request with a scope: session and namespace. Its class is named after the call, plus ``Request``."""

    @property
    def scope(self) -> pb.Scope:
        """Filled in by `LiveSession.address`."""


class Cancellable(Protocol):
    """A call in flight."""

    def cancel(self) -> object:
        """Withdraw it, if it has not ended."""


class Answer(Cancellable, Protocol[A]):
    """The future answer of a call."""

    def result(self) -> A:
        """Blocks; raises grpc's errors. See `result_of`."""

    def cancelled(self) -> bool:
        """Whether it was withdrawn."""

    def add_done_callback(self, callback: Callable[[object], None]) -> None:
        """Called on one of grpc's threads, or at once."""


class Streaming(Cancellable, Iterable["Data | pb.GetResponse"], Protocol):
    """Messages that come one after another."""


@dataclass(eq=False, slots=True)
class LiveSession:
    """A session that is open, or was.

    Attributes:
        opened: The server's answer to its opening.
        channel: Closing it ends all calls of the session.
        metadata: Sent with every call.
        propagation: Adds the trace context to the metadata; None where nothing is traced.
        draining: The server is shutting down.
        leases_over: Ids of leases under which no copy runs any more; see `release`.
    """

    opened: pb.SessionOpened
    channel: grpc.Channel
    metadata: tuple[tuple[str, str | bytes], ...]
    propagation: Propagation | None = None
    draining: bool = False
    leases_over: deque[int] = field(default_factory=deque)
    _handles: dict[bytes, int] = field(default_factory=dict)
    _made: dict[str, _Unary] = field(default_factory=dict)
    _forgotten: set[object] = field(default_factory=set)
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(CHOSEN_FIRST))
    _releasing: threading.Lock = field(default_factory=threading.Lock)

    def call(self, request: Request, kind: type[M], seconds: float) -> M:
        """Make a call without streams. Blocks. Raises what `error_of` says."""
        try:
            with _on_open_channel():
                response = self._method(request)(request, timeout=seconds, metadata=self._headers())
        except grpc.RpcError as failed:
            raise error_of(failed) from failed
        assert isinstance(response, kind), f"{response!r} is no {kind.__name__}"
        return response

    def begin(self, request: Request, kind: type[M], seconds: float) -> Answer[M]:
        """Begin a call without streams. Does not block; see `result_of`."""
        assert kind.__name__.endswith("Response"), f"{kind.__name__} answers nothing"
        with _on_open_channel():
            call = self._method(request).future(request, timeout=seconds, metadata=self._headers())
        return cast("Answer[M]", call)

    def forget(self, request: Request, seconds: float) -> None:
        """Make a call whose answer nobody needs, unless the session has ended. Does not block."""
        with suppress(UnavailableError), _on_open_channel():
            call = self._method(request).future(request, timeout=seconds, metadata=self._headers())
            self._forgotten.add(call)  # a call that nobody refers to is cancelled
            call.add_done_callback(self._forgotten.discard)

    def release(self, seconds: float, tell: Callable[[Request], bool]) -> None:
        """Release leases that are over. Does not block.

        Call it once a get has ended, and before asking for slots, so that the server learns first which are free.

        Args:
            seconds: How long the call may take.
            tell: Sends the call over the pool's socket; False if it cannot.
        """
        with self._releasing:
            over = [self.leases_over.popleft() for _ in range(len(self.leases_over))]
            if over:
                request = pb.ReleaseRequest(lease_ids=over)
                self.address(request, None, seconds)
                if not tell(request):
                    self.forget(request, seconds)

    def choose_number(self) -> int:
        """A number for a lease or reservation. The client chooses it, and so can give it back before the answer."""
        return next(self._numbers)

    def get(self, request: pb.GetRequest, seconds: float) -> Streaming:
        """Begin a get. Does not block."""
        method = METHODS["Get"]
        make = self.channel.unary_stream(method.path, method.encode_request, method.decode_response)
        with _on_open_channel():
            return cast("Streaming", make(request, timeout=seconds, metadata=self._headers()))

    def put(self, messages: Iterable[pb.PutRequest | bytes], seconds: float) -> Answer[pb.PutResponse]:
        """Begin a put. Does not block; messages are taken on a thread of grpc's."""
        method = METHODS["Put"]
        make = self.channel.stream_unary(method.path, method.encode_request, method.decode_response)
        with _on_open_channel():
            call = make.future(iter(messages), timeout=seconds, metadata=self._headers())
        return cast("Answer[pb.PutResponse]", call)

    def address(self, request: Request, namespace: Namespace | None, seconds: float) -> None:
        """Fill in a request's scope. Blocks if the namespace must be opened first.

        If there are more hashes than the server takes in one call, the request keeps the leading ones.
        """
        request.scope.session_id = self.opened.session_id
        nbytes_max = (self.opened.hashes_max or HASHES_MAX) * HASH_NBYTES
        for named in (request, *getattr(request, "added", ())):
            if len(getattr(named, "hashes", b"")) > nbytes_max:
                named.hashes = named.hashes[:nbytes_max]
        if namespace is not None:
            request.scope.namespace_handle = self.handle(namespace, seconds)

    def handle(self, namespace: Namespace, seconds: float) -> int:
        """The namespace's handle in this session. Blocks the first time."""
        handle = self._handles.get(namespace.fingerprint)
        if handle is None:
            request = pb.OpenNamespaceRequest(
                namespace=convert.from_namespace(namespace), fingerprint=namespace.fingerprint
            )
            self.address(request, None, seconds)
            handle = self.call(request, pb.OpenNamespaceResponse, seconds).namespace_handle
            self._handles[namespace.fingerprint] = handle
        return handle

    def _headers(self) -> tuple[tuple[str, str | bytes], ...]:
        """The metadata of a call that is made now."""
        return self.metadata if self.propagation is None else (*self.metadata, *self.propagation.sent().items())

    def _method(self, request: Request) -> _Unary:
        name = type(request).__name__.removesuffix("Request")
        if name not in self._made:
            method = METHODS[name]
            self._made[name] = self.channel.unary_unary(method.path, method.encode_request, method.decode_response)
        return self._made[name]


@contextmanager
def _on_open_channel() -> Iterator[None]:
    """Begin a call. gRPC's ValueError for a closed channel (the session has ended) becomes UnavailableError."""
    try:
        yield
    except ValueError as error:
        raise UnavailableError("the session with the service has ended; another one is being opened") from error


def result_of(call: Answer[A]) -> A:
    """The answer of a call that was begun. Blocks. Raises what `error_of` says."""
    try:
        return call.result()
    except grpc.RpcError as failed:
        raise error_of(failed) from failed
    except grpc.FutureCancelledError as failed:
        raise UnavailableError("the call was cancelled") from failed
