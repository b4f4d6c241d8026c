"""A gRPC server with nothing behind it, and a client of it: what the transport itself costs. For benchmarks.

Of the same kind as the service: asyncio on one side, threads on the other, bytes in messages of the same length.
``python -m tierstore.service.bare ADDRESS`` serves until it is terminated.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Iterator

import grpc

from tierstore.errors import UnavailableError
from tierstore.service.wire import CHUNK_NBYTES, MESSAGE_NBYTES_MAX

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

    def download(self, nbytes: int) -> None:
        """A stream of so many bytes from the server, which are let go of as they come. Blocks."""
        left = nbytes
        for message in self._download(nbytes.to_bytes(_NUMBER_NBYTES, "little"), timeout=self._timeout):
            left -= len(message)
        assert left == 0, f"{left} bytes are missing"

    def upload(self, nbytes: int) -> None:
        """A stream of so many bytes to the server. Blocks."""
        answer = self._upload(_messages(nbytes), timeout=self._timeout)
        assert int.from_bytes(answer, "little") == nbytes, "bytes are missing"

    def close(self) -> None:
        """End the connection."""
        self._channel.close()


def _messages(nbytes: int) -> Iterator[bytes]:
    """So many bytes in messages of the service's length."""
    whole = bytes(CHUNK_NBYTES)
    for first in range(0, nbytes, CHUNK_NBYTES):
        yield whole if nbytes - first >= CHUNK_NBYTES else bytes(nbytes - first)


async def _echo(request: bytes, _context: object) -> bytes:
    return bytes(int.from_bytes(request[:_NUMBER_NBYTES], "little"))


async def _download(request: bytes, _context: object) -> AsyncIterator[bytes]:
    for message in _messages(int.from_bytes(request, "little")):
        yield message


async def _upload(requests: AsyncIterator[bytes], _context: object) -> bytes:
    nbytes = 0
    async for message in requests:
        nbytes += len(message)
    return nbytes.to_bytes(_NUMBER_NBYTES, "little")


async def _serve(address: str) -> None:
    server = grpc.aio.server(options=_OPTIONS)
    handlers = {
        "Echo": grpc.unary_unary_rpc_method_handler(_echo),
        "Download": grpc.unary_stream_rpc_method_handler(_download),
        "Upload": grpc.stream_unary_rpc_method_handler(_upload),
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
    asyncio.run(_serve(sys.argv[1]))
