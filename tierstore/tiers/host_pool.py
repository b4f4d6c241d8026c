"""The host pool's memory: private to this process, or one anonymous shared file that others map by its descriptor.

Called by the store at start, by links and tiers for its bytes, and by the service, which shares it. The kernel frees
it when the last process that maps it is gone, so a killed process leaks nothing. It knows no slots and no blocks.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import ExitStack
from typing import TYPE_CHECKING

import numpy as np

from tierstore import forks
from tierstore.errors import ClosedError, ConfigError, MemoryLimitError
from tierstore.mapping import give_back, map_memory, populate
from tierstore.tiers.memory_limit import check_memory
from tierstore.types import PAGE_NBYTES

if TYPE_CHECKING:
    from tierstore.types import UInt8Array, UInt32Array

__all__ = ["HostPool"]

_NUMBER_NBYTES = 4


class HostPool:
    """Memory of a fixed size, zero at first. No memory is taken before it is touched or populated.

    It is not inherited by fork, and asks for huge pages. Private memory gets them on most machines, shared
    memory on few; see docs/decisions/0011-a-pool-is-private-unless-shared.md. Shared memory is a file, sealed
    against shrinking, growing and further sealing before any other process can see it: a client that could shorten
    it could kill every process that maps it. It belongs to the owner alone (mode 0600).

    Behind its bytes lies a generation number for each page. The owner changes it when the slot that begins there is
    given to another block; a process that copies without asking compares it before and after. `close` zeroes them.

    Attributes:
        nbytes: Its size.
        shared: As given.
        file_nbytes: Size of the whole mapping, numbers included: what other processes map.

    Args:
        nbytes: A positive multiple of `PAGE_NBYTES`.
        shared: Whether other processes may map it.

    Raises:
        ConfigError: The size is not a positive multiple.
        MemoryLimitError: There is not enough memory; nothing has been taken.
    """

    def __init__(self, nbytes: int, *, shared: bool = True) -> None:
        if nbytes <= 0 or nbytes % PAGE_NBYTES:
            raise ConfigError(f"[host] size is {nbytes} bytes; it must be a positive multiple of {PAGE_NBYTES}")
        check_memory(nbytes)
        self.nbytes = nbytes
        self.shared = shared
        self.file_nbytes = nbytes + -(-nbytes // PAGE_NBYTES * _NUMBER_NBYTES // PAGE_NBYTES) * PAGE_NBYTES
        try:
            self._fd, memory = _map_shared(self.file_nbytes) if shared else (-1, map_memory(self.file_nbytes))
        except OSError as error:
            raise MemoryLimitError(
                f"a host pool of {nbytes} bytes could not be mapped: {error.strerror}; lower [host] size"
            ) from error
        if shared:
            forks.keep_from_children(self._fd)
        self._memory: UInt8Array | None = memory

    @property
    def fd(self) -> int:
        """The descriptor, to be sent to processes of the same trust domain. Raises ClosedError."""
        assert self.shared, "nobody else maps a private pool"
        if self._memory is None:
            raise ClosedError("the host pool is closed; open a new one")
        return self._fd

    @property
    def view(self) -> UInt8Array:
        """uint8[nbytes], the memory itself; any part of it keeps all of it mapped. Raises ClosedError."""
        return self._mapped[: self.nbytes]

    @property
    def generations(self) -> UInt32Array:
        """uint32[nbytes / `PAGE_NBYTES`], the numbers behind the bytes. Raises ClosedError."""
        return self._mapped[self.nbytes :].view(np.uint32)[: self.nbytes // PAGE_NBYTES]

    @property
    def _mapped(self) -> UInt8Array:
        if self._memory is None:
            raise ClosedError("the host pool is closed; open a new one")
        return self._memory

    def populate(self, offset: int, nbytes: int) -> None:
        """Take the memory of a slice now; what it holds stays. Blocks (up to a second a GiB), without the GIL.

        Args:
            offset: Where the slice begins, a multiple of `PAGE_NBYTES`.
            nbytes: Its size.

        Raises:
            MemoryLimitError: The kernel has no memory left for it.
            ClosedError: The pool is closed.
        """
        assert offset % PAGE_NBYTES == 0, f"populate from byte {offset}; it must be a multiple of {PAGE_NBYTES}"
        assert 0 <= offset <= offset + nbytes <= self.nbytes, f"populate {nbytes} bytes from {offset} of {self.nbytes}"
        try:
            populate(self.view[offset : offset + nbytes])
        except OSError as error:
            raise MemoryLimitError(
                f"bytes {offset} to {offset + nbytes} of the host pool could not be taken: {error.strerror}; "
                "lower [host] size"
            ) from error

    def close(self) -> None:
        """Let go of the memory; a second call does nothing.

        Its pages are given back at once and read as zeros; it is unmapped when the last view of it is gone.
        """
        if self._memory is not None:
            # free the pages now, even if viewed; the numbers first, so that copies in flight notice
            give_back(self._memory[self.nbytes :], shared=self.shared)
            give_back(self._memory[: self.nbytes], shared=self.shared)
            self._memory = None
            if self.shared:
                forks.close(self._fd)


def _map_shared(nbytes: int) -> tuple[int, UInt8Array]:
    """Make the file, seal it and map it: descriptor and memory. Leaves nothing behind where it raises OSError."""
    with ExitStack() as undo:
        fd = os.memfd_create("tierstore", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        undo.callback(os.close, fd)
        os.fchmod(fd, 0o600)
        os.ftruncate(fd, nbytes)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        memory = map_memory(nbytes, fd)
        undo.pop_all()
    return fd, memory
