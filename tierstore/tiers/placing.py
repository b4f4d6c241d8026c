"""Appends runs of records to the current file of their array, and to the next file when that is full.

Called by the SSD tier on its write worker. After any failure the file takes no more records, and nothing staged
behind the failed write counts as written.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from tierstore.errors import DiskError
from tierstore.types import Extents, Outcome

if TYPE_CHECKING:
    from tierstore.disk.watched import WatchedDisk
    from tierstore.tiers.batch import Run
    from tierstore.tiers.chunkfile import ChunkFile
    from tierstore.tiers.folder import ChunkFolder
    from tierstore.tiers.writing import RecordWriter

__all__ = ["RunPlacer"]

_logger = logging.getLogger(__name__)


class RunPlacer:
    """Appends runs, one array at a time.

    Args:
        disk: Remembers what failed, for the thread that asks.
        folder: Provides the files.
        writer: Writes the records.
    """

    def __init__(self, disk: WatchedDisk, folder: ChunkFolder, writer: RecordWriter) -> None:
        self._disk = disk
        self._folder = folder
        self._writer = writer

    def append(self, run: Run, array: str) -> Outcome:
        """Begin to append a run, split at the ends of files. OK, or why the rest is not written. Blocks."""
        src = run.batch.src
        old = (
            [self._folder.files[file] for file in set(src.file[run.left].tolist())] if isinstance(src, Extents) else []
        )
        for leaving in old:
            self._folder.retire(leaving)

        def fitting(chunk: ChunkFile) -> int:
            return run.fitting(chunk, kept_nbytes=self._folder.kept_nbytes(chunk, old))

        while len(run.left):
            file = self._folder.appended(array)
            if file is not None and not fitting(self._folder.files[file]) and not self.drain(array):
                return Outcome.IO_ERROR  # before that file is sealed
            chunk = self._folder.place(array, fitting, reserved=bool(old))
            if isinstance(chunk, Outcome):
                return chunk
            for leaving in old:
                leaving.heirs.add(chunk)
            kept_nbytes = self._folder.kept_nbytes(chunk, old)
            if not self._attempt(array, partial(self._writer.append, run, chunk, kept_nbytes=kept_nbytes)):
                return Outcome.IO_ERROR
        return Outcome.OK

    def drain(self, array: str) -> bool:
        """Block until everything appended is written. False if a write failed; its rows are open again."""
        return self._attempt(array, self._writer.drain)

    def _attempt(self, array: str, write: Callable[[], None]) -> bool:
        try:
            with self._disk.watching():  # what failed on the thread that writes is known on this one
                write()
        except DiskError as error:
            _logger.debug("blocks not written to SSD: %s", error)  # the store's health tells it, once
            file = self._folder.appended(array)
            if file is not None:
                self._folder.abandon(self._folder.files[file])
            return False
        return True
