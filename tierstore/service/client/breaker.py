"""A circuit breaker: after a call that was not answered in time, further calls fail at once for a while."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

__all__ = ["Backoff", "Breaker"]

_FIRST_SECONDS = 0.1
_LAST_SECONDS = 5.0


class Backoff:
    """How long to wait before the next attempt: the pause doubles, with jitter so that clients do not retry in step.

    Args:
        last_seconds: The longest pause.
    """

    def __init__(self, last_seconds: float = _LAST_SECONDS) -> None:
        self._last_seconds = last_seconds
        self._seconds = _FIRST_SECONDS

    def failed(self) -> float:
        """Seconds to wait after one more failure."""
        seconds = self._seconds * random.uniform(0.5, 1.0)
        self._seconds = min(self._seconds * 2, self._last_seconds)
        return seconds

    def succeeded(self) -> None:
        """Begin anew."""
        self._seconds = _FIRST_SECONDS


class Breaker:
    """Opens after a failure, lets one call through after each pause, and closes after a success.

    Args:
        clock: Seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._backoff = Backoff()
        self._until: float | None = None

    @property
    def refuses(self) -> bool:
        """Whether a call would fail at once. Reading this does not use up the trial call."""
        return self._until is not None and self._clock() < self._until

    def enters(self) -> bool:
        """Whether to call now; the caller then reports how the call ended. After a pause only one caller gets True."""
        if self._until is None:
            return True
        if self.refuses:
            return False
        self._until = self._clock() + _LAST_SECONDS
        return True

    def failed(self) -> None:
        """A call was not answered."""
        self._until = self._clock() + self._backoff.failed()

    def succeeded(self) -> None:
        """A call was answered, whatever the answer."""
        if self._until is not None:
            self._until = None
            self._backoff.succeeded()

    def withdrawn(self) -> None:
        """A call was withdrawn before its result was known: the next one may try in its place."""
        if self._until is not None:
            self._until = self._clock()

    def revived(self) -> None:
        """The server answers again: the next call may try, and the pauses start over."""
        self._backoff.succeeded()
        self.withdrawn()
