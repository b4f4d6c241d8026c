"""The footer of format 1. A full chunk file gets it so that a start need not scan the file, and Zarr can read it.

It holds a key table for the store (the used bytes of every record's header, and where each record lies), and the
Zarr shard index for Zarr readers, right-aligned at the file's end. Called when a file is sealed and when a store
starts. This module defines bytes on disk: a change needs a new format version.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from crc32c import crc32c

from tierstore.disk.base import File
from tierstore.tiers.frame import Scratch, aligned_buffer
from tierstore.tiers.record import CHECKSUM_NBYTES, FORMAT_VERSION, HEADER_NBYTES, KEY, KIND_BLOCK, pages_of
from tierstore.types import PAGE_NBYTES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tierstore.tiers.record import BoolArray, HeaderArray
    from tierstore.types import UInt8Array, UInt32Array

    KeyArray: TypeAlias = NDArray[np.void]

__all__ = ["SLOT_NBYTES", "Keys", "footer_nbytes", "keys_of", "pack_footer", "read_footer"]

_MAGIC = b"TIERFOOT"

_PAGE_NUMBER_NBYTES = 4

_INDEX_ENTRY_NBYTES = 16
"""A Zarr shard index holds offset and length of each inner chunk, 8 bytes each."""

SLOT_NBYTES = HEADER_NBYTES + _PAGE_NUMBER_NBYTES + _INDEX_ENTRY_NBYTES
"""What one block adds to a footer."""

_MISSING = 0xFFFF_FFFF_FFFF_FFFF
"""Offset and length of an inner chunk that there is not."""

_TRAILER = np.dtype(
    {
        "names": ["magic", "version", "slots", "records", "table_checksum", "file_uuid", "trailer_checksum"],
        "formats": ["S8", "<u2", "<u4", "<u4", "<u4", ("u1", 16), "<u4"],
        "offsets": [0, 8, 12, 16, 20, 24, 60],
        "itemsize": 64,
    }
)
"""Directly before the Zarr index. Bytes 10-11 and 40-59 are reserved and zero; its checksum covers bytes 0-59."""


@dataclass(frozen=True, slots=True, eq=False)
class Keys:
    """The keys of a chunk file's records, in file order.

    Attributes:
        rows: `KEY`[n]; copies of the headers.
        pages: uint32[n]; where each record's header page lies, in `PAGE_NBYTES`.
        file_uuid: 16 bytes.
    """

    rows: KeyArray
    pages: UInt32Array
    file_uuid: bytes

    def __len__(self) -> int:
        return len(self.rows)

    def only(self, chosen: BoolArray) -> Keys:
        """Some of the records. Picked as bytes, because numpy leaves the reserved bytes of picked rows unset."""
        used = self.rows.view(np.uint8).reshape(-1, HEADER_NBYTES)[chosen]
        return Keys(used.reshape(-1).view(KEY), self.pages[chosen], self.file_uuid)


def keys_of(headers: HeaderArray) -> UInt8Array:
    """The used bytes of `HEADER`[n]: uint8[n, 256], a view."""
    return headers.view(np.uint8).reshape(len(headers), PAGE_NBYTES)[:, :HEADER_NBYTES]


def footer_nbytes(slots: int, records: int) -> int:
    """Bytes of a footer, whole pages.

    Args:
        slots: Blocks that the file may hold, which is what the Zarr index counts.
        records: Records whose keys it holds: blocks and tombstones.
    """
    return pages_of(_table_nbytes(records) + _tail_nbytes(slots)) * PAGE_NBYTES


def pack_footer(keys: Keys, *, slots: int, scratch: Scratch) -> UInt8Array:
    """The footer of a file: uint8[footer_nbytes], at a page boundary, in the scratch."""
    footer = scratch.take(footer_nbytes(slots, len(keys)))
    table = footer[: _table_nbytes(len(keys))]
    footer[len(table) : -_tail_nbytes(slots) + _TRAILER.itemsize] = 0
    table[: len(keys) * HEADER_NBYTES] = keys.rows.view(np.uint8)
    table[len(keys) * HEADER_NBYTES :] = keys.pages.astype("<u4").view(np.uint8)
    trailer = footer[-_tail_nbytes(slots) :][: _TRAILER.itemsize]
    fields = trailer.view(_TRAILER)
    fields["magic"] = _MAGIC
    fields["version"] = FORMAT_VERSION
    fields["slots"] = slots
    fields["records"] = len(keys)
    fields["table_checksum"] = crc32c(table.data)
    fields["file_uuid"] = np.frombuffer(keys.file_uuid, dtype=np.uint8)
    fields["trailer_checksum"] = crc32c(trailer[:-CHECKSUM_NBYTES].data)
    index = _zarr_index(keys, slots)
    footer[-CHECKSUM_NBYTES - len(index) : -CHECKSUM_NBYTES] = index
    footer[-CHECKSUM_NBYTES:] = np.array([crc32c(index.data)], dtype="<u4").view(np.uint8)
    return footer


def read_footer(file: File, *, nbytes: int, slots: int) -> Keys | None:
    """Read the keys of a sealed file; blocks.

    Args:
        file: The file.
        nbytes: Its length.
        slots: Blocks that each file of its array may hold.

    Returns:
        The keys; None where no intact footer for so many slots lies there.

    Raises:
        DiskError: It cannot be read.
    """
    tail_nbytes = pages_of(_tail_nbytes(slots)) * PAGE_NBYTES
    if nbytes % PAGE_NBYTES or tail_nbytes > nbytes:
        return None
    trailer = _read_end(file, nbytes, tail_nbytes)[-_tail_nbytes(slots) :][: _TRAILER.itemsize]
    fields = trailer.view(_TRAILER)[0]
    if (fields["magic"], fields["version"], fields["slots"]) != (_MAGIC, FORMAT_VERSION, slots):
        return None
    records = int(fields["records"])
    if fields["trailer_checksum"] != crc32c(trailer[:-CHECKSUM_NBYTES].data) or footer_nbytes(slots, records) > nbytes:
        return None
    table = _read_end(file, nbytes, footer_nbytes(slots, records))[: _table_nbytes(records)]
    if fields["table_checksum"] != crc32c(table.data):
        return None
    rows, pages = table[: records * HEADER_NBYTES].view(KEY), table[records * HEADER_NBYTES :].view("<u4")
    return Keys(rows, pages.astype(np.uint32, copy=False), fields["file_uuid"].tobytes())


def _table_nbytes(records: int) -> int:
    return records * (HEADER_NBYTES + _PAGE_NUMBER_NBYTES)


def _tail_nbytes(slots: int) -> int:
    """Trailer, index and the index's checksum."""
    return _TRAILER.itemsize + slots * _INDEX_ENTRY_NBYTES + CHECKSUM_NBYTES


def _zarr_index(keys: Keys, slots: int) -> UInt8Array:
    """Offset and length of each block with its checksum, by slot: uint8[16 × slots]."""
    index = np.full((slots, 2), _MISSING, dtype="<u8")
    blocks = (keys.rows["kind"] == KIND_BLOCK) & (keys.rows["slot"] < slots)
    slot = keys.rows["slot"][blocks]
    index[slot, 0] = (keys.pages[blocks].astype(np.uint64) + np.uint64(1)) * np.uint64(PAGE_NBYTES)
    index[slot, 1] = keys.rows["encoded_nbytes"][blocks].astype(np.uint64) + np.uint64(CHECKSUM_NBYTES)
    return index.view(np.uint8).reshape(-1)


def _read_end(file: File, nbytes: int, end_nbytes: int) -> UInt8Array:
    buffer = aligned_buffer(end_nbytes)
    file.read_into([buffer.data], nbytes - end_nbytes)
    return buffer
