"""The monitor's server over real sockets: what it answers, and what it refuses, drops or outlasts."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tierstore.monitor.http_server import CONNECTIONS_MAX, HEAD_NBYTES_MAX, HttpServer, Page, own_names

WAIT_SECONDS = 30.0
PAGES = {
    "/": Page("text/plain; charset=utf-8", lambda: b"hello"),
    "/large": Page("application/octet-stream", lambda: bytes(64 << 20)),
}


@asynccontextmanager
async def serving(seconds_max: float = WAIT_SECONDS) -> AsyncIterator[tuple[HttpServer, int]]:
    """A server and its port."""
    server, stop = HttpServer(PAGES, own_names("store.internal"), seconds_max), asyncio.Event()
    listener = socket.create_server(("127.0.0.1", 0))
    port: int = listener.getsockname()[1]
    task = asyncio.create_task(server.serve(listener, stop))
    try:
        yield server, port
    finally:
        stop.set()
        await task


async def ask(port: int, request: bytes) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of the answer to some bytes."""
    async with asyncio.timeout(WAIT_SECONDS):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request)
        answer = await reader.read()
        writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    line, *fields = head.decode().split("\r\n")
    headers = dict(field.split(": ", 1) for field in fields)
    assert body == b"" or len(body) == int(headers["Content-Length"])
    return int(line.split()[1]), headers, body


async def rest(reader: asyncio.StreamReader) -> bytes:
    """What still comes until the connection ends, in whatever way."""
    async with asyncio.timeout(WAIT_SECONDS):
        try:
            return await reader.read()
        except ConnectionResetError:
            return b""


def request(line: str = "GET / HTTP/1.1", host: str = "127.0.0.1:9400", *fields: str) -> bytes:
    return "\r\n".join([line, f"Host: {host}", *fields, "", ""]).encode()


async def test_a_page_is_answered_and_the_connection_closed() -> None:
    async with serving() as (server, port):
        status, headers, body = await ask(port, request())
        assert (status, body) == (200, b"hello")
        assert headers["Content-Type"] == "text/plain; charset=utf-8"
        assert headers["Connection"] == "close"
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Content-Security-Policy"].startswith("default-src 'none'")
        assert not server.num_open


async def test_head_is_the_same_without_the_body() -> None:
    async with serving() as (_server, port):
        status, headers, body = await ask(port, request("HEAD / HTTP/1.1"))
        assert (status, headers["Content-Length"], body) == (200, "5", b"")


async def test_what_follows_a_question_mark_is_passed_over() -> None:
    async with serving() as (_server, port):
        assert (await ask(port, request("GET /?x=/../y HTTP/1.0")))[0] == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE"])
async def test_nothing_can_be_changed(method: str) -> None:
    async with serving() as (_server, port):
        status, headers, _body = await ask(port, request(f"{method} / HTTP/1.1", "127.0.0.1", "Content-Length: 0"))
        assert (status, headers["Allow"]) == (405, "GET, HEAD")


@pytest.mark.parametrize("path", ["/other", "/../etc/passwd", "//", "/%2e%2e/", "/status.json/"])
async def test_other_paths_are_not_found(path: str) -> None:
    async with serving() as (_server, port):
        assert (await ask(port, request(f"GET {path} HTTP/1.1")))[0] == 404


@pytest.mark.parametrize(
    "host",
    [
        *("127.0.0.1", "127.0.0.1:9400", "[::1]:9400", "10.1.2.3:80", "localhost", "LOCALHOST.:9400"),
        *("store.internal:9400", socket.gethostname()),
    ],
)
async def test_addresses_and_own_names_are_answered(host: str) -> None:
    async with serving() as (_server, port):
        assert (await ask(port, request(host=host)))[0] == 200


@pytest.mark.parametrize(
    "host",
    [
        *("evil.example", "evil.example:9400", "localhost.evil.example", "127.0.0.1.evil.example", ""),
        *("127.0.0.1@evil.example", "127.0.0.1:port", "[::1", "127.0.0.1, evil.example"),
    ],
)
async def test_a_foreign_name_that_points_here_is_refused(host: str) -> None:
    async with serving() as (_server, port):
        status, _headers, body = await ask(port, request(host=host))
        assert status == 421
        assert b"hello" not in body


