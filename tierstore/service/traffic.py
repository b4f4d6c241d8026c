"""How many calls are under way, so that a server can end between them. Called by the dispatcher and the server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["Traffic"]


class Traffic:
    """Calls of one server, but for its open sessions.

    Attributes:
        draining: No new ones are let in.
        num_calls: Under way.
    """

    def __init__(self) -> None:
        self.draining = False
        self.num_calls = 0
        self._none = asyncio.Event()
        self._none.set()

    @contextmanager
    def one(self) -> Iterator[None]:
        """While it lasts, one more."""
        self.num_calls += 1
        self._none.clear()
        try:
            yield
        finally:
            self.num_calls -= 1
            if self.num_calls == 0:
                self._none.set()

    async def idle(self, seconds: float) -> bool:
        """Wait until there is none, at most so long; returns whether there is none."""
        try:
            async with asyncio.timeout(seconds):
                await self._none.wait()
        except TimeoutError:
            return False
        return True
