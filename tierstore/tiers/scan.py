"""Walks one chunk file of an earlier run and says which records lie in it. Reads only; used at the start.

Goes from valid header to valid header, and page by page where there is none, so that a bad page costs no
more than its own record. Reads in large pieces where records are small and skips payloads where they are
large. A sector that cannot be read is passed over; a file with too many of them is left off.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from crc32c import crc32c

from tierstore.errors import DiskError
from tierstore.tiers.chunkfile import ChunkFile
from tierstore.tiers.frame import aligned_buffer
from tierstore.tiers.record import CHECKSUM_NBYTES, HEADER, KIND_BLOCK, pages_of, valid_headers
from tierstore.types import PAGE_NBYTES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tierstore.tiers.record import BoolArray, HeaderArray
    from tierstore.types import UInt8Array

    FoundArray: TypeAlias = NDArray[np.void]

__all__ = ["FOUND", "Scanner"]

FOUND = np.dtype(
    [
        ("sequence", "<u8"),
        ("epoch", "<u8"),
        ("page", "<u4"),
        ("slot", "<u4"),
        ("encoded_nbytes", "<u4"),
        ("payload_checksum", "<u4"),
        ("fingerprint", "u1", (32,)),
        ("block_hash", "u1", (32,)),
    ]
)
"""What a start keeps of each record while it runs: 96 bytes."""

_HEADER_FIELDS = [name for name in FOUND.names or () if name != "page"]

_WINDOW_NBYTES = 4 << 20

_SKIP_NBYTES_MIN = 256 << 10
"""Payloads at least this long are skipped: reading a header alone is then cheaper than reading on."""

_FAILURES_MAX = 64
"""Unreadable pages after which the rest of a file is left off."""

_logger = logging.getLogger(__name__)


class Scanner:
    """Scans chunk files one after another through one window of 4 MiB. For one thread."""

    def __init__(self) -> None:
        self._window = aligned_buffer(_WINDOW_NBYTES)
        self._held = range(0)

    def records(self, chunk: ChunkFile) -> tuple[FoundArray, bool]:
        """Find the block records of a file by their headers; blocks.

        Returns:
            `FOUND`[n] in file order, and whether every page looked at could be read.
        """
        found: list[FoundArray] = []
        page, num_pages, failures, wanted = 0, chunk.nbytes // PAGE_NBYTES, 0, 1
        while page < num_pages and failures < _FAILURES_MAX:
            headers = self._read(chunk, page, min(wanted, num_pages - page)).view(HEADER)
            if not len(headers):
                failures += 1
                page += 1
                continue
            rows, step = _walk(headers, chunk.name.file_uuid, num_pages - page)
            found.append(_keep(headers, rows, page))
            skipped = (step - len(headers)) * PAGE_NBYTES
            wanted = 1 if skipped >= _SKIP_NBYTES_MIN else _WINDOW_NBYTES // PAGE_NBYTES
            page += step
        if failures:
            _logger.warning("%s: %d pages could not be read", chunk.name.path, failures)
        return np.concatenate([*found, np.empty(0, FOUND)]), not failures

    def intact(self, chunk: ChunkFile, found: FoundArray) -> tuple[BoolArray, bool]:
        """Compare the payloads of a file's records with their checksums; blocks.

        Returns:
            bool[n], False where the payload was read and does not fit, and whether every page could be read.
        """
        self._held = range(0)
        checksums = [
            self._payload_checksum(chunk, page + 1, nbytes)
            for page, nbytes in zip(found["page"].tolist(), found["encoded_nbytes"].tolist(), strict=True)
        ]
        expected = found["payload_checksum"].tolist()
        intact = [own is None or own == wanted for own, wanted in zip(checksums, expected, strict=True)]
        return np.array(intact, dtype=np.bool_), None not in checksums

    def _payload_checksum(self, chunk: ChunkFile, page: int, nbytes: int) -> int | None:
        """CRC32C of `nbytes` from `page` on; None where they cannot be read."""
        checksum = 0
        while nbytes:
            piece = self._ahead(chunk, page)[:nbytes]
            if not len(piece):
                return None
            checksum = crc32c(piece.data, checksum)
            nbytes -= len(piece)
            page += pages_of(len(piece))
        return checksum

    def _ahead(self, chunk: ChunkFile, page: int) -> UInt8Array:
        """What the window holds from `page` on, filled from there first where it does not hold it."""
        if page not in self._held:
            held = self._read(chunk, page, chunk.nbytes // PAGE_NBYTES - page)
            self._held = range(page, page + pages_of(len(held)))
        return self._window[(page - self._held.start) * PAGE_NBYTES : len(self._held) * PAGE_NBYTES]

    def _read(self, chunk: ChunkFile, page: int, num_pages: int) -> UInt8Array:
        """Read pages into the window: as many as wanted and fit, or one where that fails, or none."""
        for nbytes in (min(num_pages * PAGE_NBYTES, _WINDOW_NBYTES), PAGE_NBYTES):
            piece = self._window[:nbytes]
            try:
                chunk.file.read_into([piece.data], page * PAGE_NBYTES)
            except DiskError as error:
                _logger.debug("%s", error)
            else:
                return piece
        return self._window[:0]


def _walk(headers: HeaderArray, file_uuid: bytes, pages_left: int) -> tuple[list[int], int]:
    """Go from header to header: the rows of block records, and how many pages to go on by."""
    valid = valid_headers(headers) & (headers["file_uuid"] == np.frombuffer(file_uuid, dtype=np.uint8)).all(axis=1)
    rows: list[int] = []
    after = 0
    for row in np.flatnonzero(valid).tolist():
        is_block = headers["kind"][row] == KIND_BLOCK
        end = row + 1 + (pages_of(int(headers["encoded_nbytes"][row]) + CHECKSUM_NBYTES) if is_block else 0)
        if row < after or end > pages_left:
            continue
        if is_block:
            rows.append(row)
        after = end
    return rows, max(len(headers), after)


def _keep(headers: HeaderArray, rows: list[int], page: int) -> FoundArray:
    """What a start needs of some headers, the first of which lies at `page`."""
    found = np.empty(len(rows), dtype=FOUND)
    for name in _HEADER_FIELDS:
        found[name] = headers[name][rows]
    found["page"] = np.array(rows, dtype=np.uint32) + np.uint32(page)
    return found
