"""A job of vLLM's CPU tier, moved piece by piece: it may be larger than the pool through which its chunks pass.

Called by the secondary tier, on vLLM's scheduler thread. Nothing here waits but `finish`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tierstore.errors import TierstoreError

if TYPE_CHECKING:
    from tierstore.transfer.future import Transfer

__all__ = ["Moving"]

_logger = logging.getLogger("vllm.tierstore")


class Moving:
    """A job under way.

    Args:
        job: vLLM's.
        move: Starts moving a span of the job's chunks.
        make_room: Starts writing to SSD what lies in the pool; None where the pool has room whenever nothing moves.
        piece: How many chunks are moved at once.

    Attributes:
        moved: Chunks from the first that have been moved.
        nbytes: Of those.
        seconds: That the pieces took, added up.
    """

    def __init__(
        self, job: Any, move: Callable[[slice], Transfer], make_room: Callable[[], Transfer] | None, *, piece: int
    ) -> None:
        self.job = job
        self.moved = 0
        self.nbytes = 0
        self.seconds = 0.0
        self._move = move
        self._make_room = make_room
        self._piece = piece
        self._making_room = False
        self._made_room = False
        self._transfer = self._begin()

    @property
    def whole(self) -> bool:
        """Whether every chunk has been moved."""
        return self.moved == len(self.job.keys)

    def done(self) -> bool:
        """Whether it has ended; begins the next piece where the last one has."""
        while self._transfer is not None and self._transfer.done():
            self._transfer = self._next(self._transfer)
        return self._transfer is None

    def finish(self) -> None:
        """Wait until it has ended. Blocks."""
        while not self.done():
            assert self._transfer is not None, "it has not ended"
            self._transfer.result()

    def _next(self, ended: Transfer) -> Transfer | None:
        result = ended.result()
        if self._making_room:
            self._making_room = False
            return self._begin()
        self.moved += result.leading
        self.nbytes += result.nbytes
        self.seconds += result.seconds
        if self.whole:
            return None
        if not result.ok and self._make_room is not None and (result.leading or not self._made_room):
            self._making_room = self._made_room = True
            return self._try(self._make_room)
        self._made_room = False
        return self._begin() if result.leading else None

    def _begin(self) -> Transfer | None:
        return self._try(lambda: self._move(slice(self.moved, self.moved + self._piece)))

    def _try(self, start: Callable[[], Transfer]) -> Transfer | None:
        try:
            return start()
        except TierstoreError as error:
            _logger.warning("a job of %d chunks was left at %d: %s", len(self.job.keys), self.moved, error)
            return None
