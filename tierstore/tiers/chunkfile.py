"""One chunk file: a preallocated file of one array to which records are appended until it is sealed.

Owned by the SSD tier: its one write worker appends, syncs and seals; read workers read what has been appended.
A file knows its name, its write positions, how much still fits, and its records' keys until the footer has them.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from tierstore.disk.base import File
from tierstore.errors import DiskError
from tierstore.tiers.footer import SLOT_NBYTES, Keys, footer_nbytes, keys_of, pack_footer
from tierstore.tiers.record import KEY, KIND_BLOCK, KIND_TOMBSTONE, RecordShape, record_pages
from tierstore.types import PAGE_NBYTES

if TYPE_CHECKING:
    from tierstore.tiers.footer import KeyArray
    from tierstore.tiers.frame import Scratch
    from tierstore.tiers.record import HeaderArray
    from tierstore.types import UInt32Array

__all__ = ["NO_SEQUENCE", "TOMBSTONE_NBYTES", "ChunkFile", "ChunkName", "slots_per_file"]

_OPEN_NAME = re.compile(r"open-(0|[1-9][0-9]{0,4})-([0-9a-f]{32})")
_SEALED_NAME = re.compile(r"c\.(0|[1-9][0-9]{0,4})((?:\.0)+)")

NO_SEQUENCE = 0xFFFF_FFFF_FFFF_FFFF
"""Above that of every record."""

TOMBSTONE_NBYTES = 3 * PAGE_NBYTES
"""What one tombstone may take of a file: two pages, and at most one in the footer."""


def slots_per_file(file_nbytes: int, shape: RecordShape) -> int:
    """How many records of one shape a file holds beside its footer."""
    slots = file_nbytes // (shape.pitch_nbytes + SLOT_NBYTES)
    while slots and slots * shape.pitch_nbytes + footer_nbytes(slots, slots) > file_nbytes:
        slots -= 1
    return slots


@dataclass(frozen=True, slots=True)
class ChunkName:
    """The name of a chunk file.

    Attributes:
        array: Folder under ``arrays``: ``<layout fingerprint>-<codec>``.
        number: Position of the file in the Zarr array, from 0.
        file_uuid: 16 bytes; in every record's header, and in the name of an open file only.
        axes: Axes of the array once it is sealed; 0 while it is open.
    """

    array: str
    number: int
    file_uuid: bytes
    axes: int = 0

    @classmethod
    def new(cls, array: str, number: int) -> ChunkName:
        """A name that no other file ever had."""
        return cls(array, number, uuid.uuid4().bytes)

    @classmethod
    def parse(cls, array: str, name: str) -> ChunkName | None:
        """Read a file's name back; None for any other name. A sealed one's uuid is zeros until it is known."""
        if match := _OPEN_NAME.fullmatch(name):
            return cls(array, int(match[1]), bytes.fromhex(match[2]))
        if match := _SEALED_NAME.fullmatch(name):
            return cls(array, int(match[1]), bytes(16), axes=1 + match[2].count("."))
        return None

    @property
    def codec(self) -> str:
        """Name of the codec of every block."""
        return self.array.partition("-")[2]

    @property
    def path(self) -> str:
        """The path, relative to the disk's root."""
        if self.axes:
            return f"arrays/{self.array}/c.{self.number}{'.0' * (self.axes - 1)}"
        return f"arrays/{self.array}/open-{self.number}-{self.file_uuid.hex()}"

    def sealed(self, axes: int) -> ChunkName:
        """The name of the file once it is sealed."""
        return replace(self, axes=axes)


