"""Asserts the planner's invariants, which hold after every step. Pure; for tests and simulations."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tierstore.control.entry import State
from tierstore.types import TierName

if TYPE_CHECKING:
    from tierstore.control.mind import Mind

__all__ = ["check"]


def check(mind: Mind) -> None:
    """Assert that the directory and the rooms are consistent, and that a job fills every FILLING block."""
    directory = mind.directory
    directory.check()
    mind.host.check()
    if mind.ssd is not None:
        mind.ssd.check()
    if mind.device is not None:
        mind.device.check()
    tiers = {TierName.HOST: directory.host, TierName.SSD: directory.ssd, TierName.DEVICE_POOL: directory.device}
    for tier, places in tiers.items():
        filling = set((places.state[: directory.high_water] == State.FILLING).nonzero()[0].tolist())
        missing = filling - mind.jobs.filling(tier)
        assert not missing, f"FILLING in {tier} without a job: {sorted(missing)[:8]}"
