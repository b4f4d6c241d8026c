"""A circuit breaker: after a call that was not answered in time the next ones fail at once, for a while."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

__all__ = ["Backoff", "Breaker"]

_FIRST_SECONDS = 0.1
_LAST_SECONDS = 5.0


class Backoff:
    """How long to wait before the next attempt: doubling, and never in step with others.

    Args:
        last_seconds: Never longer.
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
    """Opens with a failure and lets one call through whenever its time has come; closes with a success.

    Args:
        clock: Seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._backoff = Backoff()
        self._until: float | None = None

    @property
    def refuses(self) -> bool:
        """Whether a call would fail at once. Asking takes nobody's turn."""
        return self._until is not None and self._clock() < self._until

    def enters(self) -> bool:
        """Whether to call now; the call then tells how it ended. Of many who ask when the time has come one may."""
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
        """A call ended before anybody knew: the next one may try in its place."""
        if self._until is not None:
            self._until = self._clock()

    def revived(self) -> None:
        """Whoever did not answer does so again: the next call may try, and pauses begin anew."""
        self._backoff.succeeded()
        self.withdrawn()
