"""Hands the pool's descriptor to clients of the same user over a Unix socket, and notices when they are gone.

Called by the service. A client sends the ticket that it got over gRPC and receives the sealed memfd. Its connection
stays open as long as it may touch the pool; the kernel closes it when the process ends, however it ends. If a child of
the process keeps the connection open, a pidfd reports the end of the process itself. Calls about slots may use the
connection, too. A ticket is valid once and for a few seconds. Peers of another user are rejected before a byte is read.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING

from tierstore.service.pool_calls import PoolCalls
from tierstore.service.sockets import private_mode, unlink_socket

if TYPE_CHECKING:
    from tierstore.monitor.spans import Propagation
    from tierstore.service.pool_calls import Answering
    from tierstore.service.sessions import Session, Sessions
    from tierstore.tiers.host_pool import HostPool

__all__ = ["TICKET_NBYTES", "PoolSocket"]

_logger = logging.getLogger(__name__)

TICKET_NBYTES = 16
_TICKET_SECONDS = 10.0
_RETRY_SECONDS = 1.0
"""Behind an accept that failed, as without a descriptor to spare: the next one would fail too."""

_GREETING = b"tierstore pool 1"
_PEER = struct.Struct("3i")
"""struct ucred: pid, uid, gid."""


class PoolSocket:
    """See the module.

    Args:
        path: Of the socket; removed at the end.
        pool: What is handed out.
        sessions: Told when a client is gone.
    """

    def __init__(self, path: str, pool: HostPool, sessions: Sessions) -> None:
        self.path = path
        self.pool_nbytes = pool.nbytes
        self._pool = pool
        self._sessions = sessions
        self._expected: dict[bytes, Session] = {}
        self._connections: set[asyncio.Task[None]] = set()
        self._listener: socket.socket | None = None
        self._accepting: asyncio.Task[None] | None = None
        self._answer: Answering
        self._propagation: Propagation | None = None

    def start(self, answer: Answering, propagation: Propagation | None) -> None:
        """Listen; for the owner alone (mode 0600).

        Args:
            answer: Takes the calls that come over a connection.
            propagation: Of traces; None where nothing is traced.
        """
        self._answer, self._propagation = answer, propagation
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with private_mode():
            listener.bind(self.path)
        listener.listen()
        listener.setblocking(False)
        self._listener = listener
        self._accepting = asyncio.create_task(self._accept(listener))

    def expect(self, session: Session) -> bytes:
        """A ticket for a session, good once."""
        ticket = secrets.token_bytes(TICKET_NBYTES)
        self._expected[ticket] = session
        asyncio.get_running_loop().call_later(_TICKET_SECONDS, self._expected.pop, ticket, None)
        return ticket

    async def close(self) -> None:
        """Accept no more clients, and disconnect those that are connected."""
        tasks = [*self._connections, *([self._accepting] if self._accepting else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._listener is not None:
            self._listener.close()
            unlink_socket(self.path)

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, _ = await loop.sock_accept(listener)
            except OSError as error:
                _logger.warning("a client cannot be given the pool now: %s", error)
                await asyncio.sleep(_RETRY_SECONDS)
                continue
            task = asyncio.create_task(self._serve(connection))
            self._connections.add(task)
            task.add_done_callback(self._connections.discard)

    async def _serve(self, connection: socket.socket) -> None:
        with connection:
            pid, uid, _gid = _PEER.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
            if uid != os.geteuid():
                return
            connection.setblocking(False)
            session = await self._admit(connection)
            if session is not None:
                with _ending_with(pid, connection, session):
                    await self._hold(connection, session)

    async def _admit(self, connection: socket.socket) -> Session | None:
        """The session of the ticket that a client sends; None if it sends none in time, or a wrong one."""
        loop = asyncio.get_running_loop()
        ticket = b""
        with suppress(TimeoutError, ConnectionError):
            async with asyncio.timeout(_TICKET_SECONDS):
                while len(ticket) < TICKET_NBYTES:
                    part = await loop.sock_recv(connection, TICKET_NBYTES - len(ticket))
                    if not part:
                        break
                    ticket += part
        return self._expected.pop(ticket, None)

    async def _hold(self, connection: socket.socket, session: Session) -> None:
        """Hand the pool out, and take calls until the client is gone; then nothing can touch its slots any more."""
        calls = PoolCalls(self._answer, session, self._propagation)
        session.attached = True
        try:
            with suppress(ConnectionError):
                socket.send_fds(connection, [_GREETING], [self._pool.fd])
                await asyncio.get_running_loop().connect_accepted_socket(lambda: calls, connection)
                await calls.gone.wait()
        finally:
            calls.close()
            session.attached = False
            self._sessions.free(session)


@contextmanager
def _ending_with(pid: int, connection: socket.socket, session: Session) -> Iterator[None]:
    """Within this context the end of a process ends its connection and session, even if a child keeps the socket open.

    If the process cannot be watched (it may run in another container), only the end of its socket counts.
    """
    loop = asyncio.get_running_loop()

    def end() -> None:
        session.tell(None)
        with suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)

    def ended(pidfd: int) -> None:
        loop.remove_reader(pidfd)
        end()

    with ExitStack() as watching:
        try:
            pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            end()
        except OSError as error:
            _logger.debug("process %d cannot be watched: %s", pid, error)
        else:
            watching.callback(os.close, pidfd)
            loop.add_reader(pidfd, ended, pidfd)
            watching.callback(loop.remove_reader, pidfd)
        yield
