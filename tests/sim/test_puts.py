"""How puts go: what they store, join, refuse, write back and make durable."""

from __future__ import annotations

import numpy as np
import pytest

from tierstore.control.mind import Limits
from tierstore.metrics import Metric
from tierstore.policy.base import Offer
from tierstore.testing.engine_world import EngineWorld, chain
from tierstore.types import PAGE_NBYTES, CopyJob, Job, Outcome, Presence, SyncJob

OK, MISS, REJECTED, CORRUPT, IO_ERROR, CANCELLED = Outcome
BLOCKS = chain("a", 6)
POOL_BLOCKS = 32


class AdmitNone:
    """No block is worth writing."""

    asks_when_leaving = False

    def admit(self, offer: Offer) -> list[bool]:
        return [False] * len(offer.entries)


def sizes(jobs: list[Job]) -> list[int]:
    """Blocks of each copy job."""
    return [len(job) for job in jobs if isinstance(job, CopyJob)]


def not_stored(world: EngineWorld, reason: str) -> float:
    return world.metrics.value(Metric.NOT_STORED_BLOCKS, reason)


def test_put_ends_when_its_blocks_are_in_the_host_and_before_they_are_written() -> None:
    world = EngineWorld()
    put = world.put(BLOCKS)
    assert not put.done()
    world.store.end()
    assert put.result(0).ok
    assert sizes(world.write.jobs) == [6]


def test_put_of_nothing_ends_at_once() -> None:
    assert EngineWorld().put(BLOCKS[:0]).result(0).ok
    assert EngineWorld().put(BLOCKS[:0], durable=True).result(0).ok


def test_put_copies_no_block_that_is_held() -> None:
    world = EngineWorld()
    world.keep_in_host(BLOCKS[:3])
    put = world.put(BLOCKS)
    assert sizes(world.store.jobs) == [3]
    world.settle()
    assert put.result(0).ok
    assert world.put(BLOCKS).result(0).ok


def test_put_joins_a_store_in_flight() -> None:
    world = EngineWorld()
    first, second = world.put(BLOCKS), world.put(BLOCKS)
    assert sizes(world.store.jobs) == [6]
    world.store.end()
    assert first.result(0).ok
    assert second.result(0).ok


def test_put_joins_a_read_in_flight() -> None:
    world = EngineWorld()
    world.keep_on_ssd(BLOCKS)
    world.get(BLOCKS)
    put = world.put(BLOCKS)
    assert not world.store.jobs
    world.read.end()
    assert put.result(0).ok


def test_put_that_joined_a_failed_store_says_how_it_failed() -> None:
    world = EngineWorld()
    puts = [world.put(BLOCKS), world.put(BLOCKS)]
    world.store.end(outcomes=[OK, OK, IO_ERROR, OK, OK, OK])
    assert [put.result(0).outcomes for put in puts] == [[OK, OK, IO_ERROR, OK, OK, OK]] * 2
    assert world.presence(BLOCKS)[2] == Presence.MISS


def test_put_takes_the_longest_leading_part_that_fits_and_rejects_the_rest() -> None:
    world = EngineWorld()
    world.put(BLOCKS)
    put = world.put(chain("b", POOL_BLOCKS))
    world.settle()
    assert put.result(0).outcomes == [OK] * 26 + [REJECTED] * 6
    assert not_stored(world, "pool_full") == 6
    world.check_idle()


def test_put_evicts_no_block_that_it_names_itself() -> None:
    world = EngineWorld(ssd=False)
    world.keep_in_host(BLOCKS)
    world.keep_in_host(chain("b", POOL_BLOCKS - 6))
    put = world.put(np.concatenate([BLOCKS, chain("c", 26)]))
    world.settle()
    assert put.result(0).ok
    assert world.presence(BLOCKS) == [Presence.HIT] * 6


def test_put_into_a_full_index_takes_what_fits_and_counts_the_rest() -> None:
    world = EngineWorld(capacity=10)
    world.keep_on_ssd(chain("b", 6))
    put = world.put(BLOCKS)
    assert put.done() is False
    world.settle()
    assert put.result(0).outcomes == [OK] * 4 + [REJECTED] * 2
    assert not_stored(world, "index_full") == 2


def test_a_full_index_gives_up_what_only_the_host_holds() -> None:
    world = EngineWorld(capacity=10, ssd=False)
    world.keep_in_host(chain("b", 10))
    put = world.put(BLOCKS)
    world.settle()
    assert put.result(0).ok
    assert world.presence(chain("b", 10)) == [Presence.HIT] * 4 + [Presence.MISS] * 6


def test_put_of_blocks_that_only_ssd_holds_fills_the_host_again_and_writes_nothing() -> None:
    world = EngineWorld()
    world.keep_on_ssd(BLOCKS)
    put = world.put(BLOCKS)
    world.store.end()
    assert put.result(0).ok
    assert not world.write.jobs
    get = world.get(BLOCKS)
    assert not world.read.jobs
    world.settle()
    assert get.result(0).ok


def test_blocks_being_written_keep_their_slots() -> None:
    world = EngineWorld()
    world.put(BLOCKS)
    world.store.end()
    put = world.put(chain("b", POOL_BLOCKS))
    world.store.end()
    assert put.result(0).leading == POOL_BLOCKS - 6
    world.settle()
    assert world.presence(BLOCKS) == [Presence.HIT] * 6


