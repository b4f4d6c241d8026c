"""A disk that counts the calls of a life, ends it at one of them, and remembers which records were written and removed.

Stands between a store and its disk. It changes nothing but the moment of death; what it says goes into the journal
before a removal and after a write. Must never be called again by a life that has ended: then every call fails.
"""

from __future__ import annotations

import errno
import re
import threading
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from bench.torture.blocks import records_in
from bench.torture.journal import Journal
from bench.torture.knowledge import blocks_in
from tierstore.disk.base import Buffer, Disk, File, Folder, Lock
from tierstore.errors import DiskError
from tierstore.types import PAGE_NBYTES

__all__ = ["Moment", "Trap", "Witness", "is_chunk_file", "used_nbytes"]

_CHUNK_NAME: Final = re.compile(r"arrays/[0-9a-f]{64}-[^/]+/(?:open-[0-9]+-[0-9a-f]{32}|c\.[0-9]+(?:\.0)+)")


def is_chunk_file(path: str) -> bool:
    """Whether a path is that of a chunk file, open or sealed."""
    return _CHUNK_NAME.fullmatch(path) is not None


def used_nbytes(disk: Disk) -> int:
    """The lengths of all chunk files together, as the disk says."""
    arrays = [entry.name for entry in disk.look("arrays").entries if entry.is_folder]
    return sum(
        entry.nbytes
        for array in arrays
        for entry in disk.look(f"arrays/{array}").entries
        if not entry.is_folder and is_chunk_file(f"arrays/{array}/{entry.name}")
    )


class Moment(StrEnum):
    """When in a call a life ends."""

    BEFORE = "before"
    HALFWAY = "halfway"
    AFTER = "after"


@dataclass(frozen=True, slots=True)
class Trap:
    """Where a life ends.

    Attributes:
        call: Number of the disk call; 0 where no call ends it.
        moment: Before it, after it, or in the middle: half written, half allocated.
        fall: Ends it; may return, and then every later call of this life fails.
    """

    call: int
    moment: Moment
    fall: Callable[[], None]


class Witness:
    """See above; implements `tierstore.disk.base.Disk`.

    Args:
        disk: The disk itself.
        journal: Told of records.
        trap: Where the life ends.
        hidden: Paths that cannot be opened in this life.
        alone: Whether only one call at a time may reach the disk: then none is under way when the life ends.

    Attributes:
        calls: Calls so far.
        ended: Whether the life has ended; may be set by whoever ends it.
    """

    def __init__(
        self, disk: Disk, journal: Journal, trap: Trap, *, hidden: Collection[str] = (), alone: bool = False
    ) -> None:
        self.disk = disk
        self.calls = 0
        self.ended = False
        self._journal = journal
        self._trap = trap
        self._hidden = frozenset(hidden)
        self._counting = threading.Lock()
        self._turn: AbstractContextManager[object] = threading.RLock() if alone else nullcontext()

    def call(self, operation: str, path: str, act: Callable[[], object], half: Callable[[], object]) -> None:
        """Do one call, or end in it. `half` does a part of it, for a life that ends halfway."""
        with self._turn:
            with self._counting:
                self.calls += 1
                moment = self._trap.moment if self.calls == self._trap.call else None
            self._check_alive(operation, path)
            if moment is None or moment is Moment.AFTER:
                act()
            elif moment is Moment.HALFWAY:
                half()
            if moment is not None:
                self.end()
                raise DiskError(operation, path, errno.EIO, "the life of its caller has ended")

    def end(self) -> None:
        """End the life now."""
        with self._turn:
            if not self.ended:
                self.ended = True
                self._trap.fall()

    def create(self, path: str, nbytes: int) -> File:
        """Create; halfway there is a file of some length."""
        made: list[File] = []
        half_nbytes = nbytes // 2 // PAGE_NBYTES * PAGE_NBYTES
        self.call(
            "create",
            path,
            lambda: made.append(self.disk.create(path, nbytes)),
            lambda: made.append(self.disk.create(path, half_nbytes)),
        )
        return WitnessFile(self, made[0], path)

    def open(self, path: str) -> File:
        """Open, unless it is hidden."""
        if path in self._hidden:
            raise DiskError("open", path, errno.EACCES)
        made: list[File] = []
        self.call("open", path, lambda: made.append(self.disk.open(path)), _nothing)
        return WitnessFile(self, made[0], path)

    def rename(self, src: str, dst: str) -> None:
        """Rename, and say so."""
        self.call("rename", src, lambda: self.disk.rename(src, dst), _nothing)
        if is_chunk_file(dst):
            self._journal.say("moved", src, dst)

    def remove(self, path: str) -> None:
        """Say what goes, and remove it."""
        self._check_alive("remove", path)
        if is_chunk_file(path):
            self._journal.say("left", path, used_nbytes(self.disk))
        self.call("remove", path, lambda: self.disk.remove(path), _nothing)

    def look(self, path: str) -> Folder:
        """Look."""
        seen: list[Folder] = []
        self.call("look", path, lambda: seen.append(self.disk.look(path)), _nothing)
        return seen[0]

    def lock(self, path: str, holder: bytes) -> Lock:
        """Lock."""
        made: list[Lock] = []
        self.call("lock", path, lambda: made.append(self.disk.lock(path, holder)), _nothing)
        return made[0]

    def wrote(self, path: str, buffers: Sequence[Buffer]) -> None:
        """Say which blocks lie in what was written."""
        records = records_in(b"".join(buffers)) if is_chunk_file(path) else []
        if records:
            self._journal.say("wrote", path, blocks_in(records))

    def _check_alive(self, operation: str, path: str) -> None:
        if self.ended:
            raise DiskError(operation, path, errno.EIO, "the life of its caller has ended")


class WitnessFile:
    """One open file of a `Witness`."""

    def __init__(self, witness: Witness, file: File, path: str) -> None:
        self._witness = witness
        self._file = file
        self._path = path

    @property
    def nbytes(self) -> int:
        """Length of the file now."""
        return self._file.nbytes

    @property
    def direct(self) -> bool:
        """As of the file itself."""
        return self._file.direct

    def read_into(self, buffers: Sequence[Buffer], offset: int) -> None:
        """Read."""
        self._witness.call("read", self._path, lambda: self._file.read_into(buffers, offset), _nothing)

    def write_from(self, buffers: Sequence[Buffer], offset: int) -> None:
        """Write, and say what; halfway a first part is."""
        first = buffers[0].nbytes // 2 // PAGE_NBYTES * PAGE_NBYTES
        half = buffers[: len(buffers) // 2] if len(buffers) > 1 else [buffers[0][:first]]
        self._witness.call(
            "write",
            self._path,
            lambda: self._file.write_from(buffers, offset),
            lambda: self._file.write_from(half, offset),
        )
        self._witness.wrote(self._path, buffers)

    def sync(self) -> None:
        """Sync."""
        self._witness.call("sync", self._path, self._file.sync, _nothing)

    def close(self) -> None:
        """Close."""
        self._file.close()


def _nothing() -> None:
    pass
