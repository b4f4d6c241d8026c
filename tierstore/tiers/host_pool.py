"""The host pool's memory: private to this process, or one anonymous shared file that others map by its descriptor.

Called by the store at start, by links and tiers for its bytes, and by whoever shares it. The kernel frees it
when the last process that maps it is gone, so a killed one leaks nothing. It knows no slots and no blocks.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import weakref
from contextlib import ExitStack
from typing import TYPE_CHECKING

import numpy as np

from tierstore import forks
from tierstore.errors import ClosedError, ConfigError, MemoryLimitError
from tierstore.tiers.memory_limit import check_memory
from tierstore.types import PAGE_NBYTES

if TYPE_CHECKING:
    from tierstore.types import UInt8Array, UInt32Array

__all__ = ["HostPool"]

_MADV_REMOVE = 9
_MADV_POPULATE_WRITE = 23  # Linux 5.14; not in the mmap module
_NUMBER_NBYTES = 4
_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_LIBC.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_LIBC.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
_LIBC.mmap.restype = ctypes.c_void_p
_MAP_FAILED = ctypes.c_void_p(-1).value


class HostPool:
    """Shared memory of a fixed size, zero at first. No memory is taken before it is touched or populated.

    It is not inherited by fork, and asks for huge pages. Private memory gets them on most machines, shared
    memory on few; see docs/decisions/0011-a-pool-is-private-unless-shared.md. What is shared is a file sealed
    against shrinking, growing and further sealing before anyone else can see it: a client that could shorten it
    could kill every process that maps it. It is the owner's alone (mode 0600).

    Behind its bytes lies a number for each page, which its owner changes when a slot that begins there is given to
    another block: whoever copies from a slot without asking compares before and after. At the end they are zeros again.

    Attributes:
        nbytes: Its size.
        shared: As given.
        file_nbytes: Size of the whole mapping, numbers included: what others map.

    Args:
        nbytes: A positive multiple of `PAGE_NBYTES`.
        shared: Whether other processes may map it.

    Raises:
        ConfigError: A size that is no such multiple.
        MemoryLimitError: The memory is not there; nothing has been taken.
    """

    def __init__(self, nbytes: int, *, shared: bool = True) -> None:
        if nbytes <= 0 or nbytes % PAGE_NBYTES:
            raise ConfigError(f"[host] size is {nbytes} bytes; it must be a positive multiple of {PAGE_NBYTES}")
        check_memory(nbytes)
        self.nbytes = nbytes
        self.shared = shared
        self.file_nbytes = nbytes + -(-nbytes // PAGE_NBYTES * _NUMBER_NBYTES // PAGE_NBYTES) * PAGE_NBYTES
        try:
            self._fd, address = _map_shared(self.file_nbytes) if shared else (-1, _map(self.file_nbytes))
        except OSError as error:
            raise MemoryLimitError(
                f"a host pool of {nbytes} bytes could not be mapped: {error.strerror}; lower [host] size"
            ) from error
        if shared:
            forks.keep_from_children(self._fd)
        memory = (ctypes.c_uint8 * self.file_nbytes).from_address(address)
        weakref.finalize(memory, _unmap, address, self.file_nbytes, os.getpid()).atexit = False  # with the last view
        self._memory: UInt8Array | None = np.ctypeslib.as_array(memory)

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
        if self._memory is not None:
            # its pages go now, whoever still views them; the numbers first, for whoever copies meanwhile
            advice, start = _MADV_REMOVE if self.shared else mmap.MADV_DONTNEED, self._memory.ctypes.data
            _LIBC.madvise(start + self.nbytes, self.file_nbytes - self.nbytes, advice)
            _LIBC.madvise(start, self.nbytes, advice)
            self._memory = None
            if self.shared:
                forks.close(self._fd)


def _map(nbytes: int, fd: int = -1) -> int:
    """Map private memory, or a file of it; the address. Raises OSError.

    Not by `mmap.mmap`, which keeps a second descriptor that nobody can close in a forked child, and which would
    unmap, there too, whatever lies at the address.
    """
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS if fd < 0 else mmap.MAP_SHARED
    address = _LIBC.mmap(None, nbytes, mmap.PROT_READ | mmap.PROT_WRITE, flags, fd, 0)
    if address == _MAP_FAILED:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    _LIBC.madvise(address, nbytes, mmap.MADV_DONTFORK)
    _LIBC.madvise(address, nbytes, mmap.MADV_HUGEPAGE)  # a kernel built without them refuses, and that is all
    return int(address)


def _map_shared(nbytes: int) -> tuple[int, int]:
    """Make the file, seal it and map it: descriptor and address. Leaves nothing behind where it raises OSError."""
    with ExitStack() as undo:
        fd = os.memfd_create("tierstore", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        undo.callback(os.close, fd)
        os.fchmod(fd, 0o600)
        os.ftruncate(fd, nbytes)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        address = _map(nbytes, fd)
        undo.pop_all()
    return fd, address


def _unmap(address: int, nbytes: int, owner_pid: int) -> None:
    if os.getpid() == owner_pid:
        _LIBC.munmap(address, nbytes)
