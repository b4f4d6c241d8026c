"""Tests whether an SSD folder can be read and written again, on the files that blocks would go to.

Called by the SSD tier on its one write worker while the tier is off. It writes a page of zeros at the place of the
next record, in a file begun as for that record, syncs it and reads it back. This tests space, inodes, quota and
permissions, and leaves nothing that a start or a reader could see.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from tierstore.errors import DiskError
from tierstore.tiers.chunkfile import ChunkFile
from tierstore.tiers.frame import aligned_buffer
from tierstore.types import PAGE_NBYTES, Outcome

if TYPE_CHECKING:
    from tierstore.disk.base import Disk, File
    from tierstore.tiers.folder import ChunkFolder
    from tierstore.tiers.zarr_metadata import ArraySpec

__all__ = ["PROBE_PATH", "probe_folder", "probe_reading", "probe_writing"]

PROBE_PATH = "probe"
"""A file that is there only while the folder is probed as a whole."""


def probe_reading(folder: ChunkFolder) -> Outcome:
    """Read the first page of the oldest and the newest chunk file; blocks. OK if one comes, or there is no file."""
    files = list(folder.files.values())
    ends = [chunk.file for chunk in (*files[:1], *files[1:][-1:])]
    return Outcome.OK if not ends or any([_gives_page(file) for file in ends]) else Outcome.IO_ERROR


def probe_writing(folder: ChunkFolder, spec: ArraySpec) -> Outcome:
    """Write, sync and read back one page where the next record of an array would go; blocks.

    If the capacity allows no further file but the one in reserve, that one is begun, and removed again.

    Returns:
        OK; or REJECTED if no file could be begun, IO_ERROR if the disk failed.
    """
    declared = folder.declare(spec)
    if declared is not Outcome.OK:
        return declared
    try:
        folder.look()  # where the capacity allows no file, no other look follows
    except DiskError:
        return Outcome.IO_ERROR
    for reserved in (False, True):
        if reserved and folder.shortage:
            break
        chunk = folder.place(spec.name, lambda chunk: chunk.room(spec.longest), reserved=reserved)
        if isinstance(chunk, ChunkFile):
            offset = chunk.end_nbytes
            chunk.dirty = True
            well = _takes_page(chunk.file, offset) and folder.make_durable(chunk) and _gives_page(chunk.file, offset)
            if not well:
                folder.abandon(chunk)
            elif reserved and not chunk.end_nbytes:
                folder.discard(chunk.file_id)
            return Outcome.OK if well else Outcome.IO_ERROR
        if chunk is not Outcome.REJECTED:
            return chunk
    return Outcome.REJECTED


def probe_folder(folder: ChunkFolder, disk: Disk) -> Outcome:
    """The same in a file of its own, which is removed again; blocks. For a run that has written nothing yet.

    Also REJECTED if the file system is too small for the files that would be written.
    """
    try:
        folder.look()
        if any(entry.name == PROBE_PATH for entry in disk.look("").entries):
            disk.remove(PROBE_PATH)  # of a run that was killed meanwhile
        file = disk.create(PROBE_PATH, PAGE_NBYTES)
        try:
            well = _takes_page(file) and _gives_page(file)
            file.sync()
        finally:
            file.close()
            disk.remove(PROBE_PATH)
    except DiskError as error:
        return Outcome.REJECTED if error.errno in (errno.ENOSPC, errno.EDQUOT) else Outcome.IO_ERROR
    if well and folder.shortage:
        return Outcome.REJECTED
    return Outcome.OK if well else Outcome.IO_ERROR


def _takes_page(file: File, offset: int = 0) -> bool:
    try:
        file.write_from([aligned_buffer(PAGE_NBYTES).data], offset)
    except DiskError:
        return False
    return True


def _gives_page(file: File, offset: int = 0) -> bool:
    try:
        file.read_into([aligned_buffer(PAGE_NBYTES).data], offset)
    except DiskError:
        return False
    return True
