"""What every device must do, as tests to subclass.

For those who write a device: a fixture gives one, and two methods say how bytes get into its memory and out.
Numpy's own indexing is the reference. Never imported by the store.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tierstore.device.base import Device, Event, Stream
from tierstore.device.paging import bind_rows
from tierstore.errors import ClosedError, TierstoreError
from tierstore.tiers.host_pool import HostPool
from tierstore.types import PAGE_NBYTES

if TYPE_CHECKING:
    from tierstore.device.paged_kv import PagedKV
    from tierstore.types import Int32Array, Int64Array, UInt8Array

__all__ = ["DeviceContract", "Gate"]

_GUARD = 0xA5
_WAIT_SECONDS = 30.0
_PAGE_NBYTES = 1000
_NUM_BLOCKS = 8


class Gate:
    """An event that the test reaches by hand."""

    def __init__(self) -> None:
        self._open = threading.Event()

    def done(self) -> bool:
        """Whether `open` has been called."""
        return self._open.is_set()

    def wait(self, timeout: float | None = None) -> bool:
        """Block until `open` is called, or until `timeout` seconds pass."""
        return self._open.wait(timeout)

    def open(self) -> None:
        """Let through what waits."""
        self._open.set()


@dataclass(frozen=True, slots=True)
class _Batch:
    """Blocks to copy: the width of each page and of the gap after its rows, and where the blocks lie."""

    widths: list[tuple[int, int]]
    slots: list[int]
    block_ids: list[int]


@st.composite
def _batches(draw: st.DrawFn) -> _Batch:
    """A few blocks, often neighbours in the pool and in the pages, which devices may copy at once."""
    widths = draw(st.lists(st.tuples(st.sampled_from([1, 7, 64, 1000, 4096]), st.sampled_from([0, 3, 64])), min_size=1))
    slot_pages = -(-sum(width for width, _ in widths) // PAGE_NBYTES)
    places = st.lists(st.integers(0, _NUM_BLOCKS - 1), unique=True, max_size=_NUM_BLOCKS)
    block_ids = draw(places)
    order = draw(st.sampled_from([sorted(block_ids), draw(st.permutations(range(_NUM_BLOCKS)))]))
    return _Batch(widths, [place * slot_pages for place in order[: len(block_ids)]], block_ids)


class DeviceContract:
    """Every device. Subclass it beside a module fixture ``device``.

    A device whose memory numpy cannot see overrides `place` and `fetch`. Its streams must honour events that
    are not its own, such as `Gate`.
    """

    def place(self, array: UInt8Array) -> UInt8Array:
        """The device's memory, holding the bytes of `array`; whatever it is, it is sliced as an array is."""
        return array

    def fetch(self, buffer: UInt8Array) -> UInt8Array:
        """The bytes that the device's memory holds now."""
        return buffer

    def test_keeps_the_protocol(self, device: Device) -> None:
        assert isinstance(device, Device)
        with _stream(device) as stream:
            assert isinstance(stream, Stream)
            assert stream.failure is None
            assert isinstance(stream.record(), Event)

    @given(batch=_batches(), seed=st.integers(0, 2**32 - 1))
    def test_stores_what_indexing_would_and_touches_nothing_else(
        self, device: Device, batch: _Batch, seed: int
    ) -> None:
        bases, kv = self._place_pages(batch, seed)
        with _pool(device, batch) as host, _stream(device) as stream:
            expected = host.copy()
            before = [self.fetch(base).copy() for base in bases]
            for slot, block_id in zip(batch.slots, batch.block_ids, strict=True):
                block = _block_of(before, batch, block_id)
                expected[slot * PAGE_NBYTES :][: len(block)] = block
            device.store(host, _slots(batch.slots), kv, _ids(batch.block_ids), stream)
            assert stream.record().wait(_WAIT_SECONDS)
            assert np.array_equal(host, expected)
            assert all(np.array_equal(self.fetch(base), old) for base, old in zip(bases, before, strict=True))

    @given(batch=_batches(), seed=st.integers(0, 2**32 - 1))
    def test_loads_what_indexing_would_and_touches_nothing_else(self, device: Device, batch: _Batch, seed: int) -> None:
        bases, kv = self._place_pages(batch, seed)
        with _pool(device, batch) as host, _stream(device) as stream:
            host[:] = _random(host.shape, seed + 1)
            before = host.copy()
            expected = [self.fetch(base).copy() for base in bases]
            for slot, block_id in zip(batch.slots, batch.block_ids, strict=True):
                offset = slot * PAGE_NBYTES
                for base, (width, _) in zip(expected, batch.widths, strict=True):
                    base[block_id + 1, :width] = host[offset : offset + width]
                    offset += width
            events = device.load(host, _slots(batch.slots), kv, _ids(batch.block_ids), stream)
            assert len(events) == len(kv.groups)
            assert all(event.wait(_WAIT_SECONDS) for event in events)
            assert all(np.array_equal(self.fetch(base), new) for base, new in zip(bases, expected, strict=True))
            assert np.array_equal(host, before)

    def test_runs_copies_and_tasks_in_their_order(self, device: Device) -> None:
        seen: list[bytes] = []
        source = _random((2, _PAGE_NBYTES), 1)
        base = self.place(source.copy())
        kv = bind_rows(base, _PAGE_NBYTES)
        with _pool(device) as host, _stream(device) as stream:
            device.store(host, _slots([0, 1]), kv, _ids([0, 1]), stream)
            device.load(host, _slots([0, 1]), kv, _ids([1, 0]), stream)
            device.store(host, _slots([0]), kv, _ids([0]), stream)
            stream.call(lambda: seen.append(host[:_PAGE_NBYTES].tobytes()))
            assert stream.record().wait(_WAIT_SECONDS)
            assert seen == [source[1].tobytes()]
            assert np.array_equal(self.fetch(base), source[::-1])

    def test_holds_a_stream_until_the_event_of_another(self, device: Device) -> None:
        source = _random((1, _PAGE_NBYTES), 2)
        src = bind_rows(self.place(source.copy()), _PAGE_NBYTES)
        base = self.place(np.zeros_like(source))
        gate = Gate()
        with _pool(device) as host, _stream(device) as first, _stream(device) as second:
            first.wait(gate)
            device.store(host, _slots([3]), src, _ids([0]), first)
            second.wait(first.record())
            device.load(host, _slots([3]), bind_rows(base, _PAGE_NBYTES), _ids([0]), second)
            loaded = second.record()
            gate.open()
            assert loaded.wait(_WAIT_SECONDS)
            assert np.array_equal(self.fetch(base), source)

    def test_does_nothing_behind_an_event_that_is_not_done(self, device: Device) -> None:
        kv = bind_rows(self.place(_random((1, _PAGE_NBYTES), 3)), _PAGE_NBYTES)
        ran: list[str] = []
        gate = Gate()
        with _pool(device) as host, _stream(device) as stream:
            stream.wait(gate)
            device.store(host, _slots([0]), kv, _ids([0]), stream)
            stream.call(lambda: ran.append("call"))
            event = stream.record()
            assert not event.wait(0.0)
            assert not (event.done() or ran)
            gate.open()
            assert event.wait(_WAIT_SECONDS)
            assert event.done()
            assert ran

    def test_marks_each_page_once_its_rows_have_moved(self, device: Device) -> None:
        batch = _Batch([(64, 0), (1000, 0), (4096, 0)], [0, 2, 4], [0, 1, 2])
        bases, kv = self._place_pages(batch, 4)
        with _pool(device, batch) as host, _stream(device) as stream:
            host[:] = _random(host.shape, 5)
            events = device.load(host, _slots(batch.slots), kv, _ids(batch.block_ids), stream)
            offset = 0
            for base, event, (width, _) in zip(bases, events, batch.widths, strict=True):
                assert event.wait(_WAIT_SECONDS)
                moved = self.fetch(base)[1:4]
                assert np.array_equal(moved, [host[slot * PAGE_NBYTES + offset :][:width] for slot in batch.slots])
                offset += width

    def test_keeps_the_memory_of_a_copy_alive(self, device: Device) -> None:
        gate = Gate()
        with _pool(device) as host, _stream(device) as stream:
            stream.wait(gate)
            for slot in range(_NUM_BLOCKS):  # each source is dropped at once, its place offered to the next
                kv = bind_rows(self.place(_random((1, _PAGE_NBYTES), slot)), _PAGE_NBYTES)
                device.store(host, _slots([slot]), kv, _ids([0]), stream)
            del kv
            gc.collect()
            others = [self.place(np.full((1, _PAGE_NBYTES), _GUARD, np.uint8)) for _ in range(4 * _NUM_BLOCKS)]
            gate.open()
            assert stream.record().wait(_WAIT_SECONDS)
            blocks = host.reshape(-1, PAGE_NBYTES)[:_NUM_BLOCKS, :_PAGE_NBYTES]
            assert np.array_equal(blocks, [_random((_PAGE_NBYTES,), slot) for slot in range(_NUM_BLOCKS)])
            assert len(others) == 4 * _NUM_BLOCKS

    def test_does_not_look_at_ids_again_after_the_call(self, device: Device) -> None:
        kv = bind_rows(self.place(_random((_NUM_BLOCKS, _PAGE_NBYTES), 7)), _PAGE_NBYTES)
        slots, block_ids, gate = _slots([0]), _ids([3]), Gate()
        with _pool(device) as host, _stream(device) as stream:
            stream.wait(gate)
            device.store(host, slots, kv, block_ids, stream)
            slots[0], block_ids[0, 0] = 1, 4
            gate.open()
            assert stream.record().wait(_WAIT_SECONDS)
            assert np.array_equal(host[:_PAGE_NBYTES], _random((_NUM_BLOCKS, _PAGE_NBYTES), 7)[3])
            assert set(host[PAGE_NBYTES:]) == {_GUARD}

    @pytest.mark.parametrize(
        ("slots", "block_ids", "named"),
        [
            ([0, -1], [0, 1], "-1"),
            ([0, 999], [0, 1], "999"),
            ([0, _NUM_BLOCKS], [0, 1], f"{_NUM_BLOCKS}"),
            ([0, 1], [0, -2], "-2"),
            ([0, 1], [0, _NUM_BLOCKS], f"{_NUM_BLOCKS}"),
            ([0, 1], [0], r"\(2,\)"),
        ],
    )
    def test_refuses_places_outside_before_a_byte_moves(
        self, device: Device, slots: list[int], block_ids: list[int], named: str
    ) -> None:
        source = _random((_NUM_BLOCKS, _PAGE_NBYTES), 8)
        base = self.place(source.copy())
        kv = bind_rows(base, _PAGE_NBYTES)
        with _pool(device) as host, _stream(device) as stream:
            with pytest.raises(TierstoreError, match=named):
                device.store(host, _slots(slots), kv, _ids(block_ids), stream)
            with pytest.raises(TierstoreError, match=named):
                device.load(host, _slots(slots), kv, _ids(block_ids), stream)
            assert stream.record().wait(_WAIT_SECONDS)
            assert set(host) == {_GUARD}
            assert np.array_equal(self.fetch(base), source)

    def test_finishes_what_is_enqueued_when_it_closes(self, device: Device) -> None:
        source = _random((_NUM_BLOCKS, _PAGE_NBYTES), 10)
        kv = bind_rows(self.place(source.copy()), _PAGE_NBYTES)
        with _pool(device) as host:
            stream = device.new_stream("contract")
            device.store(host, _slots(range(_NUM_BLOCKS)), kv, _ids(range(_NUM_BLOCKS)), stream)
            event = stream.record()
            stream.close()
            assert event.done()
            assert np.array_equal(host.reshape(-1, PAGE_NBYTES)[:_NUM_BLOCKS, :_PAGE_NBYTES], source)
            with pytest.raises(ClosedError):
                stream.record()

    def _place_pages(self, batch: _Batch, seed: int) -> tuple[list[UInt8Array], PagedKV]:
        """Memory with a guard row before and after each page and a gap behind each row, and the pages in it."""
        shapes = [(_NUM_BLOCKS + 2, width + gap) for width, gap in batch.widths]
        bases = [self.place(_random(shape, seed + index)) for index, shape in enumerate(shapes)]
        inner = [base[1:-1, :width] for base, (width, _) in zip(bases, batch.widths, strict=True)]
        return bases, bind_rows(inner, sum(width for width, _ in batch.widths))


@contextmanager
def _pool(device: Device, batch: _Batch | None = None) -> Iterator[UInt8Array]:
    """Pinned pool memory full of guard bytes, for `_NUM_BLOCKS` blocks."""
    block_nbytes = sum(width for width, _ in batch.widths) if batch else _PAGE_NBYTES
    with closing(HostPool(_NUM_BLOCKS * -(-block_nbytes // PAGE_NBYTES) * PAGE_NBYTES)) as pool:
        pool.view.fill(_GUARD)
        unpin = device.pin(pool.view)
        yield pool.view
        unpin()


def _stream(device: Device) -> closing[Stream]:
    return closing(device.new_stream("contract"))


def _block_of(bases: list[UInt8Array], batch: _Batch, block_id: int) -> UInt8Array:
    return np.concatenate([base[block_id + 1, :width] for base, (width, _) in zip(bases, batch.widths, strict=True)])


def _random(shape: tuple[int, ...], seed: int) -> UInt8Array:
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


def _slots(places: Sequence[int]) -> Int32Array:
    return np.array(places, np.int32)


def _ids(places: Sequence[int]) -> Int64Array:
    return np.array([places], np.int64)
