"""Reads from files of a local folder straight into GPU memory: the only module that uses kvikio.

The assembly loads it if ``device.direct_reads`` is set. kvikio uses GPUDirect Storage if the machine has it. Otherwise
it copies through its own host memory, which it calls compatibility mode. Calls block, from any thread.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from tierstore.errors import DiskError

__all__ = ["GdsReads", "open_gds"]


class _Future(Protocol):
    def get(self) -> int:
        """Bytes that came; waits for them."""


class _File(Protocol):
    def pread(self, buffer: object, size: int, file_offset: int, /) -> _Future:
        """Begin to read."""


class GdsReads:
    """A folder's files, as `tierstore.tiers.direct.FarReads` says.

    Args:
        open_file: ``kvikio.CuFile``.
        root: The folder.
        on_gpu: Whether reads go into GPU memory.
        way: The path of the bytes, in words.
    """

    def __init__(
        self, open_file: Callable[[str, str], AbstractContextManager[_File]], root: str, *, on_gpu: bool, way: str
    ) -> None:
        self._open_file = open_file
        self._root = os.path.abspath(root)
        self._interface = "__cuda_array_interface__" if on_gpu else "__array_interface__"
        self.way = way

    def read(self, path: str, pieces: Sequence[tuple[int, int, int]]) -> None:
        """Read every piece of one file, side by side, whole.

        Args:
            path: Relative to the root.
            pieces: (position in the file, address, bytes) of each.

        Raises:
            DiskError: A piece could not be read; the bytes at all the addresses then mean nothing.
        """
        full, wanted = os.path.join(self._root, path), [nbytes for _position, _address, nbytes in pieces]
        try:
            with self._open_file(full, "r") as file:
                begun = [file.pread(self._view(address, nbytes), nbytes, at) for at, address, nbytes in pieces]
                moved = [future.get() for future in begun]
        except (OSError, RuntimeError) as error:  # what the C++ library throws comes as the latter
            raise DiskError("read", path, getattr(error, "errno", None) or errno.EIO, str(error)) from error
        if moved != wanted:
            raise DiskError("read", path, errno.EIO, f"{sum(moved)} of {sum(wanted)} bytes came")

    def _view(self, address: int, nbytes: int) -> object:
        interface = {"shape": (nbytes,), "typestr": "|u1", "data": (address, False), "version": 3}
        return type("_Memory", (), {self._interface: interface})()


def open_gds(root: str, *, on_gpu: bool) -> GdsReads | None:
    """Direct reads from a folder; None if kvikio is not installed, or cannot be loaded here."""
    try:
        import kvikio
        import kvikio.cufile_driver
        import kvikio.defaults
    except (ImportError, RuntimeError):
        return None
    straight = kvikio.cufile_driver.get("is_gds_available") and not kvikio.defaults.is_compat_mode_preferred()
    way = "by GPUDirect Storage" if straight else "by kvikio in compatibility mode, through host memory of its own"
    return GdsReads(kvikio.CuFile, root, on_gpu=on_gpu, way=way)
