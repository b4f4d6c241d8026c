"""What is read ahead of need: how much may be, what came of it. Pure; part of the host pool's room.

Blocks count from the read that brings them until a get uses them or they leave. Two bounds hold: bytes under way
at once, and a share of the pool that may be taken, beyond what is free, by blocks that nobody has asked for yet.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from tierstore.control.directory import PREFETCHED
from tierstore.control.entry import State
from tierstore.metrics import Metric

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tierstore.control.directory import Directory
    from tierstore.metrics import Metrics
    from tierstore.types import Int64Array

__all__ = ["Prefetched"]


class Prefetched:
    """Blocks that were read ahead and that no get has used.

    Args:
        directory: Whose flags it changes.
        slot_nbytes: Of each slot class; the host room's own mapping.
        metrics: Counted into.

    Attributes:
        inflight_nbytes: Of blocks that reads ahead are bringing.
    """

    def __init__(self, directory: Directory, slot_nbytes: Mapping[int, int], metrics: Metrics) -> None:
        self._directory = directory
        self._slot_nbytes = slot_nbytes
        self._metrics = metrics
        self.inflight_nbytes = 0
        self._unused: Counter[int] = Counter()

    @property
    def unused_nbytes(self) -> int:
        """Of blocks that have come and that no get has used."""
        return sum(count * self._slot_nbytes[slot_class] for slot_class, count in self._unused.items())

    def came(self, slot_class: int, entries: Int64Array) -> None:
        """Blocks are READY that were read ahead."""
        self._directory.flags[entries] |= PREFETCHED
        self._unused[slot_class] += len(entries)

    def used(self, slot_class: int, entries: Int64Array) -> None:
        """A get uses blocks."""
        self._end(slot_class, entries, "useful")

    def evicted(self, slot_class: int, entries: Int64Array) -> None:
        """Blocks leave to make room."""
        self._end(slot_class, entries, "wasted")

    def dropped(self, slot_class: int, entries: Int64Array) -> None:
        """Blocks are deleted or found corrupt: nobody was wrong to read them."""
        self._end(slot_class, entries, None)

    def _end(self, slot_class: int, entries: Int64Array, fate: str | None) -> None:
        if not self._unused[slot_class]:
            return
        flags = self._directory.flags[entries]
        count = int(np.count_nonzero(flags & PREFETCHED))
        if count:
            self._directory.flags[entries] = flags & ~PREFETCHED
            self._unused[slot_class] -= count
            if fate is not None:
                self._metrics.add(Metric.PREFETCHED_BLOCKS, count, fate)

    def check(self) -> None:
        """Assert that as many blocks are counted as are flagged, and that each of them is READY."""
        span = slice(0, self._directory.high_water)
        flagged = self._directory.flags[span] & PREFETCHED > 0
        num_flagged, num_counted = int(np.count_nonzero(flagged)), sum(self._unused.values())
        assert num_flagged == num_counted, f"{num_counted} blocks count as read ahead, {num_flagged} are"
        assert (self._directory.host.state[span][flagged] == State.READY).all(), "read ahead, and not there"
