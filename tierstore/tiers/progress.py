"""Logs the progress of reading a folder: a start may take minutes if many files have to be scanned.

Called by recovery if the caller passes no progress of its own. Logs once a second and at the end; nothing for a
small folder.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from tierstore.tiers.base import Progress

__all__ = ["logged_progress"]

_LOGGED_NBYTES_MIN = 256 << 20
"""Read in a fraction of a second, whatever lies there."""

_STEP_SECONDS = 1.0

_logger = logging.getLogger(__name__)


def logged_progress(clock: Callable[[], float] = time.monotonic) -> Progress:
    """Say how many of the bytes are read, once in so many seconds and at the end.

    Args:
        clock: Seconds.
    """
    due, ended = clock() + _STEP_SECONDS, False

    def progress(done_nbytes: int, total_nbytes: int) -> None:
        nonlocal due, ended
        if ended or total_nbytes < _LOGGED_NBYTES_MIN:
            return
        ended = done_nbytes >= total_nbytes
        if ended or clock() >= due:
            percent = 100 * done_nbytes // total_nbytes
            _logger.info("%d %% of %d MiB of chunk files are read", percent, total_nbytes >> 20)
            due = clock() + _STEP_SECONDS

    return progress
