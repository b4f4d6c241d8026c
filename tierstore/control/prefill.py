"""The cost of computing tokens: a small table by the length of the prefix before them. Pure.

It starts from a plain rate, if given, and learns from the engine's reports. A token behind a longer prefix costs
more, because attention reads all of it. Called by the planner's `loading`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tierstore.types import Int64Array

__all__ = ["PrefillCost"]

_ROW_TOKENS = 1024
"""End of the first row of the table; each further row ends at twice as many tokens."""

_NUM_ROWS = 16
_FORGET = 0.8
"""Weight kept by the earlier reports of a row at each new one."""


class PrefillCost:
    """Seconds a token, by the number of tokens before it.

    Args:
        tokens_per_second: Rate assumed for every token until the first report; None if unknown.
    """

    def __init__(self, tokens_per_second: float | None = None) -> None:
        self._given = None if tokens_per_second is None else 1.0 / tokens_per_second
        self._tokens = np.zeros(_NUM_ROWS)
        self._seconds = np.zeros(_NUM_ROWS)

    @property
    def known(self) -> bool:
        """Whether anything has been given or reported."""
        return self._given is not None or bool(self._tokens.any())

    def report(self, *, prefix_tokens: int, num_tokens: int, seconds: float) -> None:
        """An engine has computed `num_tokens` behind `prefix_tokens`; reports replace the given rate.

        A report without tokens, or whose seconds are not a positive finite number, is ignored: clocks stop, go back
        and overflow, and one such figure would spoil all later advice.
        """
        if prefix_tokens < 0 or num_tokens < 1 or not 0.0 < seconds < math.inf:
            return
        row = min(_NUM_ROWS - 1, ((prefix_tokens + num_tokens // 2) // _ROW_TOKENS).bit_length())
        self._tokens[row] = self._tokens[row] * _FORGET + num_tokens
        self._seconds[row] = self._seconds[row] * _FORGET + seconds

    def seconds_until(self, tokens: Int64Array) -> NDArray[np.float64]:
        """Seconds to compute a prompt up to each of these token counts. Needs `known`."""
        knots = np.concatenate([[0], _ROW_TOKENS << np.arange(_NUM_ROWS)])
        costs = self._rows()
        totals = np.concatenate([[0.0], np.cumsum(costs * np.diff(knots))])
        beyond = np.maximum(0, tokens - knots[-1]) * costs[-1]
        seconds: NDArray[np.float64] = np.interp(tokens, knots, totals) + beyond
        return seconds

    def _rows(self) -> NDArray[np.float64]:
        """Seconds a token for each row; a row without reports takes the value of the nearest one with some."""
        reported = self._tokens.nonzero()[0]
        if not len(reported):
            assert self._given is not None, "nothing is known of what computing costs"
            return np.full(_NUM_ROWS, self._given)
        distances = np.abs(np.arange(_NUM_ROWS)[:, None] - reported[None, :])
        nearest = reported[distances.argmin(axis=1)]
        costs: NDArray[np.float64] = self._seconds[nearest] / self._tokens[nearest]
        return costs
