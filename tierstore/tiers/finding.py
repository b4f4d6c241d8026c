"""Finds the records in chunk files, and which of them count. Reads only.

Called when a store starts: by recovery, which continues the folder, and by the read-only tier, which looks at a
folder beside its owner. Sealed files are read by their footers, open ones are scanned. Of each identity, blocks and
tombstones together, the record with the highest sequence counts. Records of epochs that are over, and of namespaces
that the manifest does not know, are dropped.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tierstore.disk.base import Disk
from tierstore.errors import DiskError
from tierstore.tiers.base import Recovered
from tierstore.tiers.chunkfile import ChunkFile, ChunkName
from tierstore.tiers.footer import Keys, read_footer
from tierstore.tiers.living import Census, last_of_each
from tierstore.tiers.scan import Advance, Scanner
from tierstore.tiers.tombstone import load_tombstone
from tierstore.tiers.zarr_metadata import ZARR_NAME
from tierstore.types import Extents

if TYPE_CHECKING:
    from tierstore.tiers.living import FoundArray
    from tierstore.tiers.record import BoolArray
    from tierstore.tiers.zarr_metadata import Geometry

__all__ = ["RECOVERED_BLOCKS_MAX", "FoundFile", "batches", "list_chunks", "mark_alive", "read_chunk"]

RECOVERED_BLOCKS_MAX = 8192
"""Blocks of one `Recovered`."""

_ARRAY_NAME = re.compile(r"[0-9a-f]{64}-.+")

_logger = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class FoundFile:
    """A chunk file and the records found in it.

    Attributes:
        chunk: The file.
        keys: Of an open file; None once a sealed one has been taken account of.
        readable: Whether every page could be read. If not, the file is neither continued nor reclaimed.
        last_sequence: The highest of its records; -1 if there is none.
        blocks: `FOUND`[n]; blocks of living epochs, in file order.
        deleted: `FOUND`[n]; blocks of living epochs that its tombstones delete.
        alive: bool[n]; blocks that count.
    """

    chunk: ChunkFile
    keys: Keys | None
    readable: bool
    last_sequence: int
    blocks: FoundArray
    deleted: FoundArray
    alive: BoolArray


def list_chunks(disk: Disk) -> tuple[list[tuple[ChunkName, int]], bool]:
    """Names and lengths of all chunk files, and whether every folder could be listed."""
    found: list[tuple[ChunkName, int]] = []
    strangers: list[str] = []
    try:
        for array in disk.look("arrays").entries:
            if not array.is_folder or not _ARRAY_NAME.fullmatch(array.name):
                strangers += [] if array.name == ZARR_NAME else [array.name]
                continue
            for entry in disk.look(f"arrays/{array.name}").entries:
                name = None if entry.is_folder else ChunkName.parse(array.name, entry.name)
                if name is not None:
                    found.append((name, entry.nbytes))
                elif entry.name not in (ZARR_NAME, f"{ZARR_NAME}.new"):
                    strangers.append(f"{array.name}/{entry.name}")
    except DiskError as error:
        _logger.error("the SSD folder cannot be listed, nothing will be written to it in this run: %s", error)
        return found, False
    if strangers:
        _logger.warning("%d names under arrays/ are no chunk files; left alone: %s", len(strangers), strangers[:8])
    return found, True


def read_chunk(chunk: ChunkFile, geometry: Geometry | None, census: Census, advance: Advance) -> FoundFile:
    """Find the records of a file, by its footer where it is sealed."""
    keys, readable = _footer(chunk, geometry), True
    if keys is not None:
        advance(chunk.nbytes)
    else:
        scanner = Scanner()
        keys, readable = scanner.records(chunk, advance)
        intact, payloads_readable = scanner.intact(chunk, keys)
        keys, readable = keys.only(intact), readable and payloads_readable
    chunk.know(keys)
    last_sequence = int(keys.rows["sequence"].max()) if len(keys) else -1
    blocks = census.blocks(keys)
    tombstones, unread = [], 0
    for page in chunk.tombstone_pages:
        try:
            tombstone = load_tombstone(chunk, page)
        except DiskError as error:
            _logger.warning("deletions in %s are not known in this run: %s", chunk.name.path, error)
            unread += 1
            continue
        tombstones += [] if tombstone is None else [tombstone]
    readable = readable and not unread
    alive = np.ones(len(blocks), dtype=np.bool_)
    open_keys = None if chunk.name.axes and len(keys) else keys
    return FoundFile(chunk, open_keys, readable, last_sequence, blocks, census.deleted(tombstones), alive)


def _footer(chunk: ChunkFile, geometry: Geometry | None) -> Keys | None:
    """The keys of a sealed file; None where it is open, or its footer is of no use."""
    if not chunk.name.axes:
        return None
    try:
        keys = read_footer(chunk.file, nbytes=chunk.nbytes, slots=geometry.slots) if geometry else None
    except DiskError as error:
        _logger.warning("%s", error)
        keys = None
    if keys is None:
        _logger.warning("%s has no footer that verifies; it is scanned", chunk.name.path)
    return keys


def mark_alive(files: list[FoundFile]) -> None:
    """Mark the blocks whose records count: those with the highest sequence of their identity."""
    if not files:
        return
    last = last_of_each(np.concatenate([*(file.blocks for file in files), *(file.deleted for file in files)]))
    start = 0
    for file in files:
        file.alive = last[start : start + len(file.blocks)]
        start += len(file.blocks)


def batches(file: FoundFile, census: Census) -> Iterator[Recovered]:
    """A file's living blocks by namespace, in file order, in batches."""
    living = file.blocks[file.alive]
    order = np.argsort(living["life"], kind="stable")
    edges = np.flatnonzero(np.diff(living["life"][order])) + 1
    for rows in np.split(order, edges) if len(order) else []:
        fingerprint, epoch = census.lives[int(living["life"][rows[0]])]
        for first in range(0, len(rows), RECOVERED_BLOCKS_MAX):
            own = living[rows[first : first + RECOVERED_BLOCKS_MAX]]
            extents = Extents(
                np.full(len(own), file.chunk.file_id, dtype=np.int32),
                own["page"].astype(np.uint32),
                own["encoded_nbytes"].astype(np.uint32),
                own["payload_checksum"].astype(np.uint32),
            )
            hashes = np.ascontiguousarray(own["hash_words"]).view(np.uint8)
            yield Recovered(fingerprint, epoch, hashes, extents)
