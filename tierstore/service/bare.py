"""A gRPC server without a store, and its client, to measure the cost of the transport alone. For benchmarks.

Built like the service: asyncio in the server, threads in the client, messages of the same length, copied from memory
and to memory on both sides. ``python -m tierstore.service.bare ADDRESS`` serves until it is terminated.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from itertools import chain
from typing import TYPE_CHECKING

import grpc
import numpy as np

from tierstore.errors import UnavailableError
from tierstore.service.heap import keep_freed_memory
from tierstore.service.wire import CHUNK_NBYTES, MESSAGE_NBYTES_MAX

if TYPE_CHECKING:
    from tierstore.types import UInt8Array

__all__ = ["BareClient"]

_SERVICE = "tierstore.bench.Bare"
_OPTIONS = tuple((f"grpc.max_{way}_message_length", MESSAGE_NBYTES_MAX) for way in ("receive", "send"))
_NUMBER_NBYTES = 8


class BareClient:
    """Calls of plain bytes.

    Args:
        address: Such as ``"unix:/path"``.
        timeout_seconds: Of each call.
    """

    def __init__(self, address: str, timeout_seconds: float = 60.0) -> None:
        self._address = address
        self._channel = grpc.insecure_channel(address, options=_OPTIONS)
        self._timeout = timeout_seconds
        self._echo = self._channel.unary_unary(f"/{_SERVICE}/Echo", None, None)
        self._download = self._channel.unary_stream(f"/{_SERVICE}/Download", None, None)
        self._upload = self._channel.stream_unary(f"/{_SERVICE}/Upload", None, None)

    def wait(self, seconds: float) -> None:
        """Wait until a server is there, whatever it serves. Blocks. UnavailableError where it takes longer."""
        try:
            grpc.channel_ready_future(self._channel).result(seconds)
        except grpc.FutureTimeoutError as error:
            raise UnavailableError(f"{self._address} has not answered for {seconds} s") from error

    def echo(self, request_nbytes: int, response_nbytes: int) -> None:
        """One call with so many bytes there and back. Blocks."""
        request = response_nbytes.to_bytes(_NUMBER_NBYTES, "little").ljust(request_nbytes, b"\0")
        answer = self._echo(request, timeout=self._timeout)
        assert len(answer) == response_nbytes, f"{len(answer)} bytes came instead of {response_nbytes}"

    def download(self, memory: UInt8Array) -> None:
        """A stream from the server that fills uint8[nbytes]. Blocks."""
        view, filled = memory.data, 0
        for message in self._download(len(view).to_bytes(_NUMBER_NBYTES, "little"), timeout=self._timeout):
            view[filled : filled + len(message)] = message
            filled += len(message)
        assert filled == len(view), f"{len(view) - filled} bytes are missing"

    def upload(self, memory: UInt8Array) -> None:
        """A stream of uint8[nbytes] to the server. Blocks."""
        begin = len(memory).to_bytes(_NUMBER_NBYTES, "little")
        answer = self._upload(chain([begin], _messages(memory.data)), timeout=self._timeout)
        assert int.from_bytes(answer, "little") == len(memory), "bytes are missing"

    def close(self) -> None:
        """End the connection."""
        self._channel.close()


def _messages(memory: memoryview) -> Iterator[bytes]:
    """What lies there, in messages of the service's length."""
    for first in range(0, len(memory), CHUNK_NBYTES):
        yield bytes(memory[first : first + CHUNK_NBYTES])


class _Server:
    """Its calls, all of which share memory that is as large as the largest has asked for."""

    def __init__(self) -> None:
        self._memory = memoryview(b"")

    async def echo(self, request: bytes, _context: object) -> bytes:
        """As many bytes as were asked for."""
        return bytes(int.from_bytes(request[:_NUMBER_NBYTES], "little"))

    async def download(self, request: bytes, _context: object) -> AsyncIterator[bytes]:
        """So many bytes."""
        for message in _messages(self._room(int.from_bytes(request, "little"))):
            yield message

    async def upload(self, requests: AsyncIterator[bytes], _context: object) -> bytes:
        """Keeps what comes, and says how much that was."""
        memory, filled = self._room(int.from_bytes(await anext(requests), "little")), 0
        async for message in requests:
            memory[filled : filled + len(message)] = message
            filled += len(message)
        return filled.to_bytes(_NUMBER_NBYTES, "little")

    def _room(self, nbytes: int) -> memoryview:
        if nbytes > len(self._memory):
            self._memory = np.ones(nbytes, np.uint8).data  # taken from the system, which zeros would not be
        return self._memory[:nbytes]


async def _serve(address: str) -> None:
    server, calls = grpc.aio.server(options=_OPTIONS), _Server()
    handlers = {
        "Echo": grpc.unary_unary_rpc_method_handler(calls.echo),
        "Download": grpc.unary_stream_rpc_method_handler(calls.download),
        "Upload": grpc.stream_unary_rpc_method_handler(calls.upload),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, handlers),))
    server.add_insecure_port(address)
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    await server.start()
    await ended.wait()
    await server.stop(None)


if __name__ == "__main__":
    keep_freed_memory()
    asyncio.run(_serve(sys.argv[1]))
