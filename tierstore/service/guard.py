"""Checks every call: authenticates the caller, finds its session, enforces limits, counts and times it.

Called by the dispatcher for calls over gRPC, and by the pool's socket for calls over that socket.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tierstore.errors import LimitError, TierstoreError, UnavailableError
from tierstore.metrics import Metric
from tierstore.service.wire import HASHES_MAX
from tierstore.types import HASH_NBYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tierstore.service.rooms import Rooms
    from tierstore.service.security import Principal
    from tierstore.service.sessions import Session

__all__ = ["Guard"]


class Guard:
    """See the module.

    Args:
        rooms: Whose sessions, limits and figures.
    """

    def __init__(self, rooms: Rooms) -> None:
        self._rooms = rooms

    def check_open(self) -> None:
        """Raise UnavailableError where no calls are taken any more."""
        if self._rooms.traffic.draining:
            raise UnavailableError("the server is ending")

    @contextmanager
    def admitted(self, name: str, request: object, caller: Callable[[], Principal]) -> Iterator[Session]:
        """The session of a call, within its limits. The session's end cancels the call. Counts and times the call."""
        begun, metrics = time.perf_counter(), self._rooms.metrics
        try:
            with self._within_limits(request, caller()) as session:
                yield session
        except TierstoreError:
            metrics.add(Metric.SERVICE_FAILED_CALLS, 1, name)
            raise
        finally:
            metrics.observe(Metric.SERVICE_CALL_SECONDS, time.perf_counter() - begun, name)

    async def answer(self, name: str, request: object, caller: Callable[[], Principal]) -> object:
        """Answer a call without streams. Raises the reason if it is refused or fails."""
        with self.admitted(name, request, caller) as session:
            return await self._rooms.calls[name](session, request)

    @contextmanager
    def _within_limits(self, request: object, principal: Principal) -> Iterator[Session]:
        self.check_open()
        session = self._rooms.sessions.find(request.scope.session_id, principal)  # type: ignore[attr-defined]
        hashes = getattr(request, "hashes", b"")
        if len(hashes) > HASHES_MAX * HASH_NBYTES:
            raise LimitError(f"{len(hashes) // HASH_NBYTES} hashes in one call; {HASHES_MAX} are the most, cut it")
        task = asyncio.current_task()
        assert task is not None, "calls are answered by tasks"
        session.tasks.add(task)
        try:
            with self._rooms.traffic.one(), self._rooms.quotas.call(session.principal):
                yield session
        finally:
            session.tasks.discard(task)
