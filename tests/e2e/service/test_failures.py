"""A service that is gone, slow or stopped costs hits and never the engine; slow clients cost the service little."""

from __future__ import annotations

import errno
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path

import grpc
import numpy as np
import psutil
import pytest

from tests.e2e.service.stranger import stranger
from tests.e2e.service.test_serve import serve
from tests.e2e.service.world import Serving, client_of, patient, served
from tests.payload import SENTINEL, TIMEOUT_SECONDS, block_hash, namespace, rows
from tierstore.client import AsyncClient, Client
from tierstore.errors import DiskError, UnavailableError
from tierstore.service._pb import tierstore_pb2 as pb
from tierstore.service.client import breaker, connection
from tierstore.service.client.session import LiveSession
from tierstore.service.sessions import SessionLimits
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
    for first in range(100, 132, 8):
        names = range(first, first + 8)
        assert own.put([block_hash(name) for name in names], rows(names, 8192)).result(TIMEOUT_SECONDS).ok


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
    with serve(tmp_path) as process, patient(process.address, call_seconds=0.2) as client:
        handle = client.namespace(namespace())
        assert handle.put(BLOCKS, BYTES).result(TIMEOUT_SECONDS).ok
        os.kill(process.process.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, process.process.pid, os.WSTOPPED)
        assert handle.lookup(BLOCKS) == 0, "not answered in time"
        begun = time.perf_counter()
        spent = [handle.lookup(BLOCKS) for _ in range(3)]
        assert (spent, time.perf_counter() - begun < 3 * 0.2) == ([0, 0, 0], True), "one more of them may have asked"
        os.kill(process.process.pid, signal.SIGCONT)
        found = 0
        until = time.monotonic() + TIMEOUT_SECONDS
        while not found and time.monotonic() < until:
            found = handle.lookup(BLOCKS)
        assert found == 6


@pytest.mark.parametrize("attach", [True, False])
def test_gets_alone_find_a_service_again_that_was_stopped(tmp_path: Path, *, attach: bool) -> None:
    """Once each get took the turn of the one call that is let through, and then refused itself."""
    with serve(tmp_path) as process, patient(process.address, call_seconds=0.2, attach=attach) as client:
        handle = client.namespace(namespace())
        assert handle.put(BLOCKS, BYTES).result(TIMEOUT_SECONDS).ok
        os.kill(process.process.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, process.process.pid, os.WSTOPPED)
        assert handle.lookup(BLOCKS) == 0, "not answered in time"
        os.kill(process.process.pid, signal.SIGCONT)
        found = np.full_like(BYTES, SENTINEL)
        until = time.monotonic() + TIMEOUT_SECONDS
        while not handle.get(BLOCKS, found).result(TIMEOUT_SECONDS).ok and time.monotonic() < until:
            continue
        assert np.array_equal(found, BYTES)


@pytest.mark.parametrize("soon", [True, False])
def test_a_service_that_goes_on_is_asked_again_at_once_and_one_that_was_only_slow_behind_a_pause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, soon: bool
) -> None:
    """Once nothing but the end of the pause let a call through. Here no pause ends."""
    monkeypatch.setattr(breaker, "_FIRST_SECONDS", 1e6)
    monkeypatch.setattr(connection, "_SOON_SECONDS", 1e6 if soon else 0.0)
    with serve(tmp_path) as process, patient(process.address, call_seconds=0.2) as client:
        handle = client.namespace(namespace())
        assert handle.put(BLOCKS, BYTES).result(TIMEOUT_SECONDS).ok
        os.kill(process.process.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, process.process.pid, os.WSTOPPED)
        assert handle.lookup(BLOCKS) == 0, "not answered in time"
        assert client.calling.connection.probing, "it is waited for"
        os.kill(process.process.pid, signal.SIGCONT)
        until = time.monotonic() + TIMEOUT_SECONDS
        while time.monotonic() < until and client.calling.connection.probing:
            continue
        with pytest.raises(UnavailableError, match="asked again soon") if soon else nullcontext():
            client.calling.connection.session()


def test_a_call_of_a_session_that_has_ended_is_one_that_is_not_answered() -> None:
    """Of a channel that is closed gRPC says ValueError, which a look-up let through to the engine."""
    channel = grpc.insecure_channel("unix:/nobody.sock")
    session = LiveSession(pb.SessionOpened(), channel, ())
    channel.close()
    release = pb.ReleaseRequest()
    session.forget(release, 1.0)
    calls: list[Callable[[], object]] = [
        lambda: session.call(release, pb.ReleaseResponse, 1.0),
        lambda: session.begin(release, pb.ReleaseResponse, 1.0),
        lambda: session.get(pb.GetRequest(), 1.0),
        lambda: session.put([], 1.0),
    ]
    for call in calls:
        with pytest.raises(UnavailableError, match="has ended"):
            call()


@pytest.mark.parametrize("attach", [True, False])
def test_a_new_namespace_in_a_folder_that_cannot_be_written_is_one_of_misses(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, *, attach: bool
) -> None:
    """Once the engine was raised what the server's disk had said."""
    disk = SimDisk()
    with served(tmp_path, disk) as serving, client_of(serving, attach=attach) as client:
        disk.fail_from(1, errno=errno.EROFS, only="write")
        found = np.full_like(BYTES, SENTINEL)
        handle = client.namespace(namespace())
        assert "the service's disk failed" in caplog.text
        assert "EROFS" in caplog.text
        assert handle.lookup(BLOCKS) == 0
        assert handle.presence(BLOCKS) == [Presence.MISS] * 6
        assert handle.put(BLOCKS, BYTES).result(TIMEOUT_SECONDS).outcomes == [Outcome.REJECTED] * 6
        assert handle.get(BLOCKS, found).result(TIMEOUT_SECONDS).outcomes == [Outcome.MISS] * 6
        disk.heal()
        assert handle.put(BLOCKS, BYTES).result(TIMEOUT_SECONDS).ok
        assert handle.get(BLOCKS, found).result(TIMEOUT_SECONDS).ok


def test_a_namespace_more_than_a_session_may_hold_is_one_of_misses(tmp_path: Path) -> None:
    with served(tmp_path, limits=SessionLimits(held=1)) as serving, client_of(serving) as client:
        assert client.namespace(namespace()).put(BLOCKS, BYTES).result(TIMEOUT_SECONDS).ok
        other = client.namespace(namespace(model="other"))
        assert other.lookup(BLOCKS) == 0
        assert other.put(BLOCKS, BYTES).result(TIMEOUT_SECONDS).outcomes == [Outcome.REJECTED] * 6


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


def test_what_a_closing_client_cuts_off_is_no_failure_of_the_service(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    disk = GatedDisk()
    with served(tmp_path, disk) as serving:
        make_cold(serving)
        with client_of(serving) as client:
            disk.gate.clear()
            prefetch = client.namespace(namespace()).prefetch(BLOCKS)
        disk.gate.set()
        assert prefetch.result(TIMEOUT_SECONDS).leading == 0
    assert "did not do its part" not in caplog.text


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
            assert serving.store.flush().result(TIMEOUT_SECONDS).ok  # a write pins its blocks, too
            assert serving.store.metrics()["tierstore_host_pinned_blocks"] <= 4 * 2 * 8
            for reader in readers:
                reader.cancel()  # type: ignore[attr-defined]


async def test_every_verb_can_be_awaited(serving: Serving) -> None:
    async with AsyncClient(serving.address, connect_seconds=TIMEOUT_SECONDS, call_seconds=TIMEOUT_SECONDS) as client:
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
