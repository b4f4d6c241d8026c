"""One chunk file: a preallocated file of one array to which records are only ever appended.

Owned by the SSD tier: its one write worker appends and syncs, read workers read what has been appended.
Knows its name, its identity, its marks and how much still fits; it does not know what the records say.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tierstore.disk.base import File
from tierstore.tiers.record import CHECKSUM_NBYTES, HEADER_NBYTES, RecordShape, pages_of
from tierstore.types import PAGE_NBYTES

if TYPE_CHECKING:
    from tierstore.tiers.record import HeaderArray

__all__ = ["ChunkFile", "ChunkName", "footer_nbytes", "slots_per_file"]

_INDEX_ENTRY_NBYTES = 16
"""A Zarr shard index holds offset and length of each inner chunk, 8 bytes each."""

_OPEN_NAME = re.compile(r"open-(0|[1-9][0-9]{0,4})-([0-9a-f]{32})")


def footer_nbytes(slots: int, tombstones: int = 0) -> int:
    """Bytes at a file's end kept free for sealing: a copy of each header, and the Zarr index."""
    nbytes = (slots + tombstones) * HEADER_NBYTES + slots * _INDEX_ENTRY_NBYTES + HEADER_NBYTES + CHECKSUM_NBYTES
    return pages_of(nbytes) * PAGE_NBYTES


def slots_per_file(file_nbytes: int, shape: RecordShape) -> int:
    """How many records of one shape a file holds beside its footer."""
    slots = file_nbytes // (shape.pitch_nbytes + HEADER_NBYTES + _INDEX_ENTRY_NBYTES)
    while slots and slots * shape.pitch_nbytes + footer_nbytes(slots) > file_nbytes:
        slots -= 1
    return slots


@dataclass(frozen=True, slots=True)
class ChunkName:
    """The name of an open chunk file.

    Attributes:
        array: Folder under ``arrays``: ``<layout fingerprint>-<codec>``.
        number: Position of the file in the Zarr array, from 0.
        file_uuid: 16 bytes; also in every record's header.
    """

    array: str
    number: int
    file_uuid: bytes

    @classmethod
    def new(cls, array: str, number: int) -> ChunkName:
        """A name that no other file ever had."""
        return cls(array, number, uuid.uuid4().bytes)

    @classmethod
    def parse(cls, array: str, name: str) -> ChunkName | None:
        """Read a file's name back; None for any other name."""
        match = _OPEN_NAME.fullmatch(name)
        return cls(array, int(match[1]), bytes.fromhex(match[2])) if match else None

    @property
    def path(self) -> str:
        """Relative to the disk's root."""
        return f"arrays/{self.array}/open-{self.number}-{self.file_uuid.hex()}"


class ChunkFile:
    """An open chunk file and its marks.

    Attributes:
        file_id: The tier's own number for it, as in extents; never reused in one run.
        name: What it is called.
        file: The disk's handle; reads go to it directly.
        nbytes: Its preallocated length.
        slots: How many blocks it may hold: the inner chunks of the Zarr shard that it becomes.
        end_nbytes: Where the next record goes.
        next_slot: The slot of the next record.
        appendable: Whether records may be appended: not before `begin`, and not after a failure.
        dirty: Whether records were appended since the last sync.
    """

    def __init__(self, file_id: int, name: ChunkName, file: File, *, nbytes: int, slots: int = 0) -> None:
        self.file_id = file_id
        self.name = name
        self.file = file
        self.nbytes = nbytes
        self.slots = slots
        self.end_nbytes = 0
        self.next_slot = 0
        self.appendable = False
        self.dirty = False

    def begin(self, *, end_nbytes: int = 0, next_slot: int = 0) -> None:
        """Open it for appending: from its start, or behind the last valid record of an earlier run."""
        self.end_nbytes, self.next_slot, self.appendable = end_nbytes, next_slot, True

    @property
    def room_nbytes(self) -> int:
        """Bytes that records, header pages among them, may still take; 0 where nothing may be appended."""
        return max(0, self.nbytes - footer_nbytes(self.slots) - self.end_nbytes) if self.appendable else 0

    @property
    def room_slots(self) -> int:
        """How many blocks may still be appended, if they are short enough; 0 where nothing may be appended."""
        return max(0, self.slots - self.next_slot) if self.appendable else 0

    def room(self, shape: RecordShape) -> int:
        """How many records of one shape still fit; 0 where nothing may be appended."""
        return min(self.room_slots, self.room_nbytes // shape.pitch_nbytes)

    def append(self, buffers: Sequence[memoryview], *, headers: HeaderArray, nbytes: int) -> None:
        """Write whole records behind the last; blocks. Raises DiskError, after which nothing may be appended.

        Args:
            buffers: The records' pages, one after another.
            headers: `HEADER`[n]; the records' headers, in order.
            nbytes: Of all buffers.
        """
        assert self.appendable, f"{self.name.path} is closed for writing"
        self.appendable = False
        self.file.write_from(buffers, self.end_nbytes)
        self.appendable = True
        self.end_nbytes += nbytes
        self.next_slot += len(headers)
        self.dirty = True

    def sync(self) -> None:
        """Make what was appended durable; blocks. Raises DiskError, after which nothing may be appended.

        A failed sync is never retried: the records since the last good one may be lost, and stay readable
        until then.
        """
        if self.dirty:
            appendable, self.appendable, self.dirty = self.appendable, False, False
            self.file.sync()
            self.appendable = appendable
