"""How a flush goes: it waits for stores, for the writes that they lead to, and then for one sync."""

from __future__ import annotations

from tierstore.testing.engine_world import EngineWorld, chain
from tierstore.types import Outcome, SyncJob

BLOCKS = chain("a", 6)


def test_flush_of_a_quiet_store_is_one_sync() -> None:
    world = EngineWorld()
    flush = world.flush()
    assert [type(job) for job in world.write.jobs] == [SyncJob]
    world.write.end()
    assert flush.result(0).outcomes == [Outcome.OK]
    world.check_idle()


def test_flush_waits_for_a_store_for_the_write_it_leads_to_and_for_a_sync() -> None:
    world = EngineWorld()
    world.put(BLOCKS)
    flush = world.flush()
    assert not world.write.jobs
    world.store.end()
    (write,) = world.write.jobs
    world.write.end(write)
    assert [type(job) for job in world.write.jobs] == [SyncJob]
    assert not flush.done()
    world.write.end()
    assert flush.result(0).ok


def test_flush_waits_for_nothing_that_came_after_it() -> None:
    world = EngineWorld()
    flush = world.flush()
    world.put(BLOCKS)
    world.write.end()
    assert flush.result(0).ok


def test_flush_does_not_wait_for_gets_and_prefetches() -> None:
    world = EngineWorld()
    world.keep_on_ssd(BLOCKS)
    world.get(BLOCKS[:3])
    world.prefetch(BLOCKS[3:])
    flush = world.flush()
    world.write.end()
    assert flush.result(0).ok


def test_a_flush_tells_of_a_write_that_failed() -> None:
    world = EngineWorld()
    world.put(BLOCKS)
    flush = world.flush()
    world.store.end()
    world.write.end(outcomes=Outcome.IO_ERROR)
    world.write.end()
    assert flush.result(0).outcomes == [Outcome.IO_ERROR]


def test_a_flush_tells_once_of_a_write_that_failed_before_it() -> None:
    world = EngineWorld()
    world.put(BLOCKS)
    world.store.end()
    world.write.end(outcomes=Outcome.IO_ERROR)
    world.flush().cancel()
    told = world.flush()
    world.settle()
    assert told.result(0).outcomes == [Outcome.IO_ERROR], "the flush that was cancelled told nobody"
    after = world.flush()
    world.settle()
    assert after.result(0).outcomes == [Outcome.OK]
    world.check_idle()


def test_a_flush_tells_of_a_sync_that_failed_for_a_durable_put() -> None:
    world = EngineWorld()
    world.put(BLOCKS[:3])
    world.store.end()
    world.write.end()
    durable = world.put(chain("b", 2), durable=True)
    world.store.end()
    world.write.end()
    during = world.flush()
    world.write.end(outcomes=Outcome.IO_ERROR)
    assert durable.result(0).outcomes == [Outcome.IO_ERROR] * 2
    world.settle()
    assert during.result(0).outcomes == [Outcome.IO_ERROR], "the failed sync was to make other writes durable too"
    after = world.flush()
    world.settle()
    assert after.result(0).ok


def test_a_write_for_which_there_is_no_room_does_not_keep_a_flush_waiting() -> None:
    world = EngineWorld()
    world.put(BLOCKS)
    flush = world.flush()
    world.write.capacity = 0
    world.store.end()
    assert flush.result(0).outcomes == [Outcome.REJECTED]
    world.check_idle()


def test_a_flush_whose_sync_fails_says_so() -> None:
    world = EngineWorld()
    flush = world.flush()
    world.write.end(outcomes=Outcome.IO_ERROR)
    assert flush.result(0).outcomes == [Outcome.IO_ERROR]


def test_a_cancelled_flush_ends_at_once_and_its_sync_later() -> None:
    world = EngineWorld()
    flush = world.flush()
    flush.cancel()
    assert flush.result(0).outcomes == [Outcome.CANCELLED]
    world.settle()
    world.check_idle()


def test_a_flush_cancelled_while_it_waits_for_a_store_plans_no_sync() -> None:
    world = EngineWorld()
    world.put(BLOCKS)
    world.flush().cancel()
    world.store.end()
    world.write.end()
    assert not world.write.jobs


def test_flush_without_an_ssd_tier_ends_with_the_last_store() -> None:
    world = EngineWorld(ssd=False)
    assert world.flush().result(0).ok
    world.put(BLOCKS)
    flush = world.flush()
    assert not flush.done()
    world.store.end()
    assert flush.result(0).ok
