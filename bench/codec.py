"""Our lz4 codec beside numcodecs' Shuffle and LZ4, on the same bytes, block by block in turns, in one thread.

Run as ``python -m bench.codec`` from the repository's root; takes seconds. Both write one format, and each block that
ours has encoded is decoded by theirs too. Blocks are normal numbers in bfloat16, as KV is. What is timed is the
thread's time on a processor, so that others on the machine count for less.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numcodecs import LZ4, Shuffle

from tierstore.benchmark.machine import describe_machine
from tierstore.codec.lz4 import Lz4Codec
from tierstore.layout import KVLayout
from tierstore.settings import format_size

if TYPE_CHECKING:
    from tierstore.types import UInt8Array

T = TypeVar("T")

LAYOUTS = [KVLayout.attention(layers=layers, kv_heads=8, head_size=128, block_tokens=16) for layers in (4, 32)]
"""Blocks of 256 KiB and of 2 MiB."""

CODEC_BLOCKS_NBYTES = 32 << 20


def main() -> None:
    """Measure, print the table and write what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", default=None, metavar="PATH", help="write every figure there; - for stdout")
    options = parser.parse_args()
    machine = describe_machine(Path.cwd())
    codecs = [measure_codec(layout) for layout in LAYOUTS]
    machine["load_average_after"] = round(os.getloadavg()[0], 2)
    text = json.dumps(
        {"version": 1, "command": "python -m bench.codec", "machine": machine, "codecs": codecs}, indent=1
    )
    if options.json == "-":
        print(text)
        return
    print("\n".join(codec_lines(codecs)))
    if options.json:
        Path(options.json).write_text(text + "\n", "utf-8")


def gaussian(shape: tuple[int, int], seed: int) -> UInt8Array:
    """uint8[n, nbytes]: normal numbers, rounded to bfloat16."""
    numbers = np.random.default_rng(seed).standard_normal((shape[0], shape[1] // 2), dtype=np.float32).view(np.uint32)
    numbers += 0x7FFF + (numbers >> 16 & 1)
    numbers >>= 16
    return numbers.astype("<u2").view(np.uint8)


class Ours:
    """The store's codec, into memory that is there already, as the store uses it."""

    def __init__(self, layout: KVLayout) -> None:
        self._codec, self._item_nbytes = Lz4Codec(), layout.item_nbytes
        self._encoded = memoryview(bytearray(self._codec.max_encoded_nbytes(layout.block_nbytes)))
        self._decoded = memoryview(bytearray(layout.block_nbytes))

    def encode(self, block: UInt8Array) -> memoryview:
        """The bytes on disk; valid until the next."""
        return self._encoded[: self._codec.encode(block.data, self._encoded, item_nbytes=self._item_nbytes)]

    def decode(self, encoded: memoryview) -> memoryview:
        """The block; valid until the next."""
        self._codec.decode(encoded, self._decoded, item_nbytes=self._item_nbytes)
        return self._decoded


class Theirs:
    """The two codecs of numcodecs that write the same format."""

    def __init__(self, layout: KVLayout) -> None:
        self._shuffle, self._lz4 = Shuffle(layout.item_nbytes), LZ4()

    def encode(self, block: UInt8Array) -> memoryview:
        """The bytes on disk."""
        return memoryview(self._lz4.encode(self._shuffle.encode(block)))

    def decode(self, encoded: memoryview) -> memoryview:
        """The block."""
        return memoryview(self._shuffle.decode(self._lz4.decode(encoded))).cast("B")


def measure_codec(layout: KVLayout) -> dict[str, object]:
    """One row of the table. Who is first changes with each block: the second one finds a fuller cache."""
    blocks = gaussian((CODEC_BLOCKS_NBYTES // layout.block_nbytes, layout.block_nbytes), seed=1)
    subjects: dict[str, Ours | Theirs] = {"": Ours(layout), "_theirs": Theirs(layout)}
    nbytes = dict.fromkeys(subjects, 0)
    rates: dict[str, list[float]] = {f"{verb}{whose}": [] for verb in ("encode", "decode") for whose in subjects}

    def timed(name: str, work: Callable[[T], memoryview], argument: T) -> memoryview:
        begun = time.thread_time()
        result = work(argument)
        rates[name].append(layout.block_nbytes / 1e9 / (time.thread_time() - begun))
        return result

    for turn, block in enumerate(blocks):
        order = list(subjects.items())[:: 1 if turn % 2 else -1]
        encoded = {whose: timed(f"encode{whose}", subject.encode, block) for whose, subject in order}
        for whose, subject in order:
            decoded = timed(f"decode{whose}", subject.decode, encoded[whose])
            assert np.array_equal(decoded, block), "other bytes came back"
            nbytes[whose] += len(encoded[whose])
        assert np.array_equal(subjects["_theirs"].decode(encoded[""]), block), "numcodecs reads other bytes"
    ratios = {f"ratio{whose}": blocks.nbytes / total for whose, total in nbytes.items()}
    return {"block_nbytes": layout.block_nbytes, **ratios, **{name: as_rates(every) for name, every in rates.items()}}


def as_rates(rates: Sequence[float]) -> dict[str, float]:
    """Median and spread, in GB/s."""
    return {"median": statistics.median(rates), "least": min(rates), "most": max(rates)}


def codec_lines(codecs: Sequence[dict[str, object]]) -> Iterator[str]:
    """The table, line by line."""
    yield "GB/s of one thread's time on a processor, by turns with numcodecs' Shuffle and LZ4 (same format and bytes):"
    yield ""
    yield "| block | ratio | numcodecs | encode | numcodecs | decode | numcodecs |"
    yield "|---|---|---|---|---|---|---|"
    for row in codecs:
        cells = [rates_text(row[name]) for name in ("encode", "encode_theirs", "decode", "decode_theirs")]
        ratios = [ratio_text(row[name]) for name in ("ratio", "ratio_theirs")]
        yield f"| {format_size(int(str(row['block_nbytes'])))} | {' | '.join([*ratios, *cells])} |"


def ratio_text(ratio: object) -> str:
    """Three decimals, or a dash."""
    return f"{ratio:.3f}" if isinstance(ratio, float) else "–"


def rates_text(rates: object) -> str:
    """Median and spread."""
    assert isinstance(rates, dict)
    return f"{rates['median']:.2f} [{rates['least']:.2f} … {rates['most']:.2f}]"


if __name__ == "__main__":
    main()
