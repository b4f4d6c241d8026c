"""For each verb, the call that opens its request in the planner. The handle passes the generation and the deadline."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from tierstore.control.planner import Planner
from tierstore.control.requests import Request

if TYPE_CHECKING:
    from tierstore.types import UInt8Array

__all__ = ["Opening", "getting", "lent", "prefetching", "putting"]

Opening: TypeAlias = Callable[[Planner, int, float], Request | None]
"""Called under the engine's lock with a generation's number and a deadline; None where too many requests are open."""


def putting(keys: UInt8Array, parents: UInt8Array, *, durable: bool) -> Opening:
    """Open a put of uint8[n, 32] distinct hashes; `parents` is uint8[n, 32], each block's predecessor."""
    return lambda planner, number, deadline: planner.put(number, keys, parents, durable=durable, deadline=deadline)


def getting(keys: UInt8Array) -> Opening:
    """Open a get of uint8[n, 32] distinct hashes in prefix order."""
    return lambda planner, number, deadline: planner.get(number, keys, deadline)


def prefetching(keys: UInt8Array, priority: int) -> Opening:
    """Open a prefetch."""
    return lambda planner, number, deadline: planner.prefetch(number, keys, deadline, priority=priority)


def lent(opening: Opening) -> Opening:
    """Open a get or put whose copies the caller makes by himself, in lent slots."""
    return lambda planner, number, deadline: planner.lent(opening(planner, number, deadline))
