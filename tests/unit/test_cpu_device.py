"""The CPU device beyond the contract of every device: its buffers, its merging, its events and its copies."""

from __future__ import annotations

import gc
import os
import threading
import weakref
from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from tierstore.device.copying import PRIMITIVES, SIZES_NBYTES, choose
from tierstore.device.cpu import STREAM_CAPACITY, CpuDevice, CpuEvent, CpuStream
from tierstore.device.paging import view_pages
from tierstore.errors import DeviceError, LayoutError
from tierstore.types import PAGE_NBYTES
from tierstore.worker import Worker

if TYPE_CHECKING:
    from tierstore.types import UInt8Array

WAIT_SECONDS = 30.0


class Recorder:
    """A copy primitive that notes the shape of each call, and waits for `gate` before the call `held`."""

    def __init__(self, held: int | None = None) -> None:
        self.shapes: list[tuple[int, ...]] = []
        self.gate = threading.Event()
        self._held = held

    def __call__(self, dst: UInt8Array, src: UInt8Array) -> None:
        if len(self.shapes) == self._held:
            assert self.gate.wait(WAIT_SECONDS)
        self.shapes.append(dst.shape)
        np.copyto(dst, src)


@pytest.fixture
def stream() -> Iterator[CpuStream]:
    with closing(CpuDevice().new_stream("test")) as stream:
        yield stream


def host_of(num_slots: int) -> UInt8Array:
    return np.zeros(num_slots * PAGE_NBYTES, np.uint8)


def test_neighbours_in_pool_and_pages_move_in_one_call(stream: CpuStream) -> None:
    recorder = Recorder()
    pages = [np.ones((16, 64), np.uint8), np.ones((16, 8), np.uint8)]
    slots, block_ids = np.array([4, 5, 6, 9, 8, 1], np.int32), np.array([2, 3, 4, 5, 6, 9], np.int64)
    CpuDevice(recorder).store(host_of(10), slots, pages, block_ids, stream)
    stream.record().wait(WAIT_SECONDS)
    assert recorder.shapes == [(3, 64), (1, 64), (1, 64), (1, 64), (3, 8), (1, 8), (1, 8), (1, 8)]


def test_slots_that_leave_room_between_blocks_are_no_neighbours(stream: CpuStream) -> None:
    recorder = Recorder()
    page = np.ones((4, PAGE_NBYTES + 1), np.uint8)  # a block takes two pages of the pool
    CpuDevice(recorder).load(host_of(8), np.array([0, 2, 6], np.int32), [page], np.array([0, 1, 2], np.int64), stream)
    stream.record().wait(WAIT_SECONDS)
    assert recorder.shapes == [(2, PAGE_NBYTES + 1), (1, PAGE_NBYTES + 1)]


def test_a_first_page_is_ready_while_the_second_still_moves(stream: CpuStream) -> None:
    recorder = Recorder(held=1)
    pages = [np.zeros((1, 8), np.uint8) for _ in range(2)]
    host = np.ones(PAGE_NBYTES, np.uint8)
    events = CpuDevice(recorder).load(host, np.array([0], np.int32), pages, np.array([0], np.int64), stream)
    assert events[0].wait(WAIT_SECONDS)
    assert not events[1].done()
    assert pages[0].all()
    recorder.gate.set()
    assert events[1].wait(WAIT_SECONDS)


def test_a_copy_of_no_blocks_still_reaches_its_events(stream: CpuStream) -> None:
    nothing = np.empty(0, np.int64)
    page = np.zeros((1, 8), np.uint8)
    events = CpuDevice().load(host_of(1), nothing.astype(np.int32), [page], nothing, stream)
    assert [event.wait(WAIT_SECONDS) for event in events] == [True]


def test_a_stream_lets_go_of_memory_when_its_copy_has_ended() -> None:
    page = np.ones((1, 8), np.uint8)
    gone = weakref.ref(page)
    stream = CpuDevice().new_stream("test")
    CpuDevice().store(host_of(1), np.array([0], np.int32), [page], np.array([0], np.int64), stream)
    stream.close()
    del page
    gc.collect()
    assert gone() is None


def test_read_only_memory_is_stored_from_and_never_loaded_into(stream: CpuStream) -> None:
    page, host = np.ones((1, 8), np.uint8), host_of(1)
    page.flags.writeable = False
    slots, block_ids = np.array([0], np.int32), np.array([0], np.int64)
    CpuDevice().store(host, slots, CpuDevice().pages(page, 8), block_ids, stream)
    assert stream.record().wait(WAIT_SECONDS)
    assert host[:8].all()
    with pytest.raises(LayoutError, match="read-only"):
        CpuDevice().load(host, slots, [page], block_ids, stream)
    host.flags.writeable = False
    with pytest.raises(LayoutError, match="read-only"):
        CpuDevice().store(host, slots, [page], block_ids, stream)


def test_pages_of_another_shape_dtype_or_of_no_bytes_are_refused(stream: CpuStream) -> None:
    slots, block_ids = np.array([0], np.int32), np.array([0], np.int64)
    for pages, named in (
        ([np.zeros(8, np.uint8)], r"uint8\[8\]"),
        ([np.zeros((1, 8), np.int8)], r"int8\[1, 8\]"),
        ([np.zeros((1, 0), np.uint8)], "no bytes"),
        ([], "no bytes"),
    ):
        with pytest.raises(LayoutError, match=named):
            CpuDevice().load(host_of(1), slots, pages, block_ids, stream)  # type: ignore[arg-type]


