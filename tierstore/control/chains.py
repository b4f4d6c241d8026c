"""The predecessor of each block, so that no block is written without those before it. Pure; part of the planner.

A block is worthless without the blocks before it in its prefix. Each entry stores the entry of its predecessor, from
the last put that named it. A block may be written if it heads a chain, or if its predecessor is on SSD, on its way
there, or written before it in the same batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tierstore.control.entry import State
from tierstore.control.index import as_keys

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tierstore.control.directory import Directory
    from tierstore.control.requests import Request
    from tierstore.types import Int32Array, Int64Array

__all__ = ["Chains"]

_HEAD, _MISSING = 0, -1  # in place of a predecessor's entry + 1

_CLIMB_MAX = 4096
"""Predecessors looked at in one step, to bound a lock hold."""


class Chains:
    """Predecessors of the directory's entries."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory

    def link(self, request: Request, lo: int, entries: Int64Array) -> None:
        """Store the predecessors of the blocks that a put names from position `lo` on; an entry of -1 was refused."""
        if lo:
            first = int(request.entries[lo - 1]) + 1 or _MISSING
        elif request.parents[:1].any():
            found = self._directory.find(request.life.number, as_keys(request.parents[:1]))
            first = int(found[0]) + 1 or _MISSING
        else:
            first = _HEAD
        before = np.empty(len(entries), np.int32)
        before[:1] = first
        np.add(entries[:-1], 1, out=before[1:])
        refused = entries < 0
        if np.count_nonzero(refused):
            before[1:][refused[:-1]] = _MISSING
            before, entries = before[~refused], entries[~refused]
        self._directory.parent[entries] = before

    def _on_ssd(self, parents: Int32Array, children: Int64Array) -> NDArray[np.bool_]:
        """Which predecessors (entry + 1) are on SSD or on their way; false if the entry is another block's by now."""
        directory, above = self._directory, parents.astype(np.int64) - 1
        state = directory.ssd.state[above]
        there = (parents > 0) & ((state == State.READY) | (state == State.FILLING))
        there &= directory.index.generation[above] == directory.index.generation[children]
        depths = directory.depth[above].astype(np.int32), directory.depth[children].astype(np.int32)
        fits: NDArray[np.bool_] = there & (depths[0] == np.minimum(depths[1] - 1, 0xFFFE))
        fits |= there & (depths[1] == 0xFFFF)
        return fits

    def rooted(self, entries: Int64Array) -> NDArray[np.bool_]:
        """Which blocks, given heads first, may be written: heads, and those whose predecessor is written first."""
        parents = self._directory.parent[entries]
        if np.count_nonzero(parents[1:] == entries[:-1] + 1) == len(entries) - 1:  # one piece of a chain
            first = bool(parents[0] == _HEAD) or bool(self._on_ssd(parents[:1], entries[:1])[0])
            return np.full(len(entries), first)
        good = (parents == _HEAD) | self._on_ssd(parents, entries)
        starts = np.concatenate([[True], parents[1:] != entries[:-1] + 1]) | good
        rooted: NDArray[np.bool_] = good[starts][np.cumsum(starts) - 1] if len(entries) else good
        if not rooted.all():
            self._follow(entries, parents, rooted)
        return rooted

    @staticmethod
    def _follow(entries: Int64Array, parents: Int32Array, rooted: NDArray[np.bool_]) -> None:
        """Add blocks whose predecessor may be written and comes earlier, but not directly before them."""
        written = set(entries[rooted].tolist())
        for position in (~rooted).nonzero()[0].tolist():
            if int(parents[position]) - 1 in written:
                rooted[position] = True
                written.add(int(entries[position]))

    def with_heads(self, entries: Int64Array) -> Int64Array:
        """These blocks of one generation and the unwritten ones before them, heads first, if they may be written."""
        directory = self._directory
        parent_of, host, ssd = directory.parent.data, directory.host.state.data, directory.ssd.state.data
        found = dict.fromkeys(entries.tolist())
        climbing = list(found)
        while climbing and len(found) < _CLIMB_MAX:
            above = parent_of[climbing.pop()] - 1
            if above >= 0 and above not in found and host[above] == State.READY and ssd[above] == State.ABSENT:
                found[above] = None
                climbing.append(above)
        chosen = np.array(list(found), np.int64)
        chosen = chosen[directory.index.generation[chosen] == directory.index.generation[entries[0]]]
        chosen = chosen[np.argsort(directory.depth[chosen], kind="stable")]
        written: Int64Array = chosen[self.rooted(chosen)]
        return written
