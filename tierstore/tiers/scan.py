"""Scans one chunk file of an earlier run for its records. Reads only; used at the start.

It goes from valid header to valid header, and page by page where there is none, so that a bad page costs no more
than its own record. Small records are read in large pieces; large payloads are skipped. An unreadable sector is
passed over; a file with too many of them is given up.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from crc32c import crc32c

from tierstore.errors import DiskError
from tierstore.tiers.chunkfile import ChunkFile
from tierstore.tiers.footer import Keys, keys_of
from tierstore.tiers.frame import aligned_buffer
from tierstore.tiers.record import HEADER, KEY, KIND_BLOCK, KIND_TOMBSTONE, pages_of, record_pages, valid_headers
from tierstore.types import PAGE_NBYTES

if TYPE_CHECKING:
    from tierstore.tiers.record import BoolArray, HeaderArray
    from tierstore.types import UInt8Array

__all__ = ["Advance", "Scanner"]

Advance: TypeAlias = Callable[[int], None]
"""Told how many more bytes of a file are done with."""

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

    def records(self, chunk: ChunkFile, advance: Advance = lambda _nbytes: None) -> tuple[Keys, bool]:
        """Find the records of a file by their headers; blocks.

        A sealed file's name does not say its uuid; there the first header does.

        Returns:
            Their keys, and whether every page looked at could be read.
        """
        rows, pages = [np.empty((0, KEY.itemsize), np.uint8)], [np.empty(0, np.uint32)]
        file_uuid = b"" if chunk.name.axes else chunk.name.file_uuid
        page, num_pages, failures, wanted = 0, chunk.nbytes // PAGE_NBYTES, 0, 1
        while page < num_pages and failures < _FAILURES_MAX:
            headers = self._read(chunk, page, min(wanted, num_pages - page)).view(HEADER)
            if not len(headers):
                failures += 1
                page += 1
                advance(PAGE_NBYTES)
                continue
            valid = valid_headers(headers)
            if not file_uuid and valid.any():
                file_uuid = headers["file_uuid"][valid.argmax()].tobytes()
            valid &= (headers["file_uuid"] == np.frombuffer(file_uuid.ljust(16), dtype=np.uint8)).all(axis=1)
            own, step = _walk(headers, valid, num_pages - page)
            rows.append(keys_of(headers)[own])
            pages.append(np.array(own, dtype=np.uint32) + np.uint32(page))
            skipped = (step - len(headers)) * PAGE_NBYTES
            wanted = 1 if skipped >= _SKIP_NBYTES_MIN else _WINDOW_NBYTES // PAGE_NBYTES
            page += step
            advance(step * PAGE_NBYTES)
        if failures:
            _logger.warning("%s: %d pages could not be read", chunk.name.path, failures)
        table = np.concatenate(rows).reshape(-1).view(KEY)
        return Keys(table, np.concatenate(pages), file_uuid or bytes(16)), not failures

    def intact(self, chunk: ChunkFile, keys: Keys) -> tuple[BoolArray, bool]:
        """Compare the payloads of a file's records with their checksums; blocks.

        Returns:
            bool[n], False where the payload was read and does not fit, and whether every page could be read.
        """
        self._held = range(0)
        checksums = [
            self._payload_checksum(chunk, page + 1, nbytes)
            for page, nbytes in zip(keys.pages.tolist(), keys.rows["encoded_nbytes"].tolist(), strict=True)
        ]
        expected = keys.rows["payload_checksum"].tolist()
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


def _walk(headers: HeaderArray, valid: BoolArray, pages_left: int) -> tuple[list[int], int]:
    """Go from header to header: the rows of blocks and tombstones, and how many pages to go on by."""
    rows: list[int] = []
    after = 0
    candidates = np.flatnonzero(valid)
    known = np.isin(headers["kind"][candidates], (KIND_BLOCK, KIND_TOMBSTONE)).tolist()
    lengths = record_pages(headers["encoded_nbytes"][candidates]).tolist()
    for row, length, is_known in zip(candidates.tolist(), lengths, known, strict=True):
        end = row + (length if is_known else 1)
        if row < after or end > pages_left:
            continue
        if is_known:
            rows.append(row)
        after = end
    return rows, max(len(headers), after)
