"""Restricts gRPC reflection, which shows the protocol's description, to callers with a credential."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

import grpc
from grpc import aio

from tierstore.errors import CredentialError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import TypeAlias

    from tierstore.service.security import Authority

    Handler: TypeAlias = grpc.RpcMethodHandler[object, object]

__all__ = ["ReflectionGate"]

_GUARDED = "/grpc.reflection."


class ReflectionGate(aio.ServerInterceptor):  # type: ignore[type-arg]  # generic in the stubs alone
    """Guards reflection only: the store's own calls check credentials themselves, and health needs none.

    Args:
        authority: Tells who calls.
    """

    def __init__(self, authority: Authority) -> None:
        self._authority = authority

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler:
        """The call's own handler, or one that refuses."""
        if handler_call_details.method.startswith(_GUARDED):
            metadata = dict(handler_call_details.invocation_metadata or ())
            try:
                self._authority.principal(metadata)
            except CredentialError as error:
                return _refusal(str(error))
        return await continuation(handler_call_details)


def _refusal(text: str) -> Handler:
    async def refuse(_requests: object, context: aio.ServicerContext[object, object]) -> NoReturn:
        await context.abort(grpc.StatusCode.UNAUTHENTICATED, text)
        raise AssertionError("abort raises")

    return grpc.stream_stream_rpc_method_handler(refuse)
