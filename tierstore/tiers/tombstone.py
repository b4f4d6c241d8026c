"""Tombstones: records on SSD that say which blocks of a namespace are deleted.

Called by the SSD tier on its one write worker, and when it starts. A tombstone overrides every record of the same
identity with a lower sequence, and must outlive them all. So before a file is removed, those of its tombstones that
override records elsewhere are appended to another file, unchanged.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
from crc32c import crc32c

from tierstore.errors import DiskError
from tierstore.tiers.chunkfile import TOMBSTONE_NBYTES, ChunkFile
from tierstore.tiers.folder import ChunkFolder
from tierstore.tiers.frame import aligned_buffer
from tierstore.tiers.record import CHECKSUM_NBYTES, HEADER, KIND_TOMBSTONE, finish_headers, valid_headers
from tierstore.types import HASH_NBYTES, PAGE_NBYTES, Outcome, TombstoneJob

if TYPE_CHECKING:
    from tierstore.types import UInt8Array

__all__ = ["HASHES_MAX", "NO_SLOT", "Graves", "Tombstone", "load_tombstone", "read_tombstone"]

HASHES_MAX = 100
"""Deleted hashes of one record."""

COPIES = 2
"""Records that say the same: one that is damaged would bring older records of its blocks back, where no other does."""

_NEXT_TO_GO = 2
"""So many files, the oldest, find room for theirs: they go where no other can. Two begun in one call count as one."""

NO_SLOT = 0xFFFF_FFFF
"""What the header of a record says that is no inner chunk of the Zarr shard."""

_RECORD_NBYTES = 2 * PAGE_NBYTES

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class Tombstone:
    """The content of one tombstone record.

    Attributes:
        fingerprint: Of the namespace.
        epoch: Of the namespace.
        sequence: Of the record.
        created_ns: Unix time in nanoseconds.
        hashes: uint8[n, 32], at most `HASHES_MAX`.
    """

    fingerprint: bytes
    epoch: int
    sequence: int
    created_ns: int
    hashes: UInt8Array


def read_tombstone(chunk: ChunkFile, page: int) -> Tombstone | None:
    """The same as `load_tombstone`; None, with a warning, also if the disk fails."""
    try:
        return load_tombstone(chunk, page)
    except DiskError as error:
        _logger.warning("a tombstone cannot be read: %s", error)
        return None


def load_tombstone(chunk: ChunkFile, page: int) -> Tombstone | None:
    """Read the tombstone whose header lies at a page; blocks. None, with a warning, if there is no intact one.

    Raises:
        DiskError: Two reads failed; the tombstone may be there all the same.
    """
    record = aligned_buffer(_RECORD_NBYTES)
    try:
        chunk.file.read_into([record.data], page * PAGE_NBYTES)
    except DiskError:
        chunk.file.read_into([record.data], page * PAGE_NBYTES)
    headers = record[:PAGE_NBYTES].view(HEADER)
    header = headers[0]
    nbytes = int(header["encoded_nbytes"])
    intact = (
        valid_headers(headers)[0]
        and header["kind"] == KIND_TOMBSTONE
        and header["file_uuid"].tobytes() == chunk.name.file_uuid
        and nbytes <= HASHES_MAX * HASH_NBYTES
        and nbytes % HASH_NBYTES == 0
        and crc32c(record[PAGE_NBYTES : PAGE_NBYTES + nbytes].data) == header["payload_checksum"]
    )
    if not intact:
        _logger.warning("%s, page %d: a tombstone does not verify; it lasts by its copy alone", chunk.name.path, page)
        return None
    hashes = record[PAGE_NBYTES : PAGE_NBYTES + nbytes].reshape(-1, HASH_NBYTES)
    return Tombstone(
        header["fingerprint"].tobytes(),
        int(header["epoch"]),
        int(header["sequence"]),
        int(header["created_ns"]),
        hashes,
    )


class Graves:
    """Writes tombstones, and keeps them for as long as they are needed.

    Args:
        folder: The folder whose files they go to.
        epochs: The living epoch of every known namespace, by fingerprint.
        clock: Unix time in nanoseconds.

    Attributes:
        sequence_base: Below the sequence of every record of this run.
    """

    def __init__(
        self, folder: ChunkFolder, epochs: Callable[[], Mapping[bytes, int]], clock: Callable[[], int]
    ) -> None:
        self._folder = folder
        self._epochs = epochs
        self._clock = clock
        self._postponed: list[int] = []
        self._needed: set[int] = set()
        self._newest = -1
        self.sequence_base = 0

    def write(self, job: TombstoneJob, array: str) -> UInt8Array:
        """Append a job's tombstones, each `COPIES` times, to files of an array that have room; blocks.

        Returns:
            uint8[n] of `Outcome`, one a hash: OK, REJECTED or IO_ERROR.
        """
        life, created_ns = job.generation, self._clock()
        tombstones = [
            Tombstone(
                life.fingerprint,
                life.epoch,
                self.sequence_base + (job.job_id << 16) + index,
                created_ns,
                job.hashes[start : start + HASHES_MAX],
            )
            for index, start in enumerate(np.repeat(np.arange(0, len(job), HASHES_MAX), COPIES).tolist())
        ]
        outcomes = np.full(len(job), Outcome.OK, dtype=np.uint8)
        written = 0
        for ended in self._append(tombstones, array, self._room_of_deletions):
            if isinstance(ended, Outcome):
                outcomes[written // COPIES * HASHES_MAX :] = ended
            else:
                written += ended[1]
        return outcomes

    def discard(self, file: int) -> None:
        """Reclaim a chunk file, and earlier ones that could not be removed; blocks.

        A file that cannot be removed yet stays, known to this class alone, until the next `discard` or `try_again`.
        """
        self._postponed = [file_id for file_id in (*self._postponed, file) if not self.release(file_id)]

    def try_again(self) -> None:
        """Try again to remove files, if one has been begun since that may take their tombstones; blocks."""
        newest = max(self._folder.files, default=-1) if self._postponed else self._newest
        if newest != self._newest:
            self._newest = newest
            self._postponed = [file_id for file_id in self._postponed if not self.release(file_id)]

    def release(self, file: int) -> bool:
        """Remove a chunk file if it is safe; blocks. Whether it was removed.

        It is safe once its rewritten blocks and its tombstones that are still needed are durable in other files.
        If the blocks may not be durable there, now or after a sync that failed earlier, the file stays for the
        next start.
        """
        chunk = self._folder.files.get(file)
        if chunk is None:
            return True
        if file in self._needed:
            return False
        if not self._folder.make_others_durable(chunk) or any(heir.in_doubt for heir in chunk.heirs):
            _logger.warning("%s stays: what was written again of it may not be durable", chunk.name.path)
            self._needed.add(file)
            return False
        if self._keep(chunk):
            self._folder.discard(file)
            return True
        return False

    def _keep(self, leaving: ChunkFile) -> bool:
        """Make the tombstones of a file that are still needed durable in another one; whether they now are."""
        self._folder.retire(leaving)
        oldest, epochs = self._folder.oldest_sequence(without=leaving), self._epochs()
        try:
            found = [load_tombstone(leaving, page) for page in leaving.tombstone_pages]
        except DiskError as error:
            _logger.warning("a file stays, for a tombstone in it cannot be read: %s", error)
            return False
        needed = [
            tombstone
            for tombstone in found
            if tombstone and tombstone.sequence > oldest and epochs.get(tombstone.fingerprint) == tombstone.epoch
        ]
        files: dict[int, ChunkFile] = {}
        for ended in self._append(needed, leaving.name.array, _room):
            if isinstance(ended, Outcome):
                return False
            files[ended[0].file_id] = ended[0]
        return all([self._folder.make_durable(chunk) for chunk in files.values()])

    def _room_of_deletions(self, chunk: ChunkFile) -> int:
        """How many tombstones of deletions fit into a file, with room kept for those of the file reclaimed next."""
        stays = self._needed.union(self._postponed)
        oldest = islice((own for file, own in self._folder.files.items() if file not in stays), _NEXT_TO_GO)
        return max(0, chunk.room_nbytes - self._folder.kept_nbytes(chunk, tuple(oldest))) // TOMBSTONE_NBYTES

    def _append(
        self, tombstones: Sequence[Tombstone], array: str, room: Callable[[ChunkFile], int]
    ) -> Iterator[tuple[ChunkFile, int] | Outcome]:
        """Append tombstones file by file. Yields how many went to which file, and at last why the rest did not."""
        start = 0
        while start < len(tombstones):
            chunk = self._folder.place_tombstones(array, room)
            if isinstance(chunk, Outcome):
                yield chunk
                return
            own = tombstones[start : start + room(chunk)]
            try:
                _write(own, chunk)
            except DiskError as error:
                _logger.warning("deletions not written to SSD: %s", error)
                self._folder.abandon(chunk)
                yield Outcome.IO_ERROR
                return
            yield chunk, len(own)
            start += len(own)


def _room(chunk: ChunkFile) -> int:
    """How many tombstones of a reclaimed file fit into another file."""
    return chunk.room_tombstones


def _write(tombstones: Sequence[Tombstone], chunk: ChunkFile) -> None:
    """Append tombstones to a file with room for them; blocks. Raises DiskError."""
    records = aligned_buffer(len(tombstones) * _RECORD_NBYTES)
    headers = aligned_buffer(len(tombstones) * PAGE_NBYTES).view(HEADER)
    pages = records.reshape(-1, 2, PAGE_NBYTES)
    for row, tombstone in enumerate(tombstones):
        payload = np.ascontiguousarray(tombstone.hashes).reshape(-1)
        checksum = crc32c(payload.data)
        headers["raw_nbytes"][row] = headers["encoded_nbytes"][row] = len(payload)
        headers["payload_checksum"][row] = checksum
        headers["sequence"][row] = tombstone.sequence
        headers["created_ns"][row] = tombstone.created_ns
        headers["epoch"][row] = tombstone.epoch
        headers["fingerprint"][row] = np.frombuffer(tombstone.fingerprint, dtype=np.uint8)
        pages[row, 1, : len(payload)] = payload
        pages[row, 1, len(payload) : len(payload) + CHECKSUM_NBYTES] = np.array([checksum], dtype="<u4").view(np.uint8)
    headers["kind"] = KIND_TOMBSTONE
    headers["slot"] = NO_SLOT
    headers["file_uuid"] = np.frombuffer(chunk.name.file_uuid, dtype=np.uint8)
    finish_headers(headers)
    pages[:, 0] = headers.view(np.uint8).reshape(-1, PAGE_NBYTES)
    chunk.append([records.data], headers=headers)
