"""Admission policies: which blocks are written to a farther tier, under the names that engines use.

Pure; asked before each write-back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tierstore.policy.base import Offer

__all__ = ["AdmitAlways", "AdmitContinued", "AdmitLeaving", "AdmitSecondHit"]


class AdmitAlways:
    """Every block is worth writing, as soon as it is there: write-through."""

    asks_when_leaving = False

    def admit(self, offer: Offer) -> list[bool]:
        """True for each entry."""
        return [True] * len(offer.entries)


class AdmitSecondHit:
    """Selective: a block is written once a get has used it. A block that is never used again does not wear the SSD."""

    asks_when_leaving = False

    def admit(self, offer: Offer) -> list[bool]:
        """True for each entry with a hit."""
        answers: list[bool] = (offer.hits > 0).tolist()
        return answers


class AdmitContinued:
    """A block is written once a get has used it or a later put has named it again.

    The tail of a conversation waits until the conversation goes on; a shared head does not wait long.
    """

    asks_when_leaving = False

    def admit(self, offer: Offer) -> list[bool]:
        """True for each entry that was used or named again."""
        answers: list[bool] = ((offer.hits > 0) | offer.again).tolist()
        return answers


class AdmitLeaving:
    """Write-back: a block is written when it is about to leave host memory. One deleted before costs no write."""

    asks_when_leaving = True

    def admit(self, offer: Offer) -> list[bool]:
        """True where the blocks are leaving."""
        return [offer.leaving] * len(offer.entries)
