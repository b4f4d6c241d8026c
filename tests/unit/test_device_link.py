"""Device links: what they enqueue, after what, and when they answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from tierstore.device.paging import bind_rows
from tierstore.errors import DeviceError
from tierstore.layout import KVLayout
from tierstore.testing.engine_world import chain
from tierstore.testing.sim_device import SimDevice
from tierstore.transfer import device_link
from tierstore.transfer.caller_memory import CallerMemory
from tierstore.transfer.device_link import DeviceLink
from tierstore.types import PAGE_NBYTES, CopyJob, CopyResult, Generation, JobId, Outcome, Priority, RequestId, TierName

if TYPE_CHECKING:
    from tierstore.device.base import Event
    from tierstore.types import UInt8Array

BLOCK_NBYTES = 64
REQUEST = RequestId(7)
GENERATION = Generation(0, bytes(32), 0, KVLayout.opaque(block_nbytes=BLOCK_NBYTES))
SLOTS = np.array([3, 1], np.int32)


class World:
    """A link of one direction on a simulated device, a pool and one caller's rows."""

    def __init__(self, *, load: bool) -> None:
        self.load = load
        self.device = SimDevice()
        self.pool: UInt8Array = np.zeros(4 * PAGE_NBYTES, np.uint8)
        self.rows: UInt8Array = np.zeros((4, BLOCK_NBYTES), np.uint8)
        self.memory: dict[RequestId, CallerMemory] = {}
        self.hold()
        self.link = DeviceLink(self.device, {TierName.HOST: self.pool}, self.memory, "load" if load else "store")
        self.results: list[CopyResult] = []

    def hold(self, block_ids: tuple[int, ...] = (0, 1, 2, 3), after: Event | None = None, num_rows: int = 4) -> None:
        """Make the request one of the rows that these ids name."""
        kv = bind_rows(self.rows[:num_rows], BLOCK_NBYTES)
        events = () if after is None else (after,)
        self.memory[REQUEST] = CallerMemory(kv, np.array([block_ids], np.int64), events)

    def submit(self, job_id: int = 1, positions: tuple[int, int] = (0, 1)) -> bool:
        """Submit a job of two blocks, in slots 3 and 1."""
        own = np.array(positions, np.int64)
        job = CopyJob(
            job_id=JobId(job_id),
            generation=GENERATION,
            src=TierName.HOST if self.load else TierName.DEVICE,
            dst=TierName.DEVICE if self.load else TierName.HOST,
            entries=np.arange(2),
            hashes=chain("device", 2),
            parents=None,
            src_locations=SLOTS if self.load else own,
            dst_locations=own if self.load else SLOTS,
            priority=Priority.GET,
            request_id=REQUEST,
        )
        return self.link.submit(job, self.results.append)

    def slot(self, page: int) -> UInt8Array:
        return self.pool[page * PAGE_NBYTES :][:BLOCK_NBYTES]


def test_a_load_copies_slots_into_the_rows_of_their_positions() -> None:
    world = World(load=True)
    world.slot(3)[:], world.slot(1)[:] = 30, 10
    assert world.submit(positions=(2, 0))
    assert world.results == []
    world.device.run_all()
    assert (world.rows[2] == 30).all()
    assert (world.rows[0] == 10).all()
    assert [Outcome(code) for code in world.results[0].outcomes] == [Outcome.OK] * 2


@pytest.mark.parametrize("load", [True, False])
def test_a_stream_that_has_failed_moved_nothing(load: bool) -> None:
    world = World(load=load)
    world.submit()
    world.device.streams[0].failure = DeviceError("the GPU has gone")
    world.device.run_all()
    assert [Outcome(code) for code in world.results[0].outcomes] == [Outcome.IO_ERROR] * 2


def test_a_store_copies_rows_into_slots() -> None:
    world = World(load=False)
    world.rows[:] = np.arange(4)[:, None]
    world.submit(positions=(1, 3))
    world.device.run_all()
    assert (world.slot(3) == 1).all()
    assert (world.slot(1) == 3).all()
    assert world.results[0].job_id == 1


def test_positions_go_through_the_callers_block_ids() -> None:
    world = World(load=True)
    world.hold((3, 2))
    world.slot(3)[:], world.slot(1)[:] = 30, 10
    world.submit()
    world.device.run_all()
    assert (world.rows[3] == 30).all()
    assert (world.rows[2] == 10).all()


def test_answers_only_when_every_copy_before_it_has_ended() -> None:
    world = World(load=False)
    world.submit(1)
    world.submit(2)
    answered = []
    while world.device.step_all():
        answered.append([result.job_id for result in world.results])
    assert answered[0] == []
    assert answered[-2:] == [[1], [1, 2]]


@pytest.mark.parametrize("load", [True, False])
def test_a_copy_waits_for_the_producers_event(load: bool) -> None:
    world = World(load=load)
    producer = world.device.new_stream("producer")
    producer.call(lambda: world.rows.fill(5))
    world.hold(after=producer.record())
    world.submit()
    stream = world.device.streams[0]
    while world.device.step(stream):
        pass
    assert world.results == []
    world.device.run_all()
    assert len(world.results) == 1
    assert (world.slot(3) == (0 if load else 5)).all()


def test_takes_no_more_jobs_than_it_has_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_link, "_JOBS_MAX", 2)
    world = World(load=True)
    assert [world.submit(job_id) for job_id in (1, 2, 3)] == [True, True, False]
    world.device.run_all()
    assert world.submit(3)


def test_a_copy_that_the_device_refuses_is_an_io_error(caplog: pytest.LogCaptureFixture) -> None:
    world = World(load=True)
    world.hold(num_rows=1)
    assert world.submit(positions=(0, 1))
    assert world.results[0].outcomes.tolist() == [Outcome.IO_ERROR] * 2
    assert "blocks not copied" in caplog.text


@pytest.mark.parametrize("waits", [True, False])
def test_a_job_for_a_closed_stream_is_an_io_error(waits: bool) -> None:
    world = World(load=True)
    after = world.device.new_stream("producer").record() if waits else None
    world.hold(after=after)
    world.link.close()
    assert world.submit()
    assert world.results[0].outcomes.tolist() == [Outcome.IO_ERROR] * 2


def test_close_finishes_what_is_enqueued() -> None:
    world = World(load=True)
    world.submit()
    world.link.close()
    assert len(world.results) == 1


def test_nothing_is_withdrawn_or_lifted_in_a_stream() -> None:
    world = World(load=True)
    world.submit()
    world.link.lift(JobId(1))
    world.link.withdraw(JobId(1))
    assert world.results == []
