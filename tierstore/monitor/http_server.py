"""A small HTTP server for read-only pages: GET and HEAD, one request a connection, everything bounded.

Started by `watching` on a thread of its own. It knows pages by their path only. A request is answered or refused within
`SECONDS_MAX`, whatever the client does. Connections beyond `CONNECTIONS_MAX` at a time are dropped.

DNS rebinding: a foreign page can point its own name at this machine, so that a browser here sends its requests to a
local server. So a request is answered only if its Host is an IP address (never a page's name), this machine's own name
or the configured name.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import re
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TypeAlias

__all__ = ["CONNECTIONS_MAX", "HEAD_NBYTES_MAX", "SECONDS_MAX", "HttpServer", "Page", "own_names"]

CONNECTIONS_MAX = 32
HEAD_NBYTES_MAX = 8192
SECONDS_MAX = 10.0
_PAUSE_SECONDS = 0.5

_REQUEST_LINE = re.compile(r"([A-Z]+) (/[!-~]*) HTTP/1\.[01]")
_HEADER = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([^\r\n\0]*?)[ \t]*")
_HOST = re.compile(r"(?:\[([0-9a-fA-F:.]+)\]|([0-9A-Za-z._-]+))(?::[0-9]{1,5})?")
_HEADERS = (
    "Cache-Control: no-store",
    "Connection: close",
    "Cross-Origin-Resource-Policy: same-origin",
    "Referrer-Policy: no-referrer",
    "X-Content-Type-Options: nosniff",
    "X-Frame-Options: DENY",
)
_SHUT = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"


@dataclass(frozen=True, slots=True)
class Page:
    """One page.

    Attributes:
        content_type: With its charset.
        body: Makes the page's bytes for each request; must not block.
        policy: The content security policy: which scripts and styles a browser may run. By default none.
    """

    content_type: str
    body: Callable[[], bytes]
    policy: str = _SHUT


Pages: TypeAlias = Mapping[str, Page]


class _RefusedError(Exception):
    """A request that gets no page."""

    def __init__(self, status: HTTPStatus, why: str) -> None:
        super().__init__(why)
        self.status = status


@dataclass(slots=True)
class HttpServer:
    """Answers requests for pages.

    Attributes:
        pages: By path; any other path is not found.
        names: Host names that requests may carry, beside IP addresses.
        seconds_max: The longest time a connection may take.
    """

    pages: Pages
    names: frozenset[str]
    seconds_max: float = SECONDS_MAX
    _open: set[asyncio.Task[None]] = field(default_factory=set, init=False)

    @property
    def num_open(self) -> int:
        """Connections open now."""
        return len(self._open)

    async def serve(self, listener: socket.socket, stop: asyncio.Event) -> None:
        """Answer requests at a bound socket until `stop` is set; then close it and all connections."""
        loop = asyncio.get_running_loop()
        listener.setblocking(False)
        self._listen(listener, loop)
        try:
            await stop.wait()
        finally:
            loop.remove_reader(listener)
            listener.close()
            for task in self._open:
                task.cancel()
            await asyncio.gather(*self._open, return_exceptions=True)

    def _listen(self, listener: socket.socket, loop: asyncio.AbstractEventLoop) -> None:
        if listener.fileno() >= 0:  # it is still open
            loop.add_reader(listener, self._accept, listener, loop)

    def _accept(self, listener: socket.socket, loop: asyncio.AbstractEventLoop) -> None:
        """Accept one connection and start its task, without an await between them: a cancel there would lose it."""
        try:
            connection, _address = listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return  # it has gone already
        except OSError:  # no descriptors are left: stop listening for a while, or the loop would spin
            loop.remove_reader(listener)
            loop.call_later(_PAUSE_SECONDS, self._listen, listener, loop)
            return
        if len(self._open) >= CONNECTIONS_MAX:
            connection.close()
            return
        task = loop.create_task(self._converse(connection))
        self._open.add(task)
        task.add_done_callback(self._open.discard)
        task.add_done_callback(lambda _task: connection.close())

    async def _converse(self, connection: socket.socket) -> None:
        """Serve one request, then close the connection."""
        reader, writer = await asyncio.open_connection(sock=connection, limit=HEAD_NBYTES_MAX)
        try:
            async with asyncio.timeout(self.seconds_max):
                writer.write(await self._answer(reader))
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        except (TimeoutError, OSError, asyncio.IncompleteReadError):
            pass  # the client is too slow, or has gone
        finally:
            writer.transport.abort()

    async def _answer(self, reader: asyncio.StreamReader) -> bytes:
        method = "GET"
        try:
            method, page = self._find(await _read_head(reader))
        except _RefusedError as error:
            text = f"{error.status.value} {error.status.phrase}: {error}\n".encode()
            return _response(error.status, Page("text/plain; charset=utf-8", lambda: text), method)
        return _response(HTTPStatus.OK, page, method)

    def _find(self, head: str) -> tuple[str, Page]:
        line, *fields = head.split("\r\n")
        request = _REQUEST_LINE.fullmatch(line)
        headers = [_HEADER.fullmatch(text) for text in fields]
        if request is None or not all(headers):
            raise _RefusedError(HTTPStatus.BAD_REQUEST, "this is no HTTP/1.1 request")
        hosts = [match[2] for match in headers if match is not None and match[1].lower() == "host"]
        if len(hosts) != 1 or not self._is_ours(hosts[0]):
            raise _RefusedError(HTTPStatus.MISDIRECTED_REQUEST, "ask by this machine's address, or its own name")
        if request[1] not in ("GET", "HEAD"):
            raise _RefusedError(HTTPStatus.METHOD_NOT_ALLOWED, "pages can only be read; use GET or HEAD")
        page = self.pages.get(request[2].partition("?")[0])
        if page is None:
            raise _RefusedError(HTTPStatus.NOT_FOUND, f"there are {', '.join(self.pages)}")
        return request[1], page

    def _is_ours(self, host: str) -> bool:
        match = _HOST.fullmatch(host)
        if match is None:
            return False
        return match[1] is not None or _is_address(match[2]) or match[2].lower().rstrip(".") in self.names


async def _read_head(reader: asyncio.StreamReader) -> str:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError as error:
        raise _RefusedError(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"more than {HEAD_NBYTES_MAX} bytes") from error
    return head[:-4].decode("latin-1")


def _response(status: HTTPStatus, page: Page, method: str) -> bytes:
    body = page.body()
    lines = [
        f"HTTP/1.1 {status.value} {status.phrase}",
        f"Content-Type: {page.content_type}",
        f"Content-Length: {len(body)}",
        f"Content-Security-Policy: {page.policy}",
        *(["Allow: GET, HEAD"] if status is HTTPStatus.METHOD_NOT_ALLOWED else []),
        *_HEADERS,
    ]
    head = "\r\n".join([*lines, "", ""]).encode("ascii")
    return head if method == "HEAD" else head + body


def _is_address(text: str) -> bool:
    with contextlib.suppress(ValueError):
        return bool(ipaddress.ip_address(text))
    return False


def own_names(configured: str) -> frozenset[str]:
    """Host names of this machine: its own, with and without the domain, and the configured one."""
    name = socket.gethostname().lower()
    return frozenset({"localhost", name, name.partition(".")[0], configured.lower()} - {""})
