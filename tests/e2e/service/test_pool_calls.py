"""Calls over the socket that hands out the pool: the same as over gRPC, and gRPC wherever they cannot go there."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import grpc
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.e2e.service.stranger import Stranger, stranger
from tests.e2e.service.test_borrowers import attach
from tests.e2e.service.test_failures import GatedDisk, make_cold
from tests.e2e.service.world import Serving, client_of, patient, served
from tests.payload import TIMEOUT_SECONDS, block_hash, namespace, rows
from tierstore.metrics import Metric
from tierstore.service._pb import tierstore_pb2 as pb
from tierstore.service.client.pool_calls import PoolCalls
from tierstore.service.client.session import LiveSession
from tierstore.service.frames import Frames, framed
from tierstore.service.lending import Lending
from tierstore.service.sessions import Session
from tierstore.service.wire import CHOSEN_FIRST, MESSAGE_NBYTES_MAX
from tierstore.types import Outcome

BLOCKS = [block_hash(number) for number in range(6)]
HASHES = b"".join(BLOCKS)
BYTES = rows(range(6), 8192)
OTHERS = [block_hash(number) for number in range(10, 13)]


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[Serving]:
    with served(tmp_path) as serving:
        yield serving


@pytest.fixture
def nothing_over_grpc(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_given: object) -> None:
        raise AssertionError("over gRPC")

    for verb in ("begin", "forget"):
        monkeypatch.setattr(LiveSession, verb, refuse)


@pytest.mark.usefixtures("nothing_over_grpc")
def test_slots_are_asked_for_and_given_back_over_the_pools_socket(serving: Serving) -> None:
    with client_of(serving) as client:
        handle, found = client.namespace(namespace()), np.zeros_like(BYTES)
        assert handle.put(BLOCKS, BYTES).result(TIMEOUT_SECONDS).ok
        assert handle.put(BLOCKS, BYTES, durable=True).result(TIMEOUT_SECONDS).ok
        for _ in range(3):
            assert handle.get(BLOCKS, found).result(TIMEOUT_SECONDS).ok
        assert np.array_equal(found, BYTES)
        metrics = serving.store.read_metrics()
        assert metrics.durations(Metric.SERVICE_CALL_SECONDS, "Acquire")[0] == 3
        assert metrics.total(Metric.SERVICE_FAILED_CALLS) == 0


@pytest.mark.usefixtures("nothing_over_grpc")
def test_a_deadline_in_a_year_is_none_too_far(serving: Serving) -> None:
    with client_of(serving) as client:
        handle, found, seconds = client.namespace(namespace()), np.zeros_like(BYTES), 365 * 86400.0
        assert handle.put(BLOCKS, BYTES, deadline_seconds=seconds).result(TIMEOUT_SECONDS).ok
        assert handle.get(BLOCKS, found, deadline_seconds=seconds).result(TIMEOUT_SECONDS).ok
        assert np.array_equal(found, BYTES)


def test_what_is_given_back_while_the_client_closes_needs_no_other_way(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A get that ended just before was said over gRPC to a channel that was being closed."""
    with client_of(serving) as client:
        (pool,) = client.calling._pools.values()
        assert pool is not None

        def closed_meanwhile(_calls: PoolCalls, _request: object) -> bool:
            pool.close()
            return False

        monkeypatch.setattr(PoolCalls, "tell", closed_meanwhile)
        assert pool.tell(pb.ReleaseRequest())


def test_a_server_that_takes_no_calls_there_is_asked_over_grpc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    attach_pool = Lending.attach_pool

    async def attach_as_before(
        lending: Lending, session: Session, request: pb.AttachPoolRequest
    ) -> pb.AttachPoolResponse:
        answer = await attach_pool(lending, session, request)
        answer.ClearField("takes_calls")
        return answer

    monkeypatch.setattr(Lending, "attach_pool", attach_as_before)
    monkeypatch.setattr("tierstore.service.pool_calls.PoolCalls.data_received", lambda _calls, _data: None)
    with served(tmp_path) as serving, client_of(serving) as client:
        handle, found = client.namespace(namespace()), np.zeros_like(BYTES)
        assert handle.put(BLOCKS, BYTES).result(TIMEOUT_SECONDS).ok
        assert handle.get(BLOCKS, found).result(TIMEOUT_SECONDS).ok
        assert np.array_equal(found, BYTES)


