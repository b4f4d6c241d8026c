"""What reading ahead may take: a share of the pool beyond what is free; and of a herd one reads."""

from __future__ import annotations

from tierstore.control.mind import Limits
from tierstore.metrics import Metric
from tierstore.testing.engine_world import EngineWorld, chain
from tierstore.types import Outcome

POOL_BLOCKS = 32
A, B = chain("a", 12), chain("b", 12)


def cold_world(share: float) -> EngineWorld:
    """A pool full of blocks that nobody has used for long."""
    world = EngineWorld(limits=Limits(prefetch_share=share, cold_seconds=0.5))
    world.keep_on_ssd(A)
    world.keep_on_ssd(B)
    world.keep_in_host(chain("cold", POOL_BLOCKS))
    world.clock.advance(1.0)
    return world


def test_prefetches_evict_for_their_share_of_the_pool_and_no_more() -> None:
    world = cold_world(share=0.25)
    prefetch = world.prefetch(A)
    world.settle()
    assert prefetch.result(0).num_ok == POOL_BLOCKS // 4
    assert prefetch.result(0).outcomes[-1] is Outcome.REJECTED
    assert world.prefetch(B).result(0).num_ok == 0
    world.check_idle()


def test_what_a_get_uses_makes_room_for_the_next_prefetch() -> None:
    world = cold_world(share=0.25)
    world.prefetch(A[:8])
    world.settle()
    world.get(A[:8])
    world.settle()
    world.clock.advance(1.0)
    prefetch = world.prefetch(B[:8])
    world.settle()
    assert prefetch.result(0).ok


def test_what_is_deleted_or_evicted_makes_room_too() -> None:
    world = cold_world(share=0.25)
    world.prefetch(A[:8])
    world.settle()
    world.delete(A[:4])
    world.clock.advance(1.0)
    world.keep_in_host(chain("new", POOL_BLOCKS))
    assert world.metrics.value(Metric.PREFETCHED_BLOCKS, "wasted") == 4
    world.clock.advance(1.0)
    prefetch = world.prefetch(B[:8])
    world.settle()
    assert prefetch.result(0).ok


def test_free_slots_are_no_part_of_the_share() -> None:
    world = EngineWorld(limits=Limits(prefetch_share=0.0))
    world.keep_on_ssd(A)
    prefetch = world.prefetch(A)
    world.settle()
    assert prefetch.result(0).ok


def test_reading_ahead_of_waiting_requests_keeps_to_the_share() -> None:
    world = cold_world(share=0.25)
    world.hint([(0, A), (1, B)])
    world.settle()
    assert (world.num_in_host(A), world.num_in_host(B)) == (8, 0)
    world.get(A[:8])
    world.settle()
    assert (world.num_in_host(A), world.num_in_host(B)) == (12, 0)
    world.hint(removed=[0])
    world.settle()
    assert world.num_in_host(B) == 4


def test_of_a_herd_one_reads() -> None:
    world = EngineWorld()
    world.keep_on_ssd(A)
    transfers = [world.prefetch(A), world.get(A), *(world.get(A[: 6 + row]) for row in range(6)), world.prefetch(A)]
    world.hint([(0, A), (1, A)])
    world.settle()
    assert all(transfer.result(0).ok for transfer in transfers)
    assert world.metrics.value(Metric.LINK_BLOCKS, "ssd-read", Outcome.OK) == len(A)
