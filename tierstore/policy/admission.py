"""Who may be written to a farther tier, under the names that engines give it. Pure; asked before each write-back."""

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
    """A block is written once a get has used it, selectively: what is asked for once never wears the SSD."""

    asks_when_leaving = False

    def admit(self, offer: Offer) -> list[bool]:
        """True for each entry with a hit."""
        answers: list[bool] = (offer.hits > 0).tolist()
        return answers


class AdmitContinued:
    """A block is written once a get has used it or a later put has named it again.

    The tail of a conversation waits until the conversation goes on; a head that others share does not wait long.
    """

    asks_when_leaving = False

    def admit(self, offer: Offer) -> list[bool]:
        """True for each entry that somebody came back to."""
        answers: list[bool] = ((offer.hits > 0) | offer.again).tolist()
        return answers


class AdmitLeaving:
    """A block is written when it is about to leave host memory: write-back. What dies before that costs nothing."""

    asks_when_leaving = True

    def admit(self, offer: Offer) -> list[bool]:
        """True where the blocks are leaving."""
        return [offer.leaving] * len(offer.entries)
