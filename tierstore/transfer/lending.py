"""Lends slots of the host pool: leases to copy from, reservations to fill.

For borrowers, which map the pool and copy by themselves. For the planner a lease is a get, and a reservation a put,
whose copies end when the borrower says so. Namespace handles make them; the service keeps them in its sessions.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from tierstore.transfer.base import ended
from tierstore.types import PAGE_NBYTES, CopyJob, Outcome, TierName

if TYPE_CHECKING:
    from tierstore.shield import Shielded
    from tierstore.transfer.base import Done, FarSide
    from tierstore.transfer.future import Transfer
    from tierstore.types import Int64Array, Job, JobId, RequestId, UInt32Array

__all__ = ["Grant", "Lease", "LendingLink", "Reservation"]


@dataclass(frozen=True, slots=True, eq=False)
class Grant:
    """Lent slots, one a row.

    Attributes:
        positions: int64[k]; each slot's block, as its position in the hashes asked for, ascending. 0 to k-1 in a lease.
        offsets: int64[k]; where each slot begins in the pool, in bytes.
        generations: uint32[k]; the number of each slot when it was lent. If the pool holds another number after a
            copy, the slot has been given to another block, and the copy is worthless.
    """

    positions: Int64Array
    offsets: Int64Array
    generations: UInt32Array

    def __len__(self) -> int:
        return len(self.positions)


class _Loan:
    """A request whose copies a borrower makes. The engine and the lending link call it from their threads.

    Args:
        slot_generations: uint32, one a page of the pool.
        shield: Runs the end of the loan where no signal handler can interrupt it half done.

    Attributes:
        granted: The slots, once no more will be added.
    """

    layers = None

    def __init__(self, slot_generations: UInt32Array, shield: Shielded) -> None:
        self._slot_generations = slot_generations
        self._shield = shield
        self._lock = threading.Lock()
        self._lent: list[tuple[CopyJob, Done]] = []
        self._num_lent = 0
        self._num_handed: int | None = None
        self._told = False
        self._outcome: Outcome | None = None  # of the loan, once it has ended
        self._checksums: UInt32Array | None = None
        self.granted: Future[Grant] = Future()
        self.granted.set_running_or_notify_cancel()  # a waiter can be cancelled, the future cannot
        self._transfer: Transfer | None = None

    def begin(self, start: Callable[[FarSide], Transfer]) -> None:
        """Open its request; called once, by the handle."""
        self._transfer = start(self)
        self._transfer.add_done_callback(lambda _transfer: self.complete(0))

    @property
    def transfer(self) -> Transfer:
        """The request behind it, which ends once the borrower and the store are done with it."""
        assert self._transfer is not None, "a loan that was never begun"
        return self._transfer

    def lend(self, job: CopyJob, done: Done) -> None:
        """Lend the slots of a job; the borrower has them until he ends the loan."""
        with self._lock:
            self._num_lent += len(job)
            outcome = self._outcome
            if outcome is None:
                self._lent.append((job, done))
        if outcome is not None:
            done(ended(job, outcome))
        self._look()

    def complete(self, num_blocks: int) -> None:
        """No more than `num_blocks` slots will be lent."""
        with self._lock:
            if self._num_handed is None:
                self._num_handed = num_blocks
        self._look()

    def recall(self) -> None:
        """The store closes: nothing is lent or filled any more."""
        self._end(Outcome.CANCELLED)
        if self._transfer is not None:
            self._transfer.cancel()

    def _look(self) -> None:
        with self._lock:
            if self._told or self._num_handed is None or self._num_lent < self._num_handed:
                return
            self._told = True
            grant = self._grant()
        self.granted.set_result(grant)

    def _grant(self) -> Grant:
        jobs = [job for job, _done in self._lent]
        pages = np.concatenate([np.empty(0, np.int64), *(_pages(job) for job in jobs)])
        positions = np.concatenate([np.empty(0, np.int64), *(_positions(job) for job in jobs)])
        return Grant(positions, pages * PAGE_NBYTES, self._slot_generations[pages])

    def _end(self, outcome: Outcome) -> None:
        """End all copies of the loan, future ones included; only the first call counts."""
        with self._lock:
            if self._outcome is not None:
                return
            self._outcome = outcome
            lent, self._lent = self._lent, []
        self._shield(lambda: self._end_jobs(lent, outcome))

    def _end_jobs(self, lent: list[tuple[CopyJob, Done]], outcome: Outcome) -> None:
        first = 0
        for job, done in lent:
            result = ended(job, outcome)
            if self._checksums is not None and outcome is Outcome.OK:
                result = replace(result, checksums=self._checksums[first : first + len(job)])
            first += len(job)
            done(result)


class Lease(_Loan):
    """Pins blocks in their slots until it is released.

    `granted` resolves once the blocks on SSD have been read. It has the longest prefix available that may be lent.
    """

    def release(self) -> None:
        """Return the slots, and those lent later at once. From any thread, once or often; does not block."""
        self._end(Outcome.OK)
        if self._transfer is not None:
            self._transfer.cancel()


class Reservation(_Loan):
    """Slots for a put whose bytes the borrower writes himself.

    `granted` resolves at once: slots for the blocks that are neither held nor in flight, as far as they fit.
    """

    def commit(self, checksums: UInt32Array | None = None) -> Transfer:
        """Declare every slot filled; the borrower must not touch the slots any more.

        Args:
            checksums: uint32[k], the CRC32C of each granted block's bytes. They are compared before a write to SSD,
                and a block that has changed meanwhile is dropped. None: the bytes are taken as they are.

        Returns:
            The put, which cannot end before this call.
        """
        if checksums is not None:
            count = len(self.granted.result(0))
            assert len(checksums) == count, f"{len(checksums)} checksums for {count} slots"
            self._checksums = checksums.astype(np.uint32)
        self._end(Outcome.OK)
        return self.transfer

    def lapse(self) -> None:
        """Release all waiters: the blocks are unknown from now on, and a commit comes too late.

        The borrower, who may be writing to the slots, keeps them until he commits or abandons. Does not block.
        """
        self.transfer.cancel()

    def abandon(self) -> Transfer:
        """Return the slots unfilled; requests that waited for these blocks are told that they do not come."""
        self.lapse()
        self._end(Outcome.CANCELLED)
        return self.transfer


class LendingLink:
    """The link between host slots and borrowers: passes each job to its loan.

    Args:
        loans: The far side of every open request; the engine's own mapping, read here.
    """

    def __init__(self, loans: Mapping[RequestId, FarSide]) -> None:
        self._loans = loans

    @property
    def num_queued(self) -> int:
        """Always 0: slots are lent at once."""
        return 0

    def submit(self, job: Job, done: Done) -> bool:
        """Lend; the borrower ends the job."""
        assert isinstance(job, CopyJob), f"slots are lent for blocks, not for {job!r}"
        loan = self._loans[job.request_id]
        assert isinstance(loan, _Loan), f"request {job.request_id} borrows nothing"
        loan.lend(job, done)
        return True

    def lift(self, job_id: JobId) -> None:
        """Does nothing: borrowers go at their own pace."""

    def withdraw(self, job_id: JobId) -> None:
        """Does nothing: lent slots come back when the borrower ends the loan."""

    def close(self) -> bool:
        """Does nothing: there is no thread to end."""
        return True


def _pages(job: CopyJob) -> Int64Array:
    """int64[n]: the pool pages of a job's slots."""
    return np.asarray(job.src_locations if job.src is TierName.HOST else job.dst_locations, np.int64)


def _positions(job: CopyJob) -> Int64Array:
    return np.asarray(job.dst_locations if job.src is TierName.HOST else job.src_locations, np.int64)
