"""What a client holds: namespaces, leases, reservations, prefetches, a queue. All of it ends with its session.

Called by the handlers, on the server's loop alone. Everything here is bounded, and nothing waits.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar

from tierstore.errors import IdentityError, LimitError, SessionError
from tierstore.service.wire import CHOSEN_FIRST

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tierstore.handle import NamespaceHandle
    from tierstore.service._pb import tierstore_pb2 as pb
    from tierstore.service.security import Principal
    from tierstore.store import Store
    from tierstore.transfer.future import Transfer
    from tierstore.transfer.lending import Lease, Reservation

__all__ = ["Session", "SessionLimits", "Sessions"]

SESSION_ID_NBYTES = 16
_NOTICES_MAX = 16
_WITHDRAWN_MAX = 256
"""Numbers withdrawn before their calls have come, which are remembered: calls overtake each other by a few."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SessionLimits:
    """Bounds of one session, and of all of them.

    Attributes:
        sessions: Sessions at a time.
        held: Namespaces, leases, reservations, prefetches: so many of each.
        queues: Queues of waiting requests.
        lease_seconds: After so long a lease ends by itself.
        silence_seconds: A connection that has answered nothing for so long is cut: its process is stopped, or its
            machine gone.
    """

    sessions: int = 1024
    held: int = 4096
    queues: int = 16
    lease_seconds: float = 30.0
    silence_seconds: float = 15.0


class Held(Generic[T]):
    """Things of one kind by number, at most so many."""

    def __init__(self, what: str, most: int) -> None:
        self._what = what
        self._most = most
        self._numbers = itertools.count(1)
        self._things: dict[int, T] = {}
        self._withdrawn: deque[int] = deque(maxlen=_WITHDRAWN_MAX)

    def check_room(self, chosen: int = 0) -> None:
        """Raise LimitError if there is no room; call it before anything is taken.

        Args:
            chosen: The number that the client wants; 0: any. IdentityError if it cannot have that one, SessionError if
                it has withdrawn it already.
        """
        if len(self._things) >= self._most:
            raise LimitError(f"the session holds {self._most} {self._what}s; let go of some")
        if chosen in self._withdrawn:
            raise SessionError(f"{self._what} {chosen} was withdrawn before its call came")
        if chosen and (chosen < CHOSEN_FIRST or chosen in self._things):
            raise IdentityError(f"{self._what} {chosen} cannot be had; choose a number from 2^32 on, each once")

    def keep(self, thing: T, chosen: int = 0) -> int:
        """Its number."""
        self.check_room(chosen)
        number = chosen or next(self._numbers)
        self._things[number] = thing
        return number

    def get(self, number: int) -> T | None:
        """None where it is gone, or never was."""
        return self._things.get(number)

    def find(self, number: int) -> T:
        """The same, but raises SessionError."""
        thing = self.get(number)
        if thing is None:
            raise SessionError(f"the session has no {self._what} {number}; it may have ended")
        return thing

    def take(self, number: int) -> T | None:
        """Let go of it; None where it is gone."""
        return self._things.pop(number, None)

    def withdraw(self, number: int) -> T | None:
        """Remove the thing, or refuse it if it comes later under this number. None if it is gone or yet to come."""
        thing = self.take(number)
        if thing is None and number >= CHOSEN_FIRST:
            self._withdrawn.append(number)
        return thing

    def take_all(self) -> list[T]:
        """Let go of everything."""
        things = list(self._things.values())
        self._things.clear()
        return things

    def __len__(self) -> int:
        return len(self._things)

    def __iter__(self) -> Iterator[T]:
        return iter(list(self._things.values()))


