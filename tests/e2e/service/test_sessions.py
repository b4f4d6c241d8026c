"""What a session holds, and that nothing of it outlives it, however it ends."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing
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
    with served(tmp_path, limits=SessionLimits(lease_seconds=0.2)) as serving:
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
            assert own.presence(BLOCKS)[3:] == [Presence.PENDING] * 3, "the client may still be writing"
        end_of(serving, session)
    assert own.presence(BLOCKS) == [Presence.HIT] * 3 + [Presence.MISS] * 3
    assert num_loans(serving.store) == 0


def test_a_lease_ends_by_itself(serving: Serving) -> None:
    own = serving.store.namespace(namespace())
    assert own.put(BLOCKS, BYTES).result(TIMEOUT_SECONDS).ok
    with stranger(serving.address) as visitor, closing(attach(visitor)):
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


def test_a_session_is_of_no_use_to_another_one_of_its_ids(serving: Serving) -> None:
    with stranger(serving.address) as visitor:
        scope = visitor.scope()
        scope.session_id = bytes(16)
        with pytest.raises(grpc.RpcError) as refused:
            visitor.call(pb.LookupRequest(scope=scope, hashes=HASHES))
    assert refused.value.code() is grpc.StatusCode.NOT_FOUND


def test_sessions_beyond_the_most_are_refused(tmp_path: Path) -> None:
    with served(tmp_path, limits=SessionLimits(sessions=1)) as serving, stranger(serving.address) as _first:
        with pytest.raises(grpc.RpcError) as refused, stranger(serving.address):
            pass
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_what_a_session_holds_is_bounded(tmp_path: Path) -> None:
    with served(tmp_path, limits=SessionLimits(held=2, queues=1)) as serving, stranger(serving.address) as visitor:
        scope = visitor.scope()
        for _ in range(2):
            visitor.call(pb.PrefetchRequest(scope=scope, hashes=HASHES))
        visitor.call(pb.HintRequest(scope=scope, queue=7))
        for request in (pb.PrefetchRequest(scope=scope, hashes=HASHES), pb.HintRequest(scope=scope, queue=8)):
            with pytest.raises(grpc.RpcError) as refused:
                visitor.call(request)
            assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


CLIENT = """
from tierstore.client import Client
client = Client({address!r}, attach={attach})
handle = client.namespace(namespace())
"""

HOLDING = """
from tests.e2e.service.stranger import Stranger
from tests.e2e.service.test_sessions import *
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


def test_a_program_that_forgets_to_close_its_client_ends_all_the_same(serving: Serving, tmp_path: Path) -> None:
    script = (
        CLIENT.format(address=serving.address, attach=True) + "handle.put([block_hash(1)], rows([1], 8192)).result()"
    )
    for ending in ("", "\nraise ValueError('mistake')"):
        with program(script + ending, tmp_path) as (process, _output):
            assert process.wait(TIMEOUT_SECONDS) == (1 if ending else 0)


def test_a_fork_of_a_client_is_told_so(serving: Serving, tmp_path: Path) -> None:
    script = CLIENT.format(address=serving.address, attach=True) + (
        "assert handle.put([block_hash(1)], rows([1], 8192)).result().ok\n"
        "import subprocess\n"
        "assert subprocess.run(['true']).returncode == 0\n"
        "pid = os.fork()\n"
        "if not pid:\n"
        "    from tierstore.errors import ForkError\n"
        "    try:\n"
        "        handle.lookup([block_hash(1)])\n"
        "    except ForkError:\n"
        "        os._exit(7)\n"
        "    os._exit(1)\n"
        "assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7\n"
        "assert handle.lookup([block_hash(1)]) == 1\n"
        "print('well', flush=True)\n"
    )
    with program(script, tmp_path) as (process, output):
        assert output.readline() == "well\n"
        assert process.wait(TIMEOUT_SECONDS) == 0


def test_two_hundred_clients_get_what_one_has_put(tmp_path: Path) -> None:
    pool = {"host_size": "32 MiB", "host_slab_size": "2 MiB"}  # half of it is lent at most
    with served(tmp_path, settings=pool) as serving, ExitStack() as stack:
        own = serving.store.namespace(namespace())
        assert own.put(BLOCKS, BYTES).result(TIMEOUT_SECONDS).ok
        first = [stack.enter_context(stranger(serving.address)) for _ in range(10)]
        visitors = [*first, *(Stranger(visitor.channel) for visitor in first for _ in range(19))]
        scopes = [visitor.scope() for visitor in visitors]
        gets = [
            visitor.get(pb.GetRequest(scope=scope, hashes=HASHES), seconds=10 * TIMEOUT_SECONDS)
            for visitor, scope in zip(visitors, scopes, strict=True)
        ]
        for get in gets:
            data = b"".join(part.data for part in get)
            assert np.array_equal(np.frombuffer(data, np.uint8).reshape(6, -1), BYTES)
