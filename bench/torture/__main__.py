"""Torture: `python -m bench.torture --lives 300 --seed 1 [--kind K] [--life N] [--minutes M] [--folder F] [--json -]`.

Lives of a store end by kill -9 or power loss at any disk call, its files are damaged, and every next life must find
what was acknowledged as durable, nothing that was deleted, no wrong byte, and a ledger that equals the disk. Says how
to live a life again that did not. Ended early, by Ctrl-C or SIGTERM, it tells of the lives so far. Exit code 1 unless
every figure that must be 0 is.
"""

from __future__ import annotations

import json
import shlex
import signal
import sys
import time
from collections import Counter
from contextlib import nullcontext, suppress
from itertools import cycle
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from bench.torture.knowledge import Fault
from bench.torture.lives import Finding, Verdict, torture
from bench.torture.plans import KINDS, LIVES_PER_WORLD

if TYPE_CHECKING:
    from collections.abc import Sequence

_FINDINGS_MAX = 20
"""Findings of one world that are shown."""


def schedule(lives: int, kinds: Sequence[str]) -> list[tuple[str, range]]:
    """Share a number of lives among kinds, world by world: a world of processes behind one of each simulated kind."""
    simulated = [kind for kind in kinds if not KINDS[kind].real]
    real = [kind for kind in kinds if KINDS[kind].real]
    order = [kind for last in real for kind in (*simulated, last)] or simulated
    worlds: Counter[str] = Counter()
    found = []
    for first, kind in zip(range(0, lives, LIVES_PER_WORLD), cycle(order), strict=False):
        start = worlds[kind] * LIVES_PER_WORLD
        found.append((kind, range(start, start + min(LIVES_PER_WORLD, lives - first))))
        worlds[kind] += 1
    return found


def as_table(verdict: Verdict, seconds: float) -> Table:
    """What was done and what came of it."""
    table = Table("", "", title=f"torture: {sum(verdict.lives.values())} lives in {seconds:.0f} s", show_header=False)
    table.columns[1].justify = "right"
    for kind, lives in sorted(verdict.lives.items()):
        table.add_row(f"lives: {KINDS[kind].about}", f"{lives:,}")
    table.add_section()
    for name in sorted(verdict.counts):
        table.add_row(name.replace("_", " "), f"{verdict.counts[name]:,}")
    table.add_section()
    for fault in Fault:
        number = verdict.num(fault)
        table.add_row(fault.replace("_", " "), f"[{'red' if number else 'green'}]{number}[/]")
    return table


def as_json(verdict: Verdict, seed: int, seconds: float) -> dict[str, object]:
    """The same as one object."""
    counts = dict(sorted(verdict.counts.items()))
    return {
        "lives": sum(verdict.lives.values()),
        "durable_acknowledged": counts.pop("durable_acknowledged", 0),
        **{fault.value: verdict.num(fault) for fault in Fault},
        "command": f"python -m bench.torture {shlex.join(sys.argv[1:])}",
        "seed": seed,
        "seconds": round(seconds, 1),
        "lives_by_kind": dict(verdict.lives),
        "counts": counts,
    }


def show_findings(findings: Sequence[Finding], seed: int, console: Console) -> None:
    """What went wrong, and how to live that life again."""
    for finding in findings[:_FINDINGS_MAX]:
        console.print(f"[red]{finding.fault}[/] in life {finding.life} of {finding.kind}; again:", highlight=False)
        console.print(f"  python -m bench.torture --seed {seed} --kind {finding.kind} --life {finding.life}")
        console.print(f"  {finding.text}", markup=False, highlight=False)
    if len(findings) > _FINDINGS_MAX:
        console.print(f"and {len(findings) - _FINDINGS_MAX} more")


@click.command(help=__doc__)
@click.option("--lives", "num_lives", default=300, show_default=True, help="How many lives, shared among the kinds.")
@click.option("--seed", default=1, show_default=True, help="Of everything that is drawn.")
@click.option("--kind", "kinds", multiple=True, type=click.Choice(list(KINDS)), help="Of these kinds alone.")
@click.option("--life", "only", type=int, help="This life of each kind alone, behind those of its world before it.")
@click.option("--minutes", default=inf, help="Begin no life after so long.")
@click.option("--folder", type=click.Path(path_type=Path, exists=True, file_okay=False), help="Where folders are made.")
@click.option("--json", "json_path", help='Write the result as JSON, to a file or to "-" for standard output.')
def main(
    *,
    num_lives: int,
    seed: int,
    kinds: tuple[str, ...],
    only: int | None,
    minutes: float,
    folder: Path | None,
    json_path: str | None,
) -> None:
    """Run the lives and tell what came of them."""
    console = Console(stderr=True)
    names = kinds or tuple(KINDS)
    worlds = schedule(num_lives, names) if only is None else [(kind, range(only, only + 1)) for kind in names]
    verdict, begun, num_shown = Verdict(), time.perf_counter(), 0
    bar = Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
        console=console, auto_refresh=False,  # lives fork: no thread but this one
    )  # fmt: skip
    console.print(f"seed {seed}")
    with suppress(KeyboardInterrupt), bar if console.is_terminal else nullcontext():
        task = bar.add_task("", total=sum(len(lives) for _, lives in worlds))
        for kind, lives in worlds:
            if time.perf_counter() - begun > 60 * minutes:
                break
            for _ in torture(kind, lives, seed=seed, verdict=verdict, folder=folder):
                bar.update(task, advance=1, description=kind, refresh=console.is_terminal)
            show_findings(verdict.findings[num_shown:], seed, console)
            num_shown = len(verdict.findings)
    seconds = time.perf_counter() - begun
    show_findings(verdict.findings[num_shown:], seed, console)
    console.print(as_table(verdict, seconds))
    if json_path == "-":
        print(json.dumps(as_json(verdict, seed, seconds)))
    elif json_path is not None:
        Path(json_path).write_text(json.dumps(as_json(verdict, seed, seconds), indent=1) + "\n", "utf-8")
    sys.exit(bool(verdict.findings))


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    main()
