"""Errors as gRPC statuses and back. Called where handlers end and where clients' calls return.

The class of an error travels as metadata, so that a client raises what the embedded store would have raised.
"""

from __future__ import annotations

from typing import cast

import grpc

from tierstore import errors
from tierstore.errors import TierstoreError

__all__ = ["ERROR_KEY", "code_from", "code_of", "error_from", "error_of"]

ERROR_KEY = "tierstore-error"
"""Trailing metadata: the name of the error's class."""

_CODES: dict[type[TierstoreError], grpc.StatusCode] = {
    errors.AccessError: grpc.StatusCode.PERMISSION_DENIED,
    errors.ClosedError: grpc.StatusCode.UNAVAILABLE,
    errors.ConfigError: grpc.StatusCode.INVALID_ARGUMENT,
    errors.CredentialError: grpc.StatusCode.UNAUTHENTICATED,
    errors.DiskError: grpc.StatusCode.ABORTED,
    errors.IdentityError: grpc.StatusCode.INVALID_ARGUMENT,
    errors.LayoutError: grpc.StatusCode.INVALID_ARGUMENT,
    errors.LimitError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.RankError: grpc.StatusCode.INVALID_ARGUMENT,
    errors.ReadOnlyError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.SessionError: grpc.StatusCode.NOT_FOUND,
    errors.UnavailableError: grpc.StatusCode.UNAVAILABLE,
    errors.VersionError: grpc.StatusCode.FAILED_PRECONDITION,
}

_ERRORS: dict[grpc.StatusCode, type[errors.ServiceError]] = {
    grpc.StatusCode.CANCELLED: errors.UnavailableError,
    grpc.StatusCode.DEADLINE_EXCEEDED: errors.UnavailableError,
    grpc.StatusCode.NOT_FOUND: errors.SessionError,
    grpc.StatusCode.PERMISSION_DENIED: errors.AccessError,
    grpc.StatusCode.RESOURCE_EXHAUSTED: errors.LimitError,
    grpc.StatusCode.UNAUTHENTICATED: errors.CredentialError,
    grpc.StatusCode.UNAVAILABLE: errors.UnavailableError,
    grpc.StatusCode.UNIMPLEMENTED: errors.VersionError,
}

_RAISED_AGAIN: dict[str, type[TierstoreError]] = {
    kind.__name__: kind for kind in _CODES if kind is not errors.DiskError and kind is not errors.ReadOnlyError
}


def code_of(error: TierstoreError) -> grpc.StatusCode:
    """The status that says what kind of error it is."""
    for kind in type(error).__mro__:
        if kind in _CODES:
            return _CODES[kind]
    return grpc.StatusCode.INTERNAL


def error_of(failed: grpc.RpcError) -> TierstoreError:
    """What a client raises for a call that failed."""
    call = cast("grpc.Call", failed)  # what is raised is the call that failed
    metadata = dict(call.trailing_metadata() or ())
    return error_from(call.code(), str(metadata.get(ERROR_KEY, "")), str(call.details()))


def error_from(code: grpc.StatusCode, name: str, details: str) -> TierstoreError:
    """What a client raises for a status, the name of the class of the server's error, and what it says."""
    kind = _RAISED_AGAIN.get(name)
    if kind is not None:
        return kind(details)
    if name == errors.DiskError.__name__:
        return errors.ServiceError(f"the service's disk failed ({details}); its health says how it is now")
    return _ERRORS.get(code, errors.ServiceError)(f"{code.name}: {details}")


def code_from(number: int) -> grpc.StatusCode:
    """A status by gRPC's number of it; UNKNOWN where there is none."""
    return next((code for code in grpc.StatusCode if code.value[0] == number), grpc.StatusCode.UNKNOWN)
