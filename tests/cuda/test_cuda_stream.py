"""Streams over a simulated GPU: what waits for what, who is told when, and what a failure leaves behind."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator
from contextlib import closing
from functools import partial

import numpy as np
import pytest

from tierstore.device.cuda_stream import AdoptedEvent, CudaEvent, CudaStream
from tierstore.errors import ClosedError, DeviceError
from tierstore.testing.contracts.device import Gate
from tierstore.testing.sim_gpu import SimGpu

WAIT_SECONDS = 30.0


class TorchEvent:
    """What torch's own event has, reached by hand."""

    def __init__(self, gpu: SimGpu) -> None:
        self.cuda_event = 77
        self._gpu = gpu
        self._reached = threading.Event()

    def query(self) -> bool:
        return self._reached.is_set()

    def synchronize(self) -> None:
        self._reached.wait()

    def reach(self) -> None:
        self._reached.set()
        self._gpu.poke()


@pytest.fixture(params=range(4))
def gpu(request: pytest.FixtureRequest) -> SimGpu:
    return SimGpu(request.param)


@pytest.fixture
def stream(gpu: SimGpu) -> Iterator[CudaStream]:
    with closing(CudaStream(gpu, "copies")) as stream:
        yield stream


def set_byte(gpu: SimGpu, stream: CudaStream, memory: np.ndarray, value: int) -> None:
    """Enqueue a copy of one byte."""
    source = np.array([value], np.uint8)
    copy = partial(gpu.copy, memory.ctypes.data, source.ctypes.data, 1, stream.handle)
    stream.submit(partial(stream.attempt, copy))
    stream.submit(partial(stream.mark, CudaEvent(), source))


def test_a_task_runs_once_what_was_enqueued_before_has_ended(gpu: SimGpu, stream: CudaStream) -> None:
    memory, seen = np.zeros(1, np.uint8), []
    for value in (1, 2):
        set_byte(gpu, stream, memory, value)
        stream.call(lambda: seen.append(int(memory[0])))
    assert stream.record().wait(WAIT_SECONDS)
    assert seen[0] in (1, 2)  # the GPU may be further by the time the first is told
    assert seen[1:] == [2]


def test_the_next_copy_is_enqueued_while_the_last_one_still_runs(gpu: SimGpu) -> None:
    held = TorchEvent(gpu)
    with closing(CudaStream(gpu, "copies")) as stream:
        stream.wait(AdoptedEvent(held))
        first = stream.record()
        second = stream.record()
        second.recorded_mark()  # would block for ever, were the thread waiting for the first to be reached
        assert not first.done()
        held.reach()
        assert second.wait(WAIT_SECONDS)
        assert first.done()


def test_an_event_of_another_stream_is_waited_for_by_the_gpu(gpu: SimGpu, stream: CudaStream) -> None:
    memory, held = np.zeros(1, np.uint8), TorchEvent(gpu)
    with closing(CudaStream(gpu, "other")) as other:
        other.wait(AdoptedEvent(held))
        set_byte(gpu, other, memory, 1)
        stream.wait(other.record())
        set_byte(gpu, stream, memory, 2)
        event = stream.record()
        event.recorded_mark()
        assert not event.done()
        held.reach()
        assert event.wait(WAIT_SECONDS)
        assert memory[0] == 2


def test_what_ended_before_a_gate_is_told_while_the_gate_is_shut(gpu: SimGpu, stream: CudaStream) -> None:
    gate, told = Gate(), threading.Event()
    stream.call(told.set)
    stream.wait(gate)
    assert told.wait(WAIT_SECONDS)
    gate.open()


def test_an_adopted_event_is_done_when_torch_says_so(gpu: SimGpu) -> None:
    event = TorchEvent(gpu)
    adopted = AdoptedEvent(event)
    assert adopted.handle == 77
    assert not adopted.done()
    assert not adopted.wait(0.0)
    event.reach()
    assert adopted.wait()


def test_memory_of_a_copy_lives_until_the_copy_has_ended(gpu: SimGpu, stream: CudaStream) -> None:
    class Owner:
        pass

    owner, held = Owner(), TorchEvent(gpu)
    alive, event = weakref.ref(owner), CudaEvent()
    stream.wait(AdoptedEvent(held))
    stream.submit(partial(stream.mark, event, owner))
    del owner
    event.recorded_mark()
    gc.collect()
    assert alive() is not None
    held.reach()
    assert stream.record().wait(WAIT_SECONDS)
    gc.collect()
    assert alive() is None


@pytest.mark.parametrize("fail_at", range(4))
def test_a_refused_call_ends_the_stream_and_everyone_is_told(fail_at: int, caplog: pytest.LogCaptureFixture) -> None:
    gpu = SimGpu(fail_at=fail_at)
    memory, told = np.zeros(1, np.uint8), threading.Event()
    with closing(CudaStream(gpu, "copies")) as stream:
        for value in (1, 2):
            set_byte(gpu, stream, memory, value)
        event = stream.record()
        stream.call(told.set)
        assert event.wait(WAIT_SECONDS)
        assert told.wait(WAIT_SECONDS)
        assert isinstance(stream.failure, DeviceError)
        assert memory[0] == (0, 1, 1, 2)[fail_at]  # nothing behind the failure has moved, all before it has
        with pytest.raises(DeviceError, match="never enqueued"):
            event.recorded_mark()
    assert "nothing more is copied" in caplog.text
    assert gpu.num_held == 0


def test_a_closed_stream_has_ended_what_it_held_and_takes_no_more(gpu: SimGpu) -> None:
    stream = CudaStream(gpu, "copies")
    memory = np.zeros(1, np.uint8)
    set_byte(gpu, stream, memory, 3)
    event = stream.record()
    stream.close()
    stream.close()
    assert event.done()
    assert memory[0] == 3
    assert gpu.num_held == 0
    with pytest.raises(ClosedError, match="copies"):
        stream.record()
