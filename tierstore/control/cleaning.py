"""Write-back just before eviction: the next victims are written to SSD before their slots are needed. Pure.

A step of the upkeep, if the admission policy asks for it. It looks at the next victims of each slot class, as many
as are not covered by free slots and writes in flight, and writes those that SSD does not hold, the heads of their
chains first. A block being written is pinned, so others are evicted first. Blocks that SSD holds are evicted before
blocks that wait to be written; those are lost only if nothing else is left.
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
"""Next victims kept clean, at most a quarter of the pool: up to two slices of a put come between two steps."""

_SPARED_BLOCKS = 1024
"""Next victims searched for those that SSD holds, to bound a lock hold; one call takes at most half as many slots."""

_WRITE_BLOCKS = 512
"""Blocks that one step writes, to bound a lock hold."""


class Cleaning:
    """Keeps the next victims clean, which is to say held by SSD.

    Args:
        mind: Shared with the stories.
        write_back: Writes the blocks.
        lives: Every generation by its number; the planner's own mapping.
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
        """Whether slots, blocks or writes in flight have changed since the last step, and writes are on."""
        return self._write_back.asks_when_leaving and self._seen != self._now and self._mind.health.writes_on

    def step(self, plan: Plan, now: float) -> None:
        """Write the next victims that SSD does not hold."""
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
        """The next victims to keep clean in each slot class; free slots and writes in flight count as clean."""
        host, found = self._mind.host, [np.empty(0, np.int64)]
        for slot_class, block_nbytes in {life.slot_class: life.block_nbytes for life in self._lives.values()}.items():
            count = min(_AHEAD_BLOCKS, host.pool_nbytes // block_nbytes // 4)
            count -= host.slots.free(slot_class) + self._mind.write_inflight_nbytes // block_nbytes
            found.append(host.next_victims(slot_class, max(0, count)))
        return np.concatenate(found)

    def _clean(self, life: Life, dirty: Int64Array, plan: Plan, now: float) -> None:
        """Write dirty blocks of one generation, as many as may be in flight; mark as SPURNED those SSD does not want.

        Blocks behind a spurned one in its chain are SPURNED too: without it they are worth nothing.
        """
        mind, directory, chains = self._mind, self._mind.directory, self._write_back.chains
        wanted = chains.with_heads(dirty)
        room = max(0, mind.limits.write_inflight_nbytes_max - mind.write_inflight_nbytes) // life.block_nbytes
        count = min(_WRITE_BLOCKS, room)
        offered, rest = wanted[:count], wanted[count:]
        if len(offered):
            self._write(life, offered, plan, now)
        refused = directory.ssd.state[offered] == State.ABSENT
        if np.count_nonzero(refused) and not self._write_back.parking:  # a refused one may just be parked
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
        """Choose other victims, so that a block that waits to be written is evicted only if no other can be.

        If fewer blocks than `count` are evictable the caller is cut short anyhow. If it asks `again`, it gets only
        the clean ones, and the others are written meanwhile.
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
        """Count evicted blocks that still waited to be written: they are lost."""
        self._mind.not_stored("unwritten", int(np.count_nonzero(self._waits(entries))))

    def _waits(self, entries: Int64Array) -> BoolArray:
        """Which blocks SSD does not hold, and are to be written before they are evicted."""
        directory = self._mind.directory
        waits: BoolArray = directory.ssd.state[entries] == State.ABSENT
        waits &= directory.flags[entries] & SPURNED == 0
        return waits if self._mind.health.writes_on else np.zeros(len(entries), np.bool_)