class ChunkFile:
    """An open chunk file and its write positions.

    Attributes:
        file_id: The tier's own number for it, as in extents; never reused in one run.
        names: Its name; two names if a rename failed, as either may hold.
        file: The disk's handle; reads go to it directly.
        nbytes: Its preallocated length.
        slots: How many blocks it may hold: the inner chunks of the Zarr shard that it becomes.
        end_nbytes: Where the next record goes.
        next_slot: The slot of the next block.
        oldest_sequence: The lowest sequence of its blocks.
        tombstone_pages: Where its tombstones lie, in `PAGE_NBYTES`.
        appendable: Whether records may be appended: not before `begin`, and not after a failure.
        dirty: Whether anything was written since the last sync.
        in_doubt: Whether a sync has failed: the records that it covered may not survive a power loss.
        heirs: Files that blocks of this one were rewritten to.
    """

    def __init__(self, file_id: int, name: ChunkName, file: File, *, nbytes: int, slots: int = 0) -> None:
        self.file_id = file_id
        self.names: tuple[ChunkName, ...] = (name,)
        self.file = file
        self.nbytes = nbytes
        self.slots = slots
        self.end_nbytes = 0
        self.next_slot = 0
        self.oldest_sequence = NO_SEQUENCE
        self.tombstone_pages: list[int] = []
        self.appendable = False
        self.dirty = False
        self.in_doubt = False
        self.heirs: set[ChunkFile] = set()
        self._torn = False
        self._rows = bytearray()
        self._pages = bytearray()

    @property
    def name(self) -> ChunkName:
        """Its name, as far as is known."""
        return self.names[0]

    def begin(self, *, end_nbytes: int = 0, next_slot: int = 0) -> None:
        """Open it for appending: from its start, or behind the last valid record of an earlier run."""
        self.end_nbytes, self.next_slot, self.appendable = end_nbytes, next_slot, True

    @property
    def room_nbytes(self) -> int:
        """Bytes that records may still take, header pages included; 0 if nothing may be appended."""
        kept = footer_nbytes(self.slots, self.slots + len(self.tombstone_pages))
        return max(0, self.nbytes - kept - self.end_nbytes) if self.appendable else 0

    @property
    def room_slots(self) -> int:
        """How many blocks may still be appended, if they are short enough; 0 where nothing may be appended."""
        return max(0, self.slots - self.next_slot) if self.appendable else 0

    def room(self, shape: RecordShape) -> int:
        """How many blocks of one shape still fit; 0 where nothing may be appended."""
        return min(self.room_slots, self.room_nbytes // shape.pitch_nbytes)

    @property
    def takes_more(self) -> bool:
        """Whether one more block of the average length of a slot fits."""
        return self.room_slots > 0 and self.room_nbytes >= self.nbytes // self.slots

    @property
    def room_tombstones(self) -> int:
        """How many tombstones still fit."""
        return self.room_nbytes // TOMBSTONE_NBYTES

    def append(self, buffers: Sequence[memoryview], *, headers: HeaderArray) -> None:
        """Write whole records behind the last; blocks. Raises DiskError, after which nothing may be appended.

        Args:
            buffers: The records' pages, one after another.
            headers: `HEADER`[n]; the records' headers, in order.
        """
        offset = self.reserve(headers)
        try:
            self.write(buffers, offset)
        except DiskError:
            self.lose(offset)
            raise
        self.keep(headers, offset)

    def reserve(self, headers: HeaderArray) -> int:
        """Reserve room for records behind the last, to be written in this order; returns the offset of the first."""
        assert self.appendable, f"{self.name.path} is closed for writing"
        offset = self.end_nbytes
        self.end_nbytes += int(record_pages(headers["encoded_nbytes"]).sum()) * PAGE_NBYTES
        self.next_slot += int(np.count_nonzero(headers["kind"] == KIND_BLOCK))
        return offset

    def write(self, buffers: Sequence[memoryview], offset: int) -> None:
        """Write records at their reserved place; blocks, on any thread, one call at a time.

        Raises:
            DiskError: This or an earlier write failed.
        """
        if self._torn:
            raise DiskError("write", self.name.path, detail="an earlier write to it failed")
        self._torn = True
        self.file.write_from(buffers, offset)
        self._torn = False

    def keep(self, headers: HeaderArray, offset: int) -> None:
        """Enter the keys of records that have been written."""
        pages = record_pages(headers["encoded_nbytes"])
        firsts = (offset // PAGE_NBYTES + np.cumsum(pages) - pages).astype(np.uint32)
        self.dirty = True
        self._rows += keys_of(headers).tobytes()
        self._pages += firsts.tobytes()
        self._mark(headers, firsts)

    def lose(self, offset: int) -> None:
        """Release the room from `offset` on, whose records could not be written, and append nothing more."""
        self.end_nbytes = offset
        self.appendable = False

    def know(self, keys: Keys) -> None:
        """Enter the keys found in a file of an earlier run, before `begin` or instead of it.

        An open file may not have been synced; a sealed one was synced before it got its name.
        """
        self.dirty = not self.name.axes
        self.names = (replace(self.name, file_uuid=keys.file_uuid),)
        self._mark(keys.rows, keys.pages)

    def resume(self, keys: Keys, *, slots: int) -> bool:
        """Continue a file of an earlier run behind its last record; `know` comes first.

        Returns:
            False if the footer would have no room behind that record; then nothing may be appended.
        """
        self._rows, self._pages = bytearray(keys.rows.tobytes()), bytearray(keys.pages.tobytes())
        self.slots = slots
        blocks = keys.rows["slot"][keys.rows["kind"] == KIND_BLOCK]
        ends = keys.pages + record_pages(keys.rows["encoded_nbytes"])
        self.begin(
            end_nbytes=int(ends[-1]) * PAGE_NBYTES if len(ends) else 0,
            next_slot=int(blocks.max()) + 1 if len(blocks) else 0,
        )
        self.appendable = self.end_nbytes + footer_nbytes(slots, len(keys)) <= self.nbytes
        return self.appendable

    def write_footer(self, scratch: Scratch) -> None:
        """Write the footer; blocks. Nothing may be appended any more. Raises DiskError: the records are as before."""
        self.appendable = False
        rows, pages = np.frombuffer(self._rows, dtype=KEY), np.frombuffer(self._pages, dtype=np.uint32)
        footer = pack_footer(Keys(rows, pages, self.name.file_uuid), slots=self.slots, scratch=scratch)
        start = self.nbytes - len(footer)
        assert self.end_nbytes <= start, f"the footer of {self.name.path} would lie on its records"
        self.dirty = True
        self.file.write_from([footer.data], start)

    def forget_keys(self) -> None:
        """Free the keys, which the footer now holds."""
        self._rows, self._pages = bytearray(), bytearray()

    def sync(self) -> None:
        """Make what was written durable; blocks. Raises DiskError, after which nothing may be appended.

        A failed sync is never retried: the records since the last good one may be lost, and stay readable
        until then.
        """
        if self.dirty:
            appendable = self.appendable
            self.appendable, self.dirty, self.in_doubt = False, False, True
            self.file.sync()
            self.appendable, self.in_doubt = appendable, False

    def _mark(self, rows: KeyArray | HeaderArray, pages: UInt32Array) -> None:
        blocks = rows["sequence"][rows["kind"] == KIND_BLOCK]
        if len(blocks):
            self.oldest_sequence = min(self.oldest_sequence, int(blocks.min()))
        self.tombstone_pages += pages[rows["kind"] == KIND_TOMBSTONE].tolist()
