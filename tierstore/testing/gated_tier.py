"""A tier behind a gate: it notes what it is asked for, and goes on when the test lets it.

For tests of the links' threads: nothing moves, each call answers the same.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from tierstore.tiers.base import Probed, Synced
from tierstore.transfer.base import ended
from tierstore.types import CopyResult, Extents, Outcome

if TYPE_CHECKING:
    from tierstore.errors import DiskError
    from tierstore.tiers.base import Recovered
    from tierstore.types import CopyJob, TombstoneJob

__all__ = ["NO_EXTENTS", "GatedTier"]

NO_EXTENTS = Extents(np.zeros(0, np.int32), *(np.zeros(0, np.uint32) for _ in range(3)))
"""Where its writes put blocks."""

_PATIENCE_SECONDS = 10
"""How long a call waits at the gate before it gives the test up."""


class GatedTier:
    """A tier that notes what it is asked for, and lets a call go on when the test opens the gate.

    Attributes:
        calls: Each call with its job ids or file, in order.
        entered: Set when a call has begun.
        opened: A call waits for it.
        broken: What every call raises instead of answering; None where it answers.
    """

    def __init__(self) -> None:
        self.calls: list[tuple[str, list[int]]] = []
        self.entered = threading.Event()
        self.opened = threading.Event()
        self.broken: DiskError | None = None

    def _call(self, name: str, numbers: list[int]) -> None:
        self.calls.append((name, numbers))
        self.entered.set()
        assert self.opened.wait(_PATIENCE_SECONDS)
        if self.broken is not None:
            raise self.broken

    def read(self, job: CopyJob) -> CopyResult:
        """Every block is CORRUPT."""
        self._call("read", [job.job_id])
        return ended(job, Outcome.CORRUPT)

    def write(self, jobs: Sequence[CopyJob | TombstoneJob]) -> list[CopyResult]:
        """Every block is OK, nowhere."""
        self._call("write", [job.job_id for job in jobs])
        codes = [np.zeros(len(job), np.uint8) for job in jobs]
        return [CopyResult(job.job_id, code, NO_EXTENTS, 99, 0.0, 5) for job, code in zip(jobs, codes, strict=True)]

    def sync(self) -> Synced:
        """OK, but a file of earlier is in doubt."""
        self._call("sync", [])
        return Synced(Outcome.OK, in_doubt=(33,))

    def discard(self, file: int) -> int:
        """77 bytes are free then, 99 after a write."""
        self._call("discard", [file])
        return 77

    def probe(self) -> Probed:
        """All is well; 55 bytes are free."""
        self._call("probe", [])
        return Probed(Outcome.OK, Outcome.OK, 55)

    def recover(self, progress: Callable[[int, int], None] | None = None) -> Iterator[Recovered]:
        """Nothing."""
        return iter([])

    def close(self) -> None:
        """Nothing is open."""
