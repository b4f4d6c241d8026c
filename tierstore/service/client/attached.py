"""The server's pool, mapped into this process. Its descriptor arrives over a Unix socket.

Called by the client once a session is open. The process may touch the pool only while that socket is connected. It
unmaps the pool as soon as the session ends; otherwise it would keep the memory of a server that has gone.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from tierstore import forks
from tierstore.errors import UnavailableError
from tierstore.mapping import map_memory, populate
from tierstore.service._pb import tierstore_pb2 as pb
from tierstore.service.client.pool_calls import PoolCalls
from tierstore.types import PAGE_NBYTES

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from tierstore.device.base import Device
    from tierstore.service.client.running import Running
    from tierstore.service.client.session import LiveSession, Request
    from tierstore.types import Int64Array, UInt8Array, UInt32Array

__all__ = ["AttachedPool"]

M = TypeVar("M", bound="Message")

_GREETING_NBYTES = 64
_REGION_NBYTES = 2 << 20
_STEP_NBYTES = 64 << 20


class AttachedPool:
    """See the module.

    Args:
        session: The session that the pool belongs to.
        device: Copies from and to the pool; pins it, for fast copies.
        seconds: How long each step of fetching the pool may take.

    Raises:
        ServiceError: The pool cannot be mapped; then blocks are streamed.
    """

    def __init__(self, session: LiveSession, device: Device, seconds: float) -> None:
        request = pb.AttachPoolRequest()
        session.address(request, None, seconds)
        answer = session.call(request, pb.AttachPoolResponse, seconds)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.settimeout(seconds)
            self._socket.connect(answer.socket_path)
            self._socket.sendall(answer.ticket)
            _greeting, fds, _flags, _address = socket.recv_fds(self._socket, _GREETING_NBYTES, 1)
        except OSError as error:
            self._socket.close()
            raise UnavailableError(f"the pool cannot be fetched from {answer.socket_path}: {error}") from error
        if not fds:
            self._socket.close()
            raise UnavailableError(f"{answer.socket_path} hands out no pool to this process")
        try:
            file = os.fstat(fds[0])
            memory = map_memory(file.st_size, fds[0])
        except OSError as error:
            self._socket.close()
            raise UnavailableError(f"the pool cannot be mapped: {error}") from error
        finally:
            os.close(fds[0])
        forks.keep_socket_from_children(self._socket)
        self._calls = PoolCalls(self._socket, session.propagation) if answer.takes_calls else None
        self._lock = threading.Lock()
        self._num_users = 0
        self._closing = self._closed = False
        self._view: UInt8Array = memory[: answer.pool_nbytes]
        num_pages = answer.pool_nbytes // PAGE_NBYTES
        self._all_taken = file.st_blocks * 512 >= answer.pool_nbytes
        self._mapped = np.zeros(-(-answer.pool_nbytes // _REGION_NBYTES), np.bool_)
        self._all_mapped = False
        self._unpin = device.pin(self._view)
        self._generations: UInt32Array = memory[answer.pool_nbytes :].view(np.uint32)[:num_pages]

    def generations(self, offsets: Int64Array) -> UInt32Array:
        """uint32[n]: the generations of slots now."""
        found: UInt32Array = self._generations[offsets // PAGE_NBYTES]
        return found

    def ask(self, running: Running, request: Request, kind: type[M], seconds: float) -> M | None:
        """Make a call over the pool's own socket. Blocks. None if it must go over gRPC; see `PoolCalls.ask`."""
        if self._calls is None:
            return None
        with self._in_use():
            return self._calls.ask(running, request, kind, seconds)

    def tell(self, request: Request) -> bool:
        """Make a call over that socket that nobody waits for. Does not block; False if it must go over gRPC."""
        if self._calls is None:
            return False
        with suppress(UnavailableError), self._in_use():
            return self._calls.tell(request) or self._closing  # the end of the session says it, too
        return True

    @contextmanager
    def used(self, offsets: Int64Array, nbytes: int) -> Iterator[UInt8Array]:
        """The pool, for a copy of blocks. The socket stays open until the copy has ended, so that no slot is reused.

        Args:
            offsets: int64[n]; where the blocks begin.
            nbytes: Bytes of each block.
        """
        with self._in_use():
            self._map_regions(offsets, nbytes)
            yield self._view

    @contextmanager
    def _in_use(self) -> Iterator[None]:
        with self._lock:
            if self._closing:
                raise UnavailableError("the session that lent the slots has ended")
            self._num_users += 1
        try:
            yield
        finally:
            with self._lock:
                self._num_users -= 1
            self._let_go()

    def map_all(self) -> None:
        """Fault in the whole pool, if the server has allocated all its memory. Blocks; run it beside the first calls.

        Otherwise nothing is mapped: pages that the server has not touched stay unallocated.
        """
        if not self._all_taken:
            return
        for start in range(0, len(self._view), _STEP_NBYTES):
            with suppress(UnavailableError), self.used(np.array([start]), min(_STEP_NBYTES, len(self._view) - start)):
                pass

    def _map_regions(self, offsets: Int64Array, nbytes: int) -> None:
        """Fault in whole regions that hold the blocks, once each: page by page, faults take longer than the copy.

        If the kernel cannot do that, now or ever, the copy faults the pages in.
        """
        if self._all_mapped or not len(offsets):
            return
        reach = -(-nbytes // _REGION_NBYTES) + 1
        regions = np.unique(offsets[:, None] // _REGION_NBYTES + np.arange(reach))
        regions = regions[(regions * _REGION_NBYTES < len(self._view)) & ~self._mapped.take(regions, mode="clip")]
        for run in np.split(regions, np.flatnonzero(np.diff(regions) > 1) + 1) if len(regions) else []:
            start, stop = int(run[0]) * _REGION_NBYTES, (int(run[-1]) + 1) * _REGION_NBYTES
            with suppress(OSError):
                populate(self._view[start:stop])
        self._mapped[regions] = True
        self._all_mapped = len(regions) > 0 and bool(self._mapped.all())

    def close(self) -> None:
        """Close the socket once no copy uses the pool any more; the server then reuses the slots. Does not block."""
        with self._lock:
            self._closing = True
        if self._calls is not None:
            self._calls.end()
        self._let_go()

    def _let_go(self) -> None:
        with self._lock:
            done = self._closing and self._num_users == 0 and not self._closed
            self._closed = self._closed or done
        if done:
            self._unpin()
            if self._calls is not None:
                self._calls.close()
            self._socket.close()
            self._view = self._view[:0]
            self._generations = self._generations[:0]
