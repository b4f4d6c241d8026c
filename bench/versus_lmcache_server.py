"""tierstore's service beside LMCache 0.5.6's multiprocess server with shared memory: one run, by turns step by step.

Run as ``python -m bench.versus_lmcache_server --scratch FOLDER`` from the repository's root. It makes an environment
for LMCache below FOLDER (once; minutes) unless ``--peer-python`` names an interpreter that has it, keeps logs and
sockets there, and writes ``bench/results/versus_lmcache_server-<date>.json`` and ``.md``. No GPU: both sides' caches
lie in ordinary memory.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import statistics
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TypedDict

from bench.peers.turns import Asked
from bench.versus_lmcache import ROOT, make_peer
from tierstore.benchmark.machine import describe_machine
from tierstore.settings import format_size

STEPS = ("put", "get", "lookup", "ping")
OBJECTS = ((256 << 10, 64, 1024), (2 << 20, 64, 128))
"""Bytes of an object, its tokens, and how many of them one step moves: 256 MiB."""


class ServedRow(TypedDict):
    """One step at one size, in the words of the JSON. By side, or of the faster peer's time to ours."""

    step: str
    object_nbytes: int
    count: int
    milliseconds: dict[str, float]
    spread: dict[str, tuple[float, float]]
    best_of_peer: str
    ratio: float
    ratio_spread: tuple[float, float]


def main() -> None:
    """Parse, measure, write the results and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scratch", type=Path, required=True, help="folder for logs, sockets and LMCache")
    parser.add_argument("--peer-python", type=Path, help="an interpreter that has LMCache 0.5.6")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    scratch: Path = options.scratch
    scratch.mkdir(parents=True, exist_ok=True)
    python = options.peer_python or make_peer(scratch / "lmcache-venv")
    machine = describe_machine(scratch)
    rows = [
        row
        for object_nbytes, chunk_tokens, count in OBJECTS
        for row in compare(
            python,
            scratch,
            object_nbytes=object_nbytes,
            chunk_tokens=chunk_tokens,
            count=count,
            rounds=options.rounds,
        )
    ]
    command = f"python -m bench.versus_lmcache_server --scratch FOLDER --rounds {options.rounds}"
    result = {"version": 1, "command": command, "peer": "lmcache 0.5.6", "machine": machine, "rows": rows}
    stem = ROOT / f"bench/results/versus_lmcache_server-{datetime.datetime.now(datetime.UTC).date()}"
    stem.with_suffix(".json").write_text(json.dumps(result, indent=1) + "\n", "utf-8")
    text = as_markdown(command, machine, rows)
    stem.with_suffix(".md").write_text(text, "utf-8")
    print(text)


def compare(
    peer_python: Path, scratch: Path, *, object_nbytes: int, chunk_tokens: int, count: int, rounds: int
) -> Iterable[ServedRow]:
    """One row a step: both sides' times over the rounds and the ratio of each round."""
    sizes = ["--object-nbytes", str(object_nbytes), "--chunk-tokens", str(chunk_tokens), "--count", str(count)]
    peer = [str(peer_python), "-m", "bench.peers.lmcache.server_worker", *sizes]
    ours = [sys.executable, "-m", "bench.peers.tierstore_service_worker", *sizes]
    commands = {"tierstore": ours, "lmcache paged": peer, "lmcache rows": [*peer, "--rows"]}
    seconds: dict[str, dict[str, list[float]]] = {step: {name: [] for name in commands} for step in STEPS}
    workers: dict[str, Asked] = {}
    try:
        for name, command in commands.items():
            folder = scratch / name.replace(" ", "-")
            folder.mkdir(exist_ok=True)
            log = str(scratch / f"{folder.name}.log")
            workers[name] = Asked([*command, "--folder", str(folder)], env=os.environ, log=log)
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


def as_row(step: str, seconds: dict[str, list[float]], *, object_nbytes: int, count: int) -> ServedRow:
    """Medians, spread, and the ratio to the faster of the peer's two ways."""
    best = min((name for name in seconds if name != "tierstore"), key=lambda name: statistics.median(seconds[name]))
    ratios = [theirs / ours for ours, theirs in zip(seconds["tierstore"], seconds[best], strict=True)]
    return {
        "step": step,
        "object_nbytes": object_nbytes,
        "count": count,
        "milliseconds": {name: 1e3 * statistics.median(every) for name, every in seconds.items()},
        "spread": {name: (1e3 * min(every), 1e3 * max(every)) for name, every in seconds.items()},
        "best_of_peer": best,
        "ratio": statistics.median(ratios),
        "ratio_spread": (min(ratios), max(ratios)),
    }


def as_markdown(command: str, machine: dict[str, object], rows: list[ServedRow]) -> str:
    """The page that goes with the JSON."""
    lines = [
        "# tierstore's service beside LMCache 0.5.6's server with shared memory",
        "",
        f"`{command}`",
        "",
        f"{machine['cpu']}, {machine['num_cpus']} cores, Linux {machine['kernel']}, Python {machine['python']}, "
        f"torch {machine['torch']}, {machine['date']}, load average {machine['load_average']} before the start.",
        "",
        "Milliseconds, medians of interleaved rounds after one that warms up; [least … most]. The ratio is the "
        "time of the faster of LMCache's two ways to ours, round by round: above 1 we are ahead. LMCache "
        "(engine-driven transfer over shared memory, calls by ZMQ on loopback, one chunk of 64 tokens an object) "
        "gathers from a paged KV cache of 16 tokens a block by its own means (paged), or copies rows that lie as "
        "its chunks do between its prepare and commit calls (rows); torch copies in as many threads as it likes, "
        "and takes no checksum. tierstore copies such rows in place, takes their CRC32C when it puts, and hashes "
        "the token ids in every step but the ping; LMCache sends them to its server, which hashes them.",
        "",
        "LMCache's get follows a look-up that is not in its time. Its look-up pins what it finds, ours does not. "
        "Its ping is a call without work, ours a look-up of one block.",
        "",
        "| object | step | tierstore | LMCache paged | LMCache rows | ratio |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        times, spread = row["milliseconds"], row["spread"]
        cells = [f"{times[name]:.4g} [{spread[name][0]:.4g} … {spread[name][1]:.4g}]" for name in times]
        ratio, (least, most) = row["ratio"], row["ratio_spread"]
        nbytes = f"{row['count']} × {format_size(row['object_nbytes'])}"
        lines.append(f"| {nbytes} | {row['step']} | {' | '.join(cells)} | {ratio:.2f}x [{least:.2f} … {most:.2f}] |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
