"""How far the reading of a folder is, for the log: a start may take minutes where many files have to be scanned.

Called by recovery where nobody else wants to know. Says each tenth once, and nothing of a folder that takes no time.
"""

from __future__ import annotations

import logging

from tierstore.tiers.base import Progress

__all__ = ["logged_in_tenths"]

_LOGGED_NBYTES_MIN = 256 << 20
"""Read in a fraction of a second, whatever lies there."""

_logger = logging.getLogger(__name__)


def logged_in_tenths() -> Progress:
    """Say each tenth of the bytes once."""
    said = 0

    def progress(done_nbytes: int, total_nbytes: int) -> None:
        nonlocal said
        tenths = 10 * done_nbytes // max(1, total_nbytes)
        if tenths > said and total_nbytes >= _LOGGED_NBYTES_MIN:
            _logger.info("%d %% of %d MiB of chunk files are read", 10 * tenths, total_nbytes >> 20)
            said = tenths

    return progress
