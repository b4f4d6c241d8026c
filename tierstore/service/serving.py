"""The life of a serving process: store, addresses, banner, and an end in good order. Called by `tierstore serve`.

The service's event loop runs on a thread of its own. The main thread runs a loop for signals only, so that no signal
interrupts other work or is seen late. The first signal drains: new calls are refused, calls in flight finish, and all
is synced. A second one ends the process at once, which loses nothing that was durable.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING

from tierstore.health import Service
from tierstore.service.doors import open_doors
from tierstore.service.heap import keep_freed_memory
from tierstore.service.server import Server
from tierstore.service.sessions import SessionLimits
from tierstore.service.sockets import UNIX, own_path
from tierstore.service.workers import Workers
from tierstore.settings import format_size
from tierstore.store import Store
from tierstore.types import TierName

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tierstore.config import StoreConfig

__all__ = ["serve"]

Say = Callable[[str], None]


def serve(config: StoreConfig, say: Say) -> None:
    """Serve until a signal comes. Blocks; to be called on the main thread.

    Args:
        config: Of the store and the service. With ``host.shared`` still undecided, the pool is not shared.
        say: Shows a line to a person.

    Raises:
        TierstoreError: It cannot be opened, or its addresses cannot be used.
    """
    addresses = _addresses(config)
    keep_freed_memory()
    with Store(config) as store:
        asyncio.run(_watch(store, addresses, say))


async def _watch(store: Store, addresses: list[str], say: Say) -> None:
    """The main thread: start the service, and hand signals on until it has ended and the store is closed."""
    ending = _Ending(say)
    workers = Workers("service-loop", threads=1)
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ending.ask, number)
    try:
        await workers.run(lambda: asyncio.run(_live(store, addresses, ending, say)))
        farewell = _farewell(store)
    finally:
        await workers.run(store.close)  # not on this thread: a second signal ends a sync that takes long, too
        workers.close()
    say(farewell)


async def _live(store: Store, addresses: list[str], ending: _Ending, say: Say) -> None:
    settings = store.config.service
    path = next((address.removeprefix(UNIX) for address in addresses if address.startswith(UNIX)), None)
    limits = SessionLimits(sessions=settings.sessions_max, lease_seconds=settings.lease_seconds)
    server = Server(store, limits, pool_path=None if path is None else f"{path}.pool")
    try:
        doors = await open_doors(server, addresses, settings)
        ending.begin(server)
        for line in (*_banner(store), *doors, "tierstore: serving; SIGTERM ends it in good order"):
            say(line)
        await ending.wait()
        say(f"tierstore: ending; calls under way have {settings.drain_seconds:g} s, a second signal ends it at once")
        if not await server.drain(settings.drain_seconds):
            say("tierstore: some calls did not end in time and are cut off")
    finally:
        await server.close()


def _addresses(config: StoreConfig) -> list[str]:
    listen = config.service.listen
    return [f"{UNIX}{own_path()}"] if listen is None else [part.strip() for part in listen.split(",")]


def _banner(store: Store) -> Iterator[str]:
    config = store.config
    shared = "shared with clients that attach it" if config.host.shared else "private: clients stream"
    yield f"tierstore: host pool {format_size(store.pool.nbytes)} ({store.pool.nbytes} B), {shared}"
    if config.ssd.enabled:
        written = "read only" if config.ssd.read_only else f"codec {config.codec.name} (lossless)"
        yield f"tierstore: ssd {config.ssd.dir}, {format_size(config.ssd.size)}, {written}"
        ssd = store.health()[TierName.SSD]
        if ssd.service is not Service.SERVING:
            yield f"tierstore: SSD OFF FOR WRITES: {ssd.why}"
    else:
        yield "tierstore: no ssd tier: nothing outlives this process; set ssd.dir"
    yield f"tierstore: device {config.device.name}, eviction {config.policy.name}, admission {config.admission.name}"
    if store.monitor_address is not None and config.log.format is None:  # else the log says it
        yield f"tierstore: status page at http://{store.monitor_address}/, metrics at http://{store.monitor_address}/metrics"


def _farewell(store: Store) -> str:
    ssd = store.health().get(TierName.SSD)
    if ssd is None or ssd.service is Service.SERVING:
        return "tierstore: all is finished and synced"
    return f"tierstore: all is finished; what was not durable is lost, as the SSD was off: {ssd.why}"


class _Ending:
    """Turns signals into an end: seen by the main thread, waited for by the service's loop."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self._asked = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._event: asyncio.Event | None = None
        self._server: Server | None = None

    def begin(self, server: Server) -> None:
        """From now on a signal ends the wait. On the service's loop."""
        self._server = server
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()
        if self._asked:
            self._event.set()

    async def wait(self) -> None:
        """Until the first signal."""
        assert self._event is not None, "begin first"
        await self._event.wait()

    def ask(self, number: int) -> None:
        """A signal has come. On the main thread."""
        self._asked += 1
        if self._asked > 1:
            if self._server is not None:
                self._server.abandon()
            self._say("tierstore: ended at once; what was not durable is lost")
            os._exit(128 + number)
        if self._loop is not None and self._event is not None:
            self._loop.call_soon_threadsafe(self._event.set)
