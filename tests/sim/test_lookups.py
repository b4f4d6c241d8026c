"""What lookups tell, and what is counted of gets: each block once, in the tier that held it."""

from __future__ import annotations

from tierstore.metrics import Metric
from tierstore.testing.engine_world import EngineWorld, chain
from tierstore.types import Presence, TierName

BLOCKS = chain("a", 6)


def hits(world: EngineWorld) -> tuple[float, float]:
    """Blocks of gets that were held in the host pool, and on SSD."""
    host, ssd = (world.metrics.value(Metric.HIT_BLOCKS, tier) for tier in (TierName.HOST, TierName.SSD))
    return host, ssd


def test_lookup_tells_what_is_there_promised_and_unknown() -> None:
    world = EngineWorld()
    world.keep_on_ssd(BLOCKS[:1])
    world.keep_in_host(BLOCKS[1:2])
    world.put(BLOCKS[2:3])
    assert world.presence(BLOCKS[:4]) == [Presence.HIT, Presence.HIT, Presence.PENDING, Presence.MISS]
    world.get(BLOCKS[:1])
    assert world.presence(BLOCKS[:1]) == [Presence.PENDING]
    assert world.engine.leading(0, BLOCKS) == 0
    world.settle()
    assert world.engine.leading(0, BLOCKS) == 3


def test_every_block_of_a_get_is_counted_as_a_hit_once_in_the_tier_that_held_it() -> None:
    world = EngineWorld()
    world.keep_in_host(BLOCKS[:2])
    world.keep_on_ssd(BLOCKS[2:])
    world.get(BLOCKS)
    assert hits(world) == (2, 4)
    world.get(BLOCKS)
    assert hits(world) == (4, 8)
    world.settle()
    assert hits(world) == (4, 8)
    world.get(BLOCKS)
    assert hits(world) == (10, 8)


def test_lookups_count_what_they_asked_for_and_what_was_usable() -> None:
    world = EngineWorld()
    world.keep_in_host(BLOCKS[:2])
    world.keep_on_ssd(BLOCKS[3:])
    assert world.engine.leading(0, BLOCKS) == 2
    assert world.metrics.value(Metric.LOOKUP_BLOCKS) == 6
    assert world.metrics.value(Metric.LOOKUP_HIT_BLOCKS) == 2
