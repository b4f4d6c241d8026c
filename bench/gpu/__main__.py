"""``python -m bench.gpu``: the three judgements, one JSON file and one table. Exits 1 where anything was wrong."""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from bench.gpu.bandwidth import Cell, as_table, measure_matrix
from bench.gpu.correctness import check_arrangements, check_quantization
from bench.gpu.kept import check_checksums, check_kept
from bench.gpu.races import count_races
from tierstore.benchmark.machine import describe_machine
from tierstore.device import cuda
from tierstore.device.calibration import Choices, calibrate
from tierstore.device.copy_engines import engine_names
from tierstore.errors import DeviceError

if TYPE_CHECKING:
    from tierstore.device.cuda_runtime import CudaRuntime

ROUNDS = 1000
MATRIX_SHARE = 0.6
"""Of the seconds given; correctness and races take what they take, well under a minute on an H200-class machine."""


def main() -> None:
    """Run everything, print what it comes to."""
    parser = argparse.ArgumentParser(prog="python -m bench.gpu", description=__doc__)
    parser.add_argument("--seconds", type=float, default=120.0, help="about how long the whole run may take")
    parser.add_argument("--json", type=Path, default=Path("gpu.json"), help="where the figures go")
    given = parser.parse_args()
    try:
        runtime = cuda.open_runtime()
    except DeviceError as error:
        sys.exit(f"bench.gpu: {error}")
    report: dict[str, object] = {}
    try:
        right = _run(runtime, given.seconds, report)
    finally:  # what was found before a failure is kept
        given.json.write_text(json.dumps(report, indent=1) + "\n", "utf-8")
    if not right:
        sys.exit(1)


def _run(runtime: CudaRuntime, seconds: float, report: dict[str, object]) -> bool:
    """Fill the report, part by part; whether everything was right."""
    runtime.enter()
    started = time.perf_counter()
    print(f"{runtime.facts}", flush=True)
    report["machine"] = describe_machine(Path.cwd())
    report["gpu"] = dataclasses.asdict(runtime.facts)
    parts = check_arrangements, check_quantization, check_kept, check_checksums
    checks = itertools.chain.from_iterable(check(runtime) for check in parts)
    report["wrong"] = wrong = {checked: found for checked, found in _said(checks) if found}
    report["race_rounds"] = ROUNDS
    report["races"] = races = _races(runtime)
    report["calibration"] = _rates(calibrate(runtime))
    cells = _matrix(runtime, MATRIX_SHARE * seconds)
    report["cells"] = [dataclasses.asdict(cell) for cell in cells]
    report["seconds"] = round(time.perf_counter() - started, 1)
    print(as_table(cells))
    num_bad = sum(cell.wrong > 0 for cell in cells)
    print(f"{len(wrong)} checks wrong, {sum(races.values())} races in {ROUNDS} rounds, {num_bad} cells wrong")
    return not wrong and not any(races.values()) and not num_bad


def _said(found: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    kept = []
    for checked, wrong in found:
        kept.append((checked, wrong))
        if wrong:
            print(f"WRONG {wrong}: {checked}")
    print(f"{len(kept)} combinations checked", flush=True)
    return kept


def _races(runtime: CudaRuntime) -> dict[str, int]:
    """Races found by engine; the rounds are shared out among them."""
    engines = engine_names(runtime.facts)
    races = {engine: count_races(runtime, engine, -(-ROUNDS // len(engines))) for engine in engines}
    print(f"races by engine: {races}", flush=True)
    return races


def _matrix(runtime: CudaRuntime, seconds: float) -> list[Cell]:
    cells = []
    for cell in measure_matrix(runtime, seconds):
        cells.append(cell)
        if cell.wrong:
            print(f"WRONG BYTES in {cell.wrong} blocks: {cell}")
    return cells


def _rates(choices: Choices) -> dict[str, float]:
    return {
        f"{'store' if store else 'load'} {row_nbytes} {engine}": round(rate / 1e9, 3)
        for (store, row_nbytes, engine), rate in choices.rates.items()
    }


if __name__ == "__main__":
    main()
