"""What was parked is written, or dropped, once it is due; and then there is an end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tierstore.control.mind import Limits
from tierstore.control.planner import Planner
from tierstore.policy.admission import AdmitLeaving
from tierstore.testing.engine_world import EngineWorld, chain
from tierstore.types import PAGE_NBYTES

if TYPE_CHECKING:
    from tierstore.types import Plan


@pytest.mark.parametrize("hourly_blocks", [450, 600, 1000, None])
@pytest.mark.parametrize("headless", [False, True])
def test_what_is_dropped_as_it_is_unparked_is_not_parked_again_at_once(
    monkeypatch: pytest.MonkeyPatch, hourly_blocks: int | None, headless: bool
) -> None:
    """Blocks that the budget did not pay for were the next victims again, and parked behind others without an end."""
    file_blocks = 256
    budget = None if hourly_blocks is None else 24 * hourly_blocks * PAGE_NBYTES
    world = EngineWorld(
        slab_pages=1024,
        slabs=4,
        capacity=16384,
        file_blocks=file_blocks,
        ssd_nbytes=4 * file_blocks * PAGE_NBYTES,
        reclaim_below_nbytes=file_blocks * PAGE_NBYTES,
        admission=AdmitLeaving(),
        limits=Limits(write_nbytes_per_day=budget, write_inflight_nbytes_max=1 << 30),
    )
    world.keep_on_ssd(chain("old", 3 * file_blocks))
    world.clock.advance(10)
    num_steps, tend = 0, Planner.tend

    def counted(planner: Planner, now: float) -> tuple[Plan, bool]:
        nonlocal num_steps
        num_steps += 1
        assert num_steps < 200, "the upkeep has no end"
        return tend(planner, now)

    monkeypatch.setattr(Planner, "tend", counted)
    for number in range(40):
        parent = chain(f"head {number}", 1)[0] if headless else None
        world.put(chain(f"put {number}", 128), parent=parent)
        while world.store.jobs:
            num_steps = 0
            world.store.end()
        if number % 2 and world.write.jobs:
            num_steps = 0
            world.write.end()
    for _ in range(1000):
        num_steps = 0
        if not world.write.jobs:
            break
        world.write.end()
    assert not world.write.jobs
    world.check_idle()
