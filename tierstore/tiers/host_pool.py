"""The host pool's memory: one anonymous shared file, mapped here and handed to others by its descriptor.

Called by the store at start, by links and tiers for its bytes, and by the service to share it. The kernel frees
it when the last process that maps it is gone, so a killed one leaks nothing. It knows no slots and no blocks.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

import numpy as np

from tierstore.errors import ClosedError, ConfigError, MemoryLimitError
from tierstore.tiers.memory_limit import check_memory
from tierstore.types import PAGE_NBYTES

if TYPE_CHECKING:
    from tierstore.types import UInt8Array

__all__ = ["HostPool"]

_MADV_REMOVE = 9
_MADV_POPULATE_WRITE = 23  # Linux 5.14; not in the mmap module
_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


class HostPool:
    """Shared memory of a fixed size, zero at first. No memory is taken before it is touched or populated.

    The file is sealed against shrinking, growing and further sealing before anyone else can see it: a client
    that could shorten it could kill every process that maps it. It is the owner's alone (mode 0600), is not
    inherited by fork, and uses huge pages where the machine allows them.

    Attributes:
        nbytes: Its size.

    Args:
        nbytes: A positive multiple of `PAGE_NBYTES`.

    Raises:
        ConfigError: A size that is no such multiple.
        MemoryLimitError: The memory is not there; nothing has been taken.
    """

    def __init__(self, nbytes: int) -> None:
        if nbytes <= 0 or nbytes % PAGE_NBYTES:
            raise ConfigError(f"[host] size is {nbytes} bytes; it must be a positive multiple of {PAGE_NBYTES}")
        check_memory(nbytes)
        self.nbytes = nbytes
        try:
            self._fd, memory = _map(nbytes)
        except OSError as error:
            raise MemoryLimitError(
                f"a host pool of {nbytes} bytes could not be mapped: {error.strerror}; lower [host] size"
            ) from error
        self._view: UInt8Array | None = np.frombuffer(memory, np.uint8)

    @property
    def fd(self) -> int:
        """The descriptor, to be sent to processes of the same trust domain. Raises ClosedError."""
        if self._view is None:
            raise ClosedError("the host pool is closed; open a new one")
        return self._fd

    @property
    def view(self) -> UInt8Array:
        """uint8[nbytes], the memory itself; any part of it keeps all of it mapped. Raises ClosedError."""
        if self._view is None:
            raise ClosedError("the host pool is closed; open a new one")
        return self._view

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
        part = self.view[offset : offset + nbytes]
        if _LIBC.madvise(part.ctypes.data, nbytes, _MADV_POPULATE_WRITE) == 0:
            return
        code = ctypes.get_errno()
        if code != errno.EINVAL:
            raise MemoryLimitError(
                f"bytes {offset} to {offset + nbytes} of the host pool could not be taken: {os.strerror(code)}; "
                "lower [host] size"
            )
        firsts = part[::PAGE_NBYTES]  # an older kernel: touch every page
        np.positive(firsts, out=firsts)

    def close(self) -> None:
        """Let go of the memory; a second call does nothing.

        Its pages are given back at once and read as zeros; it is unmapped when the last view of it is gone.
        """
        if self._view is not None:
            _LIBC.madvise(
                self._view.ctypes.data, self.nbytes, _MADV_REMOVE
            )  # its pages go now, whoever still views them
            self._view = None
            os.close(self._fd)


def _map(nbytes: int) -> tuple[int, mmap.mmap]:
    """Make the file, seal it and map it; leaves nothing behind where it raises OSError."""
    with ExitStack() as undo:
        fd = os.memfd_create("tierstore", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        undo.callback(os.close, fd)
        os.fchmod(fd, 0o600)
        os.ftruncate(fd, nbytes)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        memory = mmap.mmap(fd, nbytes)
        memory.madvise(mmap.MADV_DONTFORK)
        with suppress(OSError):  # a kernel built without huge pages
            memory.madvise(mmap.MADV_HUGEPAGE)
        undo.pop_all()
    return fd, memory
