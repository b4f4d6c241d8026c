"""Write-back when blocks are about to leave: those who would be evicted next are on SSD before they are. Pure.

A step of the upkeep, where the admission policy asks for it. It looks at the next victims of each slot class, as far
as room has not been made already, and writes those that only the host holds, behind the heads of their chains.
Who is written is pinned meanwhile, so that others go first. Whoever takes slots evicts what SSD holds before what
still waits to be written; that is lost only where nothing else is left.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from tierstore.control.directory import SPURNED
from tierstore.control.entry import State
from tierstore.control.requests import UNASKED, new_request
from tierstore.types import NO_REQUEST

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from tierstore.control.mind import Mind
    from tierstore.control.requests import Life
    from tierstore.control.write_back import WriteBack
    from tierstore.types import Int64Array, Plan, UInt8Array

    BoolArray: TypeAlias = NDArray[np.bool_]

__all__ = ["Cleaning"]

_AHEAD_BLOCKS = 1024
"""Next victims that are kept clean, or a quarter of a small pool: two slices of a put come between two steps."""

_SPARED_BLOCKS = 1024
"""Blocks looked at for one that SSD holds, to bound a lock hold; nobody takes more than half of it at a time."""

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
        self._seen = self._now
        if write_back.asks_when_leaving:
            mind.host.cleaning = self

    @property
    def _now(self) -> tuple[int, int]:
        return self._mind.host.num_changes, self._mind.write_inflight_nbytes

    @property
    def due(self) -> bool:
        """Whether slots were taken, blocks have come or writes have ended since the last step, and writes are on."""
        return self._write_back.asks_when_leaving and self._seen != self._now and self._mind.health.writes_on

    def step(self, plan: Plan, now: float) -> None:
        """Write what would be evicted next and only the host holds."""
        if not self.due:
            return
        directory = self._mind.directory
        victims = self._next_victims()
        dirty = victims[directory.ssd.state[victims] == State.ABSENT]
        generations = directory.index.generation[dirty]
        for number in np.unique(generations).tolist():
            life = self._lives.get(number)
            if life is not None:
                self._clean(life, dirty[generations == number], plan, now)
        self._seen = self._now

    def _next_victims(self) -> Int64Array:
        """Who would leave, of each slot class, if as much room were wanted as is kept: writes under way are room."""
        host, found = self._mind.host, [np.empty(0, np.int64)]
        for slot_class, block_nbytes in {life.slot_class: life.block_nbytes for life in self._lives.values()}.items():
            count = min(_AHEAD_BLOCKS, host.pool_nbytes // block_nbytes // 4)
            count -= host.slots.free(slot_class) + self._mind.write_inflight_nbytes // block_nbytes
            found.append(host.next_victims(slot_class, max(0, count)))
        return np.concatenate(found)

    def _clean(self, life: Life, dirty: Int64Array, plan: Plan, now: float) -> None:
        """Write these of one life, as many as may be written now; what SSD does not want is spared no longer.

        Nor is what stands behind that: it would stay when its head goes.
        """
        mind, directory, chains = self._mind, self._mind.directory, self._write_back.chains
        wanted = chains.with_heads(dirty)
        room = max(0, mind.limits.write_inflight_nbytes_max - mind.write_inflight_nbytes) // life.block_nbytes
        count = min(_WRITE_BLOCKS, room)
        offered, rest = wanted[:count], wanted[count:]
        if len(offered):
            self._write(life, offered, plan, now)
        refused = directory.ssd.state[offered] == State.ABSENT
        if np.count_nonzero(refused) and not self._write_back.parking:  # among which it may be
            rest = rest[chains.rooted(rest)]
        directory.flags[dirty] &= ~SPURNED
        spurned = dirty[(directory.ssd.state[dirty] == State.ABSENT) & ~np.isin(dirty, rest)]
        directory.flags[spurned] |= SPURNED

    def _write(self, life: Life, entries: Int64Array, plan: Plan, now: float) -> None:
        keys = self._mind.directory.index.keys
        hashes: UInt8Array = keys[entries].view(np.uint8)
        request = new_request(NO_REQUEST, UNASKED, life, hashes)
        request.entries[:] = entries
        above = self._mind.directory.parent[entries] - 1
        request.parents = np.where(above[:, None] >= 0, keys[above].view(np.uint8), np.uint8(0))
        self._write_back.offer(request, np.arange(len(entries)), plan, now, leaving=True)

    def spare(self, slot_class: int, count: int, victims: Int64Array, again: bool) -> Int64Array:
        """Who leaves instead of the next victims, so that none does that waits to be written while others can.

        Whoever asks for more than can leave is cut short anyhow. One who comes `again` is given what costs nothing,
        and the others are written meanwhile.
        """
        mind = self._mind
        if not np.count_nonzero(self._waits(victims)):
            return victims
        victims = mind.host.next_victims(slot_class, max(count, _SPARED_BLOCKS))
        waits = self._waits(victims)
        clean = victims[~waits][:count]
        if again and len(victims) < count and len(clean) and not mind.directory.window.num_blocks:
            return clean
        return np.concatenate([clean, victims[waits][: count - len(clean)]])

    def leave(self, entries: Int64Array) -> None:
        """Count those that leave for whatever reason while they wait to be written: they are lost."""
        self._mind.not_stored("unwritten", int(np.count_nonzero(self._waits(entries))))

    def _waits(self, entries: Int64Array) -> BoolArray:
        """Which blocks only the host holds, and are to be written before they leave."""
        directory = self._mind.directory
        waits: BoolArray = directory.ssd.state[entries] == State.ABSENT
        waits &= directory.flags[entries] & SPURNED == 0
        return waits if self._mind.health.writes_on else np.zeros(len(entries), np.bool_)
