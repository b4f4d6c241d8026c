"""The machine's own limits: plain copies between pages, plain reads and writes of one file.

Called by `tierstore.benchmark.bandwidth` beside every call of the store. It makes its own system calls on purpose:
a limit measured through the store's disk would share the faults that it should reveal.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from tierstore.device.copying import PRIMITIVES
from tierstore.errors import DiskError, FolderError
from tierstore.worker import Worker

if TYPE_CHECKING:
    from tierstore.types import UInt8Array

    Copy: TypeAlias = Callable[[UInt8Array, UInt8Array], None]

__all__ = ["LimitFile", "copy_ways", "drop_page_cache", "fastest_copy"]

_NUM_TRIALS = 3
_PIECE_NBYTES = 4 << 20


def copy_ways() -> dict[str, Copy]:
    """Every way known here to copy uint8[n, nbytes] by name, all of them in the calling thread.

    The store's own primitives, the C library's and torch's go row by row; the store's own, which take
    strided rows, also at once. Sets torch to one thread for the whole process: the store copies in one
    thread a direction, and so does its limit.
    """
    import torch

    torch.set_num_threads(1)

    def memmove(dst: UInt8Array, src: UInt8Array) -> None:
        ctypes.memmove(dst.ctypes.data, src.ctypes.data, dst.nbytes)

    def torch_copy(dst: UInt8Array, src: UInt8Array) -> None:
        torch.from_numpy(dst).copy_(torch.from_numpy(src))

    rowwise = {**PRIMITIVES, "memmove": memmove, "torch": torch_copy}
    ways: dict[str, Copy] = {f"{name} by rows": functools.partial(_copy_rows, copy) for name, copy in rowwise.items()}
    return ways | {f"{name} at once": copy for name, copy in PRIMITIVES.items()}


def _copy_rows(copy: Copy, dst: UInt8Array, src: UInt8Array) -> None:
    for dst_row, src_row in zip(dst, src, strict=True):
        copy(dst_row, src_row)


def fastest_copy(ways: Mapping[str, Copy], *, dst: UInt8Array, src: UInt8Array) -> tuple[str, Copy]:
    """Try every way by turns on these very rows; the one whose best time is least, and its name."""
    best: dict[str, float] = {}
    for _ in range(_NUM_TRIALS):
        for name, copy in ways.items():
            started = time.perf_counter()
            copy(dst, src)
            best[name] = min(best.get(name, float("inf")), time.perf_counter() - started)
    name = min(best, key=lambda key: best[key])
    return name, ways[name]


class LimitFile:
    """One preallocated file in the store's own folder, for plain positional reads and writes.

    Args:
        folder: An existing folder.
        nbytes: Length, allocated at once.
        threads: How many threads `read` uses.

    Raises:
        FolderError: The file cannot be made there; the message says why.
    """

    def __init__(self, folder: Path, *, nbytes: int, threads: int) -> None:
        self.path = folder / "limit"
        self._descriptor, self.direct = _open(self.path)
        try:
            os.posix_fallocate(self._descriptor, 0, nbytes)
        except OSError as error:
            os.close(self._descriptor)
            self.path.unlink()
            raise FolderError(f"{folder} cannot hold {nbytes} bytes more ({error}); use another --ssd-dir") from error
        self.threads = threads
        self._worker = Worker("limit", capacity=threads, threads=threads)

    def write(self, slots: Sequence[UInt8Array], offset: int) -> None:
        """Write uint8[n, slot_nbytes] each at `offset` in one thread, 4 MiB a call; durable when this returns."""
        for piece, start, nbytes in _pieces(slots, offset):
            _whole("write", self.path, os.pwritev(self._descriptor, piece, start), nbytes)
        os.fdatasync(self._descriptor)

    def read(self, slots: Sequence[UInt8Array], offset: int) -> None:
        """Fill uint8[n, slot_nbytes] each from `offset`, 4 MiB a call, dealt out to all threads. Blocks."""
        ended = threading.Semaphore(0)
        failures: list[DiskError | OSError] = []
        pieces = list(_pieces(slots, offset))

        def read_every(first: int) -> None:
            try:
                for piece, start, nbytes in pieces[first :: self.threads]:
                    _whole("read", self.path, os.preadv(self._descriptor, piece, start), nbytes)
            except (DiskError, OSError) as error:
                failures.append(error)
            finally:
                ended.release()

        for first in range(self.threads):
            accepted = self._worker.submit(functools.partial(read_every, first))
            assert accepted, "the limit's worker has room for a task a thread"
        for _ in range(self.threads):
            ended.acquire()
        if failures:
            raise DiskError("read", str(self.path), detail=str(failures[0])) from failures[0]

    def close(self) -> None:
        """Join the threads and remove the file."""
        self._worker.close()
        os.close(self._descriptor)
        self.path.unlink()


def drop_page_cache(folder: Path) -> None:
    """Ask the kernel to forget its cached pages of every file below `folder`."""
    for path in folder.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)


def _open(path: Path) -> tuple[int, bool]:
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        return os.open(path, flags | os.O_DIRECT, 0o600), True
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise FolderError(f"{path.parent} cannot be written ({error}); use another --ssd-dir") from error
    path.unlink(missing_ok=True)
    return os.open(path, flags, 0o600), False


def _pieces(slots: Sequence[UInt8Array], offset: int) -> Iterator[tuple[list[memoryview], int, int]]:
    """Rows of one call each, where they go, and their bytes."""
    rows = [row for run in slots for row in run]
    row_nbytes = len(rows[0])
    count = max(1, _PIECE_NBYTES // row_nbytes)
    for first in range(0, len(rows), count):
        piece = [row.data for row in rows[first : first + count]]
        yield piece, offset + first * row_nbytes, len(piece) * row_nbytes


def _whole(operation: str, path: Path, done_nbytes: int, nbytes: int) -> None:
    if done_nbytes != nbytes:
        raise DiskError(operation, str(path), detail=f"ended after {done_nbytes} of {nbytes} bytes")
