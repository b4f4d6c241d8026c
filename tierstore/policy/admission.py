"""Who may be written to a farther tier. Pure; asked by the planner before each write back."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tierstore.types import Int32Array, TierName

__all__ = ["AdmitAlways"]


class AdmitAlways:
    """Every block is worth writing."""

    def admit(self, entries: Int32Array, hits: Int32Array, dst: TierName, block_nbytes: int) -> list[bool]:
        """True for each entry."""
        return [True] * len(entries)
