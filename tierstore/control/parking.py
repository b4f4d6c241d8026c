"""What waits in host memory for room on SSD: batches of READY blocks, pinned, in the order in which they came. Pure.

`write_back` parks here what SSD refused while a file was leaving, and behind it what is admitted meanwhile. It is due
once that file has gone, once none is leaving any more, or once writes are off; whichever it is, the upkeep finds it.
Flushes are told which batches have come, and which jobs write those that have left.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tierstore.control.directory import PARKED

if TYPE_CHECKING:
    from tierstore.control.mind import Mind
    from tierstore.control.requests import Request
    from tierstore.types import Int64Array, JobId

__all__ = ["Parked", "Parking"]


class Parked(NamedTuple):
    """Blocks that wait.

    Attributes:
        number: Of the batch; no job has it.
        request: Whose; of a durable put it is the one that waits.
        positions: int64[n]; in it.
        durable: Whether a durable put waits for them; what others have parked counts as being written.
        num_gone: How many files must have gone; none where SSD has not refused it, and it waits for others alone.
            What SSD has refused is paid for.
    """

    number: JobId
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
        ssd = self._mind.ssd
        assert ssd is not None
        return self._batches[0].num_gone <= self._num_gone or not ssd.reclaiming or not self._mind.health.writes_on

    def file_gone(self) -> None:
        """A file has gone, or could not: what was refused before may find room."""
        self._num_gone += 1

    def park(self, request: Request, positions: Int64Array, *, durable: bool, refused: bool) -> None:
        """Keep READY blocks in host memory until they may be written."""
        mind, entries = self._mind, request.entries[positions]
        mind.host.pin(request.life.slot_class, entries)
        if durable:
            request.awaiting += len(positions)
        else:
            mind.directory.flags[entries] |= PARKED
            mind.write_inflight_nbytes += len(positions) * request.life.block_nbytes
        number = mind.jobs.next_id()
        self._batches.append(Parked(number, request, positions, durable, self._num_gone + 1 if refused else 0))
        self._came.add(number)

    def take(self) -> list[Parked]:
        """Every batch, if the first is due: they are parked and pinned no longer. The caller releases the entries."""
        if not self.due:
            return []
        batches, self._batches = self._batches, []
        for _number, request, positions, durable, _num_gone in batches:
            entries = request.entries[positions]
            self._mind.host.unpin(request.life.slot_class, entries)
            if durable:
                request.awaiting -= len(positions)
            else:
                self._mind.directory.flags[entries] &= ~PARKED
                self._mind.write_inflight_nbytes -= len(positions) * request.life.block_nbytes
        return batches

    def went_on(self, number: JobId, writes: set[JobId]) -> None:
        """These jobs write now what was left of a batch."""
        self._left.append((number, writes))

    def take_news(self) -> tuple[set[JobId], list[tuple[JobId, set[JobId]]]]:
        """The batches that have come since this was asked last; those that have left, with the jobs that write them."""
        news = self._came, self._left
        self._came, self._left = set(), []
        return news
