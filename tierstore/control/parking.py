"""Blocks that wait in host memory for room on SSD: batches of READY blocks, pinned, in the order of their turns. Pure.

`write_back` parks the blocks that SSD refused while a file was being reclaimed, and behind them those admitted
meanwhile. The first batch is due once that file is gone, no file is being reclaimed any more, or writes are off. The
upkeep checks this and takes a few batches at a time. Blocks refused again return to their place in the order. Flushes
learn which batches have come, and which jobs write those that have left.
"""

from __future__ import annotations

from bisect import insort
from typing import TYPE_CHECKING, NamedTuple

from tierstore.control.directory import PARKED
from tierstore.types import TierName

if TYPE_CHECKING:
    from tierstore.control.mind import Mind
    from tierstore.control.requests import JobRecord, Request
    from tierstore.types import Int64Array, JobId

__all__ = ["Parked", "Parking"]

_STEP_BATCHES, _STEP_BLOCKS = 2, 512
"""Most taken in one step, to bound a lock hold; a first batch with more blocks is taken whole."""

_WRITES_BLOCKS = 512
"""No batch is taken while so many blocks are being written: a full link refuses jobs."""


class Parked(NamedTuple):
    """One parked batch.

    Attributes:
        number: Its number, from the ids of jobs; no job has the same.
        turn: Its place in the order: its number, or, if SSD refused it, the turn of the refused job.
        request: The request of the blocks; if `durable`, the put that waits.
        positions: int64[n]; positions of the blocks in the request.
        durable: Whether a durable put waits for them. Other batches count as write-back in flight.
        num_gone: It is due once so many files are gone. 0: SSD did not refuse it, it only waits behind other batches
            and the write budget has not paid for it yet.
    """

    number: JobId
    turn: int
    request: Request
    positions: Int64Array
    durable: bool
    num_gone: int


class Parking:
    """The parked batches, and the news of them since `take_news` was last called."""

    def __init__(self, mind: Mind) -> None:
        self._mind = mind
        self._batches: list[Parked] = []
        self._num_gone = 0
        self._came: set[JobId] = set()
        self._left: list[tuple[JobId, set[JobId]]] = []

    def __len__(self) -> int:
        return len(self._batches)

    @property
    def numbers(self) -> set[JobId]:
        """Numbers of the parked batches."""
        return {batch.number for batch in self._batches}

    @property
    def due(self) -> bool:
        """Whether the first batch may be taken now."""
        if not self._batches:
            return False
        mind, ssd = self._mind, self._mind.ssd
        assert ssd is not None
        if not mind.health.writes_on:
            return True
        room_came = self._batches[0].num_gone <= self._num_gone or not ssd.reclaiming
        return room_came and mind.jobs.num_filling(TierName.SSD) < _WRITES_BLOCKS

    def file_gone(self) -> None:
        """A file's discard has ended, well or not: blocks refused before may find room."""
        self._num_gone += 1

    def park(self, request: Request, positions: Int64Array) -> None:
        """Park READY blocks of a write-back behind the batches already parked."""
        self._park(request, positions, durable=False, refused=None)

    def park_refused(self, record: JobRecord, request: Request, positions: Int64Array, *, durable: bool) -> None:
        """Park READY blocks that this write found no room for, until a file is gone."""
        self._park(request, positions, durable=durable, refused=record)

    def _park(self, request: Request, positions: Int64Array, *, durable: bool, refused: JobRecord | None) -> None:
        mind, entries, number = self._mind, request.entries[positions], self._mind.jobs.next_id()
        mind.host.pin(request.life.slot_class, entries)
        if durable:
            request.awaiting += len(positions)
        else:
            mind.directory.flags[entries] |= PARKED
            mind.write_inflight_nbytes += len(positions) * request.life.block_nbytes
        turn, num_gone = (number, 0) if refused is None else (refused.turn, self._num_gone + 1)
        insort(self._batches, Parked(number, turn, request, positions, durable, num_gone), key=_turn)
        self._came.add(number)

    def take(self) -> list[Parked]:
        """Take the first few batches, if due, and unpin their blocks. The caller releases the entries."""
        taken: list[Parked] = []
        num_blocks = 0
        while self.due and len(taken) < _STEP_BATCHES:
            batch = self._batches[0]
            num_blocks += len(batch.positions)
            if taken and num_blocks > _STEP_BLOCKS:
                break
            taken.append(self._batches.pop(0))
            self._leave(batch)
        return taken

    def _leave(self, batch: Parked) -> None:
        mind, request, entries = self._mind, batch.request, batch.request.entries[batch.positions]
        mind.host.unpin(request.life.slot_class, entries)
        if batch.durable:
            request.awaiting -= len(entries)
        else:
            mind.directory.flags[entries] &= ~PARKED
            mind.write_inflight_nbytes -= len(entries) * request.life.block_nbytes

    def went_on(self, batch: Parked, writes: set[JobId]) -> None:
        """These jobs now write the blocks of a batch that was taken; they inherit its turn."""
        for job_id in writes:
            record = self._mind.jobs.get(job_id)
            record.turn = min(record.turn, batch.turn)
        self._left.append((batch.number, writes))

    def take_news(self) -> tuple[set[JobId], list[tuple[JobId, set[JobId]]]]:
        """Since the last call: the batches that were parked, and those taken, each with the jobs that write it."""
        news = self._came, self._left
        self._came, self._left = set(), []
        return news


def _turn(batch: Parked) -> int:
    return batch.turn
