"""What waits in host memory for room on SSD: batches of READY blocks, pinned, in the order in which they came. Pure.

`write_back` parks here what SSD refused while a file was leaving, and behind it what is admitted meanwhile. It is due
once that file has gone, once none is leaving any more, or once writes are off; whichever it is, the upkeep finds it,
and takes a few batches at a time. What is refused again comes back to its place. Flushes are told which batches have
come, and which jobs write those that have left.
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
"""Taken in one step, to bound a lock hold; of a larger batch more."""

_WRITES_BLOCKS = 512
"""With so many on their way to SSD no batch is taken: a link refuses the jobs that it has no room for."""


class Parked(NamedTuple):
    """Blocks that wait.

    Attributes:
        number: Of the batch; no job has it.
        turn: Its place among all writes: its number, or where SSD has refused it, the turn of that job.
        request: Whose; of a durable put it is the one that waits.
        positions: int64[n]; in it.
        durable: Whether a durable put waits for them; what others have parked counts as being written.
        num_gone: How many files must have gone; none where SSD has not refused it, and it waits for others alone.
            What SSD has refused is paid for.
    """

    number: JobId
    turn: int
    request: Request
    positions: Int64Array
    durable: bool
    num_gone: int


class Parking:
    """The batches that wait, and what has become of them since a flush asked last."""

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
        """Of the batches that wait."""
        return {batch.number for batch in self._batches}

    @property
    def due(self) -> bool:
        """Whether the first batch need not wait any longer."""
        if not self._batches:
            return False
        mind, ssd = self._mind, self._mind.ssd
        assert ssd is not None
        if not mind.health.writes_on:
            return True
        room_came = self._batches[0].num_gone <= self._num_gone or not ssd.reclaiming
        return room_came and mind.jobs.num_filling(TierName.SSD) < _WRITES_BLOCKS

    def file_gone(self) -> None:
        """A file has gone, or could not: what was refused before may find room."""
        self._num_gone += 1

    def park(self, request: Request, positions: Int64Array) -> None:
        """Keep READY blocks of a write-back behind what waits already."""
        self._park(request, positions, durable=False, refused=None)

    def park_refused(self, record: JobRecord, request: Request, positions: Int64Array, *, durable: bool) -> None:
        """Keep READY blocks until a file has gone, for which this write found no room."""
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
        """The first batches, a few, if the first is due: they are pinned no longer. The caller releases the entries."""
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
        """These jobs write now what was left of a batch, at its turn."""
        for job_id in writes:
            record = self._mind.jobs.get(job_id)
            record.turn = min(record.turn, batch.turn)
        self._left.append((batch.number, writes))

    def take_news(self) -> tuple[set[JobId], list[tuple[JobId, set[JobId]]]]:
        """The batches that have come since this was asked last; those that have left, with the jobs that write them."""
        news = self._came, self._left
        self._came, self._left = set(), []
        return news


def _turn(batch: Parked) -> int:
    return batch.turn
