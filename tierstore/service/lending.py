"""The local path: lends slots to clients that map the pool and copy in place. Called by the dispatcher."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tierstore.errors import AccessError, IdentityError
from tierstore.service import convert
from tierstore.service._pb import tierstore_pb2 as pb
from tierstore.transfer.awaiting import answered, granted
from tierstore.types import HASH_NBYTES

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from tierstore.service.pool_socket import PoolSocket
    from tierstore.service.sessions import Session, Sessions

__all__ = ["Lending"]


class Lending:
    """See the module.

    Args:
        sessions: What clients hold.
        pool_socket: Hands the pool out; None where nobody may map it.
    """

    def __init__(self, sessions: Sessions, pool_socket: PoolSocket | None) -> None:
        self._sessions = sessions
        self._pool_socket = pool_socket

    @property
    def by_name(self) -> Mapping[str, Callable[..., Awaitable[object]]]:
        """Every call of this room by its name in the protocol."""
        return {
            "AttachPool": self.attach_pool,
            "Reserve": self.reserve,
            "Commit": self.commit,
            "Abandon": self.abandon,
            "Acquire": self.acquire,
            "Release": self.release,
        }

    def may_attach(self, session: Session) -> bool:
        """Whether a session may map the pool."""
        return self._pool_socket is not None and session.principal.attaches

    async def attach_pool(self, session: Session, _request: pb.AttachPoolRequest) -> pb.AttachPoolResponse:
        """Where to fetch the pool's descriptor. A process that maps the pool can touch every slot."""
        if self._pool_socket is None or not self.may_attach(session):
            raise AccessError("the pool is mapped by the server's own user on its own machine alone; use Get and Put")
        return pb.AttachPoolResponse(
            socket_path=self._pool_socket.path,
            ticket=self._pool_socket.expect(session),
            pool_nbytes=self._pool_socket.pool_nbytes,
            takes_calls=True,
        )

    async def reserve(self, session: Session, request: pb.ReserveRequest) -> pb.ReserveResponse:
        """Answers at once: planning a reservation waits for nothing."""
        handle = session.namespaces.find(request.scope.namespace_handle)
        _check_attached(session)
        session.reservations.check_room(request.reservation_id)
        reservation = handle.reserve(
            convert.to_hashes(request.hashes),
            parent=request.parent or bytes(HASH_NBYTES),
            durable=request.durable,
            deadline_seconds=convert.to_seconds(request.deadline_seconds),
        )
        grant = reservation.granted.result(0)
        return pb.ReserveResponse(
            reservation_id=self._sessions.promise(session, reservation, request.reservation_id),
            positions=grant.positions.tolist(),
            offsets=grant.offsets.tolist(),
            generations=grant.generations.tolist(),
        )

    async def commit(self, session: Session, request: pb.CommitRequest) -> pb.CommitResponse:
        """The blocks are readable once this is answered, and durable if that was requested."""
        reservation = session.reservations.find(request.reservation_id)
        num_slots = len(reservation.granted.result(0))
        checksums = None
        if request.checksums:
            checksums = np.array(request.checksums, np.uint32)
            if len(checksums) != num_slots:
                raise IdentityError(f"{len(checksums)} checksums for {num_slots} slots; send one a slot, or none")
        session.reservations.take(request.reservation_id)
        return pb.CommitResponse(result=convert.from_result(await answered(reservation.commit(checksums))))

    async def abandon(self, session: Session, request: pb.AbandonRequest) -> pb.AbandonResponse:
        """Gives up a reservation; requests that waited for its blocks learn that they do not come."""
        reservation = session.reservations.withdraw(request.reservation_id)
        if reservation is not None:
            reservation.abandon()
        return pb.AbandonResponse()

    async def acquire(self, session: Session, request: pb.AcquireRequest) -> pb.AcquireResponse:
        """Answers once blocks on SSD have been read into host memory."""
        handle = session.namespaces.find(request.scope.namespace_handle)
        _check_attached(session)
        session.leases.check_room(request.lease_id)
        lease = handle.acquire(
            convert.to_hashes(request.hashes), deadline_seconds=convert.to_seconds(request.deadline_seconds)
        )
        number, is_lent = session.leases.keep(lease, request.lease_id), False
        try:
            grant = await granted(lease)
            self._sessions.lent(session, number)
            is_lent = True
        finally:
            if not is_lent:
                self._sessions.release(session, number)
        return pb.AcquireResponse(
            lease_id=number, offsets=grant.offsets.tolist(), generations=grant.generations.tolist()
        )

    async def release(self, session: Session, request: pb.ReleaseRequest) -> pb.ReleaseResponse:
        """At once."""
        for number in request.lease_ids:
            lease = session.leases.withdraw(number)
            if lease is not None:
                lease.release()
        return pb.ReleaseResponse()


def _check_attached(session: Session) -> None:
    if not session.attached:
        raise AccessError("slots are lent to sessions that have attached the pool; use Get and Put, or AttachPool")