def test_who_finds_somebody_waiting_there_asks_over_grpc(tmp_path: Path) -> None:
    disk = GatedDisk()
    with served(tmp_path, disk) as serving, client_of(serving) as client:
        make_cold(serving)
        handle, found = client.namespace(namespace()), np.zeros_like(BYTES)
        assert handle.put(OTHERS, BYTES[:3]).result(TIMEOUT_SECONDS).ok
        disk.gate.clear()
        waiting = handle.get(BLOCKS, found)
        for _ in range(3):
            assert handle.get(OTHERS, np.zeros_like(BYTES[:3])).result(TIMEOUT_SECONDS).ok
        assert not waiting.done()
        disk.gate.set()
        assert waiting.result(TIMEOUT_SECONDS).ok
        assert np.array_equal(found, BYTES)


def test_the_answer_to_a_call_that_was_given_up_is_nobody_elses(tmp_path: Path) -> None:
    disk = GatedDisk()
    with served(tmp_path, disk) as serving, client_of(serving) as client:
        make_cold(serving)
        handle, found = client.namespace(namespace()), np.zeros_like(BYTES[:3])
        assert handle.put(OTHERS, BYTES[:3]).result(TIMEOUT_SECONDS).ok
        disk.gate.clear()
        given_up = handle.get(BLOCKS, np.zeros_like(BYTES))
        assert handle.get(OTHERS, found).result(TIMEOUT_SECONDS).ok
        given_up.cancel()
        assert given_up.result(TIMEOUT_SECONDS).outcomes == [Outcome.CANCELLED] * 6
        disk.gate.set()
        assert serving.store.flush().result(TIMEOUT_SECONDS).ok
        found[:] = 0
        assert handle.get(OTHERS, found).result(TIMEOUT_SECONDS).ok
        assert np.array_equal(found, BYTES[:3])


def test_who_waits_there_hears_of_the_end_of_his_client(tmp_path: Path) -> None:
    disk = GatedDisk()
    with served(tmp_path, disk) as serving:
        make_cold(serving)
        with patient(serving.address) as client:
            disk.gate.clear()
            waiting = client.namespace(namespace()).get(BLOCKS, np.zeros_like(BYTES))
            assert not waiting.done()
        assert waiting.done()
        disk.gate.set()


@contextmanager
def calling(serving: Serving) -> Iterator[tuple[Stranger, socket.socket]]:
    """A client that knows the protocol's description alone, and its socket to the pool."""
    with stranger(serving.address) as visitor, closing(attach(visitor)) as door:
        door.settimeout(TIMEOUT_SECONDS)
        yield visitor, door


def answers_of(door: socket.socket, count: int) -> list[pb.PoolAnswer]:
    frames, found = Frames(), list[pb.PoolAnswer]()
    while len(found) < count:
        part = door.recv(1 << 16)
        assert part, "the server has hung up"
        found += map(pb.PoolAnswer.FromString, frames.feed(part))
    return found


def test_more_calls_than_are_taken_at_a_time_are_all_answered(serving: Serving) -> None:
    assert serving.store.namespace(namespace()).put(BLOCKS, BYTES).result(TIMEOUT_SECONDS).ok
    with calling(serving) as (visitor, door):
        scope = visitor.scope()
        calls = [
            pb.PoolCall(number=n, acquire=pb.AcquireRequest(scope=scope, hashes=HASHES, lease_id=CHOSEN_FIRST + n))
            for n in range(1, 101)
        ]
        door.sendall(b"".join(framed(call.SerializeToString()) for call in calls))
        answers = answers_of(door, 100)
        assert sorted(answer.number for answer in answers) == [*range(1, 101)]
        assert {len(answer.acquire.offsets) for answer in answers} == {6}


