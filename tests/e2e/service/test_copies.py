"""A client's call ends when its copies have, however long the device takes: not before, and with no other bytes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from tests.e2e.service.test_borrowers import num_lent
from tests.e2e.service.test_withdrawals import nothing_lent
from tests.e2e.service.world import Serving, client_of, patient, served
from tests.payload import TIMEOUT_SECONDS, block_hash, namespace, rows
from tierstore.client import Client
from tierstore.device.cpu import CpuDevice, CpuStream
from tierstore.service._pb import tierstore_pb2 as pb

NBYTES = 8192
BLOCKS = [block_hash(number) for number in range(6)]
BYTES = rows(range(6), NBYTES)
HALVES = [np.ascontiguousarray(half) for half in np.split(BYTES, 2, axis=1)]
"""Of no whole rows, so that streamed blocks pass through a buffer."""

MOMENT_SECONDS = 0.3
"""In which whoever waits for nothing has long ended."""

WAYS = pytest.mark.parametrize("attach", [True, False], ids=["in place", "streamed"])


class SlowDevice(CpuDevice):
    """Its streams stand still while the test wants it."""

    def __init__(self) -> None:
        super().__init__()
        self._streams: list[CpuStream] = []

    def new_stream(self, name: str) -> CpuStream:
        self._streams.append(super().new_stream(name))
        return self._streams[-1]

    @contextmanager
    def standing_still(self) -> Iterator[None]:
        goes_on = threading.Event()
        for stream in self._streams:
            stream.call(lambda: assert_set(goes_on))
        try:
            yield
        finally:
            goes_on.set()


def assert_set(event: threading.Event) -> None:
    assert event.wait(TIMEOUT_SECONDS)


@pytest.fixture
def serving(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Serving]:
    monkeypatch.setattr("tierstore.service.client.blocks._BUFFER_NBYTES", 2 * NBYTES)
    with served(tmp_path) as serving:
        yield serving


@pytest.fixture
def device() -> SlowDevice:
    return SlowDevice()


@contextmanager
def client_on(device: SlowDevice, serving: Serving, *, attach: bool) -> Iterator[Client]:
    with patient(serving.address, attach=attach, device=device) as client:
        assert client.attached == attach
        yield client


@WAYS
@pytest.mark.parametrize("count", [2, 6], ids=["in one half of a buffer", "in halves by turns"])
def test_a_get_ends_once_its_last_block_is_in_the_cache(
    serving: Serving, device: SlowDevice, count: int, *, attach: bool
) -> None:
    assert serving.store.namespace(namespace()).put(BLOCKS, BYTES).result(TIMEOUT_SECONDS).ok
    found = [np.zeros_like(half[:count]) for half in HALVES]
    with client_on(device, serving, attach=attach) as client:
        kv = client.namespace(namespace())
        with device.standing_still():
            call = kv.get(BLOCKS[:count], found)
            with pytest.raises(TimeoutError):
                call.result(MOMENT_SECONDS)
        assert call.result(TIMEOUT_SECONDS).ok
        assert np.array_equal(np.concatenate(found, axis=1), BYTES[:count])


@WAYS
def test_a_put_sends_what_has_come_out_of_the_cache(serving: Serving, device: SlowDevice, *, attach: bool) -> None:
    found = np.zeros_like(BYTES)
    with client_on(device, serving, attach=attach) as client:
        kv = client.namespace(namespace())
        with device.standing_still():
            call = kv.put(BLOCKS, HALVES)
            with pytest.raises(TimeoutError):
                call.result(MOMENT_SECONDS)
        assert call.result(TIMEOUT_SECONDS).ok
    assert serving.store.namespace(namespace()).get(BLOCKS, found).result(TIMEOUT_SECONDS).ok
    assert np.array_equal(found, BYTES)


def test_slots_that_a_copy_still_touches_stay_lent_though_its_session_has_ended(serving: Serving) -> None:
    with client_of(serving) as client:
        (served_session,) = serving.server.sessions
        session = client.calling.connection.session()
        pool = client.calling.pool(session)
        assert pool is not None
        request = pb.ReserveRequest(hashes=b"".join(BLOCKS))
        session.address(request, namespace(), TIMEOUT_SECONDS)
        offsets = np.array(session.call(request, pb.ReserveResponse, TIMEOUT_SECONDS).offsets, np.int64)
        with pool.used(offsets, NBYTES) as view:
            pool.close()
            assert client.metrics(), "whatever it has said is heard by now"
            assert num_lent(serving) == 6
            view[offsets] = 1
        serving.run(nothing_lent(served_session))
        assert num_lent(serving) == 0