@dataclass(eq=False, slots=True)
class Session:
    """One client's.

    Attributes:
        session_id: Nobody else knows it.
        name: What the client calls itself.
        principal: Who opened it; nobody else may use it.
        namespaces: By handle.
        leases: By id.
        reservations: By id.
        prefetches: By ticket.
        queues: The store's own number of each queue of waiting requests.
        tasks: Calls under way; they end with the session.
        notices: For the client; None ends the session's stream.
        attached: The client maps the pool: what it has reserved may be written to until its socket is closed.
        ended: Set once it is closed.
    """

    session_id: bytes
    name: str
    principal: Principal
    namespaces: Held[NamespaceHandle]
    leases: Held[Lease]
    reservations: Held[Reservation]
    prefetches: Held[Transfer]
    queues: dict[int, int] = field(default_factory=dict)
    tasks: set[asyncio.Task[object]] = field(default_factory=set)
    notices: asyncio.Queue[pb.Notice | None] = field(default_factory=lambda: asyncio.Queue(_NOTICES_MAX))
    attached: bool = False
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    def tell(self, notice: pb.Notice | None) -> None:
        """Queue a notice; of too many the oldest is dropped."""
        if self.notices.full():
            self.notices.get_nowait()
        self.notices.put_nowait(notice)


class Sessions:
    """Every session of a server.

    Args:
        store: Whose blocks they hold.
        limits: How many, and how much.
    """

    def __init__(self, store: Store, limits: SessionLimits) -> None:
        self.limits = limits
        self._store = store
        self._sessions: dict[bytes, Session] = {}
        self._queues = itertools.count(1)

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[Session]:
        return iter(list(self._sessions.values()))

    def open(self, principal: Principal, name: str) -> Session:
        """A new one. Raises LimitError where there are too many."""
        if len(self._sessions) >= self.limits.sessions:
            raise LimitError(f"{self.limits.sessions} sessions are open; close some, or raise service.sessions_max")
        most = self.limits.held
        session = Session(
            secrets.token_bytes(SESSION_ID_NBYTES),
            name,
            principal,
            namespaces=Held("namespace", most),
            leases=Held("lease", most),
            reservations=Held("reservation", most),
            prefetches=Held("prefetch", most),
        )
        self._sessions[session.session_id] = session
        return session

    def find(self, session_id: bytes, principal: Principal) -> Session:
        """The session that a call names. Raises SessionError where it is gone, or another's: which is not said."""
        session = self._sessions.get(session_id)
        if session is None or session.principal != principal:
            raise SessionError("the session is gone; open a new one")
        return session

    def queue(self, session: Session, queue: int) -> int:
        """The store's own number of a session's queue."""
        if queue not in session.queues:
            if len(session.queues) >= self.limits.queues:
                raise LimitError(f"the session has {self.limits.queues} queues of waiting requests; use one of them")
            session.queues[queue] = next(self._queues)
        return session.queues[queue]

    def lent(self, session: Session, number: int) -> None:
        """A lease has its slots: from now on it lasts at most `lease_seconds`."""
        asyncio.get_running_loop().call_later(self.limits.lease_seconds, self.release, session, number)

    def release(self, session: Session, number: int) -> None:
        """End a lease; one that is gone is none to end."""
        lease = session.leases.take(number)
        if lease is not None:
            lease.release()

    def promise(self, session: Session, reservation: Reservation, chosen: int = 0) -> int:
        """Keep a reservation until it is committed or abandoned. After `lease_seconds` other requests stop waiting."""
        number = session.reservations.keep(reservation, chosen)
        asyncio.get_running_loop().call_later(self.limits.lease_seconds, _lapse, session.reservations, number)
        return number

    def close(self, session: Session) -> None:
        """End a session and free all it holds, except slots that an attached client may still write to: see `free`."""
        if self._sessions.pop(session.session_id, None) is None:
            return
        session.ended.set()
        for task in session.tasks:
            task.cancel()
        for transfer in session.prefetches.take_all():
            transfer.cancel()
        for queue in session.queues.values():
            self._store.end_session(queue)
        for reservation in session.reservations:
            reservation.lapse()
        if not session.attached:
            self.free(session)

    def free(self, session: Session) -> None:
        """Give back the session's slots, once its client can no longer read or write them."""
        for lease in session.leases.take_all():
            lease.release()
        for reservation in session.reservations.take_all():
            reservation.abandon()


def _lapse(reservations: Held[Reservation], number: int) -> None:
    reservation = reservations.get(number)
    if reservation is not None:
        reservation.lapse()
