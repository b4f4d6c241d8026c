"""Look-ups of blocks, and what one run of the store passes to the next. Pure; part of the planner.

The engine calls it under its lock, in slices. It moves no block and pins none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tierstore.advice import Usage
from tierstore.control.entry import State
from tierstore.control.index import as_keys, identity_prefixes
from tierstore.control.requests import leading_run
from tierstore.metrics import Metric
from tierstore.types import Extents, Presence

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tierstore.control.mind import Mind
    from tierstore.control.requests import Life
    from tierstore.types import UInt8Array

__all__ = ["Catalogue"]

_USAGE_ENTRIES = 8192
"""Entries that `usage` looks at in one lock hold."""


class Catalogue:
    """The directory as seen by doors, and by a start that adopts the blocks of an earlier run.

    Args:
        mind: Shared with the stories.
        lives: Every generation by its number; the planner's own mapping.
    """

    def __init__(self, mind: Mind, lives: Mapping[int, Life]) -> None:
        self._mind = mind
        self._lives = lives

    def adopt_files(self, files: list[int]) -> None:
        """Enter the chunk files of an earlier run, oldest first. Call it before `adopt` enters their blocks."""
        assert self._mind.ssd is not None, "files recovered without an SSD tier"
        self._mind.ssd.adopt_files(files)

    def adopt(self, number: int, hashes: UInt8Array, extents: Extents, usage: Usage | None = None) -> int:
        """Enter blocks on SSD from an earlier run; returns how many were entered: new ones, while entries last.

        Args:
            number: The generation.
            hashes: uint8[n, 32].
            extents: Their places on SSD.
            usage: Their last use and hits, in the same order; None if unknown.
        """
        directory, ssd = self._mind.directory, self._mind.ssd
        assert ssd is not None, "blocks recovered without an SSD tier"
        keys = as_keys(hashes)
        new = (directory.find(number, keys) < 0) & ssd.known(extents.file)
        new[new.nonzero()[0][directory.room :]] = False
        entries = directory.add(number, keys[new])
        ssd.reserve(entries)
        ssd.written(entries, extents.rows(new))
        directory.last_use[entries] = 0 if usage is None else usage.last_use[new]
        directory.hits[entries] = 0 if usage is None else usage.hits[new]
        return len(entries)

    def usage(self, start: int) -> tuple[Usage, int | None]:
        """Last use and hits of blocks on SSD, for a slice of entries from `start`; and the next start, or None."""
        directory = self._mind.directory
        entries = directory.held(start, start + _USAGE_ENTRIES)
        entries = entries[directory.ssd.state[entries] == State.READY]
        prefix = np.empty(len(entries), np.uint64)
        generations = directory.index.generation[entries]
        for number in dict.fromkeys(generations.tolist()):
            own = generations == number
            fingerprint = self._lives[number].generation.fingerprint
            prefix[own] = identity_prefixes(fingerprint, directory.index.keys[entries[own]])
        following = start + _USAGE_ENTRIES
        usage = Usage(prefix, directory.last_use[entries], directory.hits[entries])
        return usage, following if following < directory.high_water else None

    def held(self, number: int, start: int) -> tuple[int, int, int | None]:
        """Blocks of a generation in host memory and on SSD, in a slice of entries from `start`; and the next start."""
        directory = self._mind.directory
        entries = directory.held(start, start + _USAGE_ENTRIES)
        entries = entries[directory.index.generation[entries] == number]
        in_host = int(np.count_nonzero(directory.host.state[entries] != State.ABSENT))
        on_ssd = int(np.count_nonzero(directory.ssd.state[entries] != State.ABSENT))
        following = start + _USAGE_ENTRIES
        return in_host, on_ssd, following if following < directory.high_water else None

    def lookup(self, number: int, hashes: UInt8Array) -> list[Presence]:
        """Presence of each block, given uint8[n, 32]."""
        entries = self._mind.directory.find(number, as_keys(hashes))
        host, ssd = self._mind.near(entries)
        presence = np.full(len(hashes), Presence.HIT, np.uint8)
        presence[host == State.FILLING] = Presence.PENDING
        presence[~self._mind.usable(entries, host, ssd)] = Presence.MISS
        return [Presence(value) for value in presence.tolist()]

    def leading(self, number: int, hashes: UInt8Array) -> int:
        """How many blocks are HIT before the first hole, given uint8[n, 32] of one slice."""
        entries = self._mind.directory.find(number, as_keys(hashes))
        host, ssd = self._mind.near(entries)
        hit = self._mind.usable(entries, host, ssd) & (host != State.FILLING)
        run = leading_run(hit)
        self._mind.metrics.add(Metric.LOOKUP_BLOCKS, len(hit))
        self._mind.metrics.add(Metric.LOOKUP_HIT_BLOCKS, run)
        return run
