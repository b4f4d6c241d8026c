"""A disk that hangs: calls end by their deadlines whatever they are, and what waits for it goes in order."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import grpc
import pytest

from tests.e2e.service.stranger import Stranger, stranger
from tests.e2e.service.test_borrowers import attach
from tests.e2e.service.test_security import of_tenant
from tests.e2e.service.world import Serving, served
from tests.payload import TIMEOUT_SECONDS, block_hash, namespace, rows
from tierstore.errors import DiskError
from tierstore.keys import Namespace
from tierstore.service import convert
from tierstore.service._pb import tierstore_pb2 as pb
from tierstore.service.security import OWNER, Principal
from tierstore.testing.sim_disk import SimDisk

BLOCKS = [block_hash(number) for number in range(4)]
HASHES = b"".join(BLOCKS)


class StalledDisk(SimDisk):
    """A disk whose calls all wait for the test."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.gate.set()
        self.num_reads = 0

    def failure(self, operation: str, path: str) -> DiskError | None:
        self.num_reads += operation == "read"
        assert self.gate.wait(TIMEOUT_SECONDS), f"{operation} of {path} was never let through"
        return super().failure(operation, path)


def make_cold(serving: Serving, space: Namespace) -> None:
    """Put the blocks on SSD, and so many others into the pool that they are nowhere else."""
    own = serving.store.namespace(space)
    assert own.put(BLOCKS, rows(range(4), 8192), durable=True).result(TIMEOUT_SECONDS).ok
    for first in range(100, 132, 8):
        names = range(first, first + 8)
        assert own.put([block_hash(name) for name in names], rows(names, 8192)).result(TIMEOUT_SECONDS).ok


@pytest.mark.parametrize(
    ("principal", "order"),
    [(OWNER, [0, 2, 1, 3]), (Principal("team", tenants=frozenset({"team"})), [0, 1, 2, 3])],
    ids=["the owner", "a tenant"],
)
def test_prefetches_go_by_priority_but_no_tenants_before_anybody_elses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, principal: Principal, order: list[int]
) -> None:
    monkeypatch.setattr("tierstore.service.security.OWNER", principal)
    space = of_tenant("team")
    disk, ended = StalledDisk(), list[int]()
    with served(tmp_path, disk, settings={"prefetch_inflight": "8 KiB"}) as serving, stranger(serving.address) as who:
        make_cold(serving, space)
        scope = who.scope(space)
        disk.gate.clear()
        for block, priority in zip(BLOCKS, (0, 0, 7, -1), strict=True):
            who.call(pb.PrefetchRequest(scope=scope, hashes=block, priority=priority))
        (session,) = serving.server.sessions
        for number, prefetch in enumerate(session.prefetches):
            prefetch.add_done_callback(lambda _prefetch, number=number: ended.append(number))  # type: ignore[misc]
        disk.gate.set()
        for number in range(1, 5):
            who.call(pb.WatchPrefetchRequest(scope=scope, prefetch_id=number))
    assert ended == order


def test_a_herd_of_clients_that_want_the_same_block_reads_it_once(tmp_path: Path) -> None:
    disk = StalledDisk()
    with served(tmp_path, disk) as serving, stranger(serving.address) as first:
        make_cold(serving, namespace())
        clients = [first, *(Stranger(first.channel) for _ in range(39))]  # half the pool is 16 slots
        scopes = [client.scope() for client in clients]
        disk.gate.clear()
        before = disk.num_reads
        gets = [
            client.get(pb.GetRequest(scope=scope, hashes=BLOCKS[0]))
            for client, scope in zip(clients, scopes, strict=True)
        ]
        disk.gate.set()
        for get in gets:
            assert b"".join(part.data for part in get) == rows(range(1), 8192).tobytes()
        assert disk.num_reads == before + 1


def held_up(scope: pb.Scope, other: pb.Scope) -> list[object]:
    """A call of every kind that has to do with the disk; the others never wait."""
    new = [block_hash(("new", number)) for number in range(4)]
    spaces = [convert.from_namespace(namespace(model=f"new {number}")) for number in range(8)]
    return [
        *(pb.OpenNamespaceRequest(scope=scope, namespace=space) for space in spaces),
        pb.ClearRequest(scope=other),
        pb.FlushRequest(scope=scope),
        pb.DeleteRequest(scope=scope, hashes=new[0]),
        pb.AcquireRequest(scope=scope, hashes=HASHES),
        pb.WatchPrefetchRequest(scope=scope, prefetch_id=1),
        pb.CommitRequest(scope=scope, reservation_id=1),
    ]


def test_no_call_waits_longer_for_a_disk_that_hangs_than_its_deadline(tmp_path: Path) -> None:
    disk, warm = StalledDisk(), [block_hash(("warm", number)) for number in range(4)]
    with served(tmp_path, disk) as serving, stranger(serving.address) as who, closing(attach(who)):
        scope, other = who.scope(), who.scope(namespace(model="other"))
        make_cold(serving, namespace())
        own = serving.store.namespace(namespace())
        assert own.put(warm, rows(range(4), 8192), durable=True).result(TIMEOUT_SECONDS).ok
        who.call(pb.ReserveRequest(scope=scope, hashes=block_hash("durable"), durable=True))
        disk.gate.clear()
        who.call(pb.PrefetchRequest(scope=scope, hashes=HASHES))
        begun = time.perf_counter()
        for request in held_up(scope, other):
            with pytest.raises(grpc.RpcError) as late:
                who.call(request, seconds=0.1)
            assert late.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED, request
        with pytest.raises(grpc.RpcError) as late:
            list(who.get(pb.GetRequest(scope=scope, hashes=HASHES), seconds=0.1))
        assert late.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        with pytest.raises(grpc.RpcError) as late:
            who.put(durable_put(scope), seconds=0.1)
        assert late.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert time.perf_counter() - begun < TIMEOUT_SECONDS / 3
        assert who.scope().namespace_handle, "a namespace that is known needs no disk"
        data = b"".join(part.data for part in who.get(pb.GetRequest(scope=scope, hashes=b"".join(warm))))
        assert data == rows(range(4), 8192).tobytes(), "what lies in memory is served meanwhile"
        disk.gate.set()


def durable_put(scope: pb.Scope) -> Iterator[pb.PutRequest]:
    yield pb.PutRequest(begin=pb.PutBegin(scope=scope, hashes=block_hash("put"), durable=True))
    yield pb.PutRequest(data=bytes(8192))
