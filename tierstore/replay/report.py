"""A replay's figures as one JSON object, one table and one picture. Called by the command line; counts nothing."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from tierstore.replay.world import HOST_BLOCKS_MIN
from tierstore.settings import format_size
from tierstore.types import TierName

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.table import Table

    from tierstore.replay.figures import Figures, Point
    from tierstore.replay.run import ReplayPlan

__all__ = ["as_json", "as_sweep_json", "as_sweep_table", "as_table", "enough", "save_plot"]

_VERSION = 2
_DIGITS = 6
_ENOUGH = 0.9


def as_json(plan: ReplayPlan, figures: Figures) -> str:
    """One JSON object on one line; `version` grows when a field changes its meaning."""
    return json.dumps({"version": _VERSION, **_figures(figures), **_plan(plan)})


def as_sweep_json(plan: ReplayPlan, tier: TierName, points: Sequence[Point]) -> str:
    """The same for a sweep: one object a size in ``points``."""
    rows = [
        {"percent": point.percent, "blocks": point.blocks, "nbytes": point.nbytes, **_figures(point.figures)}
        for point in points
    ]
    return json.dumps({"version": _VERSION, "sweep": tier.value, "points": rows, **_plan(plan)})


def _figures(figures: Figures) -> dict[str, object]:
    rounded = _rounded(asdict(figures))
    assert isinstance(rounded, dict)
    distance = rounded["belady_token_hit_rate"] - rounded["token_hit_rate"]
    return {**rounded, "belady_distance": round(distance, _DIGITS)}


def _plan(plan: ReplayPlan) -> dict[str, object]:
    trace, queueing = plan.trace, plan.queueing
    speed = queueing.tokens_per_second
    return {
        "trace": {
            "name": trace.name,
            "requests": len(trace),
            "block_tokens": trace.block_tokens,
            "block_references": len(trace.blocks),
            "unique_blocks": trace.num_unique,
            "input_tokens": int(trace.num_tokens.sum()),
            "seconds": round(float(trace.seconds[-1]), _DIGITS),
        },
        "settings": {
            "policy": plan.policy,
            "admission": plan.admission,
            "file_blocks": plan.file_blocks if TierName.SSD in plan.tiers else None,
            "rewrite_share": plan.rewrite_share if TierName.SSD in plan.tiers else None,
            "write_nbytes_per_day": plan.write_budget_nbytes,
            "lookahead": "arrived" if queueing.lookahead < 0 else queueing.lookahead,
            "prefetch": None if queueing.prefetch is None else asdict(queueing.prefetch),
            "block_nbytes": plan.block_nbytes,
            "links": {name: _rounded(asdict(model)) for name, model in sorted(plan.links.items())},
            "prefill_tokens_per_second": None if speed == float("inf") else round(speed, _DIGITS),
        },
    }


def _rounded(value: object) -> object:
    if isinstance(value, float):
        return round(value, _DIGITS)
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    return value


def as_table(plan: ReplayPlan, figures: Figures) -> Table:
    """What matters of one replay, a line each. Fits 80 columns."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE, show_header=False)
    table.add_column("what", no_wrap=True)
    table.add_column("figure", justify="right")
    for row in [("trace", _title(plan)), *_lines(figures)]:
        table.add_row(*row)
    return table


def _lines(figures: Figures) -> list[tuple[str, str]]:
    lines = [(f"{tier} tier", f"{_size(figures.tier_nbytes[tier])}, {n:,} blocks") for tier, n in _items(figures)]
    lines += [("token hit rate", _percent(figures.token_hit_rate))]
    lines += [(f"  from {tier}", _percent(figures.by_tier[tier])) for tier in figures.tier_blocks]
    lines += [
        ("best possible at this size (Belady)", _percent(figures.belady_token_hit_rate)),
        ("reachable without eviction", _percent(figures.reachable_token_hit_rate)),
    ]
    lines += [(f"moved by {link}", _size(nbytes)) for link, nbytes in figures.moved_nbytes.items() if nbytes]
    if figures.write_amplification is not None and figures.drive_writes_per_day is not None:
        lines.append(("write amplification", f"{figures.write_amplification:.2f}"))
        lines.append(("drive writes a day", f"{figures.drive_writes_per_day:.1f}"))
        lines.append(("years of a drive rated for 1 a day over 5", f"{figures.drive_lifetime_years:.1f}"))
        lines.append(("SSD blocks read back / not", _pair(figures.ssd_written_blocks)))
    lines += [(f"blocks not stored: {reason}", f"{count:,}") for reason, count in figures.not_stored_blocks.items()]
    if any(figures.prefetched_blocks.values()):
        lines.append(("prefetched blocks useful / wasted", _pair(figures.prefetched_blocks)))
    if figures.ttft_seconds is not None and figures.ttft_without_store_seconds is not None:
        for name, seconds in figures.ttft_seconds.items():
            without = figures.ttft_without_store_seconds[name]
            lines.append((f"TTFT {name} / without a store", f"{seconds:.3f} s / {without:.3f} s"))
    if figures.recomputed_token_rate is not None:
        lines.append(("held, and computed as that was faster", _percent(figures.recomputed_token_rate)))
        lines.append(("requests slower than without a store", f"{figures.slower_requests:,}"))
    return lines


