"""The SSD tier beside the disk itself, zarr-python and one file a block: one run, all of them taking turns.

Run as ``python -m bench.ssd --folder FOLDER`` from the repository's root; FOLDER lies on the SSD to be judged.
Blocks are normal numbers in bfloat16, as KV is. Every round makes every subject anew in an empty folder,
writes, forgets what is in memory, reads back, and compares every byte; only writing and reading are timed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

import numpy as np

from bench.codec import LAYOUTS, as_rates, codec_lines, gaussian, measure_codec, rates_text, ratio_text
from bench.ssd_ours import Link, ThroughStore
from bench.ssd_subjects import FilePerBlock, PlainFile, Subject, Work, ZarrShard
from tierstore.benchmark.machine import describe_machine
from tierstore.settings import format_size

if TYPE_CHECKING:
    from tierstore.types import UInt8Array

SUBJECTS: dict[str, type[Subject]] = {
    "plain file": PlainFile,
    "tier's links": Link,
    "store": ThroughStore,
    "zarr-python": ZarrShard,
    "file a block": FilePerBlock,
}
"""By the name in the table. The first is the machine's own limit; neither it nor the last one encodes."""

NOT_ENCODING = ("plain file", "file a block")


class Row(TypedDict):
    """One subject in one table, in the words of the JSON; the rates are those of `as_rates`."""

    block_nbytes: int
    codec: str
    beside: str
    subject: str
    rounds: int
    ratio: float | None
    write: dict[str, float]
    read: dict[str, float]


def main() -> None:
    """Parse, measure, print the table and write what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="an empty or new folder on the SSD to be judged")
    parser.add_argument("--seconds", type=float, default=40.0, help="about so long for each of the four tables")
    parser.add_argument("--rounds", type=int, default=3, help="at least so many beside the one that warms up")
    parser.add_argument("--nbytes", type=int, default=128 << 20, help="bytes of blocks that a round moves")
    parser.add_argument("--json", default=None, metavar="PATH", help="write every figure there; - for stdout")
    parser.add_argument("--plot", type=Path, default=None, metavar="PNG", help="draw the medians")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    machine = describe_machine(options.folder)
    rows = [
        row
        for layout in LAYOUTS
        for codec in ("raw", "lz4")
        for row in measure(
            options.folder,
            Work(layout, options.nbytes // layout.block_nbytes, codec),
            seconds=options.seconds,
            rounds=options.rounds,
        )
    ]
    codecs = [measure_codec(layout) for layout in LAYOUTS]
    machine["load_average_after"] = round(os.getloadavg()[0], 2)
    command = (
        f"python -m bench.ssd --folder FOLDER --seconds {options.seconds:g} "
        f"--rounds {options.rounds} --nbytes {options.nbytes}"
    )
    result = {"version": 1, "command": command, "machine": machine, "rows": rows, "codecs": codecs}
    if options.json == "-":
        print(json.dumps(result, indent=1))
    else:
        print(as_markdown(command, options.nbytes, machine, rows, codecs))
        if options.json:
            Path(options.json).write_text(json.dumps(result, indent=1) + "\n", "utf-8")
    if options.plot:
        draw(options.plot, rows)


def measure(folder: Path, work: Work, *, seconds: float, rounds: int) -> list[Row]:
    """One row a subject, over as many rounds as fit into the time; the first round warms up."""
    expected = gaussian((work.count, work.layout.block_nbytes), seed=work.count)
    names = [name for name in SUBJECTS if work.codec == "raw" or name not in NOT_ENCODING[1:]]
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    ratios: dict[str, float | None] = {}
    started, turn = time.monotonic(), 0
    while turn <= rounds or time.monotonic() - started < seconds:
        for name in names if turn % 2 else reversed(names):
            taken, ratios[name] = take_turn(name, folder / "round", work, expected)
            if turn:
                times[name].append(taken)
        turn += 1
    gbytes = work.nbytes / 1e9
    return [
        {
            "block_nbytes": work.layout.block_nbytes,
            "codec": "none" if name in NOT_ENCODING else work.codec,
            "beside": work.codec,
            "subject": name,
            "rounds": len(every),
            "ratio": ratios[name],
            "write": as_rates([gbytes / write for write, _ in every]),
            "read": as_rates([gbytes / read for _, read in every]),
        }
        for name, every in times.items()
    ]


def take_turn(name: str, folder: Path, work: Work, expected: UInt8Array) -> tuple[tuple[float, float], float | None]:
    """One round of one subject: seconds of writing and of reading, and the ratio of its encoding."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    subject = SUBJECTS[name](folder, work)
    try:
        subject.rows[:] = expected
        begun = time.perf_counter()
        subject.write()
        write = time.perf_counter() - begun
        subject.cool()
        subject.rows.fill(0xA5)
        begun = time.perf_counter()
        subject.read()
        read = time.perf_counter() - begun
        if not np.array_equal(subject.rows, expected):
            raise RuntimeError(f"{name} gave back other bytes than it took")
        return (write, read), subject.stored_nbytes and work.nbytes / subject.stored_nbytes
    finally:
        subject.close()
        shutil.rmtree(folder)


def as_markdown(
    command: str,
    nbytes: int,
    machine: dict[str, object],
    rows: Sequence[Row],
    codecs: Sequence[dict[str, object]],
) -> str:
    """The page of tables."""
    lines = [
        "# The SSD tier beside the disk, zarr-python and one file a block",
        "",
        f"`{command}`",
        "",
        f"{machine['cpu']}, {machine['num_cpus']} cores, {machine['file_system']}, Linux {machine['kernel']}, "
        f"Python {machine['python']}, {machine['date']}, "
        f"load average {machine['load_average']} before the start and {machine['load_average_after']} at the end.",
        "",
        f"GB/s of raw blocks (10^9 bytes), medians of interleaved rounds of {format_size(nbytes)}, "
        "[least … most]. Blocks are normal numbers in bfloat16. Writes are durable, reads are cold, every byte was "
        "compared. The plain file is what the disk can do: no checksum, no encoding. The store's figures contain the "
        "copies from and to the caller's buffer.",
        "",
        "| block | codec | subject | write | read | ratio | rounds |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {format_size(row['block_nbytes'])} | {row['codec']} | {row['subject']} "
        f"| {rates_text(row['write'])} | {rates_text(row['read'])} | {ratio_text(row['ratio'])} | {row['rounds']} |"
        for row in rows
    ]
    lines += ["", *codec_lines(codecs)]
    return "\n".join(lines) + "\n"


def draw(path: Path, rows: Sequence[Row]) -> None:
    """Bars of the medians, one panel a block size and codec."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    panels = list(dict.fromkeys((row["block_nbytes"], row["beside"]) for row in rows))
    figure, axes = pyplot.subplots(1, len(panels), figsize=(4 * len(panels), 3.5), layout="constrained", sharey=True)
    for axis, (block_nbytes, codec) in zip(axes, panels, strict=True):
        own = [row for row in rows if (row["block_nbytes"], row["beside"]) == (block_nbytes, codec)]
        medians_by_verb = {
            "write": [row["write"]["median"] for row in own],
            "read": [row["read"]["median"] for row in own],
        }
        for offset, (verb, medians) in enumerate(medians_by_verb.items()):
            axis.bar(np.arange(len(own)) + 0.4 * offset, medians, width=0.38, label=verb)
        axis.set_xticks(np.arange(len(own)) + 0.2, [row["subject"] for row in own], rotation=40, ha="right")
        axis.set_title(f"{format_size(block_nbytes)}, {codec}")
    axes[0].set_ylabel("GB/s of raw blocks")
    axes[0].legend()
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main()
