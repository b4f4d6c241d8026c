"""The figures of a replay: hit rates, bytes, writes, waiting. Counted from the engine's and the planner's own numbers.

Called by `run`; `report` shows it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tierstore.metrics import Metric
from tierstore.types import PAGE_NBYTES, TierName

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tierstore.replay.engine import Engine, Queueing
    from tierstore.replay.trace import Trace
    from tierstore.replay.world import World

__all__ = ["Figures", "Point", "figures_of"]

_LINKS = {
    "host.put": "store",
    "host.get": "load",
    "ssd.read": "ssd-read",
    "ssd.write": "ssd-write",
    "ssd.rewrite": "ssd-rewrite",
}
_DAY_SECONDS = 86_400.0
_RATED_DRIVE_WRITES_YEARS = 5.0
_SLOWER = 1 + 1e-6
_PERCENTILES = (50, 90, 99)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """One replay. Rates are shares of all prompt tokens of the trace.

    Attributes:
        token_hit_rate: Tokens that came from the store.
        by_tier: The same by the tier that held them when they were asked for.
        reachable_token_hit_rate: What a store that never evicts would reach.
        belady_token_hit_rate: The bound for a store of these sizes together that knows the future.
        tier_blocks: Blocks that each tier holds.
        tier_nbytes: Bytes of them.
        moved_nbytes: By link.
        write_amplification: Bytes written to SSD over bytes written for the first time; None without a write.
        drive_writes_per_day: SSD sizes written in a day at the pace of the trace; None without an SSD tier.
        ssd_written_blocks: Blocks written to SSD, by whether they were read from it before they left.
        not_stored_blocks: Blocks that a tier did not take, by reason, if there were any.
        drive_lifetime_years: Years that a drive of that size lasts at that pace, if it is rated for one drive write a
            day over five years, as read-intensive data-centre drives are; None if nothing is written.
        prefetched_blocks: Blocks read ahead, by fate.
        evicted_blocks: By tier.
        ttft_seconds: From arrival to the end of the prefill: mean and percentiles; None where nothing takes time.
        ttft_without_store_seconds: The same engine computing every token.
        recomputed_token_rate: Tokens that the store held but the engine computed, because that was predicted to be
            faster or the load missed its deadline; None if the engine's speed is not given.
        slower_requests: Requests whose loading and computing took longer than computing all of their blocks. The last
            block counts as full, because a store holds only full blocks. None likewise.
    """

    token_hit_rate: float
    by_tier: dict[str, float]
    reachable_token_hit_rate: float
    belady_token_hit_rate: float
    tier_blocks: dict[str, int]
    tier_nbytes: dict[str, int]
    moved_nbytes: dict[str, int]
    write_amplification: float | None
    drive_writes_per_day: float | None
    drive_lifetime_years: float | None
    ssd_written_blocks: dict[str, int]
    not_stored_blocks: dict[str, int]
    prefetched_blocks: dict[str, int]
    evicted_blocks: dict[str, int]
    ttft_seconds: dict[str, float] | None
    ttft_without_store_seconds: dict[str, float] | None
    recomputed_token_rate: float | None
    slower_requests: int | None


@dataclass(frozen=True, slots=True)
class Point:
    """One size of a sweep.

    Attributes:
        percent: Of the trace's distinct blocks.
        blocks: That the swept tier holds.
        nbytes: Of them.
        figures: What came of it.
    """

    percent: int
    blocks: int
    nbytes: int
    figures: Figures


def figures_of(
    engine: Engine,
    world: World,
    trace: Trace,
    *,
    blocks: Mapping[TierName, int],
    block_nbytes: int,
    queueing: Queueing,
    reachable: float,
    belady: float,
) -> Figures:
    """Count a replay that has ended."""
    metrics = world.metrics
    moved = {
        name: int(metrics.value(Metric.LINK_BYTES, link)) // PAGE_NBYTES * block_nbytes for name, link in _LINKS.items()
    }
    first, again = moved["ssd.write"], moved["ssd.rewrite"]
    ssd_nbytes = blocks[TierName.SSD] * block_nbytes
    days = max(float(trace.seconds[-1]), 1.0) / _DAY_SECONDS
    drive_writes = (first + again) / days / ssd_nbytes if ssd_nbytes else None
    timed = queueing.advised or bool(world.queues)
    hit_tokens = trace.tokens_of(engine.leading)
    return Figures(
        token_hit_rate=float(hit_tokens.sum() / trace.num_tokens.sum()),
        by_tier=_by_tier(engine, trace, hit_tokens),
        reachable_token_hit_rate=reachable,
        belady_token_hit_rate=belady,
        tier_blocks={tier.value: count for tier, count in blocks.items() if count},
        tier_nbytes={tier.value: count * block_nbytes for tier, count in blocks.items() if count},
        moved_nbytes=moved,
        write_amplification=(first + again) / first if first else None,
        drive_writes_per_day=drive_writes,
        drive_lifetime_years=_RATED_DRIVE_WRITES_YEARS / drive_writes if drive_writes else None,
        ssd_written_blocks={fate: int(metrics.value(Metric.SSD_WRITTEN_BLOCKS, fate)) for fate in ("useful", "wasted")},
        not_stored_blocks={
            str(reason): count
            for reason in Metric.NOT_STORED_BLOCKS.labels["reason"]
            if (count := int(metrics.value(Metric.NOT_STORED_BLOCKS, reason)))
        },
        prefetched_blocks={
            fate: int(metrics.value(Metric.PREFETCHED_BLOCKS, fate)) for fate in ("useful", "wasted", "cancelled")
        },
        evicted_blocks={
            tier.value: int(metrics.value(Metric.EVICTED_BLOCKS, tier)) for tier in (TierName.HOST, TierName.SSD)
        },
        ttft_seconds=_summary(engine.ttft_seconds) if timed else None,
        ttft_without_store_seconds=_summary(_without_store(trace, queueing)) if timed else None,
        recomputed_token_rate=_recomputed(engine, trace, hit_tokens) if queueing.advised else None,
        slower_requests=_slower(engine, trace, queueing) if queueing.advised else None,
    )


def _by_tier(engine: Engine, trace: Trace, hit_tokens: NDArray[np.int64]) -> dict[str, float]:
    """Hit tokens by tier: those of a request are divided among the tiers by the blocks that each held."""
    held = np.maximum(engine.on_host + engine.on_ssd, 1)
    total = trace.num_tokens.sum()
    on_ssd = float((hit_tokens * (engine.on_ssd / held)).sum() / total)
    return {TierName.HOST.value: float(hit_tokens.sum() / total) - on_ssd, TierName.SSD.value: on_ssd}


def _recomputed(engine: Engine, trace: Trace, hit_tokens: NDArray[np.int64]) -> float:
    held_tokens = trace.tokens_of(engine.leading + engine.passed_over)
    return float((held_tokens - hit_tokens).sum() / trace.num_tokens.sum())


def _slower(engine: Engine, trace: Trace, queueing: Queueing) -> int:
    alone = np.diff(trace.starts) * trace.block_tokens / queueing.tokens_per_second
    return int(np.count_nonzero(engine.service_seconds > alone * _SLOWER))


def _without_store(trace: Trace, queueing: Queueing) -> NDArray[np.float64]:
    """Time to first token of an engine that computes every prompt whole, one after the other."""
    ends = 0.0
    waits = np.zeros(len(trace), np.float64)
    for index, (arrival, tokens) in enumerate(zip(trace.seconds.tolist(), trace.num_tokens.tolist(), strict=True)):
        ends = max(ends, arrival) + tokens / queueing.tokens_per_second
        waits[index] = ends - arrival
    return waits


def _summary(seconds: NDArray[np.float64]) -> dict[str, float]:
    return {"mean": float(seconds.mean())} | {
        f"p{percent}": float(np.percentile(seconds, percent)) for percent in _PERCENTILES
    }
