"""A clock that stands until the test moves it. For whatever takes its time from outside."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["SimAlarm", "SimClock"]


class SimClock:
    """Call it for the time in seconds.

    Attributes:
        now: The time; starts well above zero, as a machine's clock does.
    """

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        """The time in seconds."""
        return self.now

    def advance(self, seconds: float) -> None:
        """Move on."""
        assert seconds >= 0, f"a clock does not go back by {-seconds} s"
        self.now += seconds


class SimAlarm:
    """An alarm that rings for nobody: whoever moves the clock calls `expire`.

    Attributes:
        armed: The times it was set to, in order.
    """

    def __init__(self, _clock: Callable[[], float], _expire: Callable[[], float]) -> None:
        self.armed: list[float] = []

    def arm(self, deadline: float) -> None:
        """Take a time down."""
        self.armed.append(deadline)

    def close(self) -> None:
        """Nothing is running."""
