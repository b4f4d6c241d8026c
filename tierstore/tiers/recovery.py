"""Recovers the blocks of an earlier run from the chunk files, and makes the folder ready for writing.

Called once by the SSD tier when it starts. A few threads read the files (see `finding`). Files without a record that
counts are removed, then the oldest files until a clean file fits within the capacity. The newest open file of each
array is continued, the others are sealed. Files with foreign names are left alone.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING

from tierstore.disk.base import Disk
from tierstore.errors import DiskError
from tierstore.tiers.base import Progress, Recovered
from tierstore.tiers.chunkfile import ChunkFile, ChunkName
from tierstore.tiers.finding import FoundFile, batches, list_chunks, mark_alive, read_chunk
from tierstore.tiers.folder import ChunkFolder
from tierstore.tiers.living import Census
from tierstore.tiers.progress import logged_progress
from tierstore.tiers.tombstone import Graves
from tierstore.worker import Worker

if TYPE_CHECKING:
    from tierstore.tiers.zarr_metadata import Geometry

__all__ = ["Recovery", "recover"]

_THREADS = 4

_JOB_RECORDS_MAX = 1 << 16
"""Sequences of one job: records of this run begin at a multiple of it."""

_UNSEEN_SEQUENCES = 1 << 48
"""Sequences left out where something could not be read: what lies there may be newer than all that was seen."""

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Recovery:
    """The result of a recovery.

    Attributes:
        blocks: Oldest file first; within a file, by namespace.
        sequence_base: A multiple of 65,536 above the sequence of every record seen.
        complete: Whether the whole folder could be listed. If not, nothing may be written to it.
    """

    blocks: list[Recovered]
    sequence_base: int
    complete: bool


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
        graves: Keeps the tombstones of files that are removed.
        epochs: The living epoch of each known namespace, by fingerprint.
        codecs: Names of the codecs whose arrays can be read.
        progress: Told how many bytes of chunk files are read. None: progress is logged.
    """
    listed, complete = list_chunks(disk)
    names = _readable(listed, folder, codecs)
    geometries = {array: folder.adopt_array(array) for array in sorted({name.array for name, _ in names})}
    adopted = [chunk for name, nbytes in names if (chunk := folder.adopt(name, nbytes)) is not None]
    census = Census(epochs)
    files = _read_all(adopted, geometries, census, progress or logged_progress())
    files.sort(key=lambda file: file.last_sequence)
    sequence_base = (max((file.last_sequence for file in files), default=-1) // _JOB_RECORDS_MAX + 1) * _JOB_RECORDS_MAX
    if len(files) < len(listed) or not all(file.readable for file in files):
        sequence_base += _UNSEEN_SEQUENCES
    files = [file for file in files if not _is_foreign(file, folder)]
    mark_alive(files)
    _take_up(files, folder)
    with folder.shrinking():
        files = _shrink(files, folder, graves)
    for file in files:  # oldest first, as they are to go
        folder.files[file.chunk.file_id] = folder.files.pop(file.chunk.file_id)
    if not files:
        with suppress(DiskError):
            folder.look()
    return Recovery([batch for file in files for batch in batches(file, census)], sequence_base, complete)


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
) -> list[FoundFile]:
    """Read what lies in all files, several at once; blocks."""
    total_nbytes = sum(chunk.nbytes for chunk in chunks)
    done_nbytes, lock = 0, Lock()
    files: list[FoundFile] = []

    def advance(nbytes: int) -> None:
        nonlocal done_nbytes
        with lock:
            done_nbytes = min(total_nbytes, done_nbytes + nbytes)
            progress(done_nbytes, total_nbytes)

    def read(chunk: ChunkFile) -> None:
        files.append(read_chunk(chunk, geometries[chunk.name.array], census, advance))

    worker = Worker("ssd-recover", capacity=max(1, len(chunks)), threads=max(1, min(_THREADS, len(chunks))))
    for chunk in chunks:
        worker.submit(partial(read, chunk))
    worker.close()
    if worker.failure is not None:
        raise worker.failure
    return files


def _is_foreign(file: FoundFile, folder: ChunkFolder) -> bool:
    """Whether a file has a sealed file's name and not one record; then it is left alone."""
    if not file.chunk.name.axes or not file.readable or file.last_sequence >= 0:
        return False
    _logger.warning(
        "%s holds no record of this store: it is left alone and never served; move it away to free its number",
        file.chunk.name.path,
    )
    folder.disown(file.chunk)
    return True


def _take_up(files: list[FoundFile], folder: ChunkFolder) -> None:
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


def _shrink(files: list[FoundFile], folder: ChunkFolder, graves: Graves) -> list[FoundFile]:
    """Remove useless files, then the oldest until a reserve fits; returns those that stay. Blocks."""
    useful: list[FoundFile] = []
    for file in files:
        if file.alive.any() or not file.readable or (file.chunk.appendable and file.chunk.tombstone_pages):
            useful.append(file)
        else:
            graves.discard(file.chunk.file_id)
    return [file for file in useful if folder.has_reserve or not graves.release(file.chunk.file_id)]
