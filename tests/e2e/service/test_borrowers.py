"""Who maps the pool and copies for himself: what he holds ends with him, and nobody waits for it longer than that."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import crc32c
import grpc
import numpy as np
import pytest

from tests.e2e.service.stranger import Stranger, stranger
from tests.e2e.service.world import Serving, num_loans, served
from tests.payload import TIMEOUT_SECONDS, block_hash, namespace, rows
from tests.processes import program
from tierstore.service import convert
from tierstore.service._pb import tierstore_pb2 as pb
from tierstore.service.sessions import Session, SessionLimits
from tierstore.types import Outcome, Presence

BLOCKS = [block_hash(number) for number in range(6)]
HASHES = b"".join(BLOCKS)
BYTES = rows(range(6), 8192)


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[Serving]:
    with served(tmp_path) as serving:
        yield serving


def sessions(serving: Serving) -> list[Session]:
    return list(serving.server.sessions)


def end_of(serving: Serving, session: Session) -> None:
    serving.run(_end_of(session))


async def _end_of(session: Session) -> None:
    await session.ended.wait()
    while session.attached or session.tasks:  # noqa: ASYNC110 - there is no event for what only tests look at
        await asyncio.sleep(0)


def attach(visitor: Stranger) -> socket.socket:
    """Map nothing, but count as one who has: as long as the socket is open."""
    answer = visitor.call(pb.AttachPoolRequest(scope=visitor.session))
    assert isinstance(answer, pb.AttachPoolResponse)
    door = socket.socket(socket.AF_UNIX)
    door.connect(answer.socket_path)
    door.sendall(answer.ticket)
    _text, fds, _flags, _address = socket.recv_fds(door, 64, 1)
    for number in fds:
        socket.close(number)
    return door


def acquire(visitor: Stranger) -> pb.AcquireResponse:
    answer = visitor.call(pb.AcquireRequest(scope=visitor.scope(), hashes=HASHES))
    assert isinstance(answer, pb.AcquireResponse)
    return answer


def num_lent(serving: Serving) -> float:
    """Slots in borrowers' hands."""
    return serving.store.metrics()["tierstore_host_lent_bytes"] / 8192


def reserve(visitor: Stranger, scope: pb.Scope | None = None) -> pb.ReserveResponse:
    answer = visitor.call(pb.ReserveRequest(scope=scope or visitor.scope(), hashes=HASHES))
    assert isinstance(answer, pb.ReserveResponse)
    return answer


def test_leases_and_reservations_end_with_the_connection(serving: Serving) -> None:
    own = serving.store.namespace(namespace())
    assert own.put(BLOCKS[:3], BYTES[:3]).result(TIMEOUT_SECONDS).ok
    with stranger(serving.address) as visitor:
        (session,) = sessions(serving)
        with closing(attach(visitor)):
            assert len(acquire(visitor).offsets) == 3
            assert list(reserve(visitor).positions) == [3, 4, 5]
            assert own.presence(BLOCKS) == [Presence.HIT] * 3 + [Presence.PENDING] * 3
            visitor.cut()
            serving.run(session.ended.wait())
            assert own.presence(BLOCKS)[3:] == [Presence.MISS] * 3, "nobody waits for them"
            assert num_lent(serving) == 6, "the client may still be writing"
        end_of(serving, session)
    assert own.presence(BLOCKS) == [Presence.HIT] * 3 + [Presence.MISS] * 3
    assert num_loans(serving.store) == 0


def test_a_lease_ends_by_itself(tmp_path: Path) -> None:
    limits = SessionLimits(lease_seconds=0.2)
    with served(tmp_path, limits=limits) as serving, stranger(serving.address) as visitor, closing(attach(visitor)):
        own = serving.store.namespace(namespace())
        assert own.put(BLOCKS, BYTES).result(TIMEOUT_SECONDS).ok
        acquire(visitor)
        (session,) = sessions(serving)
        serving.run(_no_leases(session))
        assert serving.store.flush().result(TIMEOUT_SECONDS).ok
        assert num_loans(serving.store) == 0


