"""A benchmark's result as one JSON object, one table and one picture.

Called by the command line, with complete figures; nothing is measured or rounded here.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tierstore.settings import format_size

if TYPE_CHECKING:
    from rich.table import Table

    from tierstore.benchmark.measure import Measurement
    from tierstore.benchmark.serve_load import Load

__all__ = ["Report", "Row", "as_load_table", "as_table", "save_plot"]

_VERSION = 1
_BAR_CELLS = 10

_LONG_NBYTES = 1 << 20
"""Blocks from here on are copied past the processor's caches where `tierstore doctor`'s advice is taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One link's figures.

    Attributes:
        link: Such as ``"ssd.read"``.
        threads: Threads that the link and its limit may use.
        block_nbytes: Bytes of a block.
        batch: Blocks a call.
        codec: What encodes the blocks.
        pages: What lies on the two sides, such as ``"buffer to pool"``.
        limit: What the limit is, such as ``"torch copy"``.
        gbytes_per_second: Median rate of the store; 1 GB is 10**9 bytes.
        limit_gbytes_per_second: Median rate of the machine in the same run.
        share: Their ratio.
        share_p10: 10th percentile of the ratio over the pairs; with `share_p90` the spread.
        share_p90: 90th percentile.
        pairs: How many calls of each were counted.
        p50_ms: Median latency of one call of the store.
        p99_ms: 99th percentile; the worst call where there were fewer than a hundred.
        p999_ms: 99.9th percentile, likewise.
        cpu_seconds_per_gbyte: Processor time of all threads in the store's calls, for each 10**9 bytes.
        limit_cpu_seconds_per_gbyte: The same in the limit's; both hold still where a busy machine shakes the rates.
        verified: Whether every byte read back was that of its key.
    """

    link: str
    threads: int
    block_nbytes: int
    batch: int
    codec: str
    pages: str
    limit: str
    gbytes_per_second: float
    limit_gbytes_per_second: float
    share: float
    share_p10: float
    share_p90: float
    pairs: int
    p50_ms: float
    p99_ms: float
    p999_ms: float
    cpu_seconds_per_gbyte: float
    limit_cpu_seconds_per_gbyte: float
    verified: bool

    @classmethod
    def of(cls, taken: Measurement, *, batch: int, codec: str) -> Row:
        """The figures of one measured link."""
        probe = taken.probe
        share_p10, share_p90 = taken.share_spread()
        return cls(
            link=probe.link,
            threads=probe.threads,
            block_nbytes=probe.call_nbytes // batch,
            batch=batch,
            codec=codec,
            pages=probe.pages,
            limit=probe.limit_name,
            gbytes_per_second=taken.gbytes_per_second,
            limit_gbytes_per_second=taken.limit_gbytes_per_second,
            share=taken.gbytes_per_second / taken.limit_gbytes_per_second,
            share_p10=share_p10,
            share_p90=share_p90,
            pairs=taken.num_pairs,
            p50_ms=taken.product_ms(50),
            p99_ms=taken.product_ms(99),
            p999_ms=taken.product_ms(99.9),
            cpu_seconds_per_gbyte=taken.product_cpu_seconds / taken.num_gbytes,
            limit_cpu_seconds_per_gbyte=taken.limit_cpu_seconds / taken.num_gbytes,
            verified=taken.num_wrong == 0,
        )


@dataclass(frozen=True, slots=True)
class Report:
    """Every figure of one run.

    Attributes:
        machine: What it ran on; see `tierstore.benchmark.machine`.
        rows: One a link.
        failures: What could not be measured and why, one line each; empty in a full run.
        loads: What a service did under load; none where none was asked for.
    """

    machine: dict[str, object]
    rows: list[Row]
    failures: list[str]
    loads: list[Load] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        """Whether every link was measured and every byte verified."""
        wrong = sum(load.wrong + load.errors for load in self.loads)
        return not self.failures and not wrong and all(row.verified for row in self.rows)

    def as_json(self) -> str:
        """One JSON object on one line; `version` grows when a field changes its meaning."""
        figures: dict[str, object] = {"rows": [asdict(row) for row in self.rows]}
        if self.loads:
            figures["loads"] = [asdict(load) for load in self.loads]
        return json.dumps({"version": _VERSION, "machine": self.machine, **figures, "failures": self.failures})


def as_table(report: Report) -> Table:
    """The rows with a bar each: how much of the machine's limit the store reaches. Fits 80 columns."""
    from rich import box
    from rich.table import Table

    table = Table(title=_title(report), title_justify="left", box=box.SIMPLE)
    table.caption, table.caption_justify = _caption(report), "left"
    for title in ("link", "GB/s", "limit", "share", "", "p50 ms", "p99 ms", "CPU s/GB"):
        left = title in ("link", "")
        table.add_column(
            title,
            justify="left" if left else "right",
            no_wrap=title != "link",
            overflow="fold",
            max_width=12 if left else None,
        )
    for row in report.rows:
        table.add_row(
            row.link,
            f"{row.gbytes_per_second:.2f}",
            f"{row.limit_gbytes_per_second:.2f}",
            f"{row.share:.0%}",
            "█" * round(min(1.0, row.share) * _BAR_CELLS) if row.verified else "[red]WRONG BYTES[/red]",
            f"{row.p50_ms:.2f}",
            f"{row.p99_ms:.2f}",
            f"{row.cpu_seconds_per_gbyte:.2f}",
        )
    return table


