"""The record of format 1: one header page, then a block's encoded bytes followed by their CRC32C.

Pure arithmetic on bytes, for many records at once: headers are rows of one numpy structured array whose fields
are assigned and compared by column. Called by the modules that read, write and scan chunk files; it never touches a
file. This module defines bytes on disk: a change needs a new format version.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from crc32c import crc32c

from tierstore.types import PAGE_NBYTES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    HeaderArray: TypeAlias = NDArray[np.void]
    BoolArray: TypeAlias = NDArray[np.bool_]

__all__ = [
    "CHECKSUM_NBYTES",
    "FORMAT_VERSION",
    "HEADER",
    "HEADER_NBYTES",
    "KEY",
    "KIND_BLOCK",
    "KIND_TOMBSTONE",
    "MAGIC",
    "RecordShape",
    "finish_headers",
    "pages_of",
    "record_pages",
    "valid_headers",
]

MAGIC = b"TIERSTOR"
"""First eight bytes of every header page."""

FORMAT_VERSION = 1
"""Of records and of the folder."""

KIND_BLOCK = 1
KIND_TOMBSTONE = 2
"""The payload is up to 100 hashes of deleted blocks; the record is no inner chunk of the Zarr shard."""

HEADER_NBYTES = 256
"""The used part of a header page; the rest is zero."""

CHECKSUM_NBYTES = 4
"""A CRC32C on disk: little-endian, directly behind the bytes it covers."""


def _header(nbytes: int) -> np.dtype[np.void]:
    """The fields of a header in so many bytes."""
    return np.dtype(
        {
            "names": [
                "magic", "version", "kind", "codec_id", "slot", "sequence", "created_ns", "epoch",
                "raw_nbytes", "encoded_nbytes", "payload_checksum", "file_uuid", "fingerprint", "block_hash",
                "parent_hash", "header_checksum",
            ],
            "formats": [
                "S8", "<u2", "u1", "u1", "<u4", "<u8", "<u8", "<u8",
                "<u4", "<u4", "<u4", ("u1", 16), ("u1", 32), ("u1", 32),
                ("u1", 32), "<u4",
            ],
            "offsets": [
                0, 8, 10, 11, 12, 16, 24, 32,
                40, 44, 48, 56, 72, 104,
                136, 252,
            ],
            "itemsize": nbytes,
        }
    )  # fmt: skip


HEADER = _header(PAGE_NBYTES)
"""One header page. Bytes 52-55 and 168-251 are reserved and zero; `header_checksum` covers bytes 0-251."""

KEY = _header(HEADER_NBYTES)
"""The used part of one."""

_COVERED_NBYTES = HEADER_NBYTES - CHECKSUM_NBYTES


def pages_of(nbytes: int) -> int:
    """How many whole pages hold `nbytes`."""
    return -(-nbytes // PAGE_NBYTES)


def record_pages(encoded_nbytes: NDArray[np.uint32]) -> NDArray[np.int64]:
    """Pages of records with so many encoded bytes each, header page and checksum among them: int64[n]."""
    pages: NDArray[np.int64] = 1 - -(encoded_nbytes.astype(np.int64) + CHECKSUM_NBYTES) // PAGE_NBYTES
    return pages


@dataclass(frozen=True, slots=True)
class RecordShape:
    """Where the parts of a record lie when its payload comes straight from a pool slot.

    Attributes:
        nbytes: The payload, without its checksum.
    """

    nbytes: int

    @property
    def slot_nbytes(self) -> int:
        """Bytes of the pool slot, a multiple of the page."""
        return pages_of(self.nbytes) * PAGE_NBYTES

    @property
    def inline_nbytes(self) -> int:
        """How many bytes of the checksum fit into the slot's own padding: 0 to 4."""
        return min(CHECKSUM_NBYTES, self.slot_nbytes - self.nbytes)

    @property
    def has_tail(self) -> bool:
        """Whether a page behind the slot takes the rest of the checksum."""
        return self.inline_nbytes < CHECKSUM_NBYTES

    @property
    def pitch_nbytes(self) -> int:
        """Bytes from one record to the next."""
        return PAGE_NBYTES * (1 + pages_of(self.nbytes + CHECKSUM_NBYTES))


def finish_headers(headers: HeaderArray) -> None:
    """Stamp magic and version on `HEADER`[n] whose other fields are set, and their own checksums last."""
    headers["magic"] = MAGIC
    headers["version"] = FORMAT_VERSION
    headers["header_checksum"] = [crc32c(row) for row in _covered(headers)]


def valid_headers(headers: HeaderArray) -> BoolArray:
    """Which of `HEADER`[n] are headers of this format with an intact checksum: bool[n]."""
    valid: BoolArray = (headers["magic"] == MAGIC) & (headers["version"] == FORMAT_VERSION)
    rows = np.flatnonzero(valid)
    found = [crc32c(row) for row in _covered(headers)[rows]]
    valid[rows] = headers["header_checksum"][rows] == np.array(found, dtype=np.uint32)
    return valid


def _covered(headers: HeaderArray) -> NDArray[np.uint8]:
    """The bytes under each header's own checksum: uint8[n, 252]."""
    return headers.view(np.uint8).reshape(len(headers), PAGE_NBYTES)[:, :_COVERED_NBYTES]
