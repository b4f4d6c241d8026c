"""Runs one replay, from its options to its figures, and makes the replays of a sweep over the sizes of one tier.

Called by the command line. Nothing here depends on the machine or the hour: equal options give equal figures.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import TYPE_CHECKING, cast

import numpy as np

from tierstore import registry
from tierstore.errors import ConfigError
from tierstore.replay.belady import belady_leading, reachable_leading
from tierstore.replay.engine import Engine, Queueing
from tierstore.replay.figures import Figures, figures_of
from tierstore.replay.tiers import TierSize
from tierstore.replay.world import HOST_BLOCKS_MIN, Setup, World
from tierstore.settings import DriveWrites, format_size
from tierstore.tiers.space import FILES_MIN, default_file_nbytes
from tierstore.types import TierName

if TYPE_CHECKING:
    from tierstore.policy.base import AdmissionPolicy, NewPolicy
    from tierstore.replay.links import LinkModel
    from tierstore.replay.trace import Trace

__all__ = ["SWEEP_PERCENT", "ReplayPlan", "replay", "sweep_plans"]

SWEEP_PERCENT = (1, 2, 5, 10, 20, 30, 50, 70, 100)
"""Sizes of the tier that is swept, of the trace's distinct blocks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayPlan:
    """What to replay, and into what.

    Attributes:
        trace: The requests.
        tiers: Size of each tier; the host's at least.
        block_nbytes: Bytes of a block.
        policy: Name of the eviction policy.
        admission: Name of the admission policy of the SSD tier.
        file_nbytes: Length of a chunk file; None for the default of a store of this size.
        rewrite_share: The share of a reclaimed chunk file's blocks that may be rewritten.
        write_budget: Bytes, or drive writes, that write-backs may put on SSD in a day; None for no bound.
        links: Speeds of links by their names in `tierstore bench`; a missing link takes no time.
        queueing: How the engine serves.
    """

    trace: Trace
    tiers: Mapping[TierName, TierSize]
    block_nbytes: int
    policy: str = "arc"
    admission: str = "always"
    file_nbytes: int | None = None
    rewrite_share: float = 0.5
    write_budget: int | DriveWrites | None = None
    links: Mapping[str, LinkModel] = field(default_factory=dict)
    queueing: Queueing = field(default_factory=Queueing)

    def blocks(self, tier: TierName) -> int:
        """Blocks that a tier holds; 0 where there is none."""
        return self.tiers[tier].blocks(self.trace, self.block_nbytes) if tier in self.tiers else 0

    @property
    def file_blocks(self) -> int:
        """Blocks of a chunk file; a store has four files at least.

        Raises:
            ConfigError: `file_nbytes` is more than a quarter of the SSD, or less than a block.
        """
        ssd_blocks, given = self.blocks(TierName.SSD), self.file_nbytes
        most = max(1, ssd_blocks // FILES_MIN)
        if given is None or not ssd_blocks:
            return max(1, min(default_file_nbytes(ssd_blocks * self.block_nbytes) // self.block_nbytes, most))
        if not 1 <= given // self.block_nbytes <= most:
            raise ConfigError(
                f"chunk files of {format_size(given)} on an SSD of {format_size(ssd_blocks * self.block_nbytes)}; "
                f"give a length between a block's, {format_size(self.block_nbytes)}, and a quarter of the SSD"
            )
        return given // self.block_nbytes

    @property
    def write_budget_nbytes(self) -> int | None:
        """The write budget in bytes."""
        budget, ssd_nbytes = self.write_budget, self.blocks(TierName.SSD) * self.block_nbytes
        return int(budget.per_day * ssd_nbytes) if isinstance(budget, DriveWrites) else budget


def replay(plan: ReplayPlan, on_progress: Callable[[int], None] = lambda served: None) -> Figures:
    """Serve the whole trace; `on_progress` is told how many block references have been served.

    Raises:
        ConfigError: A policy is unknown, or the host tier is too small.
    """
    trace, host_blocks, ssd_blocks = plan.trace, plan.blocks(TierName.HOST), plan.blocks(TierName.SSD)
    world = World(
        Setup(
            host_blocks=host_blocks,
            ssd_blocks=ssd_blocks,
            file_blocks=plan.file_blocks,
            block_nbytes=plan.block_nbytes,
            block_tokens=trace.block_tokens,
            new_policy=cast("NewPolicy", registry.load("policies", plan.policy)),
            admission=cast("Callable[[], AdmissionPolicy]", registry.load("admissions", plan.admission))(),
            links=plan.links,
            tokens_per_second=plan.queueing.tokens_per_second if plan.queueing.advised else None,
            write_nbytes_per_day=plan.write_budget_nbytes,
            rewrite_share=plan.rewrite_share,
        )
    )
    engine = Engine(trace, world, plan.queueing)
    engine.serve(on_progress)
    return figures_of(
        engine,
        world,
        trace,
        blocks={TierName.HOST: host_blocks, TierName.SSD: ssd_blocks},
        block_nbytes=plan.block_nbytes,
        queueing=plan.queueing,
        reachable=_rate(trace, reachable_leading(trace)),
        belady=_rate(trace, belady_leading(trace, host_blocks + ssd_blocks)),
    )


def sweep_plans(plan: ReplayPlan, tier: TierName) -> dict[int, ReplayPlan]:
    """By each of `SWEEP_PERCENT` the plan in which one tier holds so much of the distinct blocks, the other as it is.

    Sizes at which the host tier would be too small are left out.
    """
    plans = {
        percent: replace(plan, tiers={**plan.tiers, tier: TierSize(share=Fraction(percent, 100))})
        for percent in SWEEP_PERCENT
    }
    return {percent: sized for percent, sized in plans.items() if sized.blocks(TierName.HOST) >= HOST_BLOCKS_MIN}


def _rate(trace: Trace, leading: np.typing.NDArray[np.int64]) -> float:
    return float(trace.tokens_of(leading).sum() / trace.num_tokens.sum())