async def _no_leases(session: Session) -> None:
    while len(session.leases):  # noqa: ASYNC110 - as above
        await asyncio.sleep(0.01)


def test_who_has_not_attached_is_lent_nothing(serving: Serving) -> None:
    with stranger(serving.address) as visitor, pytest.raises(grpc.RpcError) as refused:
        acquire(visitor)
    assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED


def test_a_block_that_is_not_what_its_client_said_goes_to_no_disk(serving: Serving) -> None:
    own = serving.store.namespace(namespace())
    with stranger(serving.address) as visitor, closing(attach(visitor)):
        request = pb.ReserveRequest(scope=visitor.scope(), hashes=HASHES, durable=True)
        granted = visitor.call(request)
        assert isinstance(granted, pb.ReserveResponse)
        for offset, row in zip(granted.offsets, BYTES, strict=True):
            serving.store.pool.view[offset : offset + 8192] = row
        checksums = [crc32c.crc32c(row.tobytes()) for row in BYTES]
        checksums[4] ^= 1
        commit = pb.CommitRequest(scope=visitor.session, reservation_id=granted.reservation_id, checksums=checksums)
        answer = visitor.call(commit)
        assert isinstance(answer, pb.CommitResponse)
        outcomes = convert.to_result(answer.result).outcomes
        assert outcomes == [Outcome.OK] * 4 + [Outcome.CORRUPT, Outcome.OK]
        assert own.lookup(BLOCKS) == 4


def test_an_abandoned_reservation_leaves_room_for_others(serving: Serving) -> None:
    own = serving.store.namespace(namespace())
    with stranger(serving.address) as visitor, closing(attach(visitor)):
        granted = reserve(visitor)
        waiting = own.put(BLOCKS, BYTES)
        assert not waiting.done()
        visitor.call(pb.AbandonRequest(scope=visitor.session, reservation_id=granted.reservation_id))
        assert Outcome.CANCELLED in waiting.result(TIMEOUT_SECONDS).outcomes
        assert own.put(BLOCKS, BYTES).result(TIMEOUT_SECONDS).ok