def as_load_table(report: Report) -> Table:
    """What a service did under load. Fits 80 columns."""
    from rich import box
    from rich.table import Table

    first = report.loads[0]
    title = f"under load: {first.clients} clients, {first.get_share:.0%} gets"
    table = Table(title=title, title_justify="left", box=box.SIMPLE)
    for name in ("way", "calls", "GB/s", "hits", "refused", "errors", "p50 ms", "p99 ms", "p99.9 ms"):
        table.add_column(name, justify="left" if name == "way" else "right")
    for load in report.loads:
        table.add_row(
            load.way,
            str(load.calls),
            f"{load.gbytes_per_second:.2f}",
            f"{load.hit_share:.0%}",
            str(load.refused_blocks),
            str(load.errors) if not load.wrong else f"[red]{load.wrong} WRONG[/red]",
            f"{load.p50_ms:.2f}",
            f"{load.p99_ms:.2f}",
            f"{load.p999_ms:.2f}",
        )
    return table


def _title(report: Report) -> str:
    if not report.rows:
        return "nothing was measured"
    row = report.rows[0 if report.loads else -1]
    text = f"{report.machine.get('cpu')}: {row.batch} blocks of {format_size(row.block_nbytes)} a call"
    if row.link.startswith("ssd"):
        text += f"; SSD: {'direct' if 'direct' in row.pages else 'buffered'}, {row.threads} threads, {row.codec}"
    return text


def _caption(report: Report) -> str:
    text = "GB = 10^9 bytes; limit = what the machine itself does, by turns in this run; medians"
    machine = report.machine
    load, num_cpus = machine.get("load_average", 0.0), machine.get("num_cpus", 1)
    if isinstance(load, float) and isinstance(num_cpus, int) and load > num_cpus / 2:
        text += f"\nthe machine was busy at the start (load {load} on {num_cpus} cores), which lowers the shares"
    uncached_nbytes = machine.get("uncached_copy_nbytes")
    longest = max([row.block_nbytes for row in report.rows], default=0)
    if isinstance(uncached_nbytes, int) and _LONG_NBYTES <= longest < uncached_nbytes:
        text += "\nblocks are copied through the processor's caches, though past them were faster: see tierstore doctor"
    return text


def save_plot(report: Report, path: Path) -> None:
    """Draw store and limit of every link as bars. The file's suffix chooses the format. Blocks."""
    from matplotlib.figure import Figure

    links = [row.link for row in report.rows]
    figure = Figure(figsize=(8, 1.5 + 0.6 * len(links)), layout="constrained")
    axes = figure.subplots()
    positions = range(len(links))
    limits = [row.limit_gbytes_per_second for row in report.rows]
    bars = axes.barh(positions, [row.gbytes_per_second for row in report.rows], height=0.5, color="#2a6f97")
    axes.bar_label(bars, [f" {row.share:.0%}" for row in report.rows])
    axes.scatter(limits, positions, marker="|", s=500, color="#d1495b", label="the machine's limit")
    axes.set(xlabel="GB/s (median)", title=f"tierstore on {report.machine.get('cpu', 'this machine')}")
    axes.set_yticks(positions, links)
    axes.invert_yaxis()
    axes.margins(x=0.1)
    axes.legend(loc="lower right")
    figure.savefig(path)
