"""What the store answers when it is asked what is worth loading. Plain data, like `tierstore.types`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

__all__ = ["LoadAdvice", "Place"]


class Place(IntEnum):
    """The nearest tier from which a block could be loaded."""

    NOWHERE = 0
    HOST = 1
    SSD = 2
    UNDER_WAY = 3
    """A copy that will make it usable in host memory is in flight."""


@dataclass(frozen=True, slots=True)
class LoadAdvice:
    """What of a prompt is worth loading, and what that is worth.

    Attributes:
        leading: Blocks from the first that could be loaded without a hole.
        first: Load from this block: behind what the engine has computed, or where the best tail begins.
        stop: Load up to this block, and recompute what follows; `first` where loading nothing is fastest.
        load_seconds: Until blocks [first, stop) are in the caller's pages, as the links are now.
        recompute_seconds: What computing them would take instead; None where nobody has said what computing costs.
        in_host: Up to this block, of [first, stop), all lie in host memory now: a get of them waits for no disk.
    """

    leading: int
    first: int
    stop: int
    load_seconds: float
    recompute_seconds: float | None
    in_host: int
