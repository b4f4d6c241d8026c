"""Reads records from chunk files and verifies that they are the ones a job asks for.

Called by reads, and by rewrites before a file is reclaimed. No byte from a disk is trusted: identity, file, lengths
and both checksums are compared, over the encoded bytes and before anything is decoded. A record that differs
is CORRUPT, one whose sectors cannot be read is IO_ERROR; neither is an exception.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from crc32c import crc32c

from tierstore.codec.base import Codec
from tierstore.errors import DiskError
from tierstore.tiers.chunkfile import ChunkFile
from tierstore.tiers.frame import FRAME_RECORDS, RUN_NBYTES, Scratch
from tierstore.tiers.record import CHECKSUM_NBYTES, HEADER, KIND_BLOCK, record_pages, valid_headers
from tierstore.types import PAGE_NBYTES, Extents, Outcome

if TYPE_CHECKING:
    from tierstore.tiers.record import BoolArray, HeaderArray
    from tierstore.types import Int64Array, UInt8Array

__all__ = ["Fetched", "RecordFetcher", "Turns", "Wanted", "cut_runs", "pages_to_read", "read_records", "verify_headers"]

Turns: TypeAlias = AbstractContextManager[object]
"""Whose turn it is to read, such as a semaphore of so many reads at once."""

_ANY_TIME: Turns = nullcontext()

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Wanted:
    """Records to read, one a row.

    Attributes:
        extents: Where they should lie.
        fingerprints: uint8[n, 32] or uint8[1, 32]; of the namespace.
        epochs: int64[n] or int64[1].
        hashes: uint8[n, 32]; of the blocks.
        raw_nbytes: Of every block.
        codec: Of every record.
    """

    extents: Extents
    fingerprints: UInt8Array
    epochs: Int64Array
    hashes: UInt8Array
    raw_nbytes: int
    codec: Codec


@dataclass(frozen=True, slots=True)
class Fetched:
    """Records that were read, one a row; in a row that is not OK only the outcome means anything.

    Attributes:
        outcomes: uint8[n] of `Outcome`: OK, CORRUPT or IO_ERROR.
        headers: `HEADER`[n].
        bodies: The pages behind each header: encoded bytes, their checksum, padding. Valid until the next fetch.
    """

    outcomes: UInt8Array
    headers: HeaderArray
    bodies: list[memoryview]


class RecordFetcher:
    """Reads whole records, of any length, into scratch of its own and verifies them. For one thread.

    Args:
        turns: Held while the disk reads, and not while bytes are verified.
    """

    def __init__(self, turns: Turns = _ANY_TIME) -> None:
        self._turns = turns
        self._scratch = Scratch()

    def fetch(self, wanted: Wanted, files: Mapping[int, ChunkFile]) -> Fetched:
        """Read one run of records, one call for those side by side; blocks. See `cut_runs`."""
        possible = wanted.extents.nbytes <= wanted.codec.max_encoded_nbytes(wanted.raw_nbytes)
        pages = pages_to_read(wanted.extents, wanted.raw_nbytes, wanted.codec)
        ends = np.cumsum(pages)
        starts = ends - pages
        memory = self._scratch.take(int(pages.sum()) * PAGE_NBYTES)

        def buffers(start: int, stop: int) -> list[memoryview]:
            return [memory[starts[start] * PAGE_NBYTES : ends[stop - 1] * PAGE_NBYTES].data]

        filled = read_records(wanted.extents, pages, files, buffers, turns=self._turns)
        headers = memory.reshape(-1, PAGE_NBYTES)[starts].view(HEADER).reshape(-1)  # as bytes: reserved ones count too
        bodies = [
            memory[(start + 1) * PAGE_NBYTES : end * PAGE_NBYTES].data
            for start, end in zip(starts.tolist(), ends.tolist(), strict=True)
        ]
        intact = filled & possible & verify_headers(headers, wanted, files)
        for row in np.flatnonzero(intact).tolist():
            end, checksum = int(wanted.extents.nbytes[row]), int(wanted.extents.checksum[row])
            copy = int.from_bytes(bodies[row][end : end + CHECKSUM_NBYTES], "little")
            intact[row] = copy == checksum == crc32c(bodies[row][:end])
        return Fetched(outcomes_of(filled, intact), headers, bodies)


def outcomes_of(filled: BoolArray, intact: BoolArray) -> UInt8Array:
    """uint8[n]: OK, CORRUPT if the bytes read are not intact, IO_ERROR if none could be read."""
    return np.where(filled, np.where(intact, Outcome.OK, Outcome.CORRUPT), Outcome.IO_ERROR).astype(np.uint8)


def pages_to_read(extents: Extents, raw_nbytes: int, codec: Codec) -> Int64Array:
    """Pages of each record, no more than it can have, whatever its extent says: int64[n]."""
    return record_pages(np.minimum(extents.nbytes, np.uint32(codec.max_encoded_nbytes(raw_nbytes))))


def cut_runs(pages: Sequence[int]) -> Iterator[slice]:
    """Cut records of so many pages each into runs that one vectored call moves well."""
    start = run_pages = 0
    for row, count in enumerate(pages):
        if row > start and ((run_pages + count) * PAGE_NBYTES > RUN_NBYTES or row - start == FRAME_RECORDS):
            yield slice(start, row)
            start, run_pages = row, 0
        run_pages += count
    if len(pages):
        yield slice(start, len(pages))


def read_records(
    extents: Extents,
    pages: Int64Array,
    files: Mapping[int, ChunkFile],
    buffers: Callable[[int, int], list[memoryview]],
    *,
    turns: Turns = _ANY_TIME,
) -> BoolArray:
    """Read records, one call for those side by side: bool[n], whether every byte was read. Blocks.

    Args:
        extents: Where they lie, in any order.
        pages: int64[n]; of each record.
        files: Chunk files by the number in the extents.
        buffers: Where rows ``start`` to ``stop`` go, whole records one after another.
        turns: Held during each call.
    """

    def read(start: int, stop: int) -> bool | list[bool]:
        chunk = files.get(int(extents.file[start]))
        if chunk is None:
            return False
        try:
            into = buffers(start, stop)
            with turns:
                chunk.file.read_into(into, int(extents.page[start]) * PAGE_NBYTES)
        except DiskError as error:
            _logger.debug("%s", error)  # the store's health tells it, once
            # each by itself, so that a bad sector fails one block
            return False if stop - start == 1 else [bool(read(row, row + 1)) for row in range(start, stop)]
        return True

    filled = np.zeros(len(extents), dtype=np.bool_)
    apart = (np.diff(extents.file) != 0) | (np.diff(extents.page.astype(np.int64)) != pages[:-1])
    for start, stop in pairwise([0, *(np.flatnonzero(apart) + 1).tolist(), len(extents)]):
        filled[start:stop] = read(start, stop)
    return filled


def verify_headers(headers: HeaderArray, wanted: Wanted, files: Mapping[int, ChunkFile]) -> BoolArray:
    """Which of `HEADER`[n] are headers of the wanted blocks, in the files they should be in: bool[n]."""
    extents = wanted.extents
    uuids = b"".join(files[file].name.file_uuid if file in files else bytes(16) for file in extents.file.tolist())
    fitting: BoolArray = (
        valid_headers(headers)
        & (headers["kind"] == KIND_BLOCK)
        & (headers["codec_id"] == wanted.codec.codec_id)
        & (headers["epoch"] == wanted.epochs)
        & (headers["raw_nbytes"] == wanted.raw_nbytes)
        & (headers["encoded_nbytes"] == extents.nbytes)
        & (headers["payload_checksum"] == extents.checksum)
        & _rows_equal(headers["file_uuid"], np.frombuffer(uuids, dtype=np.uint8).reshape(-1, 16))
        & _rows_equal(headers["fingerprint"], wanted.fingerprints)
        & _rows_equal(headers["block_hash"], wanted.hashes)
    )
    return fitting


def _rows_equal(found: UInt8Array, expected: UInt8Array) -> BoolArray:
    equal: BoolArray = (found == expected).all(axis=1)
    return equal
