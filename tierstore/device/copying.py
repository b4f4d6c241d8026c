"""The primitives that copy bytes on the CPU, and the measurement that finds the fastest on this machine.

Called by the CPU device's streams, and by the benchmark to name the primitive in use. Every primitive runs on the
calling thread alone and releases the GIL. None may start threads, which would take cores from the engine.
Nothing here knows blocks, slots or pages of a cache.
"""

from __future__ import annotations

import functools
import itertools
import mmap
import time
from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from tierstore.types import UInt8Array

__all__ = ["PRIMITIVES", "SIZES_NBYTES", "Choice", "CopyPrimitive", "choose"]

CopyPrimitive: TypeAlias = "Callable[[UInt8Array, UInt8Array], None]"
"""``copy(dst, src)``: uint8 arrays of one shape, the last axis contiguous. Blocks; releases the GIL."""


def _copyto(dst: UInt8Array, src: UInt8Array) -> None:
    np.copyto(dst, src)


def _maximum(dst: UInt8Array, src: UInt8Array) -> None:
    np.maximum(src, src, out=dst)


def _positive(dst: UInt8Array, src: UInt8Array) -> None:
    np.positive(src, out=dst)


PRIMITIVES: Mapping[str, CopyPrimitive] = MappingProxyType(
    {"copyto": _copyto, "maximum": _maximum, "positive": _positive}
)
"""Copies by name. ``copyto`` is the C library's memmove, one call a row. The others are vector loops of numpy
whose result is their operand: on virtual machines where memmove's string instructions are slow they move
256 KiB rows out of shared memory at 13 GB/s against 6, and rows of 1 MiB about as fast as memmove does.
(Two more were measured and left out: ctypes.memmove is ``copyto`` with 2 µs of overhead, and torch's copy_
in pieces small enough to stay on one thread was slower than ``maximum`` at every size.)"""

SIZES_NBYTES = (16 << 10, 64 << 10, 256 << 10, 1 << 20)
"""Row sizes that are measured; a row counts as the next larger one."""

_WINDOW_NBYTES = 8 << 20
_NUM_WINDOWS = 6
_ROUNDS = 3


@dataclass(frozen=True, slots=True)
class Choice:
    """The fastest primitive for one direction and row size.

    Attributes:
        name: A key of `PRIMITIVES`.
        nbytes_per_second: The measured rate of every primitive.
    """

    name: str
    nbytes_per_second: Mapping[str, float]

    @property
    def copy(self) -> CopyPrimitive:
        """The chosen primitive."""
        return PRIMITIVES[self.name]


def choose(*, into_pool: bool, row_nbytes: int) -> Choice:
    """The fastest primitive here between the shared pages of a pool and ordinary memory.

    The first call of a process measures, which blocks for about 0.2 s; later ones return what it found.

    Args:
        into_pool: Whether the destination is the pool.
        row_nbytes: Contiguous bytes of each row to copy.
    """
    size = SIZES_NBYTES[min(bisect_left(SIZES_NBYTES, row_nbytes), len(SIZES_NBYTES) - 1)]
    return _measure()[into_pool, size]


@functools.cache
def _measure() -> Mapping[tuple[bool, int], Choice]:
    """Time every primitive between pages of the two kinds, by (into_pool, row_nbytes).

    Each timing moves on to another window, so that what it reads has left the caches, as a block's has.
    """
    shape = (_NUM_WINDOWS, _WINDOW_NBYTES)
    shared = np.frombuffer(mmap.mmap(-1, _NUM_WINDOWS * _WINDOW_NBYTES), np.uint8).reshape(shape)
    ordinary = np.empty(shape, np.uint8)
    shared.fill(1)
    ordinary.fill(2)
    windows = itertools.cycle(range(_NUM_WINDOWS))
    choices = {}
    for into_pool, row_nbytes in itertools.product((True, False), SIZES_NBYTES):
        dst, src = (shared, ordinary) if into_pool else (ordinary, shared)
        seconds = dict.fromkeys(PRIMITIVES, float("inf"))
        for _ in range(_ROUNDS):  # interleaved, so that a busy moment hurts all alike; the best round counts
            for name, copy in PRIMITIVES.items():
                window = next(windows)
                took = _time_rows(copy, dst[window].reshape(-1, row_nbytes), src[window].reshape(-1, row_nbytes))
                seconds[name] = min(seconds[name], took)
        rates = {name: _WINDOW_NBYTES / took for name, took in seconds.items()}
        choices[into_pool, row_nbytes] = Choice(max(rates, key=rates.__getitem__), MappingProxyType(rates))
    return MappingProxyType(choices)


def _time_rows(copy: CopyPrimitive, dst: UInt8Array, src: UInt8Array) -> float:
    start = time.perf_counter()
    for dst_row, src_row in zip(dst, src, strict=True):
        copy(dst_row, src_row)
    return time.perf_counter() - start
