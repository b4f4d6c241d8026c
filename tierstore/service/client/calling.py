"""State that all verbs of a client share: the connection, the attached pool, threads and time limits.

Made by the client and called by its handles. Every call has a deadline.
"""

from __future__ import annotations

import atexit
import logging
import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from tierstore.errors import AccessError, ClosedError, ServiceError, TierstoreError, VersionError
from tierstore.service.client.attached import AttachedPool
from tierstore.service.client.connection import Connection
from tierstore.service.client.copies import Copies
from tierstore.service.client.running import Warnings
from tierstore.worker import Worker

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from tierstore.device.base import Device
    from tierstore.keys import Namespace
    from tierstore.monitor.spans import Propagation
    from tierstore.service.client.door import Door
    from tierstore.service.client.session import LiveSession, Request

__all__ = ["Calling", "Patience"]

_logger = logging.getLogger(__name__)

M = TypeVar("M", bound="Message")

_THREADS = 8
_WAITING_MAX = 1024


@dataclass(frozen=True, slots=True)
class Patience:
    """How long things may take, in seconds.

    Attributes:
        connect: The first connection, while the client is made.
        call: A call without blocks, beyond the deadline that it was given.
        transfer: A put, get, prefetch, delete or flush that was given no deadline.
    """

    connect: float = 2.0
    call: float = 1.0
    transfer: float = 60.0

    def of(self, deadline_seconds: float) -> float:
        """How long a verb may take, given its own deadline (0: none)."""
        return self.call + deadline_seconds if deadline_seconds else self.transfer


class Calling:
    """See the module.

    Args:
        door: Where the server is.
        device: Where the caller's caches lie.
        name: What the client calls itself.
        token: Its credential.
        patience: How long things may take.
        attach: Whether to map the pool if the server permits it.
        propagation: Of traces; None where nothing is traced.
    """

    def __init__(
        self,
        door: Door,
        device: Device,
        *,
        name: str,
        token: str | None,
        patience: Patience,
        attach: bool,
        propagation: Propagation | None = None,
    ) -> None:
        self.device = device
        self.patience = patience
        self.propagation = propagation
        self.warnings = Warnings()
        self.copies = Copies(device)
        self.worker = Worker("service-call", capacity=_WAITING_MAX, threads=_THREADS)
        self._attach = attach
        self._lock = threading.Lock()
        self._pools: dict[LiveSession, AttachedPool | None] = {}
        self.prefetch_waits = False
        self.connection = Connection(
            door, name=name, token=token, propagation=propagation, at_begin=self._began, at_end=self._ended
        )
        atexit.register(self.close)
        if not self.connection.wait(patience.connect):
            self.warnings.say(self.connection.failure)

    def pool(self, session: LiveSession) -> AttachedPool | None:
        """The session's pool, mapped; None where blocks are streamed."""
        return self._pools.get(session)

    @property
    def attached(self) -> bool:
        """Whether a pool is mapped."""
        return any(pool is not None for pool in list(self._pools.values()))

    def open(self, namespace: Namespace) -> None:
        """Open a namespace if there is a session. Blocks.

        Raises if the namespace, its tenant or the protocol version is wrong. Other failures of the service are only
        logged: they must not stop an engine.
        """
        try:
            self.connection.judged(lambda session: session.handle(namespace, self.patience.call))
        except (AccessError, VersionError):
            raise
        except ServiceError as error:
            self.warnings.say(error)

    def demand(self, request: Request, kind: type[M], namespace: Namespace | None) -> M:
        """Make a call without blocks. Blocks, no longer than `Patience.call`. Raises what it is answered."""

        def call(session: LiveSession) -> M:
            session.address(request, namespace, self.patience.call)
            return session.call(request, kind, self.patience.call)

        return self.connection.judged(call)

    def ask(self, request: Request, kind: type[M], namespace: Namespace | None) -> M | None:
        """The same, but logs a failure of the service and returns None."""
        try:
            return self.demand(request, kind, namespace)
        except ServiceError as error:
            self.warnings.say(error)
            return None

    def tell(self, request: Request, kind: type[Message], namespace: Namespace) -> None:
        """Queue a call whose answer nobody needs; closing the client drops it. Does not wait for it."""

        def call() -> None:
            with suppress(ClosedError):
                self.ask(request, kind, namespace)

        self.worker.submit(call)

    def close(self) -> None:
        """End everything. Blocks until no copy touches any cache; may be called twice."""
        atexit.unregister(self.close)
        self.warnings.end()
        self.connection.close()
        self.worker.close()
        self.copies.close()

    def _began(self, session: LiveSession) -> None:
        """On the connection's thread, before anybody uses the session."""
        self.prefetch_waits = session.opened.prefetch_waits
        pool = None
        if self._attach and session.opened.pool_attachable:
            try:
                pool = AttachedPool(session, self.device, self.patience.connect)
            except TierstoreError as error:
                _logger.warning("blocks are streamed, as the pool cannot be mapped: %s", error)
        with self._lock:
            self._pools[session] = pool
        if pool is not None:
            self.worker.submit(pool.map_all)

    def _ended(self, session: LiveSession) -> None:
        with self._lock:
            pool = self._pools.pop(session, None)
        if pool is not None:
            pool.close()
