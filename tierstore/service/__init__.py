"""The store as a gRPC service, and its client. The only room that knows grpc and protobuf."""

from __future__ import annotations

from importlib.util import find_spec

from tierstore.errors import NoPackageError

if find_spec("grpc") is None:
    raise NoPackageError(
        "a service and its clients need gRPC, which is not installed: pip install 'tierstore[grpc]', or in a clone of "
        "its repository '.[grpc]'"
    )