@pytest.mark.parametrize(
    "fields", [b"", b"Host: 127.0.0.1\r\nHost: 127.0.0.1\r\n", b"Host: 127.0.0.1\r\nhost: evil.example\r\n"]
)
async def test_a_request_names_its_host_once(fields: bytes) -> None:
    async with serving() as (_server, port):
        assert (await ask(port, b"GET / HTTP/1.1\r\n" + fields + b"\r\n"))[0] == 421


@pytest.mark.parametrize(
    "line",
    [
        *("GET / HTTP/2.0", "GET /", "get / HTTP/1.1", "GET  / HTTP/1.1", "GET http://127.0.0.1/ HTTP/1.1"),
        *("GET * HTTP/1.1", "GET /\x00 HTTP/1.1", "GET /\xff HTTP/1.1", "GET / HTTP/1.1 ", ""),
    ],
)
async def test_what_is_no_request_is_refused(line: str) -> None:
    async with serving() as (_server, port):
        assert (await ask(port, request(line)))[0] == 400


@pytest.mark.parametrize("field", ["no colon", " folded: x", "Bad Name: x", "X: a\x00b", "X: a\rb", ": x"])
async def test_what_is_no_header_is_refused(field: str) -> None:
    async with serving() as (_server, port):
        assert (await ask(port, request("GET / HTTP/1.1", "127.0.0.1", field)))[0] == 400


async def test_a_head_that_is_too_large_is_refused() -> None:
    async with serving() as (_server, port):
        status, _headers, _body = await ask(
            port, request("GET / HTTP/1.1", "127.0.0.1", "X: " + "a" * (HEAD_NBYTES_MAX - 40), "Y: " + "b" * 40)
        )
        assert status == 431


async def test_a_client_that_sends_nothing_or_goes_away_is_let_go() -> None:
    async with serving(seconds_max=0.05) as (server, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HT")
        assert await rest(reader) == b""
        writer.close()
        assert not server.num_open


async def test_a_client_that_does_not_read_is_let_go() -> None:
    async with serving(seconds_max=0.2) as (server, port):
        others = asyncio.all_tasks()
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(client, ("127.0.0.1", port))
            await loop.sock_sendall(client, request("GET /large HTTP/1.1"))
            assert await loop.sock_recv(client, 4) == b"HTTP"
            (answering,) = asyncio.all_tasks() - others
            async with asyncio.timeout(WAIT_SECONDS):
                await answering
            assert not server.num_open


async def test_more_connections_than_allowed_are_dropped_and_then_served_again() -> None:
    async with serving() as (server, port):
        idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(CONNECTIONS_MAX)]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await rest(reader) == b""
        writer.close()
        assert server.num_open == CONNECTIONS_MAX
        for reader, writer in idle:
            writer.write_eof()
            assert await rest(reader) == b""
            writer.close()
        assert (await ask(port, request()))[0] == 200


async def test_a_process_without_descriptors_answers_once_it_has_some() -> None:
    async with serving() as (_server, port):
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        with socket.socket() as client:
            client.setblocking(False)
            loop = asyncio.get_running_loop()
            lowest_free = os.dup(client.fileno())
            os.close(lowest_free)
            resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, limits[1]))
            try:
                await loop.sock_connect(client, ("127.0.0.1", port))
                await loop.sock_sendall(client, request())
                with pytest.raises(OSError, match="Too many open files"):
                    socket.socket()
                await asyncio.sleep(0)  # the server sees the connection, and cannot take it
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, limits)
            async with asyncio.timeout(WAIT_SECONDS):
                assert await loop.sock_recv(client, 12) == b"HTTP/1.1 200"


async def test_the_end_of_the_server_ends_its_connections() -> None:
    async with serving() as (server, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\n")
        assert (await ask(port, request()))[0] == 200  # so that the first connection has been taken
    assert await rest(reader) == b""
    assert not server.num_open
    writer.close()
