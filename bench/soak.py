"""Whether a store grows: `python -m bench.soak --minutes 30 [--folder F] [--json -]`.

One process asks for half as much again as its store holds: puts, gets, misses, deletes, clears, prefetches,
deadlines, cancels, flushes, and opens the store anew now and then. Every few seconds it lets what is under way end
and looks at its memory, descriptors, threads and objects. Ends with a table and exits 1 unless all are flat: the
line through the values behind the warm-up may rise by no more than the bound from its one end to the other.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from random import Random

import click

from bench.growth import Series, series_of, table
from bench.soak_load import HOST_NBYTES, Counts, Load
from tierstore.benchmark.machine import describe_machine

__all__ = ["BOUNDS", "main"]

_LIBC = ctypes.CDLL(None)
_LIFE_SECONDS = 20.0

BOUNDS = {
    "heap_mib": 12.0,
    "spare_pool_mib": 0.0,
    "descriptors": 10.0,
    "threads": 2.0,
    "objects": 8000.0,
    "index_entries": 2000.0,
    "pinned_blocks": 0.0,
    "open_requests": 0.0,
    "mind_objects": 130.0,
}
"""How much each may grow, in its own unit: what an allocator and a random load do to values that do not grow.

The index holds what the tiers hold, some 1800 blocks: a clear empties it, and it fills again. The mind forgets
deadlines of requests that have ended by the hundred.
"""


def _look(load: Load) -> dict[str, float]:
    """Measure, with nothing under way."""
    load.drain()
    load.store.flush().result()
    with load.store.engine.planning() as planner:
        mind = {
            "index_entries": planner.directory.num_entries,
            "pinned_blocks": int(planner.directory.host.pins.astype(bool).sum()) if not planner.num_jobs else 0,
            "open_requests": planner.num_requests,
            "mind_objects": len(planner._lives) + len(planner._requests._deadlines) + len(planner._prefetches._queue),
        }
    gc.collect()
    _LIBC.malloc_trim(0)  # what the allocator keeps in reserve is not the store's, and comes and goes by tens of MiB
    return {**_look_at_process(), "objects": len(gc.get_objects()), **mind}


def _look_at_process() -> dict[str, float]:
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text("ascii").splitlines())
    pool_nbytes = descriptors = 0
    for name in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            if "memfd:tierstore" in os.readlink(f"/proc/self/fd/{name}"):
                pool_nbytes += os.stat(f"/proc/self/fd/{name}").st_blocks * 512
            descriptors += 1
    return {
        "heap_mib": int(status["RssAnon"].split()[0]) / 1024,
        "spare_pool_mib": max(0, pool_nbytes - HOST_NBYTES) / (1 << 20),
        "descriptors": descriptors,
        "threads": threading.active_count(),
    }


def soak(folder: Path, seconds: float, seed: int, say: Callable[[str], None]) -> tuple[list[Series], Counts]:
    """Ask for so long, and look some hundred times or every second."""
    load = Load(folder, Random(seed))
    load.open()
    load.fill()
    begun = time.monotonic()
    times: list[float] = []
    looks: list[dict[str, float]] = []
    next_look = next_life = begun
    while (now := time.monotonic()) - begun < seconds:
        load.step()
        if now >= next_life + _LIFE_SECONDS:
            load.reopen()
            next_life = now
        if now >= next_look:
            looks.append(_look(load))
            times.append(now - begun)
            next_look = now + max(1.0, seconds / 360)
            say(f"{now - begun:6.0f} s  " + "  ".join(f"{name} {value:.0f}" for name, value in looks[-1].items()))
    load.drain()
    load.store.check()
    load.store.close()
    return series_of(times, looks, BOUNDS), load.counts


@click.command()
@click.option("--minutes", default=30.0, show_default=True)
@click.option("--folder", type=click.Path(path_type=Path, exists=True), help="Where to make the store's folder.")
@click.option("--seed", default=1, show_default=True)
@click.option("--json", "json_path", help='File for the result; "-" is stdout.')
def main(*, minutes: float, folder: Path | None, seed: int, json_path: str | None) -> None:
    """Use a store for some time and say whether anything of it grows."""
    with tempfile.TemporaryDirectory(prefix="tierstore-soak-", dir=folder) as name:
        series, counts = soak(Path(name), 60 * minutes, seed, lambda line: click.echo(line, err=True))
        machine = describe_machine(Path(name))
    flat = all(each.is_flat for each in series) and not counts.wrong_blocks
    result = {
        "minutes": minutes, "seed": seed, "flat": flat, "rows": [each.row for each in series],
        "counts": asdict(counts), "machine": machine,
    }  # fmt: skip
    if json_path == "-":
        click.echo(json.dumps(result))
    else:
        click.echo(table(series, asdict(counts)))
    if json_path not in (None, "-"):
        Path(str(json_path)).write_text(json.dumps(result, indent=1) + "\n", "utf-8")
    sys.exit(0 if flat else 1)


if __name__ == "__main__":
    main()
