"""A store that the workers of one engine share: the scheduler's process holds it, and serves it to them alone.

For mode `embedded` with several workers. Each worker is then an ordinary client: it maps the pool and makes its own
copies. The scheduler's process touches no device, and has room for a service loop beside its own thread. The store
lives as long as the scheduler's half.
"""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from tierstore.client import Client
from tierstore.errors import ConfigError, TierstoreError
from tierstore.service.sockets import UNIX, own_path
from tierstore.store import Store
from tierstore.worker import Worker

if TYPE_CHECKING:
    from tierstore.config import StoreConfig
    from tierstore.device.base import Device
    from tierstore.handle import NamespaceHandle
    from tierstore.keys import Namespace

__all__ = ["Hosting", "Opened", "visit"]


def _path_of(engine_id: str) -> str:
    """Where an engine's workers find its store: in this user's own folder."""
    name = hashlib.sha256(engine_id.encode()).hexdigest()[:16]
    return str(Path(own_path()).with_name(f"engine-{name}.sock"))


def visit(engine_id: str, device: Device) -> Client:
    """A worker's client of its engine's store. The store opens later than the worker's cache; the client retries."""
    return Client(f"{UNIX}{_path_of(engine_id)}", device=device, name=f"pid {os.getpid()}")


class Hosting:
    """A store, and the service of it. Blocks while it opens.

    Args:
        config: Of the store.
        engine_id: By which its workers find it.

    Raises:
        ConfigError, FolderError, MemoryLimitError: It cannot be opened, or nobody can listen there.
    """

    def __init__(self, config: StoreConfig, engine_id: str) -> None:
        config = dataclasses.replace(config, host=dataclasses.replace(config.host, shared=True))
        self._path = _path_of(engine_id)
        self._store = Store(config)
        self._ready = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ended: asyncio.Event | None = None
        self._refusal: TierstoreError | None = None
        self._worker = Worker("hosting", capacity=1)
        self._worker.submit(lambda: asyncio.run(self._live()))
        self._ready.wait()
        if self._ended is None:
            self.close()
            raise ConfigError(f"the engine's workers cannot be served: {self._refusal}") from self._refusal

    async def _live(self) -> None:
        try:
            await self._serve()
        except TierstoreError as error:
            self._refusal = error
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        from tierstore.service.server import Server  # of no use to workers, each of which imports this module
        from tierstore.service.sessions import SessionLimits

        settings = self._store.config.service
        limits = SessionLimits(sessions=settings.sessions_max, lease_seconds=settings.lease_seconds)
        server = Server(self._store, limits, pool_path=f"{self._path}.pool")
        try:
            await server.listen_here(self._path)
            self._loop, self._ended = asyncio.get_running_loop(), asyncio.Event()
            self._ready.set()
            await self._ended.wait()
            await server.drain(settings.drain_seconds)
        finally:
            await server.close()

    def namespace(self, namespace: Namespace) -> NamespaceHandle:
        """The verbs of one namespace, for the scheduler."""
        return self._store.namespace(namespace)

    def close(self) -> None:
        """Serve no more, and close the store, which finishes what is under way. Blocks."""
        if self._loop is not None and self._ended is not None:
            self._loop.call_soon_threadsafe(self._ended.set)
        self._worker.close()
        self._store.close()


Opened: TypeAlias = Store | Client | Hosting
"""What an engine's half may have of a store: all of it, a way to one in a service, or one that its workers visit."""
