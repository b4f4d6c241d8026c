"""How long requests are held back for an answer that may spare them work: few at once, and each but briefly.

A request that is held back keeps its place, yet later ones overtake it. Called by the scheduler's half. Pure, but for
the clock it is given.
"""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["Patience"]


class Patience:
    """Who is held back, and since when.

    Args:
        requests_max: Requests that may be held back at once.
        seconds: How long each may be.
        clock: Seconds.
    """

    def __init__(self, requests_max: int, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._requests_max = requests_max
        self._seconds = seconds
        self._clock = clock
        self._since: dict[str, float] = {}
        self._tired: set[str] = set()

    def may_wait(self, request_id: str) -> bool:
        """Whether a request may be held back once more; one that has waited long enough may not again."""
        if request_id in self._tired:
            return False
        since = self._since.get(request_id)
        if since is None:
            if len(self._since) >= self._requests_max:
                return False
            since = self._since[request_id] = self._clock()
        if self._clock() - since < self._seconds:
            return True
        del self._since[request_id]
        self._tired.add(request_id)
        return False

    def end(self, request_id: str) -> None:
        """It has its answer, or is gone."""
        self._since.pop(request_id, None)
        self._tired.discard(request_id)
