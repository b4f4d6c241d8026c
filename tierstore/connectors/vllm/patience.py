"""Time in the scheduler's half: how long requests are held back for an answer, and how long prefill takes.

A request that is held back keeps its place, but later ones overtake it. So only few are held back at once, each only
briefly. Pure, except for the clock that it is given.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

__all__ = ["Patience", "Stopwatch"]

_TOKENS_MIN = 32
"""A step that computes fewer tokens says more of the step than of computing."""


class Patience:
    """The requests that are held back, and since when.

    Args:
        requests_max: Requests that may be held back at once.
        seconds: How long each may be held back.
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


class Stopwatch:
    """Times steps that compute a single prompt: they show what a token costs behind a prefix of a given length.

    Args:
        num_batches: Steps that may be in flight at once; with several, none can be measured from outside.
        clock: Seconds.
    """

    def __init__(self, num_batches: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._alone = num_batches == 1
        self._clock = clock
        self._begun: tuple[int, int, float] | None = None

    def begin(self, num_tokens: Mapping[str, int], computed: Callable[[str], int]) -> None:
        """A step begins that computes so many tokens of each request, behind so many."""
        self._begun = None
        if self._alone and len(num_tokens) == 1:
            ((request_id, count),) = num_tokens.items()
            if count >= _TOKENS_MIN:
                self._begun = computed(request_id), count, self._clock()

    def end(self) -> tuple[int, int, float] | None:
        """The step has ended: (tokens before, tokens computed, seconds); None where it says nothing."""
        begun, self._begun = self._begun, None
        return None if begun is None else (begun[0], begun[1], self._clock() - begun[2])