def test_a_full_stream_refuses_at_once(stream: CpuStream) -> None:
    gate, started = threading.Event(), threading.Event()

    def hold() -> None:
        started.set()
        gate.wait(WAIT_SECONDS)

    stream.call(hold)
    assert started.wait(WAIT_SECONDS)
    for _ in range(STREAM_CAPACITY):
        stream.record()
    with pytest.raises(DeviceError, match=f"{STREAM_CAPACITY} calls"):
        stream.record()
    gate.set()


def test_an_event_wakes_everyone_who_waits() -> None:
    event, seen = CpuEvent(), threading.Semaphore(0)
    waiting = threading.Barrier(4, timeout=WAIT_SECONDS)

    def wait() -> None:
        waiting.wait()
        if event.wait(WAIT_SECONDS):
            seen.release()

    with closing(Worker("test-waiter", capacity=3, threads=3)) as worker:
        for _ in range(3):
            assert worker.submit(wait)
        waiting.wait()
        assert not event.wait(0.0)
        event.reach()
        assert all(seen.acquire(timeout=WAIT_SECONDS) for _ in range(3))


@pytest.mark.parametrize(
    ("array", "block_nbytes"),
    [
        (np.zeros((4, 2, 3), np.float16), 12),
        (np.zeros((4, 2, 6), np.float32)[:, 1], 24),
        (np.zeros((8, 16), np.uint8)[::2, :5], 5),
        (np.zeros((4, 16), np.uint8)[::-1], 16),
        (np.zeros(4, np.int64), 8),
        (np.zeros((0, 16), np.uint8), 16),
    ],
    ids=["float16", "rows apart", "every other row", "backwards", "one number a block", "no blocks"],
)
def test_arrays_are_viewed_in_place(
    array: np.ndarray[tuple[int, ...], np.dtype[np.float32]], block_nbytes: int
) -> None:
    (page,) = view_pages(array, block_nbytes)
    assert page.shape == (len(array), block_nbytes)
    assert page.dtype == np.uint8
    page[...] = 0xFF
    assert all(byte == 0xFF for byte in array.tobytes())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn, torch.float32])
def test_tensors_are_viewed_in_place(dtype: torch.dtype) -> None:
    tensor = torch.zeros((4, 2, 2, 8), dtype=dtype)[:, 1]
    (page,) = view_pages(tensor, 16 * dtype.itemsize)
    page[2] = np.arange(page.shape[1], dtype=np.uint8)
    assert tensor.view(torch.uint8)[2].flatten().tolist() == list(range(page.shape[1]))
    assert not tensor.view(torch.uint8)[[0, 1, 3]].any()


@pytest.mark.parametrize(
    ("buffers", "named"),
    [
        (bytearray(16), "bytearray"),
        (np.zeros((), np.uint8), r"uint8\[\]"),
        (np.zeros((2, 2), object), r"object\[2, 2\]"),
        (np.zeros((2, 4, 4), np.uint8)[:, :, 1:], r"\[2, 4, 3\].*contiguous"),
        (np.broadcast_to(np.zeros(16, np.uint8), (4, 16)), r"\[4, 16\].*overlap"),
        (torch.zeros(()), r"float32\[\]"),
        (torch.zeros((2, 4), device="meta"), r"\[2, 4\].*meta"),
        ([np.zeros((2, 4), np.float16), torch.zeros((2, 4))], r"float16\[2, 4\].*float32\[2, 4\]: 24 bytes.*16"),
        ([], "no buffer: 0 bytes.*16"),
    ],
)
def test_buffers_that_cannot_be_pages_are_refused_by_name(buffers: object, named: str) -> None:
    with pytest.raises(LayoutError, match=named):
        view_pages(buffers, 16)


@pytest.mark.parametrize("name", PRIMITIVES)
def test_every_primitive_copies_rows_apart_on_the_calling_thread(name: str) -> None:
    src = np.random.default_rng(3).integers(0, 256, (8, 1 << 20), np.uint8)
    dst = np.zeros((8, (1 << 20) + 64), np.uint8)
    threads = len(os.listdir("/proc/self/task"))
    PRIMITIVES[name](dst[:, :-64], src)
    assert np.array_equal(dst[:, :-64], src)
    assert not dst[:, -64:].any()
    assert len(os.listdir("/proc/self/task")) == threads


def test_the_choice_is_the_fastest_measured_and_is_made_once() -> None:
    for into_pool in (True, False):
        choices = [choose(into_pool=into_pool, row_nbytes=size) for size in SIZES_NBYTES]
        for size, choice in zip(SIZES_NBYTES, choices, strict=True):
            assert choice.nbytes_per_second.keys() == PRIMITIVES.keys()
            assert choice.nbytes_per_second[choice.name] == max(choice.nbytes_per_second.values())
            assert choice.copy is PRIMITIVES[choice.name]
            assert choose(into_pool=into_pool, row_nbytes=size - 1) is choice
        assert choose(into_pool=into_pool, row_nbytes=1 << 30) is choices[-1]
