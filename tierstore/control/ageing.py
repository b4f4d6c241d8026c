"""Parents stay younger than their children, so that a prefix leaves the host pool from its tail. Pure.

A batch counts as used tail first, but a request whose blocks come in several batches, or are partly held
already, leaves its first blocks older than its last: they would go first, and the rest be worth nothing. So
once such a request has ended its whole prefix is made young again, tail first, a bounded slice at each step of
the upkeep. That is no use: it counts for no policy that counts uses.
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
    """Prefixes to be made young again.

    Args:
        directory: Where blocks are found.
        host: Whose order is kept.
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
        """Have the blocks of a prefix, uint64[n, 4], made young in the next steps, where entries are still theirs."""
        if len(keys):
            self._prefixes.append((life, keys, entries))

    def step(self, now: float) -> None:
        """Make the last blocks of the first prefix young."""
        if not self._prefixes:
            return
        life, keys, entries = self._prefixes.popleft()
        tail = slice(-_SLICE_BLOCKS, None)
        ours = self._directory.index.hold(life.number, keys[tail], entries[tail])
        self._host.touch(life.slot_class, entries[tail][ours], now, used=False)
        if len(keys) > _SLICE_BLOCKS:
            self._prefixes.appendleft((life, keys[:-_SLICE_BLOCKS], entries[:-_SLICE_BLOCKS]))
