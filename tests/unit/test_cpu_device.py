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

from tierstore.device import block_copying, cpu
from tierstore.device.axes import PagedTensor
from tierstore.device.copying import PRIMITIVES, SIZES_NBYTES, choose
from tierstore.device.cpu import STREAM_CAPACITY, CpuDevice, CpuEvent, CpuStream
from tierstore.device.paged_kv import PagedKV
from tierstore.device.paging import bind_rows
from tierstore.errors import ClosedError, DeviceError, LayoutError
from tierstore.layout import KVLayout, PageKind, PageSpec
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


def rows_of(*pages: UInt8Array) -> PagedKV:
    return bind_rows(list(pages), sum(page.shape[1] for page in pages))


def host_of(num_slots: int) -> UInt8Array:
    return np.zeros(num_slots * PAGE_NBYTES, np.uint8)


def test_neighbours_in_pool_and_pages_move_in_one_call(stream: CpuStream) -> None:
    recorder = Recorder()
    pages = [np.ones((16, 64), np.uint8), np.ones((16, 8), np.uint8)]
    slots, block_ids = np.array([4, 5, 6, 9, 8, 1], np.int32), np.array([[2, 3, 4, 5, 6, 9]], np.int64)
    CpuDevice(recorder).store(host_of(10), slots, rows_of(*pages), block_ids, stream)
    stream.record().wait(WAIT_SECONDS)
    assert recorder.shapes == [shape for width in (64, 8) for shape in [(3, 1, width), *[(1, width)] * 3]]


def test_slots_that_leave_room_between_blocks_are_no_neighbours(stream: CpuStream) -> None:
    recorder = Recorder()
    page = np.ones((4, PAGE_NBYTES + 1), np.uint8)  # a block takes two pages of the pool
    slots, block_ids = np.array([0, 2, 6], np.int32), np.array([[0, 1, 2]], np.int64)
    CpuDevice(recorder).load(host_of(8), slots, rows_of(page), block_ids, stream)
    stream.record().wait(WAIT_SECONDS)
    assert recorder.shapes == [(2, 1, PAGE_NBYTES + 1), (1, PAGE_NBYTES + 1)]


