"""The engine: every transfer ends exactly once, whoever ends it, and close leaves nothing behind."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from tierstore.errors import ClosedError
from tierstore.testing.engine_world import EngineWorld, chain
from tierstore.transfer import engine as engine_module
from tierstore.transfer.future import Transfer
from tierstore.transfer.links import Links
from tierstore.transfer.timer import Timer
from tierstore.types import JobId, Outcome, Presence, SyncJob
from tierstore.worker import Worker

PATIENCE_SECONDS = 10
BLOCKS = chain("a", 6)


class Drains(threading.Event):
    """The event that `Engine.close` waits for: waiting, it lets the links' jobs end."""

    def __init__(self, world: EngineWorld) -> None:
        super().__init__()
        self._world = world

    def wait(self, timeout: float | None = None) -> bool:
        self._world.settle()
        assert self.is_set(), "every job has ended, and the engine still waits"
        return True


def close(world: EngineWorld) -> None:
    """Close the engine of a world without threads."""
    drains = Drains(world)
    world.engine._idle = drains
    world.engine.close()


def test_every_transfer_ends_once_and_calls_back_once() -> None:
    world = EngineWorld()
    world.keep_on_ssd(BLOCKS)
    ended: list[Transfer] = []
    transfers = [world.get(BLOCKS), world.put(chain("b", 3), durable=True), world.prefetch(BLOCKS), world.flush()]
    for transfer in transfers:
        transfer.add_done_callback(ended.append)
    world.settle()
    assert sorted(map(id, ended)) == sorted(map(id, transfers))


def test_a_callback_may_call_the_engine_again() -> None:
    world = EngineWorld()
    world.keep_in_host(BLOCKS)
    again: list[Transfer] = []
    world.get(BLOCKS).add_done_callback(lambda _transfer: again.append(world.get(BLOCKS)))
    world.settle()
    assert again[0].result(0).ok


def test_a_transfer_tells_its_bytes() -> None:
    world = EngineWorld(slot_pages=(2,), slab_pages=16)
    world.keep_in_host(BLOCKS[:4])
    get = world.get(BLOCKS)
    world.settle()
    assert get.result(0).nbytes == 4 * 2 * 4096


def test_verbs_are_refused_after_close() -> None:
    world = EngineWorld()
    close(world)
    assert world.engine.closed
    for verb in (world.get, world.put, world.prefetch, world.delete, world.presence):
        with pytest.raises(ClosedError, match="open a new Store"):
            verb(BLOCKS)
    with pytest.raises(ClosedError):
        world.flush()
    with pytest.raises(ClosedError):
        world.engine.leading(0, BLOCKS)


def test_close_lets_what_is_under_way_end() -> None:
    world = EngineWorld()
    world.keep_on_ssd(BLOCKS)
    transfers = [world.get(BLOCKS), world.put(chain("b", 3), durable=True), world.prefetch(BLOCKS)]
    close(world)
    assert all(transfer.result(0).ok for transfer in transfers)
    assert not any(link.submit(SyncJob(JobId(0)), lambda _result: None) for link in world.links)
    world.check_idle()


def test_close_waits_for_write_backs_too() -> None:
    world = EngineWorld()
    world.put(BLOCKS)
    world.store.end()
    close(world)
    assert len(world.bytes.records) == 6


def test_a_second_close_does_nothing_more() -> None:
    world = EngineWorld()
    close(world)
    world.engine.close()


def test_close_waits_on_its_thread_while_jobs_end_on_others() -> None:
    world = EngineWorld()
    world.keep_on_ssd(BLOCKS)
    get = world.get(BLOCKS)
    closer = Worker("closer", capacity=1)
    closer.submit(world.engine.close)
    world.settle()
    closer.close()
    assert closer.failure is None
    assert get.result(0).ok


def test_a_store_without_an_ssd_tier_has_no_links_to_it() -> None:
    world = EngineWorld(ssd=False)
    links = Links(world.load, world.store)
    assert links.all() == [world.load, world.store]
    with pytest.raises(AssertionError, match="no link runs"):
        links.of(SyncJob(JobId(1)))


def test_deadlines_are_kept_by_a_thread_of_the_engine() -> None:
    world = EngineWorld(new_timer=Timer)
    world.keep_on_ssd(BLOCKS)
    deadline = world.clock.now
    transfer = world.engine.start(
        lambda planner: planner.get(0, BLOCKS, deadline), num_blocks=6, block_nbytes=1, deadline=deadline
    )
    assert transfer.result(PATIENCE_SECONDS).outcomes == [Outcome.CANCELLED] * 6
    close(world)


def test_lookups_and_deletes_go_through_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "SLICE_BLOCKS", 4)
    world = EngineWorld()
    blocks = chain("long", 11)
    world.keep_in_host(np.concatenate([blocks[:9], blocks[10:]]))
    assert [world.engine.leading(0, blocks[:count]) for count in (0, 3, 4, 8, 9, 10, 11)] == [0, 3, 4, 8, 9, 9, 9]
    assert world.presence(blocks) == [Presence.HIT] * 9 + [Presence.MISS, Presence.HIT]
    assert world.delete(blocks) == 10
    assert world.presence(blocks) == [Presence.MISS] * 11


def test_many_threads_each_end_their_own_transfers() -> None:
    world = EngineWorld()
    world.keep_in_host(BLOCKS)
    done: list[Transfer] = []
    ending = threading.Lock()
    callers = Worker("caller", capacity=100, threads=4)

    def get() -> None:
        transfer = world.engine.start(lambda planner: planner.get(0, BLOCKS), num_blocks=6, block_nbytes=1)
        transfer.add_done_callback(done.append)
        with ending:
            world.load.end()

    for _ in range(100):
        assert callers.submit(get)
    callers.close()
    assert callers.failure is None
    assert len(done) == 100
    assert all(transfer.result(0).ok for transfer in done)
    world.check_idle()