HOLDING = """
from tests.e2e.service.stranger import Stranger
from tests.e2e.service.test_borrowers import *
import grpc, threading
visitor = Stranger(grpc.insecure_channel({address!r}))
door = attach(visitor)
acquire(visitor)
reserve(visitor)
begin = pb.PutBegin(scope=visitor.scope(), hashes=b"".join(block_hash(n) for n in range(10, 14)))
def half():
    yield pb.PutRequest(begin=begin)
    yield pb.PutRequest(data=bytes(10_000))
    print("half", flush=True)
    threading.Event().wait()
visitor.put(half())
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_client_that_is_killed_leaves_nothing_behind(serving: Serving, tmp_path: Path, number: int) -> None:
    own = serving.store.namespace(namespace())
    assert own.put(BLOCKS[:3], BYTES[:3]).result(TIMEOUT_SECONDS).ok
    with program(HOLDING.format(address=serving.address), tmp_path) as (process, output):
        assert output.readline() == "half\n"
        (session,) = sessions(serving)
        process.send_signal(number)
        process.wait(TIMEOUT_SECONDS)
        end_of(serving, session)
    assert own.put(BLOCKS, BYTES).result(TIMEOUT_SECONDS).ok, "all slots are free again"
    assert own.put([block_hash(n) for n in range(10, 14)], BYTES[:4]).result(TIMEOUT_SECONDS).ok


def test_nobody_waits_for_a_reservation_longer_than_a_lease_may_last(tmp_path: Path) -> None:
    with served(tmp_path, limits=SessionLimits(lease_seconds=0.2)) as serving, stranger(serving.address) as visitor:
        own = serving.store.namespace(namespace())
        with closing(attach(visitor)):
            late = reserve(visitor)
            waiting, joined = own.get(BLOCKS, np.zeros_like(BYTES)), own.put(BLOCKS, BYTES)
            assert waiting.result(TIMEOUT_SECONDS).leading == 0
            assert Outcome.OK not in joined.result(TIMEOUT_SECONDS).outcomes
            assert own.presence(BLOCKS) == [Presence.MISS] * 6
            assert num_lent(serving) == 6, "its slots are given to nobody"
            assert own.put(BLOCKS, BYTES).result(TIMEOUT_SECONDS).ok
            for offset in late.offsets:
                serving.store.pool.view[offset : offset + 8192] = 0xFF
            answer = visitor.call(pb.CommitRequest(scope=visitor.session, reservation_id=late.reservation_id))
            assert isinstance(answer, pb.CommitResponse)
            assert convert.to_result(answer.result).outcomes == [Outcome.CANCELLED] * 6
        found = np.zeros_like(BYTES)
        assert own.get(BLOCKS, found).result(TIMEOUT_SECONDS).ok
        assert np.array_equal(found, BYTES)


RESERVING = """
from tests.e2e.service.test_borrowers import *
import subprocess, threading
visitor = Stranger(grpc.insecure_channel({address!r}))
door = attach(visitor)
reserve(visitor)
child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"], pass_fds=[door.fileno()])
print(child.pid, flush=True)
threading.Event().wait()
"""


@contextmanager
def reserving(serving: Serving, folder: Path) -> Iterator[tuple[subprocess.Popen[str], Session]]:
    """A process that has reserved blocks, with a child that has inherited its socket to the pool; and its session."""
    with program(RESERVING.format(address=serving.address), folder) as (process, output):
        child = int(output.readline())
        try:
            (session,) = sessions(serving)
            yield process, session
        finally:
            os.kill(child, signal.SIGKILL)


def test_blocks_that_a_stopped_client_has_reserved_are_soon_anybodys(tmp_path: Path) -> None:
    with (
        served(tmp_path, limits=SessionLimits(silence_seconds=3.0)) as serving,
        reserving(serving, tmp_path) as (process, session),
    ):
        own = serving.store.namespace(namespace())
        waiting = own.get(BLOCKS, np.zeros_like(BYTES))
        process.send_signal(signal.SIGSTOP)
        assert waiting.result(TIMEOUT_SECONDS).leading == 0, "its session has ended, by silence"
        assert num_lent(serving) == 6, "it may go on writing"
        assert own.put(BLOCKS, BYTES).result(TIMEOUT_SECONDS).ok
        process.kill()
        end_of(serving, session)
        assert num_lent(serving) == 0


def test_the_end_of_a_client_counts_though_a_child_keeps_its_socket(serving: Serving, tmp_path: Path) -> None:
    with reserving(serving, tmp_path) as (process, session):
        process.kill()
        end_of(serving, session)
        assert num_lent(serving) == 0


HALF = """
from tests.e2e.service.stranger import Stranger
from tierstore.service._pb import tierstore_pb2 as pb
import grpc, threading
visitor = Stranger(grpc.insecure_channel({address!r}))
begin = pb.PutBegin(scope=visitor.scope(), hashes=b"".join(block_hash(n) for n in range(4)))
def half():
    yield pb.PutRequest(begin=begin)
    yield pb.PutRequest(data=bytes(10_000))
    print("half", flush=True)
    threading.Event().wait()
visitor.put(half())
"""


def test_what_a_stopped_client_was_putting_is_nobodys_after_a_while(tmp_path: Path) -> None:
    with (
        served(tmp_path, limits=SessionLimits(silence_seconds=3.0)) as serving,
        program(HALF.format(address=serving.address), tmp_path) as (process, output),
    ):
        assert output.readline() == "half\n"
        (session,) = sessions(serving)
        process.send_signal(signal.SIGSTOP)
        end_of(serving, session)
        own = serving.store.namespace(namespace())
        assert own.put(BLOCKS[:4], BYTES[:4]).result(TIMEOUT_SECONDS).ok