def _items(figures: Figures) -> list[tuple[str, int]]:
    return list(figures.tier_blocks.items())


def _pair(fates: Mapping[str, int]) -> str:
    return f"{fates['useful']:,} / {fates['wasted']:,}"


def _percent(rate: float) -> str:
    return f"{100 * rate:.2f} %"


def _size(nbytes: int) -> str:
    """A size for a person, to three digits."""
    for unit, factor in (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if nbytes >= factor:
            return f"{nbytes / factor:,.3g} {unit}" if nbytes < 1000 * factor else f"{nbytes / factor:,.0f} {unit}"
    return format_size(nbytes)


def _title(plan: ReplayPlan) -> str:
    trace, queueing = plan.trace, plan.queueing
    text = f"{trace.name}\n{len(trace):,} requests, {trace.num_unique:,} blocks of {_size(plan.block_nbytes)}"
    seen = "what has arrived" if queueing.lookahead < 0 else f"{queueing.lookahead} requests"
    return f"{text}\n{plan.policy}, {plan.admission}" + (f", looking ahead over {seen}" if queueing.lookahead else "")


def as_sweep_table(plan: ReplayPlan, tier: TierName, points: Sequence[Point]) -> Table:
    """One line a size."""
    from rich import box
    from rich.table import Table

    table = Table(title=_title(plan), title_justify="left", box=box.SIMPLE)
    table.caption, table.caption_justify = enough(tier, points), "left"
    table.min_width = 72
    timed = any(point.figures.ttft_seconds is not None for point in points)
    for title in (tier.value, "of blocks", "hit rate", "Belady", *(("TTFT p50", "p99") if timed else ())):
        table.add_column(title, justify="right", no_wrap=True)
    for point in points:
        figures, seconds = point.figures, point.figures.ttft_seconds
        table.add_row(
            _size(point.nbytes),
            f"{point.percent} %",
            _percent(figures.token_hit_rate),
            _percent(figures.belady_token_hit_rate),
            *(() if seconds is None else (f"{seconds['p50']:.3f} s", f"{seconds['p99']:.3f} s")),
        )
    return table


def enough(tier: TierName, points: Sequence[Point]) -> str:
    """The smallest size that comes within a tenth of what is reachable, in words."""
    if not points:
        return f"no size was replayed: a host tier needs {HOST_BLOCKS_MIN} blocks, and has fewer in each"
    wanted = _ENOUGH * points[-1].figures.reachable_token_hit_rate
    for point in points:
        if point.figures.token_hit_rate >= wanted:
            return f"{_size(point.nbytes)} of {tier} reach {_ENOUGH:.0%} of the {_percent(wanted / _ENOUGH)} reachable"
    return f"no size of {tier} here reaches {_ENOUGH:.0%} of the {_percent(wanted / _ENOUGH)} reachable"


def save_plot(plan: ReplayPlan, tier: TierName, points: Sequence[Point], path: Path) -> None:
    """Draw hit rate over size. The file's suffix chooses the format. Blocks."""
    from matplotlib.figure import Figure

    gibibytes = [point.nbytes / (1 << 30) for point in points]
    rates = [100 * point.figures.token_hit_rate for point in points]
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    axes.plot(gibibytes, rates, marker="o", color="#2a6f97", label=f"{plan.policy}")
    bounds = [100 * point.figures.belady_token_hit_rate for point in points]
    axes.plot(gibibytes, bounds, marker=".", linestyle="--", color="#d1495b", label="best possible (Belady)")
    if points:
        axes.axhline(100 * points[-1].figures.reachable_token_hit_rate, color="#888888", label="without eviction")
    axes.set(xscale="log", xlabel=f"{tier} (GiB)", ylabel="prompt tokens from the store (%)", title=_title(plan))
    axes.set_ylim(bottom=0)
    axes.grid(visible=True, alpha=0.3)
    axes.legend()
    figure.savefig(path)