@pytest.mark.parametrize("row_nbytes", [64, 8 << 10, 16 << 10, 40 << 10])
@pytest.mark.parametrize("into_pool", [True, False])
@pytest.mark.parametrize("even", ["pool", "cache", "neither", "backwards"])
def test_many_scattered_blocks_land_where_each_belongs(
    stream: CpuStream, row_nbytes: int, into_pool: bool, even: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(block_copying, "_BUFFER_NBYTES", 24 << 10)  # three rows a call, where they are of 8 KiB
    generator = np.random.default_rng(row_nbytes)
    slot_pages = -(-3 * row_nbytes // PAGE_NBYTES)
    host = generator.integers(0, 256, 40 * slot_pages * PAGE_NBYTES, np.uint8)
    cache = generator.integers(0, 256, (3, 40, row_nbytes), np.uint8)
    layout = KVLayout((PageSpec("state", PageKind.STATE, 1, row_nbytes, 3),), 1, "uint8")
    kv = PagedKV.bind(layout, [PagedTensor(cache, "plane block element", "state")])
    slots, ids = (generator.permutation(40)[:20] for _ in range(2))
    if even in ("pool", "backwards"):
        slots = np.arange(20) * 2 if even == "pool" else np.arange(20)[::-1]
    elif even == "cache":
        ids = np.arange(20) * 2
    in_pool = host.reshape(40, -1)[:, : 3 * row_nbytes].reshape(40, 3, row_nbytes).swapaxes(0, 1)
    expected = (cache[:, ids] if into_pool else in_pool[:, slots]).copy()
    copy = CpuDevice().store if into_pool else CpuDevice().load
    copy(host, (slots * slot_pages).astype(np.int32), kv, ids[np.newaxis], stream)
    assert stream.record().wait(WAIT_SECONDS)
    assert np.array_equal(cache[:, ids], expected)
    assert np.array_equal(in_pool[:, slots], expected)


def test_a_first_page_is_ready_while_the_second_still_moves(stream: CpuStream) -> None:
    recorder = Recorder(held=1)
    pages = [np.zeros((1, 8), np.uint8) for _ in range(2)]
    host = np.ones(PAGE_NBYTES, np.uint8)
    kv = rows_of(*pages)
    events = CpuDevice(recorder).load(host, np.array([0], np.int32), kv, np.array([[0]], np.int64), stream)
    assert events[0].wait(WAIT_SECONDS)
    assert not events[1].done()
    assert pages[0].all()
    recorder.gate.set()
    assert events[1].wait(WAIT_SECONDS)


def test_events_of_a_copy_are_reached_where_a_callers_event_fails(
    stream: CpuStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken(CpuEvent):
        def wait(self, timeout: float | None = None) -> bool:
            raise RuntimeError("the engine has gone")

    told: list[object] = []
    monkeypatch.setattr(threading, "excepthook", lambda args: told.append(args.exc_type))
    pages = [np.zeros((1, 8), np.uint8) for _ in range(3)]
    done, slots, block_ids = CpuEvent(), np.array([0], np.int32), np.array([[0]], np.int64)
    done.reach()
    after = [done, Broken(), done]
    events = CpuDevice().load(np.ones(PAGE_NBYTES, np.uint8), slots, rows_of(*pages), block_ids, stream, after=after)
    assert [event.wait(WAIT_SECONDS) for event in events] == [True] * 3
    assert stream.record().wait(WAIT_SECONDS)
    assert [page.any() for page in pages] == [True, False, False]
    assert isinstance(stream.failure, RuntimeError)
    assert told == [RuntimeError]


def test_a_stream_that_is_closed_drops_what_waits_for_events_that_do_not_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "_PATIENCE_SECONDS", 0.0)
    monkeypatch.setattr(cpu, "_LOOK_SECONDS", 0.01)
    never, ran = CpuEvent(), threading.Event()
    pages = [np.zeros((1, 8), np.uint8) for _ in range(2)]
    host, slots, block_ids = np.ones(PAGE_NBYTES, np.uint8), np.array([0], np.int32), np.array([[0]], np.int64)
    stream = CpuDevice().new_stream("test")
    held = CpuDevice().load(host, slots, rows_of(*pages), block_ids, stream, after=[never])
    behind = CpuDevice().load(host, slots, rows_of(*pages), block_ids, stream)
    stream.call(ran.set)
    stream.close()
    assert isinstance(stream.failure, ClosedError)
    assert all(event.done() for event in [*held, *behind])
    assert ran.is_set()
    assert not any(page.any() for page in pages)


def test_a_copy_of_no_blocks_still_reaches_its_events(stream: CpuStream) -> None:
    kv = rows_of(np.zeros((1, 8), np.uint8))
    events = CpuDevice().load(host_of(1), np.empty(0, np.int32), kv, np.empty((1, 0), np.int64), stream)
    assert [event.wait(WAIT_SECONDS) for event in events] == [True]


def test_a_stream_lets_go_of_memory_when_its_copy_has_ended() -> None:
    page = np.ones((1, 8), np.uint8)
    gone = weakref.ref(page)
    stream = CpuDevice().new_stream("test")
    CpuDevice().store(host_of(1), np.array([0], np.int32), rows_of(page), np.array([[0]], np.int64), stream)
    stream.close()
    del page
    gc.collect()
    assert gone() is None


def test_read_only_memory_is_stored_from_and_never_loaded_into(stream: CpuStream) -> None:
    page, host = np.ones((1, 8), np.uint8), host_of(1)
    page.flags.writeable = False
    slots, block_ids = np.array([0], np.int32), np.array([[0]], np.int64)
    CpuDevice().store(host, slots, rows_of(page), block_ids, stream)
    assert stream.record().wait(WAIT_SECONDS)
    assert host[:8].all()
    with pytest.raises(LayoutError, match="read-only"):
        CpuDevice().load(host, slots, rows_of(page), block_ids, stream)
    host.flags.writeable = False
    with pytest.raises(LayoutError, match="read-only"):
        CpuDevice().store(host, slots, rows_of(page), block_ids, stream)


def test_a_pool_of_another_shape_or_dtype_is_refused(stream: CpuStream) -> None:
    kv, slots, block_ids = rows_of(np.zeros((1, 8), np.uint8)), np.array([0], np.int32), np.array([[0]], np.int64)
    for host in (np.zeros((1, PAGE_NBYTES), np.uint8), np.zeros(PAGE_NBYTES, np.int8), host_of(2)[::2]):
        with pytest.raises(LayoutError, match="the pool is"):
            CpuDevice().load(host, slots, kv, block_ids, stream)  # type: ignore[arg-type]


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
