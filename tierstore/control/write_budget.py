"""The budget of bytes a day for write-back, since SSDs wear. Pure; asked by `write_back` after admission."""

from __future__ import annotations

__all__ = ["WriteBudget"]

_DAY_SECONDS = 86_400.0
_HOURS_HELD = 1.0


class WriteBudget:
    """A token bucket: it fills evenly and holds one hour's worth, so that a quiet night pays for no flood.

    For a block larger than that it holds as much as the block needs.

    Args:
        nbytes_per_day: What may be written; None for no bound.
    """

    def __init__(self, nbytes_per_day: int | None) -> None:
        self._nbytes_per_second = None if nbytes_per_day is None else nbytes_per_day / _DAY_SECONDS
        self._nbytes_max = 0.0 if nbytes_per_day is None else nbytes_per_day / 24 * _HOURS_HELD
        self._nbytes = self._nbytes_max
        self._filled_at: float | None = None

    def take(self, num_blocks: int, block_nbytes: int, now: float) -> int:
        """How many of these blocks may be written now; they are taken off the budget."""
        taken = self.affords(num_blocks, block_nbytes, now)
        self._nbytes -= taken * block_nbytes
        return taken

    def affords(self, num_blocks: int, block_nbytes: int, now: float) -> int:
        """How many of these blocks could be written now; nothing is taken off the budget."""
        if self._nbytes_per_second is None:
            return num_blocks
        if self._filled_at is not None:
            self._nbytes += max(0.0, now - self._filled_at) * self._nbytes_per_second
        self._filled_at = now
        self._nbytes = min(self._nbytes, max(self._nbytes_max, block_nbytes))
        return min(num_blocks, int(self._nbytes // block_nbytes))
