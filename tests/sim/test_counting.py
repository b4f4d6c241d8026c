"""What the mind counts of requests, and how its gauges say how full everything is."""

from __future__ import annotations

from tierstore.metrics import SECONDS_BOUNDS, Metric
from tierstore.testing.engine_world import EngineWorld, chain
from tierstore.transfer.links import Links
from tierstore.types import Outcome, TierName

HELD = chain("held", 4)
ON_SSD = chain("on ssd", 3)


def gauge(world: EngineWorld, metric: Metric, *labels: str) -> float:
    with world.engine.planning() as planner:
        planner.gauge()
    return world.metrics.value(metric, *labels)


def seconds(world: EngineWorld, verb: str) -> tuple[float, float]:
    """Sum and number of the durations of a verb."""
    values = world.metrics.snapshot()
    total, count = (values[f'tierstore_request_seconds_{part}{{verb="{verb}"}}'] for part in ("sum", "count"))
    return total, count


def test_a_request_lasts_from_its_first_plan_to_its_end() -> None:
    world = EngineWorld()
    world.put(HELD)
    world.clock.advance(0.25)
    world.settle()
    assert seconds(world, "put") == (0.25, 1)
    world.get(HELD)
    world.clock.advance(0.5)
    world.settle()
    assert seconds(world, "get") == (0.5, 1)
    assert seconds(world, "prefetch") == (0, 0)


def test_how_long_a_borrower_keeps_its_slots_is_told_apart() -> None:
    world = EngineWorld()
    world.keep_in_host(HELD)
    before = seconds(world, "get")
    world.acquire(HELD)
    world.clock.advance(20.0)
    world.settle()
    assert seconds(world, "get") == before
    assert world.metrics.durations(Metric.LENT_SECONDS, "get") == (1, 20.0)


def test_a_request_that_is_cut_off_by_its_deadline_lasts_until_then() -> None:
    world = EngineWorld()
    world.keep_on_ssd(ON_SSD)
    world.get(ON_SSD, within=2.0)
    world.expire_after(2.0)
    assert seconds(world, "get") == (2.0, 1)
    assert SECONDS_BOUNDS[-1] > 2.0


def test_a_flush_and_a_delete_count_for_no_verb() -> None:
    world = EngineWorld()
    world.keep_in_host(HELD)
    before = {verb: seconds(world, verb) for verb in ("get", "put", "prefetch")}
    world.flush()
    world.settle()
    world.delete(HELD)
    assert {verb: seconds(world, verb) for verb in before} == before


def test_tokens_are_those_of_the_blocks_by_the_tier_that_held_them() -> None:
    world = EngineWorld()
    world.keep_in_host(HELD)
    world.keep_on_ssd(ON_SSD)
    (generation,) = world.generations
    tokens = generation.layout.block_tokens
    for blocks in (HELD, ON_SSD, chain("absent", 5)):
        world.get(blocks)
        world.settle()
    assert world.metrics.value(Metric.GET_TOKENS) == (4 + 3 + 5) * tokens
    assert world.metrics.value(Metric.HIT_TOKENS, TierName.HOST) == 4 * tokens
    assert world.metrics.value(Metric.HIT_TOKENS, TierName.SSD) == 3 * tokens


def test_open_requests_are_told_verb_by_verb() -> None:
    world = EngineWorld()
    world.put(HELD)
    world.put(chain("more", 2))
    world.get(HELD)
    assert [gauge(world, Metric.OPEN_REQUESTS, verb) for verb in ("get", "put", "prefetch")] == [1, 2, 0]
    world.settle()
    assert [gauge(world, Metric.OPEN_REQUESTS, verb) for verb in ("get", "put", "prefetch")] == [0, 0, 0]


def test_what_waits_in_a_link_is_not_what_it_runs() -> None:
    world = EngineWorld()
    links = Links(world.load, world.store, world.read, world.write)
    world.put(HELD)
    world.put(chain("more", 2))
    assert links.num_queued == {"load": 0, "store": 2, "ssd-read": 0, "ssd-write": 0}
    world.store.begin(world.store.jobs[0])
    assert links.num_queued["store"] == 1
    world.settle()
    assert not any(links.num_queued.values())


def test_a_store_without_ssd_has_nothing_queued_there() -> None:
    world = EngineWorld(ssd=False)
    assert Links(world.load, world.store).num_queued["ssd-read"] == 0


def test_used_free_and_pinned_blocks_are_those_of_the_pool() -> None:
    world = EngineWorld(slot_pages=(1, 2), slab_pages=16)
    assert gauge(world, Metric.HOST_FREE_BLOCKS) == 32  # 64 pages, none of them claimed: counted in blocks of 2
    world.put(HELD)
    assert gauge(world, Metric.HOST_USED_BLOCKS) == 4
    assert gauge(world, Metric.HOST_FREE_BLOCKS) == 12 + 3 * 8
    world.settle()
    assert gauge(world, Metric.HOST_PINNED_BLOCKS) == 0
    world.get(HELD[:3])
    assert gauge(world, Metric.HOST_PINNED_BLOCKS) == 3
    assert gauge(world, Metric.SSD_USED_BLOCKS) == 4
    world.settle()
    world.delete(HELD[:1])
    assert gauge(world, Metric.HOST_USED_BLOCKS) == 3
    assert gauge(world, Metric.SSD_USED_BLOCKS) == 3


def test_a_session_counts_from_its_first_hint_to_its_end() -> None:
    world = EngineWorld()
    world.hint([(1, HELD)], session_id=7)
    world.hint([(1, ON_SSD)], session_id=8)
    assert gauge(world, Metric.OPEN_SESSIONS) == 2
    world.end_session(7)
    assert gauge(world, Metric.OPEN_SESSIONS) == 1


def test_a_corrupt_and_a_refused_block_are_counted_as_such() -> None:
    world = EngineWorld()
    world.keep_on_ssd(ON_SSD)
    world.get(ON_SSD)
    world.read.end(outcomes=[Outcome.OK, Outcome.CORRUPT, Outcome.OK])
    world.settle()
    assert world.metrics.value(Metric.LINK_BLOCKS, "ssd-read", Outcome.CORRUPT) == 1
    world.put(chain("too much", 64))
    world.settle()
    assert world.metrics.value(Metric.REQUEST_BLOCKS, "put", Outcome.REJECTED) == 64 - 32
