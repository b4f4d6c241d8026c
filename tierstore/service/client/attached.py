"""The server's pool, mapped: fetched over a Unix socket whose connection says that this process may touch it.

Called by the client once a session is open. Let go of as soon as the session ends: the memory of a server that has
gone would stay with this process for as long as it is mapped.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from tierstore import forks
from tierstore.errors import UnavailableError
from tierstore.mapping import map_memory
from tierstore.service._pb import tierstore_pb2 as pb
from tierstore.types import PAGE_NBYTES

if TYPE_CHECKING:
    from tierstore.device.base import Device
    from tierstore.service.client.session import LiveSession
    from tierstore.types import Int64Array, UInt8Array, UInt32Array

__all__ = ["AttachedPool"]

_GREETING_NBYTES = 64


class AttachedPool:
    """See the module.

    Args:
        session: Whose pool.
        device: Copies from and to it; told to make it fast.
        seconds: How long each step of fetching it may take.

    Raises:
        ServiceError: It cannot be had; then blocks are streamed.
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
            memory = map_memory(os.fstat(fds[0]).st_size, fds[0])
        except OSError as error:
            self._socket.close()
            raise UnavailableError(f"the pool cannot be mapped: {error}") from error
        finally:
            os.close(fds[0])
        self._number = os.dup(self._socket.fileno())
        self._socket.close()
        forks.keep_from_children(self._number)
        self._lock = threading.Lock()
        self._num_copies = 0
        self._closing = self._closed = False
        self._view: UInt8Array = memory[: answer.pool_nbytes]
        num_pages = answer.pool_nbytes // PAGE_NBYTES
        self._unpin = device.pin(self._view)
        self._generations: UInt32Array = memory[answer.pool_nbytes :].view(np.uint32)[:num_pages]

    def generations(self, offsets: Int64Array) -> UInt32Array:
        """uint32[n]: the generations of slots now."""
        found: UInt32Array = self._generations[offsets // PAGE_NBYTES]
        return found

    @contextmanager
    def used(self) -> Iterator[UInt8Array]:
        """The blocks, for a copy: the server is not told that they are left alone before the copy has ended."""
        with self._lock:
            if self._closing:
                raise UnavailableError("the session that lent the slots has ended")
            self._num_copies += 1
        try:
            yield self._view
        finally:
            with self._lock:
                self._num_copies -= 1
            self._let_go()

    def close(self) -> None:
        """Say that nothing here touches the pool any more, once that is so. Does not block."""
        with self._lock:
            self._closing = True
        self._let_go()

    def _let_go(self) -> None:
        with self._lock:
            done = self._closing and self._num_copies == 0 and not self._closed
            self._closed = self._closed or done
        if done:
            self._unpin()
            forks.close(self._number)
            self._view = self._view[:0]
            self._generations = self._generations[:0]
