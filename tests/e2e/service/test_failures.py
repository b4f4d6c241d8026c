"""A service that is gone, slow or stopped costs hits and never the engine; clients without manners harm nobody."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import grpc
import numpy as np
import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.e2e.service.stranger import Stranger, stranger
from tests.e2e.service.test_serve import serve
from tests.e2e.service.world import Serving, client_of, served
from tests.payload import SENTINEL, TIMEOUT_SECONDS, block_hash, namespace, num_pins, rows
from tierstore.client import AsyncClient, Client
from tierstore.errors import DiskError, VersionError
from tierstore.service._pb import tierstore_pb2 as pb
from tierstore.service._pb.standard import health_pb2
from tierstore.service.wire import METHODS, PROTOCOL
from tierstore.testing.sim_disk import SimDisk
from tierstore.types import Outcome, Presence

BLOCKS = [block_hash(number) for number in range(6)]
HASHES = b"".join(BLOCKS)
BYTES = rows(range(6), 8192)


class GatedDisk(SimDisk):
    """A disk whose reads wait for the test."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.gate.set()

    def failure(self, operation: str, path: str) -> DiskError | None:
        if operation == "read":
            assert self.gate.wait(TIMEOUT_SECONDS)
        return super().failure(operation, path)


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[Serving]:
    with served(tmp_path) as serving:
        yield serving


def make_cold(serving: Serving) -> None:
    """Put the blocks on SSD, and so many others into the pool that they are nowhere else."""
    own = serving.store.namespace(namespace())
    assert own.put(BLOCKS, BYTES, durable=True).result(TIMEOUT_SECONDS).ok
    for first in range(100, 140, 8):
        names = range(first, first + 8)
        own.put([block_hash(name) for name in names], rows(names, 8192)).result(TIMEOUT_SECONDS)


def test_without_a_service_every_verb_ends_at_once_and_nothing_raises(tmp_path: Path) -> None:
    with Client(f"unix:{tmp_path / 'nobody.sock'}") as client:
        assert not client.connected
        handle = client.namespace(namespace())
        found = np.full_like(BYTES, SENTINEL)
        begun = time.perf_counter()
        for _ in range(100):
            assert handle.lookup(BLOCKS) == 0
            assert handle.presence(BLOCKS) == [Presence.MISS] * 6
            assert handle.get(BLOCKS, found).result(TIMEOUT_SECONDS).outcomes == [Outcome.MISS] * 6
            assert handle.put(BLOCKS, BYTES).result(TIMEOUT_SECONDS).outcomes == [Outcome.REJECTED] * 6
            prefetch = handle.prefetch(BLOCKS)
            assert prefetch.result(TIMEOUT_SECONDS).leading == 0
            assert handle.may_start(prefetch)
            handle.hint(added=[(1, BLOCKS)])
            advice = handle.plan_load(BLOCKS)
            assert (advice.first, advice.stop) == (0, 0)
            assert handle.delete(BLOCKS).result(TIMEOUT_SECONDS).outcomes == [Outcome.IO_ERROR] * 6
            assert client.flush().result(TIMEOUT_SECONDS).outcomes == [Outcome.IO_ERROR]
            assert (client.health(), client.metrics()) == ({}, {})
        assert time.perf_counter() - begun < 100 * 0.05
        assert (found == SENTINEL).all()


def test_a_stopped_service_is_asked_once_and_then_left_alone(tmp_path: Path) -> None:
    with serve(tmp_path) as process, Client(process.address, call_seconds=0.2) as client:
        handle = client.namespace(namespace())
        assert handle.put(BLOCKS, BYTES).result(TIMEOUT_SECONDS).ok
        os.kill(process.process.pid, signal.SIGSTOP)
        assert handle.lookup(BLOCKS) == 0, "not answered in time"
        begun = time.perf_counter()
        spent = [handle.lookup(BLOCKS) for _ in range(3)]
        assert (spent, time.perf_counter() - begun < 3 * 0.2) == ([0, 0, 0], True)
        os.kill(process.process.pid, signal.SIGCONT)
        found = 0
        until = time.monotonic() + TIMEOUT_SECONDS
        while not found and time.monotonic() < until:
            found = handle.lookup(BLOCKS)
        assert found == 6


