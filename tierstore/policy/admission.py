"""Who may be written to a farther tier. Pure; asked by the planner before each write-back."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tierstore.types import Int32Array, TierName

__all__ = ["AdmitAlways", "AdmitSecondHit"]


class AdmitAlways:
    """Every block is worth writing."""

    def admit(self, entries: Int32Array, hits: Int32Array, dst: TierName, block_nbytes: int) -> list[bool]:
        """True for each entry."""
        return [True] * len(entries)


class AdmitSecondHit:
    """A block is written once it has been used again: what is asked for once never wears the SSD."""

    def admit(self, entries: Int32Array, hits: Int32Array, dst: TierName, block_nbytes: int) -> list[bool]:
        """True for each entry with a hit."""
        answers: list[bool] = (hits > 0).tolist()
        return answers
