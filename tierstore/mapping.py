"""Memory that is mapped by hand: private, or a file's that others map too. Called by whoever owns or attaches a pool.

Not by `mmap.mmap`, which keeps a second descriptor that nobody can close in a forked child, and which would unmap,
there too, whatever lies at the address.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from tierstore.types import UInt8Array

__all__ = ["map_memory"]

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_LIBC.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_LIBC.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
_LIBC.mmap.restype = ctypes.c_void_p
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


def _unmap(address: int, nbytes: int, owner_pid: int) -> None:
    if os.getpid() == owner_pid:
        _LIBC.munmap(address, nbytes)
