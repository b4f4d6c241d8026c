"""How what waits is read ahead: in the order of the queue, into slots that nobody needs sooner, and never hanging."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tierstore.control.mind import Limits
from tierstore.metrics import Metric
from tierstore.testing.engine_world import EngineWorld, chain
from tierstore.types import PAGE_NBYTES, CopyJob, Outcome, TierName

if TYPE_CHECKING:
    from tierstore.types import UInt8Array

POOL_BLOCKS = 32
A, B, C = (chain(name, 8) for name in "abc")


def reads(world: EngineWorld) -> list[bytes]:
    """The hashes of every read job that waits, in order of submission."""
    jobs = [job for job in world.read.jobs if isinstance(job, CopyJob)]
    return [row.tobytes() for job in jobs for row in job.hashes]


def rows(*chains: UInt8Array) -> list[bytes]:
    return [row.tobytes() for blocks in chains for row in blocks]


def test_what_waits_on_ssd_is_read_in_the_order_of_the_queue() -> None:
    world = EngineWorld(limits=Limits(prefetch_inflight_nbytes_max=4 * PAGE_NBYTES))
    for blocks in (A, B):
        world.keep_on_ssd(blocks)
    world.hint([(0, B), (1, A)])
    seen: list[bytes] = []
    while world.read.jobs:
        assert len(reads(world)) <= 4
        job = world.read.jobs[0]
        assert isinstance(job, CopyJob)
        seen += reads(world)[: len(job)]
        world.read.end()
        world.check()
    assert seen == rows(B, A)
    get = world.get(B)
    assert not world.read.jobs
    world.settle()
    assert get.result(0).ok
    assert world.metrics.value(Metric.PREFETCHED_BLOCKS, "useful") == 8


def test_a_link_that_is_full_is_not_asked_again_until_something_else_has_ended() -> None:
    world = EngineWorld(limits=Limits(prefetch_inflight_nbytes_max=4 * PAGE_NBYTES))
    world.keep_on_ssd(A)
    world.read.capacity = 0
    world.hint([(0, A)])
    assert world.num_in_host(A) == 0
    world.check_idle()
    world.read.capacity = 8
    world.keep_in_host(chain("else", 1))
    assert world.num_in_host(A) > 0


def test_reading_ahead_evicts_what_nobody_waits_for_however_warm_it_is() -> None:
    world = EngineWorld()
    world.keep_on_ssd(A)
    world.keep_in_host(chain("warm", POOL_BLOCKS))
    world.hint([(0, A)])
    assert reads(world) == rows(A)


def test_reading_ahead_evicts_what_is_needed_later_and_stops_at_what_is_needed_sooner() -> None:
    world = EngineWorld()
    world.keep_on_ssd(A)
    pool = chain("pool", POOL_BLOCKS)
    world.keep_in_host(pool)
    world.hint([(0, pool[:28]), (1, A), *((2 + row, pool[28 + row :][:1]) for row in range(4))])
    assert reads(world) == rows(A[:4])
    world.settle()
    get = world.get(pool[:28])
    assert not world.read.jobs
    world.settle()
    assert get.result(0).ok


def test_reading_ahead_goes_on_when_the_queue_moves() -> None:
    world = EngineWorld()
    world.keep_on_ssd(A)
    pool = chain("pool", POOL_BLOCKS)
    world.keep_in_host(pool)
    world.hint([(0, pool), (1, A)])
    assert not world.read.jobs
    world.hint(removed=[0])
    assert reads(world) == rows(A)


def test_requests_for_which_the_pool_has_no_room_are_not_read_ahead_yet() -> None:
    world = EngineWorld()
    chains = [chain(f"{rank}", 8) for rank in range(6)]
    for blocks in chains:
        world.keep_on_ssd(blocks)
    world.hint(enumerate(chains))
    world.settle()
    assert [world.num_in_host(blocks) for blocks in chains] == [8, 8, 0, 0, 0, 0]
    world.hint(removed=[0, 1])
    world.settle()
    assert [world.num_in_host(blocks) for blocks in chains[2:]] == [8, 8, 0, 0]


def test_reading_ahead_stops_at_a_hole_and_behind_it() -> None:
    world = EngineWorld(limits=Limits(read_batch_nbytes=PAGE_NBYTES))
    world.keep_on_ssd(A[:2])
    world.keep_on_ssd(A[3:])
    world.keep_on_ssd(B)
    world.hint([(0, A), (1, B)])
    assert reads(world) == rows(A[:2], B)


def test_what_a_request_that_has_left_waits_for_is_not_read_unless_another_waits_for_it_too() -> None:
    world = EngineWorld(limits=Limits(read_batch_nbytes=4 * PAGE_NBYTES))
    world.keep_on_ssd(A)
    world.hint([(0, A), (1, A[:4])])
    assert reads(world) == rows(A)
    world.hint(removed=[0])
    assert reads(world) == rows(A[:4])
    world.hint(removed=[1])
    assert not world.read.jobs
    world.check_idle()


def test_a_get_joins_what_is_read_ahead_and_lifts_it() -> None:
    world = EngineWorld()
    world.keep_on_ssd(A)
    world.hint([(0, A)])
    get = world.get(A)
    world.hint(removed=[0])
    assert [job.job_id for job in world.read.jobs] == world.read.lifted
    world.settle()
    assert get.result(0).ok
    assert len(world.bytes.slots[TierName.HOST]) == 8


def test_what_could_not_be_read_ahead_is_read_when_it_is_asked_for() -> None:
    world = EngineWorld()
    world.keep_on_ssd(A)
    world.hint([(0, A)])
    world.read.end(outcomes=Outcome.IO_ERROR)
    assert not world.read.jobs
    get = world.get(A)
    world.settle()
    assert get.result(0).ok
    world.check_idle()
