"""Room on SSD: the ledger of chunk files and the choice of the file to reclaim. Pure; under the engine's lock.

Files go first in, first out, whole. The tier's write worker decides where a block lies and reports it;
this ledger remembers which blocks each file holds, forgets them when a file's turn has come, and lets the
file go only when no read is left in it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from tierstore.control.entry import State
from tierstore.metrics import Metric
from tierstore.types import TierName

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tierstore.control.directory import Directory
    from tierstore.metrics import Metrics
    from tierstore.types import Extents, Int32Array

__all__ = ["SsdRoom"]

_RECLAIM_BLOCKS = 512
"""Blocks of a file forgotten in one step, to bound a lock hold."""


@dataclass(slots=True)
class _Ledger:
    """What one chunk file holds: batches of entries as they were appended, and reads that outlive their block."""

    batches: list[Int32Array] = field(default_factory=list)
    gone: int = 0
    leaving: bool = False


class SsdRoom:
    """The files of the SSD tier.

    Args:
        directory: Whose SSD columns it changes.
        reclaim_below_nbytes: Reclaim the oldest file when the tier can take less than this.
        metrics: Counted into.
    """

    def __init__(self, directory: Directory, reclaim_below_nbytes: int, metrics: Metrics) -> None:
        self._directory = directory
        self._reclaim_below_nbytes = reclaim_below_nbytes
        self._files: dict[int, _Ledger] = {}
        self._leaving: int | None = None
        self.free_nbytes = reclaim_below_nbytes
        self._metrics = metrics

    def reserve(self, entries: Int32Array) -> None:
        """ABSENT → FILLING: a write is promised."""
        self._directory.ssd.reserve(entries)
        self._directory.ssd_file[entries] = -1

    def written(self, entries: Int32Array, extents: Extents) -> None:
        """FILLING → READY where the write put them."""
        self._directory.ssd.filled(entries)
        self._directory.set_extents(entries, extents)
        files = extents.file
        for file in dict.fromkeys(files.tolist()):
            ledger = self._files.setdefault(file, _Ledger())
            ledger.batches.append(entries[files == file])

    def adopt_files(self, files: list[int]) -> None:
        """Enter files that an earlier run wrote, oldest first."""
        for file in files:
            self._files.setdefault(file, _Ledger())

    def known(self, files: Int32Array) -> NDArray[np.bool_]:
        """Which of these files are still here and staying."""
        return np.isin(files, [file for file in self._files if file != self._leaving])

    def failed(self, entries: Int32Array) -> None:
        """FILLING → ABSENT. The caller releases the entries."""
        self._directory.ssd.failed(entries)

    def pin(self, entries: Int32Array) -> None:
        """Hold READY blocks for a read."""
        self._directory.ssd.pin(entries)

    def unpin(self, entries: Int32Array) -> None:
        """End a read, or the write of a block that is GONE."""
        _loose, gone = self._directory.ssd.unpin(entries)
        for file in self._directory.ssd_file[gone].tolist():
            if file >= 0:
                self._files[file].gone -= 1
        self._directory.release(gone)

    def discard(self, entries: Int32Array) -> None:
        """Drop blocks in any state; their bytes stay until the file goes. The caller releases the entries."""
        directory = self._directory
        _freed, gone = directory.ssd.discard(entries[directory.ssd.state[entries] != State.GONE])
        for file in directory.ssd_file[gone].tolist():
            if file >= 0:
                self._files[file].gone += 1

    @property
    def reclaiming(self) -> bool:
        """Whether a file is on its way out, or should be."""
        return self._leaving is not None or (self.free_nbytes < self._reclaim_below_nbytes and len(self._files) > 1)

    @property
    def forgetting(self) -> bool:
        """Whether `reclaim` can go on at once."""
        if self._leaving is None:
            return self.reclaiming
        return bool(self._files[self._leaving].batches)

    def reclaim(self) -> int | None:
        """Forget a bounded number of the oldest file's blocks.

        Returns:
            The file, once nothing of it is known or pinned any more: it may be discarded. Else None.
        """
        if self._leaving is None:
            if not self.reclaiming:
                return None
            self._leaving = next(iter(self._files))
        file, ledger = self._leaving, self._files[self._leaving]
        if ledger.leaving:
            return None
        self._forget(file, ledger)
        if ledger.batches or ledger.gone:
            return None
        ledger.leaving = True
        return file

    def _forget(self, file: int, ledger: _Ledger) -> None:
        directory, budget = self._directory, _RECLAIM_BLOCKS
        while ledger.batches and budget > 0:
            batch = ledger.batches.pop()
            if len(batch) > budget:
                ledger.batches.append(batch[budget:])
                batch = batch[:budget]
            budget -= len(batch)
            live = batch[(directory.ssd.state[batch] == State.READY) & (directory.ssd_file[batch] == file)]
            self._metrics.add(Metric.EVICTED_BLOCKS, len(live), TierName.SSD)
            self.discard(live)
            directory.release(live)

    def discarded(self, file: int, free_nbytes: int | None) -> None:
        """The tier has given the file back."""
        del self._files[file]
        self._leaving = None
        self._metrics.add(Metric.RECLAIMED_FILES, 1)
        if free_nbytes is not None:
            self.free_nbytes = free_nbytes

    def check(self) -> None:
        """Assert that every READY block lies in a file of the ledger, once."""
        directory = self._directory
        ready = (directory.ssd.state[: directory.high_water] == State.READY).nonzero()[0]
        files = set(directory.ssd_file[ready].tolist())
        assert files <= set(self._files), f"blocks in files the ledger does not know: {files - set(self._files)}"
        for file, ledger in self._files.items():
            held = np.concatenate(ledger.batches) if ledger.batches else np.empty(0, np.int32)
            own = ready[directory.ssd_file[ready] == file]
            assert np.isin(own, held).all(), f"file {file} holds blocks that its ledger misses"
            assert ledger.gone >= 0, f"file {file}: {ledger.gone} reads outlive their blocks"
