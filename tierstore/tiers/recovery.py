"""Finds what an earlier run left in the chunk files, and leaves the folder ready for more.

Called once by the SSD tier when it starts. Sealed files are known by their footers, open ones are scanned, on a
few threads. Of each identity the record with the highest sequence counts; epochs that are over and namespaces
the manifest does not know are dropped; files without a living record are given back; the newest open file of
each array is continued, the others are sealed. Names that are none of ours are left alone.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING

import numpy as np

from tierstore.disk.base import Disk
from tierstore.errors import DiskError
from tierstore.tiers.base import Progress, Recovered
from tierstore.tiers.chunkfile import ChunkFile, ChunkName
from tierstore.tiers.folder import ChunkFolder
from tierstore.tiers.footer import Keys, read_footer
from tierstore.tiers.living import Census, last_of_each
from tierstore.tiers.progress import logged_in_tenths
from tierstore.tiers.scan import Scanner
from tierstore.tiers.tombstone import Graves, load_tombstone
from tierstore.tiers.zarr_metadata import ZARR_NAME
from tierstore.types import Extents
from tierstore.worker import Worker

if TYPE_CHECKING:
    from tierstore.tiers.living import FoundArray
    from tierstore.tiers.record import BoolArray
    from tierstore.tiers.zarr_metadata import Geometry

__all__ = ["RECOVERED_BLOCKS_MAX", "Recovery", "recover"]

RECOVERED_BLOCKS_MAX = 8192
"""Blocks of one `Recovered`."""

_THREADS = 4

_JOB_RECORDS_MAX = 1 << 16
"""Sequences of one job: records of this run begin at a multiple of it."""

_UNSEEN_SEQUENCES = 1 << 48
"""Sequences left out where something could not be read: what lies there may be newer than all that was seen."""

_ARRAY_NAME = re.compile(r"[0-9a-f]{64}-.+")

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Recovery:
    """What a start found.

    Attributes:
        blocks: Oldest file first; of one file, by namespace.
        sequence_base: A multiple of 65,536 above the sequence of every record seen.
        complete: Whether the whole folder could be listed. Where not, nothing may be written to it.
    """

    blocks: list[Recovered]
    sequence_base: int
    complete: bool


@dataclass(slots=True, eq=False)
class _File:
    """A chunk file under recovery.

    Attributes:
        chunk: The file.
        keys: Of an open file; None once a sealed one has been taken account of.
        readable: Whether every page could be read. If not it is neither continued nor given back.
        last_sequence: The highest of its records; -1 where there is none.
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


def recover(
    disk: Disk,
    folder: ChunkFolder,
    graves: Graves,
    epochs: Mapping[bytes, int],
    *,
    codecs: Collection[str],
    progress: Progress | None = None,
) -> Recovery:
    """Find every record of every chunk file; blocks. Never raises for a failing disk.

    Args:
        disk: The folder's disk.
        folder: Receives the files.
        graves: Keeps the tombstones of files that are given back.
        epochs: The living epoch of each known namespace, by fingerprint.
        codecs: Names of the codecs whose arrays can be read.
        progress: Told of the bytes of chunk files; None: the log is.
    """
    listed, complete = _list(disk)
    names = _readable(listed, folder, codecs)
    geometries = {array: folder.adopt_array(array) for array in sorted({name.array for name, _ in names})}
    adopted = [chunk for name, nbytes in names if (chunk := folder.adopt(name, nbytes)) is not None]
    census = Census(epochs)
    files = _read_all(adopted, geometries, census, progress or logged_in_tenths())
    files.sort(key=lambda file: file.last_sequence)
    sequence_base = (max((file.last_sequence for file in files), default=-1) // _JOB_RECORDS_MAX + 1) * _JOB_RECORDS_MAX
    if len(files) < len(listed) or not all(file.readable for file in files):
        sequence_base += _UNSEEN_SEQUENCES
    files = [file for file in files if not _is_foreign(file, folder)]
    _mark_alive(files)
    _take_up(files, folder)
    for file in tuple(files):
        of_use = file.alive.any() or not file.readable or (file.chunk.appendable and file.chunk.tombstone_pages)
        if folder.over_capacity or not of_use:
            graves.discard(file.chunk.file_id)
            files.remove(file)
    return Recovery([batch for file in files for batch in _batches(file, census)], sequence_base, complete)


def _list(disk: Disk) -> tuple[list[tuple[ChunkName, int]], bool]:
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


def _readable(
    names: list[tuple[ChunkName, int]], folder: ChunkFolder, codecs: Collection[str]
) -> list[tuple[ChunkName, int]]:
    """The files whose codec is known; the others are left alone and count."""
    unknown = {name.codec for name, _ in names} - set(codecs)
    if unknown:
        _logger.warning("codecs %s are not installed: their blocks take space and are not served", sorted(unknown))
    for name, nbytes in names:
        if name.codec in unknown:
            folder.ignore(name, nbytes)
    return [(name, nbytes) for name, nbytes in names if name.codec not in unknown]


def _read_all(
    chunks: list[ChunkFile], geometries: Mapping[str, Geometry | None], census: Census, progress: Progress
) -> list[_File]:
    """Read what lies in all files, several at once; blocks."""
    total_nbytes = sum(chunk.nbytes for chunk in chunks)
    done_nbytes, lock = 0, Lock()
    files: list[_File] = []

    def advance(nbytes: int) -> None:
        nonlocal done_nbytes
        with lock:
            done_nbytes = min(total_nbytes, done_nbytes + nbytes)
            progress(done_nbytes, total_nbytes)

    def read(chunk: ChunkFile) -> None:
        files.append(_read(chunk, geometries[chunk.name.array], census, advance))

    worker = Worker("ssd-recover", capacity=max(1, len(chunks)), threads=max(1, min(_THREADS, len(chunks))))
    for chunk in chunks:
        worker.submit(partial(read, chunk))
    worker.close()
    if worker.failure is not None:
        raise worker.failure
    return files


def _read(chunk: ChunkFile, geometry: Geometry | None, census: Census, advance: Callable[[int], None]) -> _File:
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
    return _File(chunk, open_keys, readable, last_sequence, blocks, census.deleted(tombstones), alive)


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


def _is_foreign(file: _File, folder: ChunkFolder) -> bool:
    """Whether a file has a sealed file's name and not one record; then it is left alone."""
    if not file.chunk.name.axes or not file.readable or file.last_sequence >= 0:
        return False
    _logger.warning(
        "%s holds no record of this store: it is left alone and never served; move it away to free its number",
        file.chunk.name.path,
    )
    folder.disown(file.chunk)
    return True


def _mark_alive(files: list[_File]) -> None:
    """Mark the blocks that are the last word on their identity."""
    if not files:
        return
    last = last_of_each(np.concatenate([*(file.blocks for file in files), *(file.deleted for file in files)]))
    start = 0
    for file in files:
        file.alive = last[start : start + len(file.blocks)]
        start += len(file.blocks)


def _take_up(files: list[_File], folder: ChunkFolder) -> None:
    """Continue the newest open file of each array and seal the others, as far as they are whole."""
    continued: set[str] = set()
    for file in reversed(files):
        chunk = file.chunk
        if file.keys is None or not len(file.keys) or not file.readable or chunk.name.axes:
            continue
        if folder.resume(chunk, file.keys):
            if chunk.name.array in continued:
                folder.seal(chunk)
            else:
                folder.continue_with(chunk)
                continued.add(chunk.name.array)


def _batches(file: _File, census: Census) -> Iterator[Recovered]:
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
