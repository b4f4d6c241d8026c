"""Disks that lie: what a store without one of its cares would do to its blocks, to prove that torture finds it.

Each stands between a store and its disk and spoils one promise of `tierstore.disk.base`, or one check that the
store makes of what comes from it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from crc32c import crc32c

from bench.torture.blocks import records_in
from bench.torture.witness import is_chunk_file
from tierstore.disk.base import Buffer, Disk, File, Folder, Lock
from tierstore.tiers.frame import aligned_buffer
from tierstore.tiers.record import HEADER, finish_headers
from tierstore.types import PAGE_NBYTES

__all__ = ["DeletesNothing", "ForgesPayloads", "RemovesNothing", "SyncsNothing"]


class Liar:
    """A disk that passes every call on; its files are made by `lying_file`."""

    def __init__(self, disk: Disk) -> None:
        self.disk = disk

    def lying_file(self, file: File, path: str) -> File:
        return file

    def create(self, path: str, nbytes: int) -> File:
        return self.lying_file(self.disk.create(path, nbytes), path)

    def open(self, path: str) -> File:
        return self.lying_file(self.disk.open(path), path)

    def rename(self, src: str, dst: str) -> None:
        self.disk.rename(src, dst)

    def remove(self, path: str) -> None:
        self.disk.remove(path)

    def look(self, path: str) -> Folder:
        return self.disk.look(path)

    def lock(self, path: str, holder: bytes) -> Lock:
        return self.disk.lock(path, holder)


class LyingFile:
    """A file that passes every call on."""

    def __init__(self, file: File) -> None:
        self.file = file

    @property
    def nbytes(self) -> int:
        return self.file.nbytes

    @property
    def direct(self) -> bool:
        return self.file.direct

    def read_into(self, buffers: Sequence[Buffer], offset: int) -> None:
        self.file.read_into(buffers, offset)

    def write_from(self, buffers: Sequence[Buffer], offset: int) -> None:
        self.file.write_from(buffers, offset)

    def sync(self) -> None:
        self.file.sync()

    def close(self) -> None:
        self.file.close()


class _Unsynced(LyingFile):
    """Of `SyncsNothing`."""

    def sync(self) -> None:
        pass


class SyncsNothing(Liar):
    """Says of chunk files that they are synced: a store that forgets to."""

    def lying_file(self, file: File, path: str) -> File:
        return _Unsynced(file) if is_chunk_file(path) else file


class RemovesNothing(Liar):
    """Says of chunk files that they are removed: a store whose ledger is not the disk."""

    def remove(self, path: str) -> None:
        if not is_chunk_file(path):
            self.disk.remove(path)


class _Deathless(LyingFile):
    """Of `DeletesNothing`."""

    def write_from(self, buffers: Sequence[Buffer], offset: int) -> None:
        if not any(record.deletes for record in records_in(b"".join(buffers))):
            self.file.write_from(buffers, offset)


class DeletesNothing(Liar):
    """Loses every deletion: a store that forgets in memory alone."""

    def lying_file(self, file: File, path: str) -> File:
        return _Deathless(file) if is_chunk_file(path) else file


class _Forged(LyingFile):
    """Of `ForgesPayloads`."""

    def write_from(self, buffers: Sequence[Buffer], offset: int) -> None:
        pages = aligned_buffer(sum(buffer.nbytes for buffer in buffers))
        pages.data[:] = b"".join(buffers)
        for record in records_in(pages.data):
            if record.block is not None and record.block.number % 4 == 0:
                header = pages[record.start : record.start + PAGE_NBYTES].view(HEADER)
                body = pages[record.start + PAGE_NBYTES : record.stop]
                body[100] ^= 1
                nbytes = int(header["encoded_nbytes"][0])
                header["payload_checksum"] = checksum = crc32c(body[:nbytes].data)
                body[nbytes : nbytes + 4] = np.array([checksum], "<u4").view(np.uint8)
                finish_headers(header)
        self.file.write_from([pages.data], offset)


class ForgesPayloads(Liar):
    """Changes a byte of some payloads and mends every checksum: a store that checks none."""

    def lying_file(self, file: File, path: str) -> File:
        return _Forged(file) if is_chunk_file(path) else file
