"""The service: one gRPC server for each address, over one store. Made by `tierstore serve` and by tests.

Lives on one event loop, in the store's process. All decisions about blocks are the store's.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from grpc import aio

from tierstore.errors import ConfigError
from tierstore.metrics import Metric, Metrics
from tierstore.monitor.showing import propagation_of
from tierstore.policy.prefetching import PrefetchPolicy
from tierstore.service._pb import tierstore_pb2 as pb
from tierstore.service._pb.standard import health_pb2, health_pb2_grpc, reflection
from tierstore.service.calls import Calls
from tierstore.service.dispatch import Dispatcher
from tierstore.service.gate import ReflectionGate
from tierstore.service.guard import Guard
from tierstore.service.health import Health
from tierstore.service.lending import Lending
from tierstore.service.pool_socket import PoolSocket
from tierstore.service.quotas import Quotas
from tierstore.service.rooms import Rooms
from tierstore.service.security import OwnerOnly
from tierstore.service.sessions import SessionLimits, Sessions
from tierstore.service.sockets import UNIX, clear_way, private_mode, unlink_socket
from tierstore.service.streams import Streams
from tierstore.service.traffic import Traffic
from tierstore.service.wire import MESSAGE_NBYTES_MAX, SERVICE_NAME
from tierstore.service.workers import Workers

if TYPE_CHECKING:
    import grpc

    from tierstore.service.security import Authority
    from tierstore.store import Store

__all__ = ["Server"]

_DISK_THREADS = 2
_DISK_SECONDS = 5.0
"""So long a server that ends waits for verbs that a disk holds up; nobody waits for their answers any more."""

_OPTIONS = (
    ("grpc.max_receive_message_length", MESSAGE_NBYTES_MAX),
    ("grpc.max_send_message_length", MESSAGE_NBYTES_MAX),
    ("grpc.so_reuseport", 0),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    (
        "grpc.http2.max_ping_strikes",
        0,
    ),  # by itself gRPC cuts off whoever is idle and pings more often than in 5 minutes
)


class Server:
    """A service. Made, used and closed on one loop.

    Args:
        store: Open, and the caller's to close, behind the server.
        limits: Of sessions.
        pool_path: Where to hand out the pool, if it is shared; None: to nobody.

    Raises:
        ConfigError: `pool_path` cannot be used.
    """

    def __init__(self, store: Store, limits: SessionLimits | None = None, *, pool_path: str | None = None) -> None:
        self._count_workers = Workers("service-count", threads=1)
        self._disk_workers = Workers("service-disk", threads=_DISK_THREADS)
        self._servers: list[aio.Server] = []
        self._paths: list[str] = []
        self.sessions = Sessions(store, limits or SessionLimits())
        self._traffic = Traffic()
        self._metrics = Metrics()
        self._health = Health(store.health, self._traffic, self.sessions)
        self._looking = asyncio.create_task(self._health.look())
        self._pool_socket: PoolSocket | None = None
        if pool_path is not None and store.pool.shared:
            clear_way(pool_path)
            self._pool_socket = PoolSocket(pool_path, store.pool, self.sessions)
        quotas = Quotas(self._count_workers)
        lending = Lending(self.sessions, self._pool_socket)
        calls = Calls(store, self.sessions, self._disk_workers, quotas)
        third = round(self.sessions.limits.silence_seconds * 1000 / 3)
        self._keepalive = (
            ("grpc.keepalive_time_ms", 2 * third),
            ("grpc.keepalive_timeout_ms", third),
            ("grpc.http2.ping_timeout_ms", 3 * third),  # of a ping for flow control, behind which the others wait
        )
        self._rooms = Rooms(
            self.sessions,
            {**calls.by_name, **lending.by_name},
            Streams(store, quotas),
            lending.may_attach,
            prefetch_waits=PrefetchPolicy.of(store.config.prefetch).waits,
            traffic=self._traffic,
            metrics=self._metrics,
            quotas=quotas,
            propagation=propagation_of(store.config),
        )
        if self._pool_socket is not None:
            self._pool_socket.start(Guard(self._rooms).answer, self._rooms.propagation)
        store.count_in(self._counted)

    def _counted(self) -> Metrics:
        """What the store tells of its service; on whichever thread asks."""
        attached = sum(session.attached for session in self.sessions)
        self._metrics.set(Metric.SERVICE_SESSIONS, attached, "attached")
        self._metrics.set(Metric.SERVICE_SESSIONS, len(self.sessions) - attached, "streamed")
        return self._metrics

    async def listen_here(self, path: str) -> None:
        """Listen on a Unix socket, which the file system guards (mode 0600).

        Raises:
            ConfigError: The path cannot be used, or a live server listens there.
        """
        clear_way(path)
        server = self._server(OwnerOnly())
        try:
            with private_mode():
                server.add_insecure_port(f"{UNIX}{path}")
        except RuntimeError as error:
            raise ConfigError(f"cannot listen on {path}: {error}; give a path in a folder of your own") from error
        self._paths.append(path)
        await server.start()

    async def listen(self, address: str, credentials: grpc.ServerCredentials | None, authority: Authority) -> int:
        """Listen on TCP; returns the port.

        Raises:
            ConfigError: The address cannot be used.
        """
        server = self._server(authority)
        try:
            if credentials is None:
                port = server.add_insecure_port(address)
            else:
                port = server.add_secure_port(address, credentials)
        except RuntimeError as error:
            raise ConfigError(f"cannot listen on {address}: {error}; give a free host:port of this machine") from error
        await server.start()
        return port

    def _server(self, authority: Authority) -> aio.Server:
        server = aio.server(options=(*_OPTIONS, *self._keepalive), interceptors=[ReflectionGate(authority)])
        server.add_generic_rpc_handlers((Dispatcher(self._rooms, authority).handlers(),))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        health_name = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name
        reflection.enable_server_reflection((SERVICE_NAME, health_name, reflection.SERVICE_NAME), server)
        self._servers.append(server)
        return server

    async def drain(self, patience_seconds: float) -> bool:
        """Refuse new calls, and let those under way end. Returns whether all have."""
        self._traffic.draining = True
        await self._health.tell()
        for session in self.sessions:
            session.tell(pb.Notice(kind=pb.Notice.KIND_DRAINING, text="the server is ending"))
        return await self._traffic.idle(patience_seconds)

    def abandon(self) -> None:
        """Remove the sockets, when the process is about to end at once."""
        for path in self._paths:
            unlink_socket(path)
        if self._pool_socket is not None:
            unlink_socket(self._pool_socket.path)

    async def close(self) -> None:
        """End every session and call."""
        self._looking.cancel()
        await asyncio.gather(self._looking, return_exceptions=True)
        for session in self.sessions:
            session.tell(None)
        await asyncio.gather(*(server.stop(None) for server in self._servers))
        for session in self.sessions:
            self.sessions.close(session)
        if self._pool_socket is not None:
            await self._pool_socket.close()
        self.abandon()
        self._count_workers.close()
        self._disk_workers.close(_DISK_SECONDS)
