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
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random

import click
import numpy as np

from tierstore.benchmark.machine import describe_machine
from tierstore.keys import Namespace, chain_hashes
from tierstore.layout import KVLayout
from tierstore.store import NamespaceHandle, Store, Transfer

__all__ = ["BOUNDS", "Series", "main"]

_LIBC = ctypes.CDLL(None)
_BLOCK_NBYTES = 16 << 10
_SSD_NBYTES, _HOST_NBYTES = 48 << 20, 16 << 20
_CHAIN_BLOCKS = 24
_DEMAND_CHAINS = 3 * _SSD_NBYTES // (2 * _BLOCK_NBYTES * _CHAIN_BLOCKS)
_SPACES = [Namespace(f"soak {number}", KVLayout.opaque(block_nbytes=_BLOCK_NBYTES)) for number in range(2)]
_LIFE_SECONDS = 20.0
_UNDER_WAY_MAX = 64
_WARM_UP = 0.25
_ROUNDING = 1e-6

BOUNDS = {
    "heap_mib": 12.0,
    "spare_pool_mib": 0.0,
    "descriptors": 10.0,
    "threads": 2.0,
    "objects": 8000.0,
    "index_entries": 400.0,
    "pinned_blocks": 0.0,
    "open_requests": 0.0,
    "mind_objects": 16.0,
}
"""How much each may grow, in its own unit: what an allocator and a random load do to values that do not grow."""


@dataclass(frozen=True, slots=True)
class Series:
    """What was measured, one value a look.

    Attributes:
        name: A key of `BOUNDS`.
        seconds: When, since the start.
        values: As many.
    """

    name: str
    seconds: Sequence[float]
    values: Sequence[float]

    @property
    def growth(self) -> float:
        """How far the line through the values behind the warm-up rises."""
        first = min(int(len(self.values) * _WARM_UP), len(self.values) - 2)
        seconds, values = np.array(self.seconds[first:]), np.array(self.values[first:])
        return float(np.polyfit(seconds, values, 1)[0] * (seconds[-1] - seconds[0]))

    @property
    def is_flat(self) -> bool:
        """Whether it grows by no more than its bound."""
        return self.growth <= BOUNDS[self.name] + _ROUNDING

    @property
    def row(self) -> dict[str, object]:
        """For the table and the JSON."""
        values = self.values
        numbers = {"start": values[0], "end": values[-1], "max": max(values), "growth": self.growth}
        return {"name": self.name, **{name: round(number, 2) for name, number in numbers.items()}} | {
            "bound": BOUNDS[self.name], "flat": self.is_flat
        }  # fmt: skip


@dataclass(slots=True)
class Counts:
    """What was asked for."""

    puts: int = 0
    gets: int = 0
    absent_keys: int = 0
    cancels: int = 0
    deadlines: int = 0
    prefetches: int = 0
    deletes: int = 0
    clears: int = 0
    handles: int = 0
    reopenings: int = 0
    wrong_blocks: int = 0


