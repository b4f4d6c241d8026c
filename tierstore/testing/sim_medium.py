"""What the simulated disk is made of: bytes that are durable or not yet, and calls that are told to fail.

Used by `tierstore.testing.sim_disk` alone, under its lock. Knows no paths and no folders.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from math import inf
from random import Random
from threading import Event
from typing import Final

from tierstore.errors import DiskError

__all__ = ["SECTOR_NBYTES", "CallFaults", "Inode"]

SECTOR_NBYTES: Final = 512
"""What a power loss keeps or loses as a whole."""


@dataclass(slots=True, eq=False)
class Inode:
    """A file's bytes as readers see them, and what its sectors held since they were last durable.

    Attributes:
        data: The bytes.
        unsynced: By sector, its earlier contents, the durable one first.
        doomed: Sectors that no sync makes durable before they are written again.
    """

    data: bytearray
    unsynced: dict[int, list[bytes]] = field(default_factory=dict)
    doomed: set[int] = field(default_factory=set)

    def write(self, src: bytes, offset: int) -> None:
        """Put whole sectors in place, remembering what they held."""
        for start in range(offset, offset + len(src), SECTOR_NBYTES):
            old = bytes(self.data[start : start + SECTOR_NBYTES])
            self.unsynced.setdefault(start // SECTOR_NBYTES, []).append(old)
            self.doomed.discard(start // SECTOR_NBYTES)
        self.data[offset : offset + len(src)] = src

    def sync(self) -> None:
        """Make durable what is not doomed."""
        self.unsynced = {sector: self.unsynced[sector] for sector in self.doomed}

    def fail_sync(self) -> None:
        """Linux marks pages it could not write as clean: no later sync writes them, only a new write does."""
        self.doomed.update(self.unsynced)

    def lose_power(self, rng: Random, *, torn: bool) -> None:
        """Leave every unsynced sector with one of its versions, or with its durable one unless `torn`.

        A few odds for the whole file, so that files kept whole and lost whole come up as well as torn ones.
        """
        odds = rng.choice((0.0, 0.5, 0.9, 1.0)) if torn else 0.0
        for sector, olds in self.unsynced.items():
            if rng.random() >= odds:
                old = rng.choice(olds) if torn else olds[0]
                start = sector * SECTOR_NBYTES
                self.data[start : start + len(old)] = old
        self.replace(bytes(self.data))

    def replace(self, data: bytes) -> None:
        """Put durable bytes in place."""
        self.data[:] = data
        self.unsynced.clear()
        self.doomed.clear()


@dataclass(frozen=True, slots=True)
class _Fault:
    """Calls number `first` to `last`, counted over all operations or over one, fail."""

    first: int
    last: float
    errno: int
    only: str | None


class CallFaults:
    """Counts the calls to a disk and fails those that a test has named.

    A call that fails has done nothing. With errno 0 it ends halfway instead: a read or write has moved half
    of its bytes, a rename or remove is done but reported as failed.
    """

    def __init__(self) -> None:
        self._calls: Counter[str | None] = Counter()
        self._faults: list[_Fault] = []
        self._hanging: dict[str, Event] = {}

    @property
    def calls(self) -> int:
        """Calls so far."""
        return self._calls[None]

    def calls_of(self, operation: str) -> int:
        """Calls so far of one operation: create, open, rename, remove, look, lock, read, write or sync."""
        return self._calls[operation]

    def fail_call(self, n: int, *, errno: int, only: str | None = None) -> None:
        """Make the `n`-th call from now (1: the next) fail, counting all calls or those of one operation."""
        self._faults.append(_Fault(self._calls[only] + n, self._calls[only] + n, errno, only))

    def fail_from(self, n: int, *, errno: int, only: str | None = None) -> None:
        """Make the `n`-th call from now and all after it fail, until `heal`."""
        self._faults.append(_Fault(self._calls[only] + n, inf, errno, only))

    def hang(self, operation: str) -> None:
        """Let calls of a read, write, sync or create that begin from now on wait until `heal`."""
        self._hanging[operation] = Event()

    def wait_out(self, operation: str) -> None:
        """Wait for as long as calls of an operation hang. Called outside every lock."""
        hanging = self._hanging.get(operation)
        if hanging is not None:
            hanging.wait()

    def heal(self) -> None:
        """Forget every failure still to come, and let what hangs go on."""
        self._faults.clear()
        hanging, self._hanging = self._hanging, {}
        for event in hanging.values():
            event.set()

    def failure(self, operation: str, path: str) -> DiskError | None:
        """Count a call; returns how it is to fail."""
        self._calls[operation] += 1
        self._calls[None] += 1
        for fault in self._faults:
            if fault.only in (None, operation) and fault.first <= self._calls[fault.only] <= fault.last:
                return DiskError(operation, path, fault.errno)
        return None
