"""Measures which copy engine is fastest on a GPU, by direction and row size. Takes about a second.

Called by the CUDA device when a store starts, if `tierstore.device.calibration_cache` has no result, and by the
benchmarks, which show the rates. It copies between memory of its own and touches no engine's cache and no pool.
"""

from __future__ import annotations

import itertools
import logging
import time
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tierstore.device.copy_engines import KERNEL, BatchEngine, EngineShelf, engine_names
from tierstore.device.copy_pieces import SpanCopy
from tierstore.device.segments import SEGMENT
from tierstore.errors import DeviceError
from tierstore.worker import Worker

if TYPE_CHECKING:
    from tierstore.device.copy_engines import CopyEngine
    from tierstore.device.cuda_runtime import CudaRuntime, GpuFacts
    from tierstore.types import UInt8Array

__all__ = ["ROWS_NBYTES", "Choices", "calibrate"]

ROWS_NBYTES = (1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10)
"""Row sizes that are measured; a row counts as the next larger one."""

_CACHE_NBYTES = 32 << 20
_SEGMENTS = 32
_BLOCKS_MAX = 128
_ROUNDS = 3
_MARGIN = 0.95
"""An engine that takes less from the GPU's other work is preferred down to this share of the fastest one's rate."""

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Choices:
    """The copy engines to use.

    Attributes:
        rates: Bytes a second by (whether it is a store, row size, engine); empty if nothing was measured.
    """

    facts: GpuFacts
    rates: Mapping[tuple[bool, int, str], float]

    def choose(self, *, store: bool, row_nbytes: int) -> str:
        """The engine for one direction and size of rows, of registered memory.

        Without a measurement, long rows go in batches and short ones by kernel: below some 16 KiB, one call for each
        row costs more than the row's copy.
        """
        size = ROWS_NBYTES[min(bisect_left(ROWS_NBYTES, row_nbytes), len(ROWS_NBYTES) - 1)]
        names = engine_names(self.facts)
        found = {name: self.rates[store, size, name] for name in names if (store, size, name) in self.rates}
        if found:
            return next(name for name, rate in found.items() if rate >= _MARGIN * max(found.values()))
        guessed = BatchEngine.name if row_nbytes > ROWS_NBYTES[2] else KERNEL
        return guessed if guessed in names else names[0]


def calibrate(runtime: CudaRuntime) -> Choices:
    """Measure every engine. Blocks, while a thread of its own does it; where memory is short, says so and chooses so.

    Raises:
        DeviceError: The GPU refused a copy.
    """
    rates: dict[tuple[bool, int, str], float] = {}
    failures: list[DeviceError] = []

    def measure() -> None:
        try:
            _measure(runtime, rates)
        except DeviceError as error:
            failures.append(error)

    worker = Worker("calibrate", capacity=1)
    worker.submit(measure)
    worker.close()
    if failures:
        raise failures[0]
    return Choices(runtime.facts, rates)


def _measure(runtime: CudaRuntime, rates: dict[tuple[bool, int, str], float]) -> None:
    runtime.enter()
    try:
        scratch = _Scratch(runtime)
    except DeviceError as error:
        _logger.warning("the copy engines are not measured, so defaults are used: %s", error)
        return
    try:
        for store, row_nbytes in itertools.product((True, False), ROWS_NBYTES):
            copy = scratch.copy(row_nbytes, store=store)
            for engine in scratch.engines:
                rates[store, row_nbytes, engine.name] = copy.nbytes / scratch.time(engine, copy)
    finally:
        scratch.close()


class _Scratch:
    """A cache of its own on the GPU, registered host memory, a stream, and all engines that memory allows."""

    def __init__(self, runtime: CudaRuntime) -> None:
        self._runtime = runtime
        self._host: UInt8Array = np.zeros(_CACHE_NBYTES, np.uint8)
        self._cache = runtime.allocate(_CACHE_NBYTES)
        try:
            runtime.register(self._host.ctypes.data, _CACHE_NBYTES)
        except DeviceError:
            runtime.free(self._cache)
            raise
        self._stream = runtime.new_stream(high_priority=False)
        self._shelf = EngineShelf(runtime)
        taken = {name: self._shelf.take(name) for name in engine_names(runtime.facts)}
        self.engines = [engine for name, engine in taken.items() if engine.name == name]

    def copy(self, row_nbytes: int, *, store: bool) -> SpanCopy:
        """All blocks of a cache with one tensor a layer, in an order in which no neighbours can be joined."""
        num_blocks = min(_CACHE_NBYTES // (_SEGMENTS * row_nbytes), _BLOCKS_MAX)
        rows = [
            (self._cache + layer * num_blocks * row_nbytes, row_nbytes, 1, row_nbytes, row_nbytes, layer * row_nbytes)
            for layer in range(_SEGMENTS)
        ]
        slots = self._host.ctypes.data + np.arange(num_blocks, dtype=np.int64) * _SEGMENTS * row_nbytes
        block_ids = np.random.default_rng(row_nbytes).permutation(num_blocks).astype(np.int64)
        return SpanCopy(store, np.array(rows, SEGMENT), slots, block_ids, self._host.ctypes.data)

    def time(self, engine: CopyEngine, copy: SpanCopy) -> float:
        """Seconds of one copy, the best of a few after one that does not count."""
        seconds = []
        for _ in range(_ROUNDS + 1):
            started = time.perf_counter()
            engine.copy(copy, self._stream)
            self._runtime.finish(self._runtime.record(self._stream))
            seconds.append(time.perf_counter() - started)
        return min(seconds[1:])

    def close(self) -> None:
        """Give everything back."""
        self._shelf.close()
        self._runtime.drop_stream(self._stream)
        self._runtime.unregister(self._host.ctypes.data)
        self._runtime.free(self._cache)