def test_a_block_that_is_not_admitted_is_counted_and_not_written() -> None:
    world = EngineWorld(admission=AdmitNone())
    world.put(BLOCKS)
    world.store.end()
    assert not world.write.jobs
    assert not_stored(world, "not_admitted") == 6


def test_a_durable_put_asks_no_admission() -> None:
    world = EngineWorld(admission=AdmitNone())
    put = world.put(BLOCKS, durable=True)
    world.settle()
    assert put.result(0).ok
    assert world.bytes.records


def test_a_full_write_back_budget_drops_the_tail_and_counts_it() -> None:
    world = EngineWorld(limits=Limits(write_inflight_nbytes_max=4 * PAGE_NBYTES))
    world.put(BLOCKS)
    world.store.end()
    assert sizes(world.write.jobs) == [4]
    assert not_stored(world, "write_queue_full") == 2
    world.put(chain("b", 2))
    world.store.end()
    assert not_stored(world, "write_queue_full") == 4
    world.settle()
    world.put(chain("c", 2))
    world.store.end()
    assert sizes(world.write.jobs) == [2]


def test_a_write_that_ssd_refuses_is_counted_and_leaves_the_block_in_the_host() -> None:
    world = EngineWorld(ssd_nbytes=2 * PAGE_NBYTES)
    world.keep_in_host(BLOCKS)
    assert not_stored(world, "write_refused") == 4
    assert world.presence(BLOCKS) == [Presence.HIT] * 6
    world.check_idle()


def test_a_durable_put_waits_for_its_write_and_then_for_a_sync() -> None:
    world = EngineWorld()
    put = world.put(BLOCKS, durable=True)
    world.store.end()
    assert sizes(world.write.jobs) == [6]
    world.write.end()
    assert not put.done()
    assert isinstance(world.write.jobs[0], SyncJob)
    world.write.end()
    assert put.result(0).ok


def test_a_durable_put_of_blocks_that_are_held_writes_what_ssd_lacks() -> None:
    world = EngineWorld(admission=AdmitNone())
    world.keep_in_host(BLOCKS)
    put = world.put(BLOCKS, durable=True)
    assert not world.store.jobs
    world.settle()
    assert put.result(0).ok
    assert len(world.bytes.records) == 6


def test_a_durable_put_of_blocks_that_ssd_holds_waits_for_a_sync_alone() -> None:
    world = EngineWorld()
    world.keep_in_host(BLOCKS)
    put = world.put(BLOCKS, durable=True)
    assert not put.done()
    assert [type(job) for job in world.write.jobs] == [SyncJob]
    world.write.end()
    assert put.result(0).ok


def test_a_durable_put_joins_a_write_back_in_flight() -> None:
    world = EngineWorld()
    world.put(BLOCKS)
    world.store.end()
    put = world.put(BLOCKS, durable=True)
    assert sizes(world.write.jobs) == [6]
    world.write.end()
    assert not put.done()
    world.write.end()
    assert put.result(0).ok


def test_a_durable_put_that_joins_a_store_waits_for_the_write_that_it_leads_to() -> None:
    world = EngineWorld()
    world.put(BLOCKS)
    put = world.put(BLOCKS, durable=True)
    world.store.end()
    assert sizes(world.write.jobs) == [6]
    world.settle()
    assert put.result(0).ok
    assert len(world.bytes.records) == 6


@pytest.mark.parametrize("outcome", [REJECTED, IO_ERROR])
def test_a_durable_put_says_which_write_failed(outcome: Outcome) -> None:
    world = EngineWorld()
    put = world.put(BLOCKS, durable=True)
    world.store.end()
    world.write.end(outcomes=[OK, OK, outcome, OK, OK, OK])
    world.write.end()
    assert put.result(0).outcomes == [OK, OK, outcome, OK, OK, OK]
    assert world.presence(BLOCKS) == [Presence.HIT] * 6
    world.check_idle()


def test_a_durable_put_whose_sync_fails_is_not_ok() -> None:
    world = EngineWorld()
    put = world.put(BLOCKS, durable=True)
    world.store.end()
    world.write.end()
    world.write.end(outcomes=IO_ERROR)
    assert put.result(0).outcomes == [IO_ERROR] * 6


def test_a_durable_put_without_an_ssd_tier_is_rejected() -> None:
    world = EngineWorld(ssd=False)
    assert world.put(BLOCKS, durable=True).result(0).outcomes == [REJECTED] * 6
    world.check_idle()


def test_a_durable_put_whose_block_is_deleted_meanwhile_does_not_call_it_durable() -> None:
    world = EngineWorld()
    put = world.put(BLOCKS, durable=True)
    world.store.end()
    world.delete(BLOCKS[:1])
    world.settle()
    assert put.result(0).outcomes == [CANCELLED] + [OK] * 5


@pytest.mark.parametrize("full", ["store", "write"])
def test_a_durable_put_for_which_a_link_has_no_room_is_rejected_and_nothing_leaks(full: str) -> None:
    world = EngineWorld()
    getattr(world, full).capacity = 0
    put = world.put(BLOCKS, durable=True)
    world.settle()
    assert put.result(0).outcomes == [REJECTED] * 6
    world.check_idle()


def test_a_put_for_which_the_write_link_has_no_room_is_readable() -> None:
    world = EngineWorld()
    world.write.capacity = 0
    world.keep_in_host(BLOCKS)
    assert world.presence(BLOCKS) == [Presence.HIT] * 6
    assert not_stored(world, "write_refused") == 6
    world.check_idle()
