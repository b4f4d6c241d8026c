"""A service in this process, on a thread of its own, over a small store; and clients of it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from tests.payload import SMALL, TIMEOUT_SECONDS
from tierstore.client import Client
from tierstore.config import StoreConfig
from tierstore.disk.base import Disk
from tierstore.service.server import Server
from tierstore.service.sessions import SessionLimits
from tierstore.store import Store
from tierstore.testing.sim_disk import SimDisk
from tierstore.worker import Worker

__all__ = ["Serving", "client_of", "num_loans", "patient", "served"]

T = TypeVar("T")

_LOOKS = 100


class Serving:
    """A running service.

    Attributes:
        store: What it serves.
        path: Of its Unix socket.
        server: On `loop`.
        loop: Its own.
    """

    server: Server
    loop: asyncio.AbstractEventLoop

    def __init__(self, store: Store, path: Path, limits: SessionLimits | None = None) -> None:
        self.store = store
        self.path = path
        self._limits = limits
        self._ready = threading.Event()
        self._end: asyncio.Event
        self._worker = Worker("test-service", capacity=1)
        self._worker.submit(lambda: asyncio.run(self._live()))
        assert self._ready.wait(TIMEOUT_SECONDS), "the service has not started"

    @property
    def address(self) -> str:
        """For clients."""
        return f"unix:{self.path}"

    async def _live(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._end = asyncio.Event()
        self.server = Server(self.store, self._limits, pool_path=f"{self.path}.pool")
        await self.server.listen_here(str(self.path))
        self._ready.set()
        await self._end.wait()
        await self.server.close()

    def run(self, coroutine: Coroutine[object, object, T]) -> T:
        """Run something on the service's loop, and wait for it."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(TIMEOUT_SECONDS)

    def close(self) -> None:
        """End it, as a signal would after draining."""
        self.loop.call_soon_threadsafe(self._end.set)
        assert self._worker.close(TIMEOUT_SECONDS), "the service has not ended"
        assert self._worker.failure is None


@contextmanager
def served(
    folder: Path,
    disk: Disk | None = None,
    *,
    limits: SessionLimits | None = None,
    settings: Mapping[str, object] = MappingProxyType({}),
) -> Iterator[Serving]:
    """A service over a store of the small settings, with a shared pool. At the end nothing may be pinned any more."""
    config = StoreConfig.load(overrides=SMALL | {"host_shared": True} | dict(settings))
    with Store(config, disk=disk or SimDisk()) as store:
        serving = Serving(store, folder / "service.sock", limits)
        try:
            yield serving
        finally:
            serving.close()
        looks = 0
        while num_loans(store) and looks < _LOOKS:  # the store's own reads and writes end by themselves
            assert store.flush().result(TIMEOUT_SECONDS).ok
            looks += 1
        assert num_loans(store) == 0
        store.check()


def num_loans(store: Store) -> int:
    """Pins in host memory, and requests under way; to be looked at behind a flush."""
    with store.engine.planning() as planner:
        return int(planner.directory.host.pins.sum()) + planner.num_requests


def patient(address: str, **options: Any) -> Client:
    """A client that waits for its connection and for answers, however long a machine with much else to do takes."""
    return Client(address, **{"connect_seconds": TIMEOUT_SECONDS, "call_seconds": TIMEOUT_SECONDS} | options)


@contextmanager
def client_of(serving: Serving, *, attach: bool = True, **options: float) -> Iterator[Client]:
    """A client that is connected."""
    with patient(serving.address, attach=attach, **options) as client:
        assert client.connected
        assert client.attached == attach
        yield client