@pytest.mark.parametrize("attach", [True, False])
def test_a_disk_that_stalls_holds_up_no_call_with_a_deadline(tmp_path: Path, *, attach: bool) -> None:
    disk = GatedDisk()
    with served(tmp_path, disk) as serving, client_of(serving, attach=attach) as client:
        make_cold(serving)
        handle = client.namespace(namespace())
        disk.gate.clear()
        found = np.full_like(BYTES, SENTINEL)
        begun = time.perf_counter()
        result = handle.get(BLOCKS, found, deadline_seconds=0.1).result(TIMEOUT_SECONDS)
        assert (result.leading, (found == SENTINEL).all()) == (0, True)
        assert handle.prefetch(BLOCKS, deadline_seconds=0.1).result(TIMEOUT_SECONDS).leading == 0
        waiting = handle.get(BLOCKS, found)
        waiting.cancel()
        assert waiting.result(TIMEOUT_SECONDS).outcomes == [Outcome.CANCELLED] * 6
        assert time.perf_counter() - begun < TIMEOUT_SECONDS / 3
        disk.gate.set()
        assert handle.get(BLOCKS, found).result(TIMEOUT_SECONDS).ok
        assert np.array_equal(found, BYTES)


def test_a_cancelled_stream_frees_its_slots(serving: Serving) -> None:
    own = serving.store.namespace(namespace())
    assert own.put(BLOCKS, BYTES).result(TIMEOUT_SECONDS).ok
    with stranger(serving.address) as visitor:
        scope = visitor.scope()
        get = visitor.get(pb.GetRequest(scope=scope, hashes=HASHES))
        next(get)
        get.cancel()  # type: ignore[attr-defined]
        with pytest.raises(grpc.RpcError):
            list(get)
        assert (
            len(b"".join(part.data for part in visitor.get(pb.GetRequest(scope=scope, hashes=HASHES)))) == BYTES.nbytes
        )
    assert own.put([block_hash(n) for n in range(40, 60)], rows(range(20), 8192)).result(TIMEOUT_SECONDS).ok


def test_slow_readers_hold_no_more_than_their_windows(tmp_path: Path) -> None:
    sizes = {"host_size": "256 MiB", "host_slab_size": "8 MiB", "ssd_size": "64 MiB", "ssd_file_size": "8 MiB"}
    space = namespace(block_nbytes=1 << 20)
    blocks = [block_hash(number) for number in range(128)]
    with served(tmp_path, settings=sizes) as serving:
        own = serving.store.namespace(space)
        for first in range(0, 128, 16):
            names = blocks[first : first + 16]
            assert own.put(names, np.zeros((16, 1 << 20), np.uint8)).result(TIMEOUT_SECONDS).ok
        before = psutil.Process().memory_info().rss
        with stranger(serving.address) as visitor:
            scope = visitor.scope(space)
            request = pb.GetRequest(scope=scope, hashes=b"".join(blocks))
            readers = [visitor.get(request) for _ in range(4)]
            for reader in readers:
                next(reader)
            with client_of(serving, attach=False) as client:
                found = np.ones((128, 1 << 20), np.uint8)
                assert client.namespace(space).get(blocks, found).result(TIMEOUT_SECONDS).ok
                assert not found.any()
                del found
            assert psutil.Process().memory_info().rss - before < 4 * (48 << 20)
            assert serving.store.metrics()["tierstore_host_pinned_blocks"] <= 4 * 2 * 8
            for reader in readers:
                reader.cancel()  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", ["too little", "too much", "no beginning", "two beginnings", "broken hashes", "twice"])