@dataclass
class Load:
    """The random caller of one store after another."""

    folder: Path
    random: Random
    counts: Counts = field(default_factory=Counts)
    under_way: list[Transfer] = field(default_factory=list)

    def open(self) -> None:
        """Open the store."""
        self.store = Store(
            host_size=_HOST_NBYTES, ssd_dir=self.folder, ssd_size=_SSD_NBYTES, ssd_file_size="2 MiB",
            ssd_free_floor="64 MiB", prefetch_cold_seconds=0,
        )  # fmt: skip
        self.handles = [self.store.namespace(space) for space in _SPACES]

    def reopen(self) -> None:
        """Close it and open it again."""
        self.drain()
        self.store.close()
        self.open()
        self.counts.reopenings += 1

    def step(self) -> None:
        """One verb, or a few."""
        verbs: list[tuple[Callable[[], None], int]] = [
            (self.put, 30), (self.get, 30), (self.ask_for_absent_keys, 10), (self.cancel, 12),
            (self.meet_a_deadline, 8), (self.prefetch, 8), (self.delete, 4), (self.take_a_handle, 4), (self.clear, 1),
        ]  # fmt: skip
        verb = self.random.choices([verb for verb, _ in verbs], [weight for _, weight in verbs])[0]
        verb()
        if len(self.under_way) > _UNDER_WAY_MAX:
            self.drain()

    def drain(self) -> None:
        """Let everything under way end."""
        for transfer in self.under_way:
            transfer.result()
        self.under_way.clear()

    def put(self) -> None:
        """Put the leading part of a chain, now and then durably."""
        chain, handle = self.chain(), self.handle()
        blocks = np.repeat(chain[:, :1], _BLOCK_NBYTES, axis=1)
        self.under_way.append(handle.put(chain, blocks, durable=self.random.random() < 0.1))
        self.counts.puts += 1

    def get(self) -> None:
        """Get a chain and compare what came with what was put."""
        chain, handle = self.chain(), self.handle()
        buffer = np.empty((len(chain), _BLOCK_NBYTES), np.uint8)
        leading = handle.get(chain, buffer).result().leading
        self.counts.wrong_blocks += int((buffer[:leading] != chain[:leading, :1]).any(axis=1).sum())
        self.counts.gets += 1

    def ask_for_absent_keys(self) -> None:
        """Get and look up what nobody put."""
        keys = np.frombuffer(self.random.randbytes(32 * 100), np.uint8).reshape(100, 32)
        buffer = np.empty((1, _BLOCK_NBYTES), np.uint8)
        handle = self.handle()
        for key in keys:
            handle.get(key[None], buffer).result()
        handle.presence(keys)
        self.counts.absent_keys += len(keys)

    def cancel(self) -> None:
        """Begin and cancel."""
        chain, handle = self.chain(), self.handle()
        buffer = np.empty((len(chain), _BLOCK_NBYTES), np.uint8)
        transfer = handle.prefetch(chain) if self.random.random() < 0.5 else handle.get(chain, buffer)
        transfer.cancel()
        self.under_way.append(transfer)
        self.counts.cancels += 1

    def meet_a_deadline(self) -> None:
        """Get with a deadline that is near, past or an hour away."""
        chain, seconds = self.chain(), self.random.choice([0.0, 0.001, 3600.0])
        buffer = np.empty((len(chain), _BLOCK_NBYTES), np.uint8)
        self.under_way.append(self.handle().get(chain, buffer, deadline_seconds=seconds))
        self.counts.deadlines += 1

    def prefetch(self) -> None:
        """Prefetch, and do not wait."""
        self.under_way.append(self.handle().prefetch(self.chain(), deadline_seconds=5.0))
        self.counts.prefetches += 1

    def delete(self) -> None:
        """Delete the end of a chain."""
        self.under_way.append(self.handle().delete(self.chain()[-4:]))
        self.counts.deletes += 1

    def clear(self) -> None:
        """Clear a namespace, seldom enough for the folder to fill between."""
        if self.random.random() < 0.1:
            self.handle().clear()
            self.counts.clears += 1

    def take_a_handle(self) -> None:
        """Ask for the handle of a namespace many times."""
        for _ in range(50):
            self.store.namespace(self.random.choice(_SPACES))
        self.counts.handles += 50

    def handle(self) -> NamespaceHandle:
        """One of the namespaces."""
        return self.random.choice(self.handles)

    def chain(self) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
        """uint8[n, 32]: the leading part of a chain of the demand, nearer ones more often."""
        number = int(_DEMAND_CHAINS * self.random.random() ** 1.5)
        hashes = chain_hashes([number] * _CHAIN_BLOCKS, block_tokens=1)
        packed = np.frombuffer(b"".join(hashes), np.uint8).reshape(-1, 32)
        return packed[: self.random.randrange(4, _CHAIN_BLOCKS + 1)]

    def look(self) -> dict[str, float]:
        """Measure, with nothing under way."""
        self.drain()
        self.store.flush().result()
        with self.store.engine.planning() as planner:
            mind = {
                "index_entries": planner.directory.num_entries,
                "pinned_blocks": int(planner.directory.host.pins.astype(bool).sum()) if not planner.num_jobs else 0,
                "open_requests": planner.num_requests,
                "mind_objects": len(planner._lives)
                + len(planner._requests._deadlines)
                + len(planner._prefetches._queue),
            }
        gc.collect()
        _LIBC.malloc_trim(
            0
        )  # what the allocator keeps in reserve is not the store's, and comes and goes by tens of MiB
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
        "spare_pool_mib": max(0, pool_nbytes - _HOST_NBYTES) / (1 << 20),
        "descriptors": descriptors,
        "threads": threading.active_count(),
    }


def soak(folder: Path, seconds: float, seed: int, say: Callable[[str], None]) -> tuple[list[Series], Counts]:
    """Ask for so long, and look some hundred times or every second."""
    load = Load(folder, Random(seed))
    load.open()
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
            looks.append(load.look())
            times.append(now - begun)
            next_look = now + max(1.0, seconds / 360)
            say(f"{now - begun:6.0f} s  " + "  ".join(f"{name} {value:.0f}" for name, value in looks[-1].items()))
    load.drain()
    load.store.check()
    load.store.close()
    return [Series(name, times, [look[name] for look in looks]) for name in BOUNDS], load.counts


def table(series: Sequence[Series], counts: Counts) -> str:
    """The result for people."""
    lines = [f"{'':16}{'start':>10}{'end':>10}{'max':>10}{'growth':>10}{'bound':>8}  flat"]
    for row in (each.row for each in series):
        numbers = "".join(f"{row[name]:>10}" for name in ("start", "end", "max", "growth"))
        lines.append(f"{row['name']:16}{numbers}{row['bound']:>8}  {'yes' if row['flat'] else 'NO'}")
    return "\n".join([*lines, ", ".join(f"{value} {name}" for name, value in asdict(counts).items())])


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
        click.echo(table(series, counts))
    if json_path not in (None, "-"):
        Path(str(json_path)).write_text(json.dumps(result, indent=1) + "\n", "utf-8")
    sys.exit(0 if flat else 1)


if __name__ == "__main__":
    main()
