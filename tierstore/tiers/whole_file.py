"""Reads and replaces small files as a whole: the files beside the chunk files in a store's folder.

Called for the manifest, the arrays' Zarr metadata and the recency file. After a crash a file has the old content or
the new one, never a mixture.
"""

from __future__ import annotations

import errno

from tierstore.disk.base import Disk
from tierstore.errors import DiskError
from tierstore.tiers.frame import aligned_buffer
from tierstore.tiers.record import pages_of
from tierstore.types import PAGE_NBYTES

__all__ = ["read_whole", "replace_whole"]


def read_whole(disk: Disk, path: str) -> bytes:
    """All bytes of a file, its padding among them; blocks.

    Raises:
        DiskError: It cannot be read, or is not whole pages (EINVAL) and so was not written by `replace_whole`.
    """
    file = disk.open(path)
    try:
        nbytes = file.nbytes
        if not nbytes or nbytes % PAGE_NBYTES:
            raise DiskError("read", path, errno.EINVAL, f"it has {nbytes} bytes, not whole pages")
        buffer = aligned_buffer(nbytes)
        file.read_into([buffer.data], 0)
    finally:
        file.close()
    return buffer.tobytes()


def replace_whole(disk: Disk, path: str, content: bytes, *, padding: bytes) -> None:
    """Put a file in place of another, atomically and durably, padded to whole pages; blocks.

    Raises:
        DiskError: The disk refused; either content may hold.
    """
    new_path = f"{path}.new"
    buffer = aligned_buffer(pages_of(len(content)) * PAGE_NBYTES)
    buffer.data[:] = content.ljust(len(buffer), padding)
    try:
        disk.remove(new_path)  # of a run that died here
    except DiskError as error:
        if error.errno != errno.ENOENT:
            raise
    file = disk.create(new_path, len(buffer))
    try:
        file.write_from([buffer.data], 0)
        file.sync()
    finally:
        file.close()
    disk.rename(new_path, path)
