"""Ways to keep blocks on an SSD that take the same bytes, make them durable and give them back cold.

Called by `bench.ssd`, a fresh folder and a fresh subject a round. Every subject has one buffer at page
boundaries; what it reads ends there, to be compared by the driver. Our own ways are in `bench.ssd_ours`.
"""

from __future__ import annotations

import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tierstore.benchmark.limits import LimitFile, drop_page_cache
from tierstore.layout import KVLayout
from tierstore.tiers.frame import aligned_buffer

if TYPE_CHECKING:
    from tierstore.types import UInt8Array

__all__ = ["IN_FLIGHT", "READ_THREADS", "FilePerBlock", "PlainFile", "Subject", "Work", "ZarrShard"]

READ_THREADS = 2
IN_FLIGHT = 4
"""Parts that a call is cut into, so that stages overlap."""


@dataclass(frozen=True, slots=True)
class Work:
    """What every subject moves.

    Attributes:
        layout: Of the blocks.
        count: Blocks.
        codec: ``"raw"`` or ``"lz4"``.
    """

    layout: KVLayout
    count: int
    codec: str

    @property
    def nbytes(self) -> int:
        """Bytes of all blocks."""
        return self.count * self.layout.block_nbytes

    def parts(self) -> Iterator[slice]:
        """The blocks in a few equal parts."""
        step = -(-self.count // IN_FLIGHT)
        return (slice(first, min(first + step, self.count)) for first in range(0, self.count, step))


class Subject(ABC):
    """One way, in one folder, for one round.

    Attributes:
        rows: uint8[count, block_nbytes]; what is written, then what was read.
    """

    def __init__(self, folder: Path, work: Work) -> None:
        self.folder = folder
        self.work = work
        self.rows: UInt8Array = aligned_buffer(work.nbytes).reshape(work.count, -1)

    @abstractmethod
    def write(self) -> None:
        """Put all rows on the SSD; durable when this returns."""

    @abstractmethod
    def read(self) -> None:
        """Fill all rows."""

    def cool(self) -> None:
        """Let go of every copy in memory; not timed."""
        drop_page_cache(self.folder)

    @abstractmethod
    def close(self) -> None:
        """Let go of everything."""

    @property
    def stored_nbytes(self) -> int | None:
        """Bytes on the SSD once written, paddings left out; None where they cannot be told."""
        return None


class PlainFile(Subject):
    """One preallocated file, O_DIRECT where the file system has it, no checksum: what the disk can do."""

    def __init__(self, folder: Path, work: Work) -> None:
        super().__init__(folder, work)
        self._file = LimitFile(folder, nbytes=work.nbytes, threads=READ_THREADS)

    def write(self) -> None:
        """Positional writes of 4 MiB and one fdatasync."""
        self._file.write([self.rows], 0)

    def read(self) -> None:
        """Positional reads of 4 MiB by turns on the threads."""
        self._file.read([self.rows], 0)

    def close(self) -> None:
        """Remove the file."""
        self._file.close()


class ZarrShard(Subject):
    """zarr-python on one shard of the same codecs, synced by us since it does not sync."""

    def __init__(self, folder: Path, work: Work) -> None:
        super().__init__(folder, work)
        import zarr
        from zarr.codecs import Crc32cCodec

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the codecs of numcodecs are no part of Zarr's specification yet
            from numcodecs.zarr3 import LZ4, Shuffle

            encoding = [Shuffle(elementsize=work.layout.item_nbytes), LZ4()] if work.codec == "lz4" else []
            num_items = work.layout.block_nbytes // work.layout.item_nbytes
            self._array = zarr.create_array(
                folder / "array",
                shape=(work.count, num_items),
                chunks=(1, num_items),
                shards=(work.count, num_items),
                dtype=f"uint{8 * work.layout.item_nbytes}",
                compressors=[*encoding, Crc32cCodec()],
                filters=None,
            )

    def write(self) -> None:
        """One assignment, then fsync of every file."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._array[:] = self.rows.view(f"<u{self.work.layout.item_nbytes}")
        for path in self.folder.rglob("*"):
            descriptor = os.open(path, os.O_RDONLY)
            os.fsync(descriptor)
            os.close(descriptor)

    def read(self) -> None:
        """One selection; zarr-python makes the array that it returns."""
        self.rows = np.ascontiguousarray(self._array[:]).view(np.uint8)

    @property
    def stored_nbytes(self) -> int:
        """As long as the files are."""
        return sum(path.stat().st_size for path in self.folder.rglob("*") if path.is_file())

    def close(self) -> None:
        """Nothing is open."""


class FilePerBlock(Subject):
    """One file a block, written, synced and renamed, as many stores do; buffered, for their files have any length."""

    def write(self) -> None:
        """One file after another, and the folder once."""
        for number, row in enumerate(self.rows):
            path = self.folder / f"{number}.new"
            with open(path, "wb", buffering=0) as file:
                file.write(row.data)
                os.fsync(file.fileno())
            path.rename(self.folder / str(number))
        descriptor = os.open(self.folder, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)

    def read(self) -> None:
        """One file after another."""
        for number, row in enumerate(self.rows):
            with open(self.folder / str(number), "rb", buffering=0) as file:
                assert file.readinto(row.data) == len(row)

    def close(self) -> None:
        """Nothing is open."""
