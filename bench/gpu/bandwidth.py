"""The matrix: direction, block, blocks a batch and engine, each cell beside one plain copy in the same turns.

Part of ``python -m bench.gpu``. A cell's figure is the median over its turns; its bytes are verified once.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import TYPE_CHECKING

from tierstore.benchmark.gpu_copies import CacheShape, GpuCopies
from tierstore.device.copy_engines import engine_names

if TYPE_CHECKING:
    from tierstore.device.cuda_runtime import CudaRuntime

SHAPES = {
    "256 KiB, segments of 8 KiB": CacheShape(layers=32, num_rows=1, row_nbytes=8 << 10),
    "2 MiB, segments of 64 KiB": CacheShape(layers=32, num_rows=1, row_nbytes=64 << 10),
    "8 MiB, segments of 128 KiB": CacheShape(layers=64, num_rows=1, row_nbytes=128 << 10),
    "MLA, 16 tokens of 1152 bytes": CacheShape(layers=61, num_rows=16, row_nbytes=1152),
    "MLA, rows of 1152 bytes apart": CacheShape(layers=61, num_rows=16, row_nbytes=1152, row_gap_nbytes=128),
    "DSA, rows of 656 bytes apart": CacheShape(layers=61, num_rows=64, row_nbytes=656, row_gap_nbytes=16),
}
BATCHES = (1, 16, 128)
BATCH_NBYTES_MAX = 256 << 20
TURNS_MIN = 3
TURNS_MAX = 50


@dataclass(frozen=True, slots=True)
class Cell:
    """One figure, in 10**9 bytes a second.

    Attributes:
        block: Of `SHAPES`.
        block_nbytes: Its size.
        batch: Blocks a call.
        direction: ``"store"``, ``"load"``, or ``"both"`` for half of them each way at once.
        engine: How they were copied.
        gbytes_per_second: Median.
        plain_gbytes_per_second: Median of the plain copy by turns; for both ways the sum of the two.
        share: Their ratio.
        turns: How many of each.
        wrong: Blocks that did not arrive as they were.
    """

    block: str
    block_nbytes: int
    batch: int
    direction: str
    engine: str
    gbytes_per_second: float
    plain_gbytes_per_second: float
    share: float
    turns: int
    wrong: int


def num_cells(runtime: CudaRuntime) -> int:
    """Cells of a full matrix."""
    return len(SHAPES) * len(BATCHES) * 3 * len(engine_names(runtime.facts))


def measure_matrix(runtime: CudaRuntime, seconds: float) -> Iterator[Cell]:
    """Every cell, in about as many seconds altogether. Blocks."""
    each = seconds / num_cells(runtime)
    for (name, shape), batch in product(SHAPES.items(), BATCHES):
        batch = min(batch, BATCH_NBYTES_MAX // shape.block_nbytes)
        with closing(GpuCopies(runtime, shape, batch)) as copies:
            for direction, engine in product(("store", "load", "both"), engine_names(runtime.facts)):
                if direction != "both" or batch > 1:
                    yield _measure(copies, name, direction, engine, each)


def _measure(copies: GpuCopies, name: str, direction: str, engine: str, seconds: float) -> Cell:
    store = direction != "load"
    wrong = 0
    if direction == "both":
        call: Callable[[], None] = partial(copies.copy_both_ways, engine)
    else:
        call = partial(copies.copy, engine, store=store)
        copies.prepare(store=store)
        call()
        wrong = copies.num_wrong(store=store)
    ways = (True, False) if direction == "both" else (store,)
    plain: list[Callable[[], None]] = [partial(copies.copy_plain, store=way) for way in ways]
    for warm_up in (call, *plain):
        warm_up()
    ours: list[float] = []
    theirs: list[list[float]] = [[] for _ in plain]
    end = time.perf_counter() + seconds
    while len(ours) < TURNS_MIN or (len(ours) < TURNS_MAX and time.perf_counter() < end):
        ours.append(_time(call))
        for taken, one in zip(theirs, plain, strict=True):
            taken.append(_time(one))
    rate = copies.nbytes / 1e9 / statistics.median(ours)
    limit = sum(copies.nbytes / 1e9 / statistics.median(taken) for taken in theirs)
    return Cell(
        block=name,
        block_nbytes=copies.shape.block_nbytes,
        batch=copies.num_blocks,
        direction=direction,
        engine=engine,
        gbytes_per_second=round(rate, 3),
        plain_gbytes_per_second=round(limit, 3),
        share=round(rate / limit, 4),
        turns=len(ours),
        wrong=wrong,
    )


def _time(call: Callable[[], None]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def as_table(cells: list[Cell]) -> str:
    """The cells as text: a line a block, batch and direction, a column an engine."""
    engines = list(dict.fromkeys(cell.engine for cell in cells))
    lines = [f"{'block':32}{'batch':>6}  {'way':6}{'plain':>7}" + "".join(f"{engine:>16}" for engine in engines)]
    rows: dict[tuple[str, int, str], list[Cell]] = {}
    for cell in cells:
        rows.setdefault((cell.block, cell.batch, cell.direction), []).append(cell)
    for (block, batch, direction), row in rows.items():
        figures = "".join(f"{cell.gbytes_per_second:8.1f} ({cell.share:4.0%})" for cell in row)
        plain = statistics.median(cell.plain_gbytes_per_second for cell in row)
        lines.append(f"{block:32}{batch:>6}  {direction:6}{plain:7.1f} {figures}")
    return "\n".join(lines)
