"""The recency file: keeps each block's last use and number of uses across restarts.

The store reads it once at start, and writes it every minute and at its end. It is advice only: without it, or if it
is damaged, blocks are as old as their files, and nothing else is lost.
"""

from __future__ import annotations

import errno
import logging
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from crc32c import crc32c

from tierstore.disk.base import Disk
from tierstore.errors import DiskError
from tierstore.tiers.whole_file import read_whole, replace_whole

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tierstore.types import UInt8Array

    RecencyArray: TypeAlias = NDArray[np.void]

__all__ = ["RECENCY", "read_recency", "recency_keys", "write_recency"]

RECENCY = np.dtype([("key", "<u8"), ("last_use", "<u4"), ("hits", "<u2")])
"""One block: see `recency_keys`; its last use on any scale that counts up; its hits, or the most that fits."""

_PATH = "recency"
_MAGIC = b"TIERRCNT"
_VERSION = 1
_HEADER = np.dtype([("magic", "S8"), ("version", "<u4"), ("checksum", "<u4"), ("count", "<u8")])

_logger = logging.getLogger(__name__)


def recency_keys(fingerprint: bytes, hashes: UInt8Array) -> NDArray[np.uint64]:
    """uint64[n]: the keys of blocks in the file, made from a namespace's fingerprint and uint8[n, 32] hashes.

    Two blocks share a key with a probability of 1 in 2**64; then they share at worst their ages.
    """
    (space,) = np.frombuffer(fingerprint[:8], dtype="<u8")
    words = np.ascontiguousarray(hashes[:, :8]).view("<u8").reshape(-1)
    keys: NDArray[np.uint64] = words ^ space
    return keys


def write_recency(disk: Disk, rows: RecencyArray) -> None:
    """Replace the file, atomically; blocks.

    Args:
        disk: The folder's disk.
        rows: `RECENCY`[n].

    Raises:
        DiskError: It could not be written; the one before may still be there.
    """
    assert rows.dtype == RECENCY, f"rows are {rows.dtype}, not {RECENCY}"
    body = rows.tobytes()
    header = np.array([(_MAGIC, _VERSION, crc32c(body), len(rows))], dtype=_HEADER)
    replace_whole(disk, _PATH, header.tobytes() + body, padding=b"\0")


def read_recency(disk: Disk) -> RecencyArray | None:
    """Read the file: `RECENCY`[n]; blocks. None, with a line in the log, where there is none that is intact."""
    try:
        content = read_whole(disk, _PATH)
    except DiskError as error:
        if error.errno == errno.ENOENT:
            _logger.info("no recency file: blocks are as old as their files")
        else:
            _logger.warning("the recency file cannot be read, blocks are as old as their files: %s", error)
        return None
    (header,) = np.frombuffer(content[: _HEADER.itemsize], dtype=_HEADER)
    end = _HEADER.itemsize + int(header["count"]) * RECENCY.itemsize
    body = content[_HEADER.itemsize : end]
    if (header["magic"], header["version"], header["checksum"]) != (_MAGIC, _VERSION, crc32c(body)) or end > len(
        content
    ):
        _logger.warning("the recency file is damaged or of another version: blocks are as old as their files")
        return None
    return np.frombuffer(body, dtype=RECENCY)
