"""The protocol as a stranger speaks it: what makes no sense is refused by name, and whatever comes harms nobody."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import grpc
import numpy as np
import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.e2e.service.stranger import Stranger, stranger
from tests.e2e.service.world import Serving, client_of, num_loans, patient, served
from tests.payload import TIMEOUT_SECONDS, block_hash, namespace, rows
from tierstore.errors import VersionError
from tierstore.service import convert
from tierstore.service._pb import tierstore_pb2 as pb
from tierstore.service._pb.standard import health_pb2
from tierstore.service.sessions import SessionLimits
from tierstore.service.wire import METHODS, PROTOCOL

BLOCKS = [block_hash(number) for number in range(6)]
HASHES = b"".join(BLOCKS)
BYTES = rows(range(6), 8192)


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[Serving]:
    with served(tmp_path) as serving:
        yield serving


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
    assert num_loans(serving.store) == 0


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


def test_a_put_that_trickles_is_cut_off(tmp_path: Path) -> None:
    with served(tmp_path, limits=SessionLimits(lease_seconds=0.5)) as serving, stranger(serving.address) as visitor:
        begin, ended = pb.PutBegin(scope=visitor.scope(), hashes=HASHES), threading.Event()

        def drops() -> Iterator[pb.PutRequest]:
            yield pb.PutRequest(begin=begin)
            for _ in range(100):
                ended.wait(0.05)
                yield pb.PutRequest(data=b"x")

        with pytest.raises(grpc.RpcError) as refused:
            visitor.put(drops())
        ended.set()
    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "cut off" in str(refused.value.details())


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
    with patient(serving.address) as client:
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


def test_a_server_that_does_not_know_a_field_of_the_identity_shares_nothing(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of before would leave the field out, and find the blocks of whoever differs in it alone."""
    to_namespace = convert.to_namespace
    monkeypatch.setattr(
        convert, "to_namespace", lambda message, tenant: replace(to_namespace(message, tenant), engine_config=None)
    )
    with client_of(serving) as client:
        assert client.namespace(namespace()).put(BLOCKS, BYTES).result(TIMEOUT_SECONDS).ok
        with pytest.raises(VersionError, match="may be of different versions"):
            client.namespace(replace(namespace(), engine_config="rope"))


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


_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_HEADER_NBYTES, _SETTINGS, _PING, _GOAWAY, _ACK = 9, 4, 6, 7, 1


def frame(kind: int, payload: bytes = b"") -> bytes:
    """A frame of HTTP/2 that belongs to no stream."""
    return len(payload).to_bytes(3) + bytes([kind, 0]) + bytes(4) + payload


def test_an_idle_client_is_not_cut_off_for_its_pings(serving: Serving) -> None:
    with socket.socket(socket.AF_UNIX) as client, client.makefile("rb") as answers:
        client.settimeout(TIMEOUT_SECONDS)
        client.connect(str(serving.path))
        client.sendall(_PREFACE + frame(_SETTINGS))
        for _ in range(2):
            client.sendall(8 * frame(_PING, bytes(8)))
            num_answered = 0
            while num_answered < 8:
                header = answers.read(_HEADER_NBYTES)
                answers.read(int.from_bytes(header[:3]))
                assert header[3] != _GOAWAY, "cut off"
                num_answered += (header[3], header[4]) == (_PING, _ACK)


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
