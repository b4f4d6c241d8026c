"""Belady's bound: the most hits that a cache of a given size could have if it knew the future and could refuse blocks.

Belady: A study of replacement algorithms for a virtual-storage computer (IBM Systems Journal 5, 1966),
https://doi.org/10.1147/sj.52.0078. Here it is over prefixes: a block counts only if all before it are held. Among
blocks next needed by the same request, the deepest is evicted first. A parent is needed no later than its child, so
the blocks kept are always whole prefixes. Called by the report.
"""

from __future__ import annotations

import heapq
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from tierstore.replay.trace import Trace
    from tierstore.types import Int32Array, Int64Array

__all__ = ["belady_leading", "next_requests", "reachable_leading"]


def next_requests(trace: Trace) -> Int32Array:
    """int32[m]; the next request that names each reference's block again, or the number of requests."""
    owner = trace.requests_of_references()
    order = np.argsort(trace.blocks, kind="stable")
    again = trace.blocks[order[:-1]] == trace.blocks[order[1:]]
    following = np.full(len(order), len(trace), np.int32)
    following[order[:-1][again]] = owner[order[1:][again]]
    return following


def reachable_leading(trace: Trace) -> Int64Array:
    """int64[n]; leading blocks that each request finds where nothing is ever evicted."""
    first = np.zeros(trace.num_unique, np.int64)
    first[trace.blocks[::-1]] = np.arange(len(trace.blocks))[::-1]
    seen = first[trace.blocks] < np.arange(len(trace.blocks))
    return _leading(trace, seen)


def belady_leading(trace: Trace, capacity: int) -> Int64Array:
    """int64[n]; leading blocks that each request finds in the best cache of `capacity` blocks. Takes a second."""
    num_requests = len(trace)
    following = next_requests(trace).tolist()
    blocks, starts = trace.blocks.tolist(), trace.starts.tolist()
    due: dict[int, int] = {}  # held block to the request that needs it next
    furthest: list[tuple[int, int, int]] = []
    found = np.zeros(len(blocks), np.bool_)
    for start, stop in pairwise(starts):
        for position in range(start, stop):
            block, needed = blocks[position], following[position]
            if block in due:
                found[position] = True
                if needed == num_requests:
                    del due[block]
                    continue
            elif needed == num_requests:
                continue
            due[block] = needed
            heapq.heappush(furthest, (-needed, start - position, block))
        while len(due) > capacity:
            needed, _, block = heapq.heappop(furthest)
            if due.get(block) == -needed:
                del due[block]
    return _leading(trace, found)


def _leading(trace: Trace, found: np.typing.NDArray[np.bool_]) -> Int64Array:
    """Found references before the first that is not, for each request."""
    lost = np.concatenate([[0], np.cumsum(~found)])
    intact = lost[1:] == np.repeat(lost[trace.starts[:-1]], np.diff(trace.starts))
    counts = np.concatenate([[0], np.cumsum(intact)])
    leading: Int64Array = counts[trace.starts[1:]] - counts[trace.starts[:-1]]
    return leading
