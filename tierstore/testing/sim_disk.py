"""A disk in memory that loses, tears, fails and corrupts on command.

For tests of whatever stands on `tierstore.disk.base`: the real code runs on it through faults that a real
disk shows once in years. Names are durable at once and data after a sync, as the seam promises; nothing
is random but by the `random.Random` that a test hands in, so equal seeds give equal worlds. It never
forgives what direct I/O may refuse: misaligned memory, lengths and offsets are assertions.
"""

from __future__ import annotations

import errno as codes
import threading
from collections.abc import Sequence
from random import Random

import numpy as np

from tierstore.disk.base import Buffer, Entry, Folder, path_parts
from tierstore.errors import DiskError, FolderBusyError
from tierstore.testing.sim_medium import CallFaults, Inode
from tierstore.types import PAGE_NBYTES

__all__ = ["SimDisk", "SimFile", "SimLock"]


class SimFile:
    """One open file of a `SimDisk`; every call fails with EBADF once it is closed or its life has ended."""

    direct = True

    def __init__(self, disk: SimDisk, inode: Inode, path: str) -> None:
        self._disk = disk
        self._inode = inode
        self._path = path
        self._sync_failed = False

    @property
    def nbytes(self) -> int:
        """Length of the file now."""
        with self._disk._lock:
            self._assert_open("stat")
            return len(self._inode.data)

    def read_into(self, buffers: Sequence[Buffer], offset: int) -> None:
        """Fill the buffers, whole or DiskError."""
        total = _aligned_nbytes(buffers, offset)
        self._disk.wait_out("read")
        with self._disk._lock:
            self._assert_open("read")
            failure = self._disk.failure("read", self._path)
            found = bytes(self._inode.data[offset : offset + total])
        if failure is None and len(found) < total:
            failure = DiskError("read", self._path)
        elif failure is not None:
            found = found[: total // 2] if failure.errno == 0 else b""
        for buffer in buffers:
            part, found = found[: buffer.nbytes], found[buffer.nbytes :]
            buffer[: len(part)] = part
        if failure is not None:
            raise failure

    def write_from(self, buffers: Sequence[Buffer], offset: int) -> None:
        """Write the buffers, whole or DiskError."""
        total = _aligned_nbytes(buffers, offset)
        src = b"".join(buffers)
        self._disk.wait_out("write")
        with self._disk._lock:
            self._assert_open("write")
            failure = self._disk.failure("write", self._path)
            if failure is not None:
                src = src[: total // 2] if failure.errno == 0 else b""
            missing = offset + len(src) - len(self._inode.data)
            if src and missing > 0:
                self._disk._take_room(missing, "write", self._path)
                self._inode.data.extend(bytes(missing))
            self._inode.write(src, offset)
            if failure is not None:
                raise failure

    def sync(self) -> None:
        """Make what was written durable. Once it has failed it fails for good, as on a real disk."""
        self._disk.wait_out("sync")
        with self._disk._lock:
            self._assert_open("sync")
            if self._sync_failed:
                raise DiskError("sync", self._path, codes.EIO, "an earlier sync failed; write the data anew")
            failure = self._disk.failure("sync", self._path)
            if failure is not None:
                self._sync_failed = True
                self._inode.fail_sync()
                raise failure
            self._inode.sync()

    def close(self) -> None:
        """Let the file go; a second call does nothing."""
        with self._disk._lock:
            self._disk._open.pop(self, None)

    def _assert_open(self, operation: str) -> None:
        if self not in self._disk._open:
            raise DiskError(operation, self._path, codes.EBADF)


class SimLock:
    """A claim on a path of a `SimDisk`."""

    def __init__(self, disk: SimDisk, path: str) -> None:
        self._disk = disk
        self._path = path
        self._inode = disk._inodes[path]

    def stands(self) -> bool:
        """Whether the path is still that of the file claimed, in the same life."""
        with self._disk._lock:
            return self._disk._locks.get(self._path) is self and self._disk._inodes.get(self._path) is self._inode

    def close(self) -> None:
        """Give the claim up; a second call, or one after its life has ended, does nothing."""
        with self._disk._lock:
            if self._disk._locks.get(self._path) is self:
                del self._disk._locks[self._path]


class SimDisk(CallFaults):
    """The files of one simulated disk; they outlive every `kill` and `crash`, for the next life to open.

    Which calls fail is said by the methods of `CallFaults`, what the power and the medium do by those below.

    Attributes:
        capacity_nbytes: What all files together may take; may be changed at any time.

    Args:
        capacity_nbytes: See above.
    """

    def __init__(self, capacity_nbytes: int = 1 << 30) -> None:
        super().__init__()
        self.capacity_nbytes = capacity_nbytes
        self._inodes: dict[str, Inode] = {}
        self._folders: set[str] = set()
        self._open: dict[SimFile, Inode] = {}
        self._locks: dict[str, SimLock] = {}
        self._lock = threading.Lock()

    def create(self, path: str, nbytes: int) -> SimFile:
        """Create a file of zero bytes, and its folders."""
        self.wait_out("create")
        with self._lock:
            self._begin("create", path)
            self._enter("create", path, make=True)
            if path in self._inodes or path in self._folders:
                raise DiskError("create", path, codes.EEXIST)
            self._take_room(nbytes, "create", path)
            self._inodes[path] = Inode(bytearray(nbytes))
            return self._handle(path)

    def open(self, path: str) -> SimFile:
        """Open an existing file."""
        with self._lock:
            self._begin("open", path)
            self._find("open", path)
            return self._handle(path)

    def rename(self, src: str, dst: str) -> None:
        """Move a file over `dst`."""
        with self._lock:
            failure = self._begin("rename", src)
            self._find("rename", src)
            self._enter("rename", dst)
            if dst in self._folders:
                raise DiskError("rename", dst, codes.EISDIR)
            self._inodes[dst] = self._inodes.pop(src)
            if failure is not None:
                raise failure

    def remove(self, path: str) -> None:
        """Unlink a file; its space is free once no handle is open on it."""
        with self._lock:
            failure = self._begin("remove", path)
            self._find("remove", path)
            del self._inodes[path]
            if failure is not None:
                raise failure

    def look(self, path: str) -> Folder:
        """List a folder."""
        with self._lock:
            self._begin("look", path)
            free_nbytes = max(0, self.capacity_nbytes - self._used_nbytes())
            try:
                self._enter("look", f"{path}/any" if path else "any")
            except DiskError as error:
                if error.errno != codes.ENOENT:
                    raise
            names = dict.fromkeys(self._folders, -1) | {name: len(inode.data) for name, inode in self._inodes.items()}
            split = [(*name.rpartition("/")[::2], nbytes) for name, nbytes in sorted(names.items())]
            entries = [Entry(name, max(0, nbytes), nbytes < 0) for folder, name, nbytes in split if folder == path]
            return Folder(tuple(entries), free_nbytes)

    def lock(self, path: str, holder: bytes) -> SimLock:
        """Claim a path until closed, or until this life ends."""
        with self._lock:
            self._begin("lock", path)
            self._enter("lock", path, make=True)
            if path in self._folders:
                raise DiskError("lock", path, codes.EISDIR)
            if path in self._locks:
                text = bytes(self._inodes[path].data).decode("utf-8", "replace") if path in self._inodes else ""
                raise FolderBusyError(path, text)
            self._inodes[path] = Inode(bytearray(holder))
            self._locks[path] = SimLock(self, path)
            return self._locks[path]

    # What tests do to it and see of it.

    def crash(self, rng: Random, *, torn: bool = True) -> None:
        """Lose power: keep a random part of what is not synced, or nothing unless `torn`; then `kill`."""
        with self._lock:
            for _, inode in sorted(self._inodes.items()):
                inode.lose_power(rng, torn=torn)
        self.kill()

    def kill(self) -> None:
        """End the life of whoever uses the disk: files and locks are closed, what was written stays."""
        with self._lock:
            self._open.clear()
            self._locks.clear()

    @property
    def num_open(self) -> int:
        """Files that are open."""
        return len(self._open)

    def contents(self, path: str) -> bytes:
        """A file's bytes, as a reader would see them now."""
        return bytes(self._inodes[path].data)

    def replace(self, path: str, contents: bytes) -> None:
        """Put other bytes, durable, into an existing file, behind the back of who has it open."""
        self._inodes[path].replace(contents)

    def truncate(self, path: str, nbytes: int) -> None:
        """Cut an existing file, or lengthen it with zeros, durably."""
        self.replace(path, self.contents(path)[:nbytes].ljust(nbytes, b"\0"))

    def flip(self, path: str, bit: int) -> None:
        """Flip one bit of an existing file, counted from its first byte's lowest."""
        self._inodes[path].data[bit // 8] ^= 1 << bit % 8

    # Shared by the calls; under the lock.

    def _begin(self, operation: str, path: str) -> DiskError | None:
        """Count a call and fail it, now or, by the returned error, once it has taken effect."""
        failure = self.failure(operation, path)
        if failure is not None and (failure.errno or operation not in ("remove", "rename")):
            raise failure
        return failure

    def _enter(self, operation: str, path: str, *, make: bool = False) -> None:
        """Walk to a path's folder."""
        parts = path_parts(operation, path)
        for depth in range(1, len(parts)):
            folder = "/".join(parts[:depth])
            if folder in self._inodes:
                raise DiskError(operation, path, codes.ENOTDIR)
            if make:
                self._folders.add(folder)
            elif folder not in self._folders:
                raise DiskError(operation, path, codes.ENOENT)

    def _find(self, operation: str, path: str) -> None:
        self._enter(operation, path)
        if path in self._folders:
            raise DiskError(operation, path, codes.EISDIR)
        if path not in self._inodes:
            raise DiskError(operation, path, codes.ENOENT)

    def _handle(self, path: str) -> SimFile:
        file = SimFile(self, self._inodes[path], path)
        self._open[file] = self._inodes[path]
        return file

    def _used_nbytes(self) -> int:
        return sum(len(inode.data) for inode in {*self._inodes.values(), *self._open.values()})

    def _take_room(self, nbytes: int, operation: str, path: str) -> None:
        if self._used_nbytes() + nbytes > self.capacity_nbytes:
            raise DiskError(operation, path, codes.ENOSPC)


def _aligned_nbytes(buffers: Sequence[Buffer], offset: int) -> int:
    """Sum of the buffers' bytes, once they are what direct I/O takes."""
    assert offset % PAGE_NBYTES == 0, f"offset {offset} is no multiple of {PAGE_NBYTES}"
    for buffer in buffers:
        assert buffer.nbytes % PAGE_NBYTES == 0, f"a buffer of {buffer.nbytes} bytes is no multiple of {PAGE_NBYTES}"
        address = np.frombuffer(buffer, np.uint8).ctypes.data if buffer.nbytes else 0
        assert address % PAGE_NBYTES == 0, f"a buffer at {address:#x} does not start at a multiple of {PAGE_NBYTES}"
    return sum(buffer.nbytes for buffer in buffers)
