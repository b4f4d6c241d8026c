"""The monitor: serves metrics, the status page and the status as JSON over HTTP, on one thread.

The store opens it if ``monitor.address`` is set, and closes it before itself. It copies the metrics every two seconds
and at each request, and holds the engine's lock only while it copies a few hundred numbers.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import json
import logging
import socket
import time
from typing import TYPE_CHECKING

from tierstore.addresses import parse_address
from tierstore.errors import AddressError, ConfigError
from tierstore.forks import keep_socket_from_children
from tierstore.monitor.history import STEP_SECONDS, History
from tierstore.monitor.http_server import HttpServer, Page, own_names
from tierstore.monitor.page import html_page
from tierstore.monitor.status import describe
from tierstore.worker import Worker

if TYPE_CHECKING:
    from tierstore.monitor.status import Watched

__all__ = ["Monitor"]

_logger = logging.getLogger(__name__)

_BACKLOG = 16


class Monitor:
    """The pages of one store.

    Attributes:
        address: Address of the pages, ``host:port``; with port 0, the port that was chosen.

    Args:
        watched: The store whose numbers are shown.
        address: ``host:port``.
        public: Whether other machines may reach it.

    Raises:
        ConfigError: Other machines could reach the address, but `public` is not set.
        AddressError: The address cannot be listened on.
    """

    def __init__(self, watched: Watched, address: str, *, public: bool = False) -> None:
        host, port = parse_address(address)
        if not public and not _is_loopback(host):
            raise ConfigError(
                f"monitor.address is {address}, which other machines can reach, without a password; set monitor.public "
                f"= true where they may, or use 127.0.0.1:{port}"
            )
        self._watched = watched
        self._history = History()
        self._stop = asyncio.Event()
        self._listener = _listen(host, port)
        bound = self._listener.getsockname()
        self.address = f"[{bound[0]}]:{bound[1]}" if ":" in bound[0] else f"{bound[0]}:{bound[1]}"
        self._server = HttpServer(
            {
                "/": html_page(),
                "/status.json": Page("application/json", self._status),
                "/metrics": Page("text/plain; version=0.0.4; charset=utf-8", self._metrics),
            },
            own_names(host),
        )
        self._loop = asyncio.new_event_loop()
        self._worker = Worker("monitor", capacity=1)
        self._worker.submit(self._run)
        _logger.info("metrics and status at http://%s", self.address)

    def close(self) -> None:
        """Stop answering and end the thread. Blocks for as long as one answer takes; may be called twice."""
        with contextlib.suppress(RuntimeError):  # the loop has ended already
            self._loop.call_soon_threadsafe(self._stop.set)
        self._worker.close()

    def _run(self) -> None:
        with contextlib.closing(self._loop), self._listener:
            self._loop.run_until_complete(self._watch())

    async def _watch(self) -> None:
        async with asyncio.TaskGroup() as group:
            looking = group.create_task(self._look())
            await self._server.serve(self._listener, self._stop)
            looking.cancel()

    async def _look(self) -> None:
        while True:
            self._history.add(self._watched.read_metrics(), time.time())
            await asyncio.sleep(STEP_SECONDS)

    def _status(self) -> bytes:
        return json.dumps(describe(self._watched, self._history, time.time()), separators=(",", ":")).encode()

    def _metrics(self) -> bytes:
        return self._watched.read_metrics().render().encode()


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    keep_socket_from_children(listener)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise AddressError(
            f"monitor.address {host}:{port} cannot be listened on: {error.strerror}; use another port, or 0 for any"
        ) from error
    return listener
