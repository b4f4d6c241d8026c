"""A simulated SSD that is full but for a file, for tests of what finds no room on it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tierstore.control.entry import State
from tierstore.control.index import as_keys
from tierstore.metrics import Metric
from tierstore.testing.engine_world import EngineWorld, chain
from tierstore.types import PAGE_NBYTES

if TYPE_CHECKING:
    from tierstore.control.mind import Limits
    from tierstore.types import UInt8Array

__all__ = ["FILE_BLOCKS", "full_ssd", "not_stored", "on_ssd"]

FILE_BLOCKS = 4


def full_ssd(num_files: int = 4, limits: Limits | None = None) -> EngineWorld:
    """A world whose SSD is full but for a file."""
    file_nbytes = FILE_BLOCKS * PAGE_NBYTES
    world = EngineWorld(
        file_blocks=FILE_BLOCKS, ssd_nbytes=num_files * file_nbytes, reclaim_below_nbytes=file_nbytes, limits=limits
    )
    world.keep_in_host(chain("old", FILE_BLOCKS * (num_files - 1)))
    world.clock.advance(10)
    return world


def on_ssd(world: EngineWorld, blocks: UInt8Array) -> int:
    """How many blocks the SSD holds."""
    with world.engine.planning() as planner:
        entries = planner.directory.find(world.generations[0].number, as_keys(blocks))
        return int(np.count_nonzero(planner.directory.ssd.state[entries[entries >= 0]] == State.READY))


def not_stored(world: EngineWorld) -> dict[str, int]:
    """Blocks that a tier did not take, by reason."""
    reasons = ("not_admitted", "head_missing", "write_queue_full", "write_refused", "ssd_off", "pool_full")
    counts = {reason: int(world.metrics.value(Metric.NOT_STORED_BLOCKS, reason)) for reason in reasons}
    return {reason: count for reason, count in counts.items() if count}