def test_a_put_that_makes_no_sense_is_refused_and_leaves_nothing(serving: Serving, kind: str) -> None:
    with stranger(serving.address) as visitor:
        begin = pb.PutBegin(scope=visitor.scope(), hashes=HASHES)
        data = [pb.PutRequest(data=row.tobytes()) for row in BYTES]
        messages = {
            "too little": [pb.PutRequest(begin=begin), *data[:5]],
            "too much": [pb.PutRequest(begin=begin), *data, pb.PutRequest(data=b"x")],
            "no beginning": data,
            "two beginnings": [pb.PutRequest(begin=begin), pb.PutRequest(begin=begin)],
            "broken hashes": [pb.PutRequest(begin=pb.PutBegin(scope=begin.scope, hashes=HASHES[1:])), *data],
            "twice": [pb.PutRequest(begin=pb.PutBegin(scope=begin.scope, hashes=HASHES + BLOCKS[0])), *data, data[0]],
        }[kind]
        with pytest.raises(grpc.RpcError) as refused:
            visitor.put(messages)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert serving.store.flush().result(TIMEOUT_SECONDS).ok
    assert num_pins(serving.store) == 0


def test_a_put_of_what_is_held_is_answered_without_its_bytes(serving: Serving) -> None:
    with stranger(serving.address) as visitor:
        begin = pb.PutBegin(scope=visitor.scope(), hashes=HASHES)
        stored = visitor.put([pb.PutRequest(begin=begin), *(pb.PutRequest(data=row.tobytes()) for row in BYTES)])
        assert stored.leading == 6
        endless = threading.Event()

        def nothing_but_the_beginning() -> Iterator[pb.PutRequest]:
            yield pb.PutRequest(begin=begin)
            endless.wait(TIMEOUT_SECONDS)

        assert visitor.put(nothing_but_the_beginning()).leading == 6
        endless.set()


def test_messages_and_batches_beyond_the_limits_are_refused_before_memory_is_taken(serving: Serving) -> None:
    with stranger(serving.address) as visitor:
        scope = visitor.scope()
        many = os.urandom(32 * 65_537)
        with pytest.raises(grpc.RpcError) as refused:
            visitor.call(pb.LookupRequest(scope=scope, hashes=many))
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        huge = pb.PutRequest(data=bytes(16 << 20))
        before = psutil.Process().memory_info().rss
        with pytest.raises(grpc.RpcError) as refused:
            visitor.put([pb.PutRequest(begin=pb.PutBegin(scope=scope, hashes=HASHES)), huge])
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert psutil.Process().memory_info().rss - before < 64 << 20
        assert visitor.call(pb.LookupRequest(scope=scope, hashes=HASHES)) == pb.LookupResponse()


@pytest.mark.parametrize("protocol", [0, PROTOCOL - 1, PROTOCOL + 1])
def test_another_protocol_is_refused_with_both_versions_named(serving: Serving, protocol: int) -> None:
    with pytest.raises(grpc.RpcError) as refused, stranger(serving.address, protocol=protocol):
        pass
    assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert f"protocol {PROTOCOL}, the client {protocol}" in str(refused.value.details())


