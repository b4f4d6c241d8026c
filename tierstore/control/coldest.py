"""Which chunk file is reclaimed next: the one with the smallest share of warm blocks. Pure; called by `ssd_room`.

All blocks on SSD have one order across files: by last use, and among blocks used together the deepest is the oldest,
since a prefix without its tail is shorter but without its head is worthless. The oldest of that order are cold, the
others warm. If every file holds more warm blocks than may be written again, the cold share grows until one does not.
The greedy choice is that of log-structured file systems (Rosenblum, Ousterhout: The Design and Implementation of a
Log-Structured File System, SOSP 1991, https://doi.org/10.1145/121132.121137); the figures are from
docs/decisions/0024-the-coldest-file-goes.md.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tierstore.control.entry import State

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tierstore.control.directory import Directory
    from tierstore.types import Int64Array

__all__ = ["Leaving", "ages", "coldest", "without_new"]

_COLD_SHARE = 0.02
"""Share of the blocks on SSD that is cold in any case, even if a file has room to keep them."""

_COLDER = 1.5
"""Factor by which that share grows at a time."""

_SAMPLE_ENTRIES = 1 << 12
"""Directory entries sampled for one choice, evenly spread, to bound a lock hold."""

_NEW_FILES = 8
"""One of so many files counts as new; at least two do, but never all."""

_DEPTH_BITS = 16
_AWAITED = 1 << 62


class Leaving(NamedTuple):
    """The file to reclaim.

    Attributes:
        file: Its number.
        warm_above: Its blocks above this in the order of `ages` are warm.
    """

    file: int
    warm_above: int


def ages(directory: Directory, entries: Int64Array) -> Int64Array:
    """int64[n]; the rank of blocks in the order of all, the oldest lowest; blocks in the look-ahead window highest."""
    depths = directory.depth[entries].astype(np.int64)
    order: Int64Array = (directory.last_use[entries].astype(np.int64) << _DEPTH_BITS) + (0xFFFF - depths)
    order[directory.next_use[entries] > 0] = _AWAITED
    return order


def without_new(num_blocks: Mapping[int, int]) -> dict[int, int]:
    """The files that may be reclaimed: all but the new ones. Maps files, oldest first, to the blocks written to each.

    A new file is being written, or a durable put may still wait for its sync and would lose blocks it has written.
    """
    num_new = min(len(num_blocks) - 1, max(2, len(num_blocks) // _NEW_FILES))
    return dict(islice(num_blocks.items(), len(num_blocks) - num_new))


def coldest(directory: Directory, num_blocks: Mapping[int, int], share_max: float) -> Leaving:
    """Choose the file to reclaim; takes about half a millisecond, however large the directory is.

    Args:
        directory: Only read.
        num_blocks: Files that may be reclaimed, oldest first, each with the number of blocks written to it.
        share_max: Share of a file's blocks that may be warm.
    """
    files = np.fromiter(num_blocks, np.int64, len(num_blocks))
    written = np.maximum(1, np.fromiter(num_blocks.values(), np.int64, len(num_blocks)))
    stride = max(1, directory.high_water // _SAMPLE_ENTRIES)
    entries = (directory.ssd.state[: directory.high_water : stride] == State.READY).nonzero()[0] * stride
    order = ages(directory, entries)
    by_number = np.argsort(files)
    found = np.searchsorted(files, directory.ssd_file[entries], sorter=by_number)
    places = by_number[np.minimum(found, len(files) - 1)]
    known = files[places] == directory.ssd_file[entries]
    places, own = places[known], order[known]
    order.sort()
    share = _COLD_SHARE
    while True:
        limit = order[min(int(share * len(order)), len(order) - 1)] if len(order) else 0
        warm_above = min(int(limit), _AWAITED - 1)
        warm = np.bincount(places[own > warm_above], minlength=len(files)) * stride / written
        place = int(warm.argmin())
        if warm[place] <= share_max or share >= 1:
            return Leaving(int(files[place]), warm_above)
        share *= _COLDER
