"""Write-back when blocks are about to leave: those who would be evicted next are on SSD before they are. Pure.

A step of the upkeep, where the admission policy asks for it. It looks at the next victims of each slot class, as far
as room has not been made already, and writes those that only the host holds, behind the heads of their chains.
Who is written is pinned meanwhile, so that others go first; who must go before it could be written is lost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tierstore.control.entry import State
from tierstore.control.requests import UNASKED, new_request
from tierstore.types import NO_REQUEST

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tierstore.control.mind import Mind
    from tierstore.control.requests import Life
    from tierstore.control.write_back import WriteBack
    from tierstore.types import Int64Array, Plan, UInt8Array

__all__ = ["Cleaning"]

_AHEAD_BLOCKS = 1024
"""Next victims that are kept clean, or an eighth of a small pool: two slices of a put come between two steps."""

_WRITE_BLOCKS = 512
"""Blocks that one step writes, to bound a lock hold."""


class Cleaning:
    """Keeps the next victims clean.

    Args:
        mind: Shared with the stories.
        write_back: What writes.
        lives: Every generation by its number; the planner's own.
    """

    def __init__(self, mind: Mind, write_back: WriteBack, lives: Mapping[int, Life]) -> None:
        self._mind = mind
        self._write_back = write_back
        self._lives = lives
        self._seen = 0

    @property
    def due(self) -> bool:
        """Whether slots were taken or blocks have come since the last step."""
        return self._write_back.asks_when_leaving and self._seen != self._mind.host.num_changes

    def step(self, plan: Plan, now: float) -> None:
        """Write what would be evicted next and only the host holds."""
        if not self.due:
            return
        self._seen = self._mind.host.num_changes
        directory = self._mind.directory
        victims = self._next_victims()
        dirty = victims[directory.ssd.state[victims] == State.ABSENT]
        generations = directory.index.generation[dirty]
        for number in np.unique(generations).tolist():
            life = self._lives.get(number)
            if life is not None:
                self._write(life, self._write_back.chains.with_heads(dirty[generations == number]), plan, now)

    def _next_victims(self) -> Int64Array:
        """Who would leave, of each slot class, if as much room were wanted as is kept: writes under way are room."""
        host, found = self._mind.host, [np.empty(0, np.int64)]
        for slot_class, block_nbytes in {life.slot_class: life.block_nbytes for life in self._lives.values()}.items():
            count = min(_AHEAD_BLOCKS, host.pool_nbytes // block_nbytes // 8)
            count -= host.slots.free(slot_class) + self._mind.write_inflight_nbytes // block_nbytes
            found.append(host.next_victims(slot_class, max(0, count)))
        return np.concatenate(found)

    def _write(self, life: Life, entries: Int64Array, plan: Plan, now: float) -> None:
        entries = entries[:_WRITE_BLOCKS]
        keys = self._mind.directory.index.keys
        hashes: UInt8Array = keys[entries].view(np.uint8)
        request = new_request(NO_REQUEST, UNASKED, life, hashes)
        request.entries[:] = entries
        above = self._mind.directory.parent[entries] - 1
        request.parents = np.where(above[:, None] >= 0, keys[above].view(np.uint8), np.uint8(0))
        self._write_back.offer(request, np.arange(len(entries)), plan, now, leaving=True)
