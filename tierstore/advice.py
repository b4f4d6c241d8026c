"""Advisory data: which blocks are worth loading, and how blocks were used. Plain data, like `tierstore.types`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tierstore.types import UInt16Array, UInt32Array, UInt64Array

__all__ = ["LoadAdvice", "Place", "Usage"]


class Place(IntEnum):
    """The nearest tier from which a block could be loaded."""

    NOWHERE = 0
    HOST = 1
    SSD = 2
    UNDER_WAY = 3
    """A copy that will make it usable in host memory is in flight."""


@dataclass(frozen=True, slots=True)
class LoadAdvice:
    """Which part of a prompt is worth loading, with the predicted times.

    Attributes:
        leading: Blocks from the first that could be loaded without a hole.
        first: Load from this block: behind what the engine has computed, or where the best tail begins.
        stop: Load up to this block, and recompute what follows; equals `first` if loading nothing is fastest.
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


@dataclass(frozen=True, slots=True, eq=False)
class Usage:
    """How blocks were used: three parallel columns, advisory.

    Attributes:
        prefix: uint64[n]; names a block within one store, by its fingerprint and hash; see `identity_prefixes`.
        last_use: uint32[n]; in the ticks of the store's clock.
        hits: uint16[n]; uses since it came, or since it was last written again.
    """

    prefix: UInt64Array
    last_use: UInt32Array
    hits: UInt16Array

    def __len__(self) -> int:
        return len(self.prefix)
