"""Get and put in place: the client copies its own blocks from and to the server's pool. Called on the client's threads.

Every slot has a generation, which the server changes when it gives the slot to another block. A copied block counts
only if its generation is the same before and after. A put computes the checksum as it copies; the server compares it
before the block goes to SSD.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import numpy as np

from tierstore.errors import TierstoreError
from tierstore.service import convert
from tierstore.service._pb import tierstore_pb2 as pb
from tierstore.service.client.running import Withdrawn
from tierstore.service.client.session import result_of
from tierstore.transfer.future import TransferResult
from tierstore.types import Outcome

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from tierstore.service.client.attached import AttachedPool
    from tierstore.service.client.calling import Patience
    from tierstore.service.client.copies import Copies
    from tierstore.service.client.running import Running
    from tierstore.service.client.session import LiveSession, Request
    from tierstore.transfer.caller_memory import CallerMemory

__all__ = ["InPlace"]

M = TypeVar("M", bound="Message")


class InPlace:
    """The verbs over an attached pool.

    Args:
        session: Lends the slots.
        pool: The slots.
        copies: Moves bytes between the pool and the caller's cache.
        patience: How long calls may take.
    """

    def __init__(self, session: LiveSession, pool: AttachedPool, copies: Copies, patience: Patience) -> None:
        self._session = session
        self._pool = pool
        self._copies = copies
        self._patience = patience

    def get(self, running: Running, request: pb.AcquireRequest, memory: CallerMemory) -> TransferResult:
        """Copy the longest stored prefix, under a lease. Blocks.

        Raises:
            ServiceError: The call failed.
            Withdrawn: The caller has cancelled, or the events that the copy waits for have not come in time.
        """
        self._let_go()
        lease_id = request.lease_id = self._session.choose_number()
        try:
            answer = self._ask(running, request, pb.AcquireResponse, running.left(self._patience.call))
            lease_id = answer.lease_id  # a server of before lets nobody choose
            running.check()
            running.hold(memory.after)
            offsets = np.array(answer.offsets, np.int64)
            with self._pool.used(offsets, memory.kv.stored_nbytes) as view:
                self._copies.bring(view, offsets, memory)
                same = self._pool.generations(offsets) == np.array(answer.generations, np.uint32)
        finally:
            self._session.leases_over.append(lease_id)
            running.afterwards(self._let_go)
        leading = len(same) if same.all() else int(same.argmin())
        codes = np.full(memory.block_ids.shape[1], Outcome.MISS, np.uint8)
        codes[:leading] = Outcome.OK
        return TransferResult(leading, codes, leading * memory.kv.stored_nbytes, 0.0)

    def put(self, running: Running, request: pb.ReserveRequest, memory: CallerMemory) -> TransferResult:
        """Fill the slots that are promised, and commit them. Blocks. Raises as `get` does."""
        self._let_go()
        number = request.reservation_id = self._session.choose_number()
        try:
            answer = self._ask(running, request, pb.ReserveResponse, self._patience.call)
            number, offsets = answer.reservation_id, np.array(answer.offsets, np.int64)
            running.check()
            running.hold(memory.after)
            with self._pool.used(offsets, memory.kv.stored_nbytes) as view:
                checksums = self._copies.fill(view, offsets, memory, np.array(answer.positions, np.int64))
            commit = pb.CommitRequest(scope=request.scope, reservation_id=number, checksums=checksums.tolist())
            seconds = running.left(self._patience.call)
            return convert.to_result(self._ask(running, commit, pb.CommitResponse, seconds).result)
        except (TierstoreError, Withdrawn):  # a commit that was heard has taken it, and there is nothing to abandon
            abandon = pb.AbandonRequest(scope=request.scope, reservation_id=number)
            if not self._pool.tell(abandon):
                self._session.forget(abandon, self._patience.call)
            raise

    def _ask(self, running: Running, request: Request, kind: type[M], seconds: float) -> M:
        """Make a call that a withdrawal cancels. The caller gives back what was granted, by the number it chose."""
        answer = self._pool.ask(running, request, kind, seconds)
        if answer is not None:
            return answer
        call = self._session.begin(request, kind, seconds)
        with running.calling(call):
            return result_of(call)

    def _let_go(self) -> None:
        """Give leases back that are over. Does not block."""
        self._session.release(self._patience.call, self._pool.tell)
