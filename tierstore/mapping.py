"""Memory that is mapped by hand: private, or a file's that others map too. Called by whoever owns or attaches a pool.

Not by `mmap.mmap`, which keeps a second descriptor that nobody can close in a forked child, and which would unmap,
there too, whatever lies at the address.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import weakref
from typing import TYPE_CHECKING

import numpy as np

from tierstore.types import PAGE_NBYTES

if TYPE_CHECKING:
    from tierstore.types import UInt8Array

__all__ = ["give_back", "map_memory", "populate"]

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_LIBC.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_LIBC.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
_LIBC.mmap.restype = ctypes.c_void_p
_MADV_REMOVE, _MADV_POPULATE_WRITE = 9, 23  # Linux 5.14; not in the mmap module
_MAP_FAILED = ctypes.c_void_p(-1).value


def map_memory(nbytes: int, fd: int = -1) -> UInt8Array:
    """Map private memory, or all of a file; raises OSError.

    It is not inherited by fork, asks for huge pages, and is unmapped with the last view of it.

    Returns:
        uint8[nbytes].
    """
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS if fd < 0 else mmap.MAP_SHARED
    address = _LIBC.mmap(None, nbytes, mmap.PROT_READ | mmap.PROT_WRITE, flags, fd, 0)
    if address == _MAP_FAILED:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    _LIBC.madvise(address, nbytes, mmap.MADV_DONTFORK)
    _LIBC.madvise(address, nbytes, mmap.MADV_HUGEPAGE)  # a kernel built without them refuses, and that is all
    memory = (ctypes.c_uint8 * nbytes).from_address(address)
    weakref.finalize(memory, _unmap, address, nbytes, os.getpid()).atexit = False  # with the last view of it
    view: UInt8Array = np.ctypeslib.as_array(memory)
    return view


def populate(part: UInt8Array) -> None:
    """Take the memory of whole pages now, and map it here; what it holds stays. Blocks, without the GIL.

    Whoever touches pages one by one instead is stopped at each for the first time. Raises OSError.
    """
    if _LIBC.madvise(part.ctypes.data, part.nbytes, _MADV_POPULATE_WRITE) == 0:
        return
    code = ctypes.get_errno()
    if code != errno.EINVAL:
        raise OSError(code, os.strerror(code))
    firsts = part[::PAGE_NBYTES]  # an older kernel: touch every page
    np.positive(firsts, out=firsts)


def give_back(part: UInt8Array, *, shared: bool) -> None:
    """Give the memory of whole pages back to the system, whoever still views them: they read as zeros from now on."""
    _LIBC.madvise(part.ctypes.data, part.nbytes, _MADV_REMOVE if shared else mmap.MADV_DONTNEED)


def _unmap(address: int, nbytes: int, owner_pid: int) -> None:
    if os.getpid() == owner_pid:
        _LIBC.munmap(address, nbytes)
