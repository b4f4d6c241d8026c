"""Room on SSD: which blocks each chunk file holds, and which file is reclaimed next. Pure; under the engine's lock.

The tier's write worker decides where a block lies and reports it; this ledger records the blocks of each file. When
room is short a whole file is reclaimed: the coldest (`coldest`), now and then the oldest. First its warm blocks are
written again: those that a waiting request needs, and the latest that a get has used, up to a share of the file so
that room is won. Its other blocks are forgotten. The file is discarded once no job reads it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from tierstore.control.coldest import ages, coldest, without_new
from tierstore.control.directory import READ_BACK, REWRITING, UNREADABLE
from tierstore.control.entry import State
from tierstore.metrics import Metric
from tierstore.types import TierName

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tierstore.control.directory import Directory
    from tierstore.metrics import Metrics
    from tierstore.types import Extents, Int32Array, Int64Array

__all__ = ["SsdRoom"]

_RECLAIM_BLOCKS = 512
"""Blocks of a file looked at in one step, to bound a lock hold."""

_OLDEST_EVERY = 32
"""One of so many reclaimed files is the oldest: a tombstone must be kept until all files older than it are gone."""


@dataclass(slots=True)
class _Ledger:
    """The blocks of one chunk file, and the copies that read it.

    Attributes:
        batches: int32 arrays of entries, as they were appended; some may have left since.
        readers: Blocks that jobs in flight read from it.
        num_blocks: Blocks ever appended.
        num_rewritten: Blocks written again since it was chosen to be reclaimed.
        num_rewritten_max: Blocks that may be written again.
        warm_above: Blocks of a higher age (`ages`) are warm, once it was chosen.
        leaving: Its discard is in flight.
    """

    batches: list[Int32Array] = field(default_factory=list)
    readers: int = 0
    num_blocks: int = 0
    num_rewritten: int = 0
    num_rewritten_max: int = 0
    warm_above: int = 0
    leaving: bool = False


class SsdRoom:
    """The files of the SSD tier.

    Args:
        directory: Its SSD columns are changed here.
        reclaim_below_nbytes: Reclaim a file when the tier can take less than this.
        rewrite_share: Share of a reclaimed file's blocks that may be written again; of an oldest file, all may. With
            one half the coldest files cause at most as many writes again as first writes.
        metrics: Where it counts.

    Attributes:
        free_nbytes: What the tier can take, as its last result said.
        kept_as_it_is: Reclaim no further file: writes are off although the SSD is not full, so room is of no use.
    """

    def __init__(self, directory: Directory, reclaim_below_nbytes: int, rewrite_share: float, metrics: Metrics) -> None:
        self._directory = directory
        self._reclaim_below_nbytes = reclaim_below_nbytes
        self._rewrite_share = rewrite_share
        self._files: dict[int, _Ledger] = {}
        self._leaving: int | None = None
        self._num_chosen = 0
        self._stuck = False
        self._in_doubt: set[int] = set()
        self._refused = False
        self.free_nbytes = reclaim_below_nbytes
        self.kept_as_it_is = False
        self._metrics = metrics

    def reserve(self, entries: Int64Array) -> None:
        """ABSENT → FILLING for blocks about to be written. READY ones, in files in doubt, are dropped first."""
        self.discard(entries[self._directory.ssd.state[entries] == State.READY])
        self._directory.ssd.reserve(entries)

    def written(self, entries: Int64Array, extents: Extents) -> None:
        """FILLING → READY, in the extents where the write put them."""
        self._directory.ssd.filled(entries)
        self._directory.flags[entries] &= ~(READ_BACK | UNREADABLE)
        self._place(entries, extents)

    def moved(self, entries: Int64Array, extents: Extents) -> None:
        """A rewrite has put READY blocks into another file."""
        self._place(entries, extents)

    def _place(self, entries: Int64Array, extents: Extents) -> None:
        """Enter blocks in the ledger. The caller releases the entries."""
        self._refused = False
        self._directory.set_extents(entries, extents)
        files = extents.file
        for file in dict.fromkeys(files.tolist()):
            ledger = self._files.setdefault(file, _Ledger())
            own = entries[files == file]
            if ledger.leaving:  # written before the file's discard was planned; the result came after
                self.forget(own)
                continue
            ledger.batches.append(own.astype(np.int32))
            ledger.num_blocks += len(own)

    def adopt_files(self, files: list[int]) -> None:
        """Enter files that an earlier run wrote, oldest first."""
        for file in files:
            self._files.setdefault(file, _Ledger())

    def known(self, files: Int32Array) -> NDArray[np.bool_]:
        """Which of these files are in the ledger and not being reclaimed."""
        return np.isin(files, [file for file in self._files if file != self._leaving])

    def doubt(self, files: Iterable[int]) -> None:
        """Mark files that a sync failed to make durable. Their blocks are served, and may be written once more."""
        self._in_doubt.update(file for file in files if file in self._files)

    def lasting(self, entries: Int64Array) -> NDArray[np.bool_]:
        """Which blocks are READY and not in a file in doubt; false where the entry is -1."""
        there: NDArray[np.bool_] = (entries >= 0) & (self._directory.ssd.state[entries] == State.READY)
        if self._in_doubt:
            there &= ~np.isin(self._directory.ssd_file[entries], list(self._in_doubt))
        return there

    def wanting(self, entries: Int64Array) -> NDArray[np.bool_]:
        """Which blocks may be written: ABSENT ones, and unpinned READY ones in a file in doubt."""
        ssd = self._directory.ssd
        state = ssd.state[entries]
        wanting: NDArray[np.bool_] = state == State.ABSENT
        if self._in_doubt:
            wanting |= (state == State.READY) & (ssd.pins[entries] == 0) & ~self.lasting(entries)
        return wanting

    def failed(self, entries: Int64Array) -> None:
        """FILLING → ABSENT. The caller releases the entries."""
        self._directory.ssd.failed(entries)

    def pin(self, entries: Int64Array) -> None:
        """Pin READY blocks, and keep their files, for a read or a rewrite."""
        self._directory.ssd.pin(entries)
        for file in self._directory.ssd_file[entries].tolist():
            self._files[file].readers += 1

    def unpin(self, entries: Int64Array, files: Int32Array) -> None:
        """Undo one `pin`; `files` are those that held the blocks at that time. The caller releases the entries."""
        self._directory.ssd.unpin(entries)
        for file in files.tolist():
            self._files[file].readers -= 1

    def end_rewrite(self, entries: Int64Array, files: Int32Array) -> None:
        """The rewrite of warm blocks has ended, well or not: undo the mark of `reclaim` and one `pin`."""
        self._directory.flags[entries] &= ~REWRITING
        self.unpin(entries, files)

    def drop_write(self, entries: Int64Array) -> None:
        """The write of blocks that are GONE has ended. The caller releases the entries."""
        self._directory.ssd.unpin(entries)

    def discard(self, entries: Int64Array) -> None:
        """Drop blocks in any state; their bytes stay until the file goes. The caller releases the entries."""
        directory = self._directory
        state = directory.ssd.state[entries]
        held = entries[state == State.READY]
        rewriting = directory.flags[held] & REWRITING > 0
        self.count_read(held[directory.ssd.pins[held] > rewriting])  # a read in flight counts as a read
        unread = np.count_nonzero(directory.flags[held] & READ_BACK == 0)
        self._metrics.add(Metric.SSD_WRITTEN_BLOCKS, int(unread), "wasted")
        directory.ssd.discard(entries[state != State.GONE])

    def forget(self, entries: Int64Array) -> None:
        """Drop READY blocks whose file is reclaimed, and count them as evicted. The caller releases the entries."""
        self._metrics.add(Metric.EVICTED_BLOCKS, len(entries), TierName.SSD)
        self.discard(entries)

    def count_read(self, entries: Int64Array) -> None:
        """Count writes as useful whose blocks are read for the first time; clear UNREADABLE."""
        flags = self._directory.flags[entries]
        if np.count_nonzero(flags & (READ_BACK | UNREADABLE) == READ_BACK) < len(entries):
            self._metrics.add(Metric.SSD_WRITTEN_BLOCKS, int(np.count_nonzero(flags & READ_BACK == 0)), "useful")
            self._directory.flags[entries] = (flags | READ_BACK) & ~UNREADABLE

    @property
    def reclaiming(self) -> bool:
        """Whether a file is being reclaimed, or should be."""
        if self._leaving is not None:
            return True
        directory = self._directory
        index_full = directory.room <= directory.capacity >> 6
        wanted = index_full or self.free_nbytes < self._reclaim_below_nbytes
        return wanted and len(self._files) > 1 and not self._refused and not self.kept_as_it_is

    @property
    def forgetting(self) -> bool:
        """Whether `reclaim` has blocks to look at now."""
        if self._leaving is None:
            return self.reclaiming
        return bool(self._files[self._leaving].batches)

    def reclaim(self) -> Int64Array:
        """Look at a bounded number of blocks of the file being reclaimed, chosen here if none is; forget the cold ones.

        Returns:
            The warm ones, READY and unpinned: the caller has them written again.
        """
        if self._leaving is None:
            self._leaving = self._choose()
        file, ledger = self._leaving, self._files[self._leaving]
        directory, looked_at = self._directory, [np.empty(0, np.int32)]
        budget = _RECLAIM_BLOCKS
        while ledger.batches and budget > 0:
            batch = ledger.batches.pop()
            if len(batch) > budget:
                ledger.batches.append(batch[budget:])
                batch = batch[:budget]
            budget -= len(batch)
            looked_at.append(batch)
        entries = np.unique(np.concatenate(looked_at)).astype(np.int64)
        here = (directory.ssd.state[entries] == State.READY) & (directory.ssd_file[entries] == file)
        live = entries[here & (directory.flags[entries] & REWRITING == 0)]
        return self._keep_warm(ledger, live)

    def _choose(self) -> int:
        """Choose the file to reclaim next, and set which of its blocks are warm."""
        self._num_chosen += 1
        files = without_new({file: ledger.num_blocks for file, ledger in self._files.items()})
        share = self._rewrite_share
        if self._stuck or self._num_chosen % _OLDEST_EVERY == 0:
            files, share = dict(list(files.items())[:1]), 1.0
        leaving = coldest(self._directory, files, share)
        ledger = self._files[leaving.file]
        ledger.warm_above, ledger.num_rewritten_max = leaving.warm_above, int(share * ledger.num_blocks)
        return leaving.file

    def _keep_warm(self, ledger: _Ledger, live: Int64Array) -> Int64Array:
        """Forget the cold ones of these blocks; mark the warm ones and return them, youngest first."""
        directory, age = self._directory, ages(self._directory, live)
        youngest = np.argsort(-age, kind="stable")
        wanted = (directory.hits[live] > 0) | (directory.next_use[live] > 0)
        keep = wanted & (age > ledger.warm_above) & (directory.ssd.pins[live] == 0)
        warm: Int64Array = live[youngest][keep[youngest]][: max(0, ledger.num_rewritten_max - ledger.num_rewritten)]
        ledger.num_rewritten += len(warm)
        directory.flags[warm] |= REWRITING
        cold = np.setdiff1d(live, warm, assume_unique=True)
        self.forget(cold)
        directory.release(cold)
        return warm

    def take_empty(self) -> int | None:
        """The file being reclaimed, once all its blocks were looked at and no job reads it; None before and after."""
        if self._leaving is None:
            return None
        ledger = self._files[self._leaving]
        if ledger.batches or ledger.readers or ledger.leaving:
            return None
        ledger.leaving = True
        return self._leaving

    def discarded(self, file: int, free_nbytes: int | None) -> None:
        """A discard has ended. If it won no room, the file's tombstones had no room either: take the oldest next."""
        del self._files[file]
        self._stuck = free_nbytes is not None and free_nbytes <= self.free_nbytes
        self._leaving = None
        self._in_doubt.discard(file)
        self._metrics.add(Metric.RECLAIMED_FILES, 1)
        if free_nbytes is not None:
            self.free_nbytes = free_nbytes

    def kept(self, file: int) -> None:
        """The link refused the file's discard, because it was full; the next write that ends allows another try."""
        self._files[file].leaving = False
        self._leaving = None
        self._refused = True

    def check(self) -> None:
        """Assert that every READY block lies in a file of the ledger, once."""
        directory = self._directory
        ready = (directory.ssd.state[: directory.high_water] == State.READY).nonzero()[0]
        files = set(directory.ssd_file[ready].tolist())
        assert files <= set(self._files), f"blocks in files the ledger does not know: {files - set(self._files)}"
        for file, ledger in self._files.items():
            held = np.concatenate([np.empty(0, np.int64), *ledger.batches])
            own = ready[(directory.ssd_file[ready] == file) & (directory.ssd.pins[ready] == 0)]
            assert np.isin(own, held).all(), f"file {file} holds blocks that its ledger misses"
            assert ledger.readers >= 0, f"file {file}: {ledger.readers} readers"
