"""A store in another process, or on another machine, with the verbs of the embedded one. The door for engines."""

from __future__ import annotations

import os
from types import TracebackType
from typing import TYPE_CHECKING, TypedDict, cast

from tierstore import registry
from tierstore.errors import IdentityError
from tierstore.keys import Namespace
from tierstore.service import convert
from tierstore.service._pb import tierstore_pb2 as pb
from tierstore.service.client.calling import Calling, Patience
from tierstore.service.client.door import Door
from tierstore.service.client.handle import ClientHandle
from tierstore.service.client.moving import Moving

if TYPE_CHECKING:
    from collections.abc import Callable

    from tierstore.device.base import Device
    from tierstore.health import TierHealth
    from tierstore.transfer.future import Transfer

__all__ = ["Client", "ClientOptions"]


class ClientOptions(TypedDict, total=False):
    """Keywords of `Client`."""

    token: str | None
    tls: bool
    tls_ca: str | os.PathLike[str] | None
    tls_certificate: str | os.PathLike[str] | None
    tls_key: str | os.PathLike[str] | None
    name: str
    device: str | Device
    attach: bool
    connect_seconds: float
    call_seconds: float
    transfer_seconds: float
    tracing: bool


class Client:
    """The verbs of a `Store` that lives behind a service.

    The constructor waits at most `connect_seconds` for the service and does not fail without one. The client keeps
    trying to connect in the background; until then every get is a miss and every put is refused, at once.

    Args:
        address: ``"unix:/path"`` or ``"host:port"``.
        token: The credential, for TCP.
        tls_ca: Path of the certificates that sign the server's; given, or with `tls`, the connection is encrypted.
        tls_certificate: Path of the client's own certificate, where the server asks for one.
        tls_key: Path of its key.
        tls: Encrypt; without `tls_ca`, trust the certificates that this machine trusts.
        name: What the client calls itself, for the server's logs.
        device: Where the engine's caches lie, as the setting ``device.name`` has it, or a device.
        attach: Read and write the server's pool in place if the server permits it.
        connect_seconds: See above.
        call_seconds: How long a call without blocks may take, and any call beyond its own deadline.
        transfer_seconds: How long a put, get, prefetch, delete or flush without a deadline may take.
        tracing: Make each put, get and prefetch a span of OpenTelemetry, whose trace the server's spans join.

    Attributes:
        calling: State that the verbs share; public for benchmarks.

    Raises:
        ConfigError: A path cannot be read, the address makes no sense, or OpenTelemetry is not installed.
    """

    def __init__(
        self,
        address: str,
        *,
        token: str | None = None,
        tls: bool = False,
        tls_ca: str | os.PathLike[str] | None = None,
        tls_certificate: str | os.PathLike[str] | None = None,
        tls_key: str | os.PathLike[str] | None = None,
        name: str = "",
        device: str | Device = "cpu",
        attach: bool = True,
        connect_seconds: float = 2.0,
        call_seconds: float = 1.0,
        transfer_seconds: float = 60.0,
        tracing: bool = False,
    ) -> None:
        self._new_handle, propagation = ClientHandle, None
        if tracing:
            from tierstore.service.client.traced import Propagation, TracedClientHandle

            self._new_handle, propagation = TracedClientHandle, Propagation()
        door = Door(address, tls=tls, ca=tls_ca, certificate=tls_certificate, key=tls_key)
        opened = cast("Callable[[], Device]", registry.load("devices", device))() if isinstance(device, str) else device
        self.calling = Calling(
            door,
            opened,
            name=name or f"pid {os.getpid()}",
            token=token,
            patience=Patience(connect_seconds, call_seconds, transfer_seconds),
            attach=attach,
            propagation=propagation,
        )
        self._handles: dict[bytes, ClientHandle] = {}

    def namespace(self, namespace: Namespace) -> ClientHandle:
        """The verbs of one namespace. Waits for the server, but also works without one.

        A server may be unable to open the namespace (its folder cannot be written, or it holds too many). Then gets are
        misses, puts are refused, and each verb tries again.

        Raises:
            AccessError: The namespace belongs to another tenant.
            VersionError: Client and server do not speak the same protocol.
            ConfigError, IdentityError, LayoutError: As the embedded store raises them, if the server can be asked.
        """
        if not isinstance(namespace, Namespace):
            raise IdentityError(f"a namespace of type {type(namespace).__name__}; pass Namespace(model=…, layout=…)")
        handle = self._handles.get(namespace.fingerprint)
        if handle is None:
            self.calling.open(namespace)
            handle = self._handles.setdefault(namespace.fingerprint, self._new_handle(self.calling, namespace))
        return handle

    @property
    def connected(self) -> bool:
        """Whether there is a session now."""
        return self.calling.connection.connected

    def wait(self, seconds: float) -> bool:
        """Wait until there is a session; whether there is one. Blocks."""
        return self.calling.connection.wait(seconds, until_connected=True)

    @property
    def attached(self) -> bool:
        """Whether blocks are read and written in place now."""
        return self.calling.attached

    def flush(self) -> Transfer:
        """Make everything put so far durable; see `Store.flush`. IO_ERROR without a service. Does not block."""
        return Moving(self.calling, None).flush()

    def metrics(self) -> dict[str, float]:
        """Every metric of the server now; nothing without one. Waits for it."""
        stats = self._stats()
        return {} if stats is None else dict(stats.metrics)

    def health(self) -> dict[str, TierHealth]:
        """How each tier of the server is; nothing without one. Waits for it."""
        stats = self._stats()
        return {} if stats is None else convert.to_health(list(stats.tiers))

    def _stats(self) -> pb.StatsResponse | None:
        return self.calling.ask(pb.StatsRequest(), pb.StatsResponse, None)

    def close(self) -> None:
        """End the session, and with it all that it holds. Blocks until no copy touches any cache any more."""
        self.calling.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
