"""A client's calls over the pool's socket, at moments that no server can choose."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import closing

from tierstore.service._pb import tierstore_pb2 as pb
from tierstore.service.client.pool_calls import PoolCalls


class _Watched(socket.socket):
    """Does something just before it sends."""

    before_sending: Callable[[], None]

    def send(self, *given: object) -> int:
        self.before_sending()
        return super().send(*given)  # type: ignore[arg-type]


def test_what_is_told_while_the_session_ends_opens_nothing_again() -> None:
    near, far = socket.socketpair()
    with far, _Watched(fileno=near.detach()) as connection, closing(PoolCalls(connection)) as calls:
        connection.before_sending = calls.end
        assert not calls.tell(pb.ReleaseRequest())
        assert not calls.tell(pb.ReleaseRequest()), "it takes calls that nobody would be woken from"
        assert len(far.recv(1 << 16)) < 16, "the second one was sent"