def test_a_client_of_another_version_goes_on_without_the_service(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tierstore.service.client.connection.PROTOCOL", PROTOCOL + 1)
    with Client(serving.address) as client:
        assert not client.connected
        with pytest.raises(VersionError, match=f"protocol {PROTOCOL}, the client {PROTOCOL + 1}"):
            client.namespace(namespace())


def test_an_identity_that_differs_from_the_expected_one_names_the_field(serving: Serving) -> None:
    with stranger(serving.address) as visitor:
        visitor.scope(namespace())
        other = pb.OpenNamespaceRequest(scope=visitor.session, fingerprint=namespace().fingerprint)
        other.namespace.CopyFrom(convert_namespace(block_tokens=32))
        with pytest.raises(grpc.RpcError) as refused:
            visitor.call(other)
        assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert "block_tokens is 32, there 16" in str(refused.value.details())


def convert_namespace(block_tokens: int) -> pb.Namespace:
    page = pb.Page(name="block", kind=pb.PAGE_KIND_STATE, kv_heads=1, head_size=8192, planes=1)
    layout = pb.Layout(pages=[page], block_tokens=block_tokens, dtype="uint8", order=pb.MEMORY_ORDER_NHD)
    return pb.Namespace(model="model", layout=layout)


@pytest.mark.parametrize("model", ["../x", "/abs", "a\0b", "a\r\nb", "x" * 4096, "org/model:v1@2 x"])
def test_names_are_never_paths(serving: Serving, tmp_path: Path, model: str) -> None:
    before = sorted(tmp_path.rglob("*"))
    with client_of(serving, attach=False) as client:
        handle = client.namespace(namespace(model=model))
        assert handle.put(BLOCKS, BYTES, durable=True).result(TIMEOUT_SECONDS).ok
        assert handle.get(BLOCKS, np.zeros_like(BYTES)).result(TIMEOUT_SECONDS).ok
    assert sorted(tmp_path.rglob("*")) == before


def test_health_is_told_for_each_tier(serving: Serving) -> None:
    with grpc.insecure_channel(serving.address) as channel:
        make = channel.unary_unary(
            "/grpc.health.v1.Health/Check",
            health_pb2.HealthCheckRequest.SerializeToString,
            health_pb2.HealthCheckResponse.FromString,
        )
        for name in ("", "tierstore.v1.StoreService", "host", "ssd", "ssd.write"):
            answer = make(health_pb2.HealthCheckRequest(service=name), timeout=TIMEOUT_SECONDS)
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
        with pytest.raises(grpc.RpcError) as refused:
            make(health_pb2.HealthCheckRequest(service="device"), timeout=TIMEOUT_SECONDS)
        assert refused.value.code() is grpc.StatusCode.NOT_FOUND


def test_a_newcomer_finds_the_calls_by_reflection(serving: Serving) -> None:
    from google.protobuf.descriptor_pool import DescriptorPool
    from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

    with grpc.insecure_channel(serving.address) as channel:
        database = ProtoReflectionDescriptorDatabase(channel)
        assert "tierstore.v1.StoreService" in database.get_services()
        found = DescriptorPool(database).FindServiceByName("tierstore.v1.StoreService")
        assert {method.name for method in found.methods} == set(METHODS)


FUZZED = sorted(set(METHODS) - {"OpenSession"})


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Serving, Stranger]]:
    with served(tmp_path_factory.mktemp("fuzzed")) as serving, stranger(serving.address) as visitor:
        yield serving, visitor


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@settings(max_examples=200)
@given(name=st.sampled_from(FUZZED), body=st.binary(max_size=200), scoped=st.booleans())
def test_whatever_bytes_come_the_service_lives(
    fuzzed: tuple[Serving, Stranger], name: str, body: bytes, *, scoped: bool
) -> None:
    serving, visitor = fuzzed
    scope = pb.LookupRequest(scope=pb.Scope(session_id=visitor.opened.session_id, namespace_handle=1))
    message = scope.SerializeToString() + body if scoped else body
    call = visitor.channel.stream_stream(METHODS[name].path, bytes, bytes)
    stream = call(iter([message]), timeout=TIMEOUT_SECONDS)
    with suppress(grpc.RpcError):
        list(stream)
    assert stream.code() is not grpc.StatusCode.DEADLINE_EXCEEDED
    assert len(serving.server.sessions) == 1


async def test_every_verb_can_be_awaited(serving: Serving) -> None:
    async with AsyncClient(serving.address) as client:
        handle = await client.namespace(namespace())
        buffer = np.full_like(BYTES, SENTINEL)
        assert (await handle.put(BLOCKS, BYTES, durable=True)).ok
        assert (await handle.get(BLOCKS, buffer)).leading == 6
        assert np.array_equal(buffer, BYTES)
        assert (await handle.prefetch(BLOCKS)).ok
        assert (await client.flush()).ok
        assert await handle.lookup(BLOCKS) == 6
        assert (await handle.plan_load(BLOCKS)).leading == 6
        await handle.hint(added=[(1, BLOCKS)])
        assert set(await client.health()) == {"host", "ssd"}
        assert (await handle.delete(BLOCKS[5:])).num_ok == 1
        assert await handle.presence(BLOCKS) == [*[Presence.HIT] * 5, Presence.MISS]
        await handle.clear()
        assert await handle.lookup(BLOCKS) == 0
