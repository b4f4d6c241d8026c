"""tierstore beside LMCache 0.5.6 on this machine: one run, the two taking turns step by step.

Run as ``python -m bench.versus_lmcache --scratch FOLDER`` from the repository's root. It makes an
environment for LMCache below FOLDER (once; minutes), works in files below FOLDER, and writes
``bench/results/versus_lmcache-<date>.json`` and ``.md``. No GPU: LMCache's host and disk backends are
driven directly, and its copies are torch's, in one thread.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shutil
import statistics
import subprocess
import sys
import venv
from collections.abc import Iterable
from pathlib import Path
from typing import TypedDict

from bench.peers.turns import Asked
from tierstore.benchmark.machine import describe_machine
from tierstore.settings import format_size

ROOT = Path(__file__).resolve().parent.parent
STEPS = ("host.put", "host.get", "disk.write", "disk.write_synced", "disk.read")
OBJECTS = ((256 << 10, 512), (2 << 20, 128), (32 << 20, 16))
"""Bytes of an object and how many of them one step moves."""

PEER_PACKAGES = (
    ["torch==2.13.0"],
    ["-r", str(ROOT / "bench/peers/lmcache/requirements.txt")],
    ["--no-deps", "lmcache==0.5.6"],
)


class Row(TypedDict):
    """One step at one size, in the words of the JSON. By side, or of our rate to the faster of the peer's two ways."""

    step: str
    object_nbytes: int
    count: int
    gbytes_per_second: dict[str, float]
    spread: dict[str, tuple[float, float]]
    best_of_peer: str
    ratio: float
    ratio_spread: tuple[float, float]


def main() -> None:
    """Parse, measure, write the results and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scratch", type=Path, required=True, help="folder on the SSD to be judged")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    scratch: Path = options.scratch
    scratch.mkdir(parents=True, exist_ok=True)
    python = make_peer(scratch / "lmcache-venv")
    machine = describe_machine(scratch)
    rows = [
        row
        for object_nbytes, count in OBJECTS
        for row in compare(python, scratch, object_nbytes=object_nbytes, count=count, rounds=options.rounds)
    ]
    command = f"python -m bench.versus_lmcache --scratch FOLDER --rounds {options.rounds}"
    result = {"version": 1, "command": command, "peer": "lmcache 0.5.6", "machine": machine, "rows": rows}
    stem = ROOT / f"bench/results/versus_lmcache-{datetime.datetime.now(datetime.UTC).date()}"
    stem.with_suffix(".json").write_text(json.dumps(result, indent=1) + "\n", "utf-8")
    text = as_markdown(command, machine, rows)
    stem.with_suffix(".md").write_text(text, "utf-8")
    print(text)


def make_peer(folder: Path) -> Path:
    """LMCache's own environment, made once; returns its interpreter."""
    python = folder / "bin/python"
    done = folder / "complete"
    if not done.exists():
        venv.create(folder, with_pip=True, clear=True)
        for packages in PEER_PACKAGES:
            subprocess.run([python, "-m", "pip", "install", "--quiet", *packages], check=True)
        done.touch()
    return python


def compare(peer_python: Path, scratch: Path, *, object_nbytes: int, count: int, rounds: int) -> Iterable[Row]:
    """One row a step: both sides' rates over the rounds and the ratio of each round."""
    sizes = ["--object-nbytes", str(object_nbytes), "--count", str(count)]
    peer = [str(peer_python), "-m", "bench.peers.lmcache.worker", *sizes]
    ours = [sys.executable, "-m", "bench.peers.tierstore_worker", *sizes, "--rounds", str(rounds)]
    commands = {"tierstore": ours, "lmcache": peer, "lmcache O_DIRECT": [*peer, "--direct"]}
    seconds: dict[str, dict[str, list[float]]] = {step: {name: [] for name in commands} for step in STEPS}
    workers: dict[str, Asked] = {}
    try:
        for name, command in commands.items():
            folder = scratch / name.replace(" ", "-")
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            full = [*command, "--folder", str(folder)]
            workers[name] = Asked(full, env=os.environ, log=str(scratch / f"{folder.name}.log"))
        for turn in range(rounds + 1):
            names = list(workers) if turn % 2 else list(reversed(workers))
            for step in STEPS:
                for name in names:
                    taken = workers[name].ask(step)
                    if turn:  # the first round warms up
                        seconds[step][name].append(taken)
    finally:
        for worker in workers.values():
            worker.close()
    for step in STEPS:
        yield as_row(step, seconds[step], object_nbytes=object_nbytes, count=count)


def as_row(step: str, seconds: dict[str, list[float]], *, object_nbytes: int, count: int) -> Row:
    """Medians, spread, and the ratio to the faster of the peer's two ways."""
    gbytes = object_nbytes * count / 1e9
    rates = {name: [gbytes / taken for taken in every] for name, every in seconds.items()}
    best = max((name for name in rates if name != "tierstore"), key=lambda name: statistics.median(rates[name]))
    ratios = [ours / theirs for ours, theirs in zip(rates["tierstore"], rates[best], strict=True)]
    return {
        "step": step,
        "object_nbytes": object_nbytes,
        "count": count,
        "gbytes_per_second": {name: statistics.median(every) for name, every in rates.items()},
        "spread": {name: (min(every), max(every)) for name, every in rates.items()},
        "best_of_peer": best,
        "ratio": statistics.median(ratios),
        "ratio_spread": (min(ratios), max(ratios)),
    }


def as_markdown(command: str, machine: dict[str, object], rows: list[Row]) -> str:
    """The page that goes with the JSON."""
    lines = [
        "# tierstore beside LMCache 0.5.6",
        "",
        f"`{command}`",
        "",
        f"{machine['cpu']}, {machine['num_cpus']} cores, {machine['file_system']}, Linux {machine['kernel']}, "
        f"Python {machine['python']}, torch {machine['torch']}, {machine['date']}, "
        f"load average {machine['load_average']} before the start.",
        "",
        "GB/s (10^9 bytes), medians of interleaved rounds; [least … most]. The ratio is to the faster of LMCache's two "
        "ways (buffered, O_DIRECT), round by round. tierstore's disk figures are durable (fdatasync) throughout and "
        "checksummed; LMCache's `disk.write` ends in the page cache, and `disk.write_synced` adds a fsync a file.",
        "",
        "| object | step | tierstore | LMCache | LMCache O_DIRECT | ratio |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        rates, spread = row["gbytes_per_second"], row["spread"]
        cells = [f"{rates[name]:.2f} [{spread[name][0]:.2f} … {spread[name][1]:.2f}]" for name in rates]
        ratio, (least, most) = row["ratio"], row["ratio_spread"]
        nbytes = format_size(row["object_nbytes"])
        lines.append(f"| {nbytes} | {row['step']} | {' | '.join(cells)} | {ratio:.2f}x [{least:.2f} … {most:.2f}] |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
