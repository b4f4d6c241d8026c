"""Keeps blocks younger than those behind them, so that a prefix is evicted from its tail. Pure.

Each batch is touched tail first. But if the blocks of a request come in several batches, or are partly held
already, its first blocks end up older than its last: they would be evicted first, and the rest be worthless. So
after such a request the whole prefix is touched again, tail first, a bounded slice at each step of the upkeep.
A policy that counts uses does not count this touch.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tierstore.control.directory import Directory
    from tierstore.control.host_room import HostRoom
    from tierstore.control.requests import Life
    from tierstore.types import Int64Array, UInt64Array

__all__ = ["Ageing"]

_SLICE_BLOCKS = 512
"""Blocks looked up in one step, to bound a lock hold."""


class Ageing:
    """The prefixes to touch again.

    Args:
        directory: Checks that entries still belong to their keys.
        host: The room whose blocks are touched.
    """

    def __init__(self, directory: Directory, host: HostRoom) -> None:
        self._directory = directory
        self._host = host
        self._prefixes: deque[tuple[Life, UInt64Array, Int64Array]] = deque()

    @property
    def due(self) -> bool:
        """Whether `step` has something to do."""
        return bool(self._prefixes)

    def renew(self, life: Life, keys: UInt64Array, entries: Int64Array) -> None:
        """Queue a prefix, uint64[n, 4] keys and their entries; entries of other keys by then are skipped."""
        if len(keys):
            self._prefixes.append((life, keys, entries))

    def step(self, now: float) -> None:
        """Touch the last slice of the first prefix."""
        if not self._prefixes:
            return
        life, keys, entries = self._prefixes.popleft()
        tail = slice(-_SLICE_BLOCKS, None)
        ours = self._directory.index.hold(life.number, keys[tail], entries[tail])
        self._host.touch(life.slot_class, entries[tail][ours], now, used=False)
        if len(keys) > _SLICE_BLOCKS:
            self._prefixes.appendleft((life, keys[:-_SLICE_BLOCKS], entries[:-_SLICE_BLOCKS]))
