"""A client that knows the protocol's description and nothing else, and keeps to no manners."""

from __future__ import annotations

import queue
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, cast

import grpc

from tests.payload import TIMEOUT_SECONDS, namespace
from tierstore.keys import Namespace
from tierstore.service import convert
from tierstore.service._pb import tierstore_pb2 as pb
from tierstore.service.wire import METHODS, PROTOCOL

if TYPE_CHECKING:
    from tierstore.service.client.session import Cancellable

__all__ = ["Stranger", "stranger"]


class Stranger:
    """One session, made by hand.

    Attributes:
        channel: Its connection.
        opened: What the server has said.
    """

    def __init__(self, channel: grpc.Channel, *, protocol: int = PROTOCOL, token: str | None = None) -> None:
        self.channel = channel
        self.metadata: tuple[tuple[str, str], ...] = ()
        if token is not None:
            self.metadata = (("authorization", f"Bearer {token}"),)
        self._requests: queue.SimpleQueue[pb.OpenSessionRequest | None] = queue.SimpleQueue()
        self._requests.put(pb.OpenSessionRequest(protocol=protocol, client_version="0.0", client_name="stranger"))
        method = METHODS["OpenSession"]
        start = channel.stream_stream(method.path, method.encode_request, pb.OpenSessionResponse.FromString)
        self.stream = start(iter(self._requests.get, None), metadata=self.metadata)
        first = next(iter(self.stream))
        self.opened: pb.SessionOpened = first.opened

    def scope(self, space: Namespace | None = None) -> pb.Scope:
        """Of a namespace, which is opened."""
        answer = self.call(
            pb.OpenNamespaceRequest(scope=self.session, namespace=convert.from_namespace(space or namespace()))
        )
        assert isinstance(answer, pb.OpenNamespaceResponse)
        return pb.Scope(session_id=self.opened.session_id, namespace_handle=answer.namespace_handle)

    @property
    def session(self) -> pb.Scope:
        """Of the session alone."""
        return pb.Scope(session_id=self.opened.session_id)

    def call(self, request: object, seconds: float = TIMEOUT_SECONDS) -> object:
        """A call without streams."""
        name = type(request).__name__.removesuffix("Request")
        response = getattr(pb, f"{name}Response")
        make = self.channel.unary_unary(METHODS[name].path, METHODS[name].encode_request, response.FromString)
        return make(request, timeout=seconds, metadata=self.metadata)

    def put(self, requests: Iterable[pb.PutRequest], seconds: float = TIMEOUT_SECONDS) -> pb.Result:
        """A put."""
        make = self.channel.stream_unary(
            METHODS["Put"].path, pb.PutRequest.SerializeToString, pb.PutResponse.FromString
        )
        response = make(iter(requests), timeout=seconds, metadata=self.metadata)
        return cast("pb.PutResponse", response).result

    def get(self, request: pb.GetRequest, seconds: float = TIMEOUT_SECONDS) -> Iterator[pb.GetResponse]:
        """A get; the iterator is the call."""
        make = self.channel.unary_stream(
            METHODS["Get"].path, pb.GetRequest.SerializeToString, pb.GetResponse.FromString
        )
        return cast("Iterator[pb.GetResponse]", make(request, timeout=seconds, metadata=self.metadata))

    def cut(self) -> None:
        """End the session as a connection does that breaks."""
        cast("Cancellable", self.stream).cancel()

    def leave(self) -> None:
        """Say no more, as a client does that ends well."""
        self._requests.put(None)


@contextmanager
def stranger(address: str, **options: object) -> Iterator[Stranger]:
    """A session over a connection of its own, which is cut at the end."""
    channel = grpc.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)])
    with channel:
        yield Stranger(channel, **options)  # type: ignore[arg-type]
