"""How fast the CPU device gathers and scatters blocks of an engine's cache, beside a loop of memcpy over the same rows.

Run as ``python -m bench.pages --json FILE``; it needs a C compiler for the loop. Device and loop copy the same rows
between the same pages by turns, in one thread; beside them one plain memcpy of as many bytes in pieces of a MiB. What
the loop makes of the latter says how far the machine can. Pool and cache are several times larger than the caches of
the processor, and every turn takes other blocks: neighbours in both, in random order in the cache alone, or in both.
Seconds are the thread's own processor time, which others on the machine lengthen less than they do the wall's.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tierstore.benchmark.machine import describe_machine
from tierstore.device.axes import PagedTensor
from tierstore.device.block_copying import BlockCopy
from tierstore.device.paged_kv import PagedKV
from tierstore.device.paging import slot_nbytes
from tierstore.layout import KVLayout
from tierstore.tiers.host_pool import HostPool
from tierstore.types import PAGE_NBYTES

if TYPE_CHECKING:
    from tierstore.types import Int32Array, Int64Array, UInt8Array

TOKENS = 16
PIECE_NBYTES = 1 << 20
ORDERS = ("neighbours", "scattered in the cache", "scattered in both")

LOOP = """
#include <string.h>
void copy_rows(char **dst, char **src, long count, const long *nbytes) {
  for (long i = 0; i < count; i++) memcpy(dst[i], src[i], nbytes[i]);
}
"""


@dataclass(frozen=True, slots=True)
class Subject:
    """A cache: its layout, and the shape and axes of each layer's tensor; 0 stands for the number of blocks."""

    name: str
    layout: KVLayout
    shape: tuple[int, ...]
    axes: str

    def bind(self, num_blocks: int) -> PagedKV:
        """A cache of so many blocks, all touched, an event a layer."""
        shape = tuple(extent or num_blocks for extent in self.shape)
        tensors = [
            PagedTensor(np.ones((*shape[:-1], 2 * shape[-1]), np.uint8), self.axes, page.name)
            for page in self.layout.pages
        ]
        return PagedKV.bind(self.layout, tensors, pages_per_group=1)


def subjects() -> Iterator[Subject]:
    """Caches of usual models, from long rows to short ones."""
    for heads in (8, 4, 1):
        layout = KVLayout.attention(layers=16, kv_heads=heads, head_size=128, block_tokens=TOKENS)
        row_kib = heads * 128 * TOKENS * 2 >> 10
        together = ((0, 2, TOKENS, heads, 128), "block plane token head element")
        apart = ((2, 0, TOKENS, heads, 128), "plane block token head element")
        yield Subject(f"K and V together, rows of {2 * row_kib} KiB", layout, *together)
        yield Subject(f"K and V apart, rows of {row_kib} KiB", layout, *apart)
    latent = KVLayout.mla(layers=27, latent_size=576, block_tokens=TOKENS)
    yield Subject("latent, rows of 18 KiB", latent, (0, TOKENS, 576), "block token element")


class Rows:
    """Every row of some blocks by its two addresses, for the loop in C."""

    def __init__(self, loop: Any, kv: PagedKV, pool: UInt8Array, slots: Int32Array, ids: Int64Array) -> None:
        table = np.repeat(kv.segments, kv.segments["num_rows"])
        first = np.cumsum(kv.segments["num_rows"]) - kv.segments["num_rows"]
        step = np.arange(len(table)) - np.repeat(first, kv.segments["num_rows"])
        address = table["base_address"] + step * table["row_stride_nbytes"]
        offset = table["slot_offset_nbytes"] + step * table["row_nbytes"]
        slot = pool.ctypes.data + slots.astype(np.int64) * PAGE_NBYTES
        self._in_cache = (address[:, np.newaxis] + ids[0] * table["block_stride_nbytes"][:, np.newaxis]).ravel()
        self._in_pool = (offset[:, np.newaxis] + slot).ravel()
        self._nbytes = np.repeat(table["row_nbytes"], len(slots))
        self._loop = loop

    def copy(self, *, into_pool: bool) -> None:
        """Copy them all."""
        dst, src = (self._in_pool, self._in_cache) if into_pool else (self._in_cache, self._in_pool)
        self._loop(*(ctypes.c_void_p(column.ctypes.data) for column in (dst, src)), len(dst), self._nbytes.ctypes)


def build_loop(folder: str) -> Any:
    """Compile the loop of memcpy."""
    source, library = Path(folder) / "loop.c", Path(folder) / "loop.so"
    source.write_text(LOOP, "ascii")
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", library, source], check=True)
    return ctypes.CDLL(str(library)).copy_rows


def places(generator: np.random.Generator, order: str, num_blocks: int, count: int) -> tuple[Int64Array, Int64Array]:
    """Places in the pool, counted in slots, and block ids."""
    slots, ids = (np.arange(count) + int(generator.integers(num_blocks - count)) for _ in range(2))
    if order != "neighbours":
        ids = generator.permutation(num_blocks)[:count]
    if order == "scattered in both":
        slots = generator.permutation(num_blocks)[:count]
    return slots, ids


