"""Where the two halves of one engine's connector find their store.

vLLM makes the halves apart, often in one process and on one thread, and tells each the engine's id. They meet here: the
first to come opens the store, the last to leave closes it. The one table below lives as long as the process, because
nothing that vLLM hands to both halves could carry it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tierstore.connectors.vllm.hosting import Opened
    from tierstore.connectors.vllm.worker import WorkerHalf

__all__ = ["Seat"]

_seats: dict[str, Seat] = {}
_lock = threading.Lock()


class Seat:
    """One engine's place in this process.

    Attributes:
        worker: The half of a worker in this process; None where there is none.
    """

    def __init__(self, engine_id: str) -> None:
        self.worker: WorkerHalf | None = None
        self._engine_id = engine_id
        self._halves = 0
        self._store: Opened | None = None

    @classmethod
    def take(cls, engine_id: str) -> Seat:
        """The engine's place; each half takes it once, and leaves it once."""
        with _lock:
            seat = _seats.setdefault(engine_id, cls(engine_id))
            seat._halves += 1
            return seat

    def store(self, open_store: Callable[[], Opened]) -> Opened:
        """The engine's store; opened where it is not yet. Blocks while it opens."""
        with _lock:
            if self._store is None:
                self._store = open_store()
            return self._store

    def leave(self) -> None:
        """Called when a half shuts down. The last one closes the store, which finishes what is under way. Blocks."""
        with _lock:
            self._halves -= 1
            if self._halves > 0:
                return
            _seats.pop(self._engine_id, None)
            store, self._store = self._store, None
        if store is not None:
            store.close()
