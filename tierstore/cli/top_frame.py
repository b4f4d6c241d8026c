"""One frame of `tierstore top`: a status as tables and bars. Pure; markup and control characters are made harmless."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tierstore.monitor.status import Status, TierStatus

__all__ = ["frame", "sparkline"]

_BARS = "▁▂▃▄▅▆▇█"
_WIDE = 100
_SPARK_POINTS, _SPARK_POINTS_NARROW = 30, 10
_NONE = "–"
_KINDS = {"serving": "green", "writes_off": "yellow", "reads_off": "red"}
_QUIET_LINKS = ("lease", "reserve", "pool-load", "pool-fill", "pool-return", "ssd-direct")
_COLOURS = {"host": "cyan", "ssd": "yellow"}


def frame(status: Status, width: int, lost: str = "") -> RenderableType:
    """The whole status on one screen, `width` characters wide (at least 80); `lost` says why it is out of date."""
    points = _SPARK_POINTS if width >= _WIDE else _SPARK_POINTS_NARROW
    parts = [
        *(_head(status, lost), _tiers(status, points), _hits(status, points), _links(status, points)),
        *(_verbs(status), _counts(status)),
    ]
    return Group(*(Padding(part, (0, 0, 1, 0)) for part in parts[:-1]), parts[-1])


def sparkline(values: Sequence[float | None], top: float, points: int) -> str:
    """The last values, one character each; a missing value is a gap."""
    marks = [
        " " if value is None else _BARS[min(int(value / top * len(_BARS)), len(_BARS) - 1)] if top else _BARS[0]
        for value in values[-points:]
    ]
    return "".join(marks).rjust(points)


def _head(status: Status, lost: str) -> RenderableType:
    text = Text()
    text.append("tierstore ", "bold")
    text.append(f"{_plain(status['version'])} on {_plain(status['host_name'])}, process {status['pid']}, ")
    text.append(f"up {_span(status['now'] - status['opened_at'])}")
    if not lost:
        return text
    return Group(text, Text(f"not of now: {_plain(lost)}", "red"))


def _tiers(status: Status, points: int) -> Table:
    table = _table("tier", "", "used", "of", "", "blocks", "pinned", "")
    for name, tier in status["tiers"].items():
        share = tier["used_nbytes"] / tier["capacity_nbytes"] if tier["capacity_nbytes"] else 0.0
        bar = ProgressBar(total=1.0, completed=share, width=points * 4 // 5, complete_style=_COLOURS.get(name, "cyan"))
        bar.finished_style = bar.complete_style
        table.add_row(
            Text(_plain(name), "bold"),
            bar,
            *(_size(tier["used_nbytes"]), _size(tier["capacity_nbytes"]), f"{share:.0%}"),
            *(f"{tier['used_blocks']:,.0f}", f"{tier['pinned_blocks']:,.0f}"),
            _health(tier, status["now"]),
        )
    return table


def _health(tier: TierStatus, now: float) -> Text:
    text = Text(_plain(tier["service"]).replace("_", " "), _KINDS.get(tier["service"], "red"))
    if tier["service"] != "serving":
        text.append(f" for {_span(now - tier['since'])}: {_plain(tier['why'])}")
    return text


def _hits(status: Status, points: int) -> Table:
    rates, curves = status["hit_rates"], status["curves"]
    table = _table("hit rate", "last minute", "")
    for name, rate, curve in (
        ("look-ups", rates["lookup"], curves["lookup_hits"]),
        *([("gets, device pool", rates["pool"], curves["pool_hits"])] if status["counts"]["pool_used_nbytes"] else []),
        ("gets, host", rates["host"], curves["host_hits"]),
        ("gets, ssd", rates["ssd"], curves["ssd_hits"]),
    ):
        table.add_row(Text(name, "bold"), _NONE if rate is None else f"{rate:.1%}", sparkline(curve, 1.0, points))
    return table


def _links(status: Status, points: int) -> Table:
    table = _table("link", "last minute", "", "in all", "a job", "in flight", "queued")
    for name, link in status["links"].items():
        if name in _QUIET_LINKS and not link["nbytes"]:
            continue
        curve = status["curves"]["links"].get(name, [])
        table.add_row(
            Text(_plain(name), "bold"),
            f"{_scaled(link['nbytes_per_second'], 1000, ('B', 'KB', 'MB', 'GB', 'TB'))}/s",
            sparkline(curve, max(curve[-points:], default=0.0), points),
            *(_size(link["nbytes"]), _seconds(link["job_seconds"])),
            *(f"{link['inflight_jobs']:,.0f}", f"{link['queued_jobs']:,.0f}"),
        )
    return table


def _verbs(status: Status) -> Table:
    table = _table("requests", "a second", "open", "median", "99 %", "blocks OK", "others")
    for name, verb in status["verbs"].items():
        num_ok = verb["outcomes"].get("ok", 0)
        others = sum(verb["outcomes"].values()) - num_ok
        table.add_row(
            Text(_plain(name), "bold"),
            *(f"{verb['per_second']:,.1f}", f"{verb['open']:,.0f}"),
            *(_seconds(verb["seconds_p50"]), _seconds(verb["seconds_p99"])),
            *(f"{num_ok:,.0f}", f"{others:,.0f}"),
        )
    return table


def _counts(status: Status) -> RenderableType:
    counts = status["counts"]
    text = Text()
    for words, key in (
        ("evicted from host", "evicted_host_blocks"),
        ("from ssd", "evicted_ssd_blocks"),
        ("prefetched and used", "prefetched_useful_blocks"),
        ("wasted", "prefetched_wasted_blocks"),
        ("corrupt", "corrupt_blocks"),
    ):
        count = counts.get(key, 0)
        text.append(f"{words} ", "dim")
        text.append(f"{count:,.0f}  ", "bold red" if key == "corrupt_blocks" and count else "bold")
    text.append("write amplification ", "dim")
    text.append(f"{counts.get('write_amplification_ratio', 0):.2f}  ", "bold")
    text.append("waiting ", "dim")
    text.append(f"{counts.get('waiting_requests', 0):,.0f} in {counts.get('open_sessions', 0):,.0f} sessions", "bold")
    refused = {reason: count for reason, count in status["refused"].items() if count}
    if refused:
        text.append("\nnot stored ", "dim")
        text.append("  ".join(f"{_plain(reason).replace('_', ' ')} {count:,.0f}" for reason, count in refused.items()))
    return Group(Rule(style="dim"), text)


def _table(*heads: str) -> Table:
    """A table without lines; all but names and pictures are flush right."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for index, head in enumerate(heads):
        table.add_column(head, justify="right" if index and head else "left", no_wrap=index < len(heads) - 1)
    return table


def _plain(text: object) -> str:
    """Text of a store, without anything that a terminal could interpret as a command."""
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in str(text))


def _scaled(value: float, base: int, units: Sequence[str]) -> str:
    step = 0
    while value >= base and step < len(units) - 1:
        value, step = value / base, step + 1
    return f"{value:.{0 if not step or value >= 100 else 1 if value >= 10 else 2}f} {units[step]}"


def _size(nbytes: float) -> str:
    return _scaled(nbytes, 1024, ("B", "KiB", "MiB", "GiB", "TiB", "PiB"))


def _seconds(seconds: float | None) -> str:
    if seconds is None:
        return _NONE
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} µs"
    return f"{seconds * 1e3:.1f} ms" if seconds < 1 else f"{seconds:.2f} s"


def _span(seconds: float) -> str:
    minutes = int(seconds // 60)
    if minutes < 1:
        return f"{max(int(seconds), 0)} s"
    if minutes < 60:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60} min" if minutes < 2880 else f"{minutes // 1440} days"