def test_of_calls_that_come_in_one_part_no_more_are_under_way_than_at_any_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    under_way, most, release = 0, 0, Lending.release

    async def watched(room: Lending, session: Session, request: pb.ReleaseRequest) -> pb.ReleaseResponse:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0)  # others may begin meanwhile
        response = await release(room, session, request)
        under_way -= 1
        return response

    monkeypatch.setattr(Lending, "release", watched)
    with served(tmp_path) as serving, calling(serving) as (visitor, door):
        request = pb.ReleaseRequest(scope=visitor.scope(), lease_ids=[CHOSEN_FIRST])
        calls = [pb.PoolCall(number=number, release=request) for number in range(1, 201)]
        door.sendall(b"".join(framed(call.SerializeToString()) for call in calls))
        assert [answer.number for answer in answers_of(door, 200)] == [*range(1, 201)]
    assert 1 < most <= 16


def test_of_a_client_that_has_gone_amid_its_calls_the_log_says_nothing(
    serving: Serving, caplog: pytest.LogCaptureFixture
) -> None:
    with stranger(serving.address) as visitor, closing(attach(visitor)) as door:
        request = pb.ReleaseRequest(scope=visitor.scope(), lease_ids=[CHOSEN_FIRST])
        calls = [pb.PoolCall(number=number, release=request) for number in range(1, 201)]
        door.sendall(b"".join(framed(call.SerializeToString()) for call in calls))
    with calling(serving) as (visitor, door):
        door.sendall(framed(pb.PoolCall(number=1).SerializeToString()))
        assert answers_of(door, 1)
    assert not caplog.records


def test_what_is_refused_there_says_so_as_over_grpc(serving: Serving) -> None:
    with calling(serving) as (visitor, door), stranger(serving.address) as other:
        lacking = pb.Scope(session_id=visitor.opened.session_id, namespace_handle=99)
        calls = [
            pb.PoolCall(number=1, acquire=pb.AcquireRequest(scope=other.scope(), hashes=HASHES)),
            pb.PoolCall(number=2, acquire=pb.AcquireRequest(scope=lacking, hashes=HASHES)),
            pb.PoolCall(number=3),
        ]
        door.sendall(b"".join(framed(call.SerializeToString()) for call in calls))
        errors = {answer.number: answer.error for answer in answers_of(door, 3)}
        assert [errors[number].name for number in (1, 2, 3)] == ["AccessError", "SessionError", "VersionError"]
        assert errors[1].code == grpc.StatusCode.PERMISSION_DENIED.value[0]


def test_who_speaks_no_sense_is_not_heard_any_more_and_keeps_his_slots(serving: Serving) -> None:
    assert serving.store.namespace(namespace()).put(BLOCKS, BYTES).result(TIMEOUT_SECONDS).ok
    with calling(serving) as (visitor, door):
        (session,) = serving.server.sessions
        visitor.call(pb.AcquireRequest(scope=visitor.scope(), hashes=HASHES))
        door.sendall((MESSAGE_NBYTES_MAX + 1).to_bytes(4, "little") + os.urandom(1 << 20))
        assert visitor.call(pb.ReleaseRequest(scope=visitor.session)) == pb.ReleaseResponse()
        assert session.attached
        assert len(session.leases) == 1


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with served(tmp_path_factory.mktemp("fuzzed")) as serving:
        yield serving


@settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow])
@given(body=st.binary(max_size=100), field=st.integers(2, 6), whole=st.booleans())
def test_whatever_comes_over_the_pools_socket_the_service_lives(
    fuzzed: Serving, body: bytes, field: int, *, whole: bool
) -> None:
    with calling(fuzzed) as (visitor, door):
        (session,) = fuzzed.server.sessions
        scope = pb.LookupRequest(scope=pb.Scope(session_id=visitor.opened.session_id)).SerializeToString()
        inner = scope + body
        call = b"\x08\x01" + bytes([field << 3 | 2, len(inner)]) + inner if len(inner) < 128 else body
        door.sendall(framed(call) if whole else body)
        assert visitor.call(pb.ReleaseRequest(scope=visitor.session)) == pb.ReleaseResponse()
        assert session.attached
