"""Which chunk file goes when room is short: that of the fewest blocks worth keeping. Pure; asked by `ssd_room`.

All blocks on SSD stand in one order, whichever file holds them: by their last use, and of those used together the
deepest is the oldest, for without its tail a prefix is shorter and without its head it is nothing. The oldest of
that order are cold. Where every file holds so many others that writing them again would cost more than is allowed,
more of them are cold. The greedy choice is that of log-structured file systems (Rosenblum, Ousterhout: The Design and
Implementation of a Log-Structured File System, SOSP 1991, https://doi.org/10.1145/121132.121137); the figures
are those of docs/decisions/0024-the-coldest-file-goes.md.
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
"""Of all blocks on SSD, those that are cold whatever it costs to keep them: room that waits to be won."""

_COLDER = 1.5
"""By how much that share grows at a time where it must."""

_SAMPLE_ENTRIES = 1 << 12
"""Directory entries that one choice looks at, evenly spread, to bound a lock hold."""

_NEW_FILES = 8
"""One of so many files is new, and never less than two, where there are as many."""

_DEPTH_BITS = 16
_AWAITED = 1 << 62


class Leaving(NamedTuple):
    """A file that is to go.

    Attributes:
        file: Its number.
        warm_above: Its blocks of a higher age, see `ages`, are to be written again.
    """

    file: int
    warm_above: int


def ages(directory: Directory, entries: Int64Array) -> Int64Array:
    """int64[n]; where blocks stand among all, the oldest lowest: what a waiting request needs is the youngest."""
    depths = directory.depth[entries].astype(np.int64)
    order: Int64Array = (directory.last_use[entries].astype(np.int64) << _DEPTH_BITS) + (0xFFFF - depths)
    order[directory.next_use[entries] > 0] = _AWAITED
    return order


def without_new(num_blocks: Mapping[int, int]) -> dict[int, int]:
    """The files that may go, of all of them, oldest first; both with how many blocks were written to each.

    What is new is being written, or may still be waited for: a durable put would find that it has gone before the sync.
    """
    num_new = min(len(num_blocks) - 1, max(2, len(num_blocks) // _NEW_FILES))
    return dict(islice(num_blocks.items(), len(num_blocks) - num_new))


def coldest(directory: Directory, num_blocks: Mapping[int, int], share_max: float) -> Leaving:
    """The file to go; costs about half a millisecond however large the directory is.

    Args:
        directory: Read alone.
        num_blocks: By the number of each file that may go, oldest first, how many blocks were written to it.
        share_max: Of its blocks, those that may be warm.
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
