"""The simulated device shows the mistakes it is there to show."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tierstore.device.paging import bind_rows
from tierstore.testing.contracts.device import Gate
from tierstore.testing.sim_device import POISON, SimDevice
from tierstore.types import PAGE_NBYTES

if TYPE_CHECKING:
    from tierstore.device.paged_kv import PagedKV
    from tierstore.types import Int32Array, Int64Array, UInt8Array


def slots(*places: int) -> Int32Array:
    return np.array(places, np.int32)


def ids(*places: int) -> Int64Array:
    return np.array([places], np.int64)


def rows(*pages: UInt8Array) -> PagedKV:
    return bind_rows(list(pages), sum(page.shape[1] for page in pages))


def test_reading_a_slot_before_its_event_sees_poison() -> None:
    device, host = SimDevice(), np.zeros(2 * PAGE_NBYTES, np.uint8)
    stream = device.new_stream("store")
    device.store(host, slots(1), rows(np.ones((1, 8), np.uint8)), ids(0), stream)
    event = stream.record()
    assert set(host[PAGE_NBYTES : PAGE_NBYTES + 8]) == {POISON}
    assert not host[:PAGE_NBYTES].any()
    assert device.step(stream)
    assert not event.done()
    assert device.step(stream)
    assert event.done()
    assert set(host[PAGE_NBYTES : PAGE_NBYTES + 8]) == {1}
    assert not device.step(stream)


def test_pages_move_one_a_step() -> None:
    device, host = SimDevice(), np.ones(PAGE_NBYTES, np.uint8)
    pages = [np.zeros((1, 8), np.uint8) for _ in range(2)]
    stream = device.new_stream("load")
    events = device.load(host, slots(0), rows(*pages), ids(0), stream)
    device.step(stream)
    assert [event.done() for event in events] == [True, False]
    assert [set(page.flat) for page in pages] == [{1}, {POISON}]


def test_a_slot_reused_before_its_load_has_run_spoils_the_load() -> None:
    device, host = SimDevice(), np.ones(PAGE_NBYTES, np.uint8)
    loaded, stored = np.zeros((1, 8), np.uint8), np.full((1, 8), 2, np.uint8)
    device.load(host, slots(0), rows(loaded), ids(0), device.new_stream("load"))
    device.store(host, slots(0), rows(stored), ids(0), device.new_stream("store"))
    device.run_all()
    assert set(loaded.flat) == {POISON}


def test_a_slot_reused_behind_the_event_of_its_load_spoils_nothing() -> None:
    device, host = SimDevice(), np.ones(PAGE_NBYTES, np.uint8)
    loaded, stored = np.zeros((1, 8), np.uint8), np.full((1, 8), 2, np.uint8)
    load, store = device.new_stream("load"), device.new_stream("store")
    (event,) = device.load(host, slots(0), rows(loaded), ids(0), load)
    store.wait(event)
    device.store(host, slots(0), rows(stored), ids(0), store)
    assert not device.step(store)
    device.run_all()
    assert set(loaded.flat) == {1}
    assert set(host[:8]) == {2}


def test_waiting_for_what_nobody_reaches_ends_undone() -> None:
    device = SimDevice()
    stream = device.new_stream("test")
    gate = Gate()
    stream.wait(gate)
    event = stream.record()
    assert not event.wait()
    gate.open()
    assert event.wait()


def test_pins_are_counted_until_they_are_undone() -> None:
    device = SimDevice()
    unpin = device.pin(np.zeros(8, np.uint8))
    assert device.num_pinned == 1
    unpin()
    assert device.num_pinned == 0