def measure(subject: Subject, loop: Any, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Time stores and loads of one cache, batch by batch. Blocks for some seconds."""
    generator = np.random.default_rng(options.seed)
    block_nbytes = subject.layout.block_nbytes
    num_blocks, count = (options.cache_mib << 20) // block_nbytes, (options.batch_mib << 20) // block_nbytes
    slot_pages = slot_nbytes(block_nbytes) // PAGE_NBYTES
    kv = subject.bind(num_blocks)
    with closing(HostPool(num_blocks * slot_pages * PAGE_NBYTES)) as pool:
        pool.populate(0, len(pool.view))
        for order in ORDERS:
            for into_pool in (True, False):
                seconds = [
                    turn(
                        generator, kv, pool.view, places(generator, order, num_blocks, count), loop, into_pool=into_pool
                    )
                    for _ in range(options.turns)
                ]
                yield {
                    "cache": subject.name,
                    "direction": "store" if into_pool else "load",
                    "order": order,
                    "blocks": count,
                    "block_nbytes": block_nbytes,
                    "gb_per_second": count * block_nbytes / 1e9 / float(np.median([own for own, _, _ in seconds])),
                    "share_of_memcpy_by_rows": float(np.median([limit / own for own, limit, _ in seconds])),
                    "share_of_plain_memcpy": float(np.median([plain / own for own, _, plain in seconds])),
                    "memcpy_by_rows_of_plain": float(np.median([plain / limit for _, limit, plain in seconds])),
                    "shares_of_memcpy_by_rows": sorted(round(limit / own, 3) for own, limit, _ in seconds),
                }


def turn(
    generator: np.random.Generator,
    kv: PagedKV,
    pool: UInt8Array,
    at: tuple[Int64Array, Int64Array],
    loop: Any,
    *,
    into_pool: bool,
) -> tuple[float, float, float]:
    """Seconds of the device, of the loop over the same rows and of a plain copy of as many bytes."""
    slots = (at[0] * (slot_nbytes(kv.block_nbytes) // PAGE_NBYTES)).astype(np.int32)
    block_ids = at[1][np.newaxis]
    rows = Rows(loop, kv, pool, slots, block_ids)
    return (
        timed(lambda: copy(kv, pool, slots, block_ids, into_pool=into_pool)),
        timed(lambda: rows.copy(into_pool=into_pool)),
        timed(lambda: copy_plainly(generator, kv, pool, len(slots), into_pool=into_pool)),
    )


def copy(kv: PagedKV, pool: UInt8Array, slots: Int32Array, block_ids: Int64Array, *, into_pool: bool) -> None:
    """What the CPU device's stream does."""
    blocks = BlockCopy(pool, slots, kv, block_ids, into_pool=into_pool)
    for group in range(len(kv.groups)):
        blocks.run(group)


def copy_plainly(generator: np.random.Generator, kv: PagedKV, pool: UInt8Array, count: int, *, into_pool: bool) -> None:
    """As many bytes in contiguous pieces."""
    left = count * kv.block_nbytes
    while left:
        view = kv.tensors[int(generator.integers(len(kv.tensors)))]
        tensor = np.asarray(view.owner).reshape(-1)
        nbytes = min(left, PIECE_NBYTES, len(tensor) // 2)
        in_pool = pool[int(generator.integers(len(pool) - nbytes)) :].ctypes.data
        in_cache = tensor[int(generator.integers(len(tensor) - nbytes)) :].ctypes.data
        ctypes.memmove(*((in_pool, in_cache) if into_pool else (in_cache, in_pool)), nbytes)
        left -= nbytes


def timed(call: Callable[[], None]) -> float:
    """Processor time of this thread."""
    begun = time.thread_time()
    call()
    return time.thread_time() - begun


def main() -> None:
    """Measure, print a table, and write one JSON object where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cache-mib", type=int, default=256)
    parser.add_argument("--batch-mib", type=int, default=32)
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", help="file to write")
    options = parser.parse_args()
    machine, rows = describe_machine(Path(".")), []
    with tempfile.TemporaryDirectory() as folder:
        loop = build_loop(folder)
        for subject in subjects():
            for row in measure(subject, loop, options):
                rows.append(row)
                shares = [row["share_of_memcpy_by_rows"], row["share_of_plain_memcpy"], row["memcpy_by_rows_of_plain"]]
                print(
                    f"{row['cache']:36} {row['direction']:5} {row['order']:22} {row['gb_per_second']:6.2f} GB/s "
                    f"{shares[0]:5.0%} of memcpy by rows, {shares[1]:5.0%} of plain; "
                    f"memcpy by rows {shares[2]:5.0%}"
                )
    if options.json:
        result = {"command": "python -m bench.pages", "options": vars(options), "machine": machine, "rows": rows}
        Path(options.json).write_text(json.dumps(result, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
