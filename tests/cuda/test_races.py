"""An engine's own work on a simulated GPU beside the store's copies: neither may overtake the other.

What ``bench.gpu.races`` does on a real one. The engine's stream fills pages, reads them, and reads them again behind a
load; nobody waits on the host in between, and the dice decides which stream goes on.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tierstore.device.axes import PagedTensor
from tierstore.device.calibration import ROWS_NBYTES, Choices
from tierstore.device.cuda_device import CudaDevice
from tierstore.device.paged_kv import PagedKV
from tierstore.layout import KVLayout
from tierstore.testing.sim_gpu import SimGpu, SimMark
from tierstore.types import PAGE_NBYTES

if TYPE_CHECKING:
    from tierstore.device.base import Event
    from tierstore.types import UInt8Array

WAIT_SECONDS = 30.0
LAYERS = 3
BLOCKS = 4
ROW_NBYTES = 256


@dataclass(eq=False)
class ComputeEvent:
    """What torch's own event has, of a mark on the simulated GPU."""

    gpu: SimGpu
    marked: SimMark
    device: str = "cpu"

    @property
    def cuda_event(self) -> int:
        return self.marked.handle

    def query(self) -> bool:
        return self.marked.reached

    def synchronize(self) -> None:
        self.gpu.finish(self.marked)


class Engine:
    """A compute stream, and the pages that it works on."""

    def __init__(self, gpu: SimGpu) -> None:
        gpu.enter()
        self._gpu = gpu
        self.stream = gpu.new_stream(high_priority=False)
        self.pages = [np.zeros((2, BLOCKS, 4, 1, ROW_NBYTES // 8), np.uint8) for _ in range(LAYERS)]
        self._kept: list[UInt8Array] = []

    def fill(self, value: int) -> None:
        """Enqueue a step that computes every page."""
        for page in self.pages:
            self._move(page, np.full_like(page, value))

    def read(self, layer: int) -> UInt8Array:
        """Enqueue a step that reads one page; what it sees is in the array once it has run."""
        seen = np.zeros_like(self.pages[layer])
        self._move(seen, self.pages[layer])
        return seen

    def event(self) -> ComputeEvent:
        return ComputeEvent(self._gpu, self._gpu.record(self.stream))

    def finish(self) -> None:
        self._gpu.finish(self._gpu.record(self.stream))

    def _move(self, dst: UInt8Array, src: UInt8Array) -> None:
        self._kept += [dst, src]
        self._gpu.copy(dst.ctypes.data, src.ctypes.data, dst.nbytes, self.stream)


def after(device: CudaDevice, event: ComputeEvent) -> list[Event]:
    return [device.as_event(event)]  # type: ignore[list-item]


@pytest.fixture(params=["batch", "staged", "kernel-16", "pieces"])
def device(request: pytest.FixtureRequest) -> Iterator[CudaDevice]:
    gpu = SimGpu(seed=11)
    rates = {(store, nbytes, request.param): 1.0 for store in (True, False) for nbytes in ROWS_NBYTES}
    yield CudaDevice(gpu, Choices(gpu.facts, rates))
    assert gpu.num_held == 1  # the engine's own stream


def test_copies_and_the_engines_own_work_keep_their_order(device: CudaDevice) -> None:
    gpu = device._runtime
    assert isinstance(gpu, SimGpu)
    engine = Engine(gpu)
    layout = KVLayout.attention(layers=LAYERS, kv_heads=1, head_size=ROW_NBYTES // 8, block_tokens=4, dtype="uint8")
    named = zip(engine.pages, layout.pages, strict=True)
    tensors = [PagedTensor(tensor, "plane block token head element", page.name) for tensor, page in named]
    kv = PagedKV.bind(layout, tensors, pages_per_group=1)
    host = np.zeros(2 * BLOCKS * PAGE_NBYTES, np.uint8)
    slots, incoming = np.arange(BLOCKS, dtype=np.int32), np.arange(BLOCKS, 2 * BLOCKS, dtype=np.int32)
    block_ids = np.arange(BLOCKS, dtype=np.int64)[None]
    unpin = device.pin(host)
    compute = SimpleNamespace(cuda_stream=engine.stream)
    with closing(device.new_stream("store")) as store, closing(device.new_stream("load")) as load:
        for mine in range(1, 60):
            theirs = mine + 100
            host[BLOCKS * PAGE_NBYTES :] = theirs
            engine.fill(mine)
            device.store(host, slots, kv, block_ids, store, after=after(device, engine.event()))
            stored = store.record()
            before = [engine.read(layer) for layer in range(LAYERS)]
            load.wait(stored)
            events = device.load(host, incoming, kv, block_ids, load, after=after(device, engine.event()))
            seen = []
            for layer, event in enumerate(events):
                device.hold(compute, event)
                seen.append(engine.read(layer))
            engine.finish()
            assert stored.wait(WAIT_SECONDS)
            blocks = host.reshape(-1, PAGE_NBYTES)[:BLOCKS, : LAYERS * ROW_NBYTES]
            assert set(blocks.ravel().tolist()) == {mine}
            assert {value for page in before for value in page.ravel().tolist()} == {mine}
            assert {value for page in seen for value in page.ravel().tolist()} == {theirs}
    unpin()
