"""Finds what an earlier run left in the chunk files, and leaves the folder ready for more.

Called once by the SSD tier when it starts. Of each identity the record with the highest sequence counts;
epochs that are over and namespaces the manifest does not know are dropped; files without a living record
are given back; the newest file of each array is continued. Names that are none of ours are left alone.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from tierstore.disk.base import Disk
from tierstore.errors import DiskError
from tierstore.tiers.base import Recovered
from tierstore.tiers.chunkfile import ChunkFile, ChunkName, slots_per_file
from tierstore.tiers.folder import ChunkFolder
from tierstore.tiers.record import RecordShape
from tierstore.tiers.scan import Scanner
from tierstore.types import PAGE_NBYTES, Extents

if TYPE_CHECKING:
    from tierstore.tiers.record import BoolArray
    from tierstore.tiers.scan import FoundArray

__all__ = ["RECOVERED_BLOCKS_MAX", "Recovery", "recover"]

RECOVERED_BLOCKS_MAX = 8192
"""Blocks of one `Recovered`."""

_UNSEEN_RECORDS_MAX = 1 << 32
"""Sequences left out where something could not be read: what lies there may be newer than all that was seen."""

_ZARR_NAME = "zarr.json"

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Recovery:
    """What a start found.

    Attributes:
        blocks: Oldest file first; of one file, by namespace.
        next_sequence: Above that of every record seen.
        complete: Whether the whole folder could be listed. Where not, nothing may be written to it.
    """

    blocks: list[Recovered]
    next_sequence: int
    complete: bool


@dataclass(slots=True)
class _File:
    """A chunk file under recovery.

    Attributes:
        chunk: The file.
        found: `FOUND`[n], in file order.
        readable: Whether every page could be read. If not it is neither continued nor given back.
        alive: bool[n]; records that count.
    """

    chunk: ChunkFile
    found: FoundArray
    readable: bool
    alive: BoolArray = field(default_factory=lambda: np.empty(0, dtype=np.bool_))

    @property
    def last_sequence(self) -> int:
        return int(self.found["sequence"].max()) if len(self.found) else -1


def recover(disk: Disk, folder: ChunkFolder, epochs: Mapping[bytes, int], codec: str) -> Recovery:
    """Scan every chunk file of one codec; blocks. Never raises for a failing disk.

    Args:
        disk: The folder's disk.
        folder: Receives the files.
        epochs: The living epoch of each known namespace, by fingerprint.
        codec: Name at the end of the arrays' folders.
    """
    scanner = Scanner()
    names, complete = _list(disk, codec)
    adopted = [chunk for name, nbytes in names if (chunk := folder.adopt(name, nbytes)) is not None]
    files = sorted((_File(chunk, *scanner.records(chunk)) for chunk in adopted), key=lambda file: file.last_sequence)
    next_sequence = files[-1].last_sequence + 1 if files else 0
    if len(files) < len(names) or not all(file.readable for file in files):
        next_sequence += _UNSEEN_RECORDS_MAX
    while files and folder.over_capacity:
        folder.discard(files.pop(0).chunk.file_id)
    newest = {file.chunk.name.array: file for file in files}
    for file in newest.values():
        intact, readable = scanner.intact(file.chunk, file.found)
        file.found, file.readable = file.found[intact], file.readable and readable
    _mark_alive(files, epochs)
    for file in files:
        if file.readable and not file.alive.any():
            folder.discard(file.chunk.file_id)
        elif file.readable and newest[file.chunk.name.array] is file:
            last = file.found[-1]
            shape = RecordShape(int(last["encoded_nbytes"]))
            end = int(last["page"]) * PAGE_NBYTES + shape.pitch_nbytes
            slots = slots_per_file(file.chunk.nbytes, shape)
            folder.resume(file.chunk, slots=slots, end_nbytes=end, next_slot=int(last["slot"]) + 1)
    return Recovery([batch for file in files for batch in _batches(file, epochs)], next_sequence, complete)


def _list(disk: Disk, codec: str) -> tuple[list[tuple[ChunkName, int]], bool]:
    """Names and lengths of all chunk files of one codec, and whether every folder could be listed."""
    found: list[tuple[ChunkName, int]] = []
    strangers: list[str] = []
    try:
        for array in disk.look("arrays").entries:
            if not array.is_folder or not _is_array(array.name, codec):
                strangers += [] if array.name == _ZARR_NAME else [array.name]
                continue
            for entry in disk.look(f"arrays/{array.name}").entries:
                name = None if entry.is_folder else ChunkName.parse(array.name, entry.name)
                if name is not None:
                    found.append((name, entry.nbytes))
                elif entry.name != _ZARR_NAME:
                    strangers.append(f"{array.name}/{entry.name}")
    except DiskError as error:
        _logger.error("the SSD folder cannot be listed, nothing will be written to it in this run: %s", error)
        return found, False
    if strangers:
        _logger.warning("%d names under arrays/ are no chunk files; left alone: %s", len(strangers), strangers[:8])
    return found, True


def _is_array(name: str, codec: str) -> bool:
    fingerprint, _, own_codec = name.partition("-")
    return own_codec == codec and len(fingerprint) == 64 and not set(fingerprint) - set("0123456789abcdef")


def _mark_alive(files: list[_File], epochs: Mapping[bytes, int]) -> None:
    """Mark the records of living epochs that are the last of their identity."""
    for file in files:
        living = [epochs.get(row.tobytes(), -1) for row in file.found["fingerprint"]]
        file.alive = np.array(living, dtype=np.int64) == file.found["epoch"].astype(np.int64)
    if not files:
        return
    rows = [np.flatnonzero(file.alive) for file in files]
    found = np.concatenate([file.found[own] for file, own in zip(files, rows, strict=True)])
    last = _last_of_each(found)
    start = 0
    for file, own in zip(files, rows, strict=True):
        file.alive[own] = last[start : start + len(own)]
        start += len(own)


def _last_of_each(found: FoundArray) -> BoolArray:
    """Which of `FOUND`[n] have the highest sequence of their identity: bool[n]."""
    words = [np.ascontiguousarray(found[name]).view("<u8") for name in ("fingerprint", "block_hash")]
    identity = np.concatenate(words, axis=1)
    order = np.lexsort((found["sequence"], *identity.T))
    last = np.ones(len(found), dtype=np.bool_)
    last[order[:-1]] = (identity[order[1:]] != identity[order[:-1]]).any(axis=1)
    return last


def _batches(file: _File, epochs: Mapping[bytes, int]) -> Iterator[Recovered]:
    """A file's living records by namespace, in file order, in batches."""
    living = file.found[file.alive]
    names = [row.tobytes() for row in living["fingerprint"]]
    for fingerprint in dict.fromkeys(names):
        rows = np.flatnonzero([name == fingerprint for name in names])
        for first in range(0, len(rows), RECOVERED_BLOCKS_MAX):
            own = living[rows[first : first + RECOVERED_BLOCKS_MAX]]
            extents = Extents(
                np.full(len(own), file.chunk.file_id, dtype=np.int32),
                own["page"].astype(np.uint32),
                own["encoded_nbytes"].astype(np.uint32),
                own["payload_checksum"].astype(np.uint32),
            )
            hashes = np.ascontiguousarray(own["block_hash"])
            yield Recovered(fingerprint, epochs[fingerprint], hashes, extents)
