"""Copy engines: the ways to copy blocks between a GPU and the host pool. The fastest depends on GPU and row size.

The CUDA device makes them once for each stream; `tierstore.device.calibration` chooses. Each enqueues on the given
stream and returns. Its source is read in the stream's order, never before what the stream waits for.
"""

from __future__ import annotations

import itertools
import logging
from functools import partial
from typing import TYPE_CHECKING, Protocol

from tierstore.device.copy_pieces import Pieces, SpanCopy, cut_pieces, split_pieces
from tierstore.device.copy_table import WARP, launches
from tierstore.device.cuda_runtime import THREADS
from tierstore.device.pinning import SLICE_NBYTES
from tierstore.device.quantize_kernel import QuantizeKernel
from tierstore.device.staging import cut_to_fit
from tierstore.errors import DeviceMemoryError

if TYPE_CHECKING:
    from tierstore.device.cuda_runtime import CudaRuntime, GpuFacts, Mark
    from tierstore.types import Int64Array

__all__ = [
    "KERNEL",
    "QUANTIZE",
    "QUOTAS",
    "STAGING_NBYTES",
    "BatchEngine",
    "CopyEngine",
    "EngineShelf",
    "KernelEngine",
    "PieceEngine",
    "StagedEngine",
    "engine_names",
]

STAGING_NBYTES = 16 << 20
"""GPU memory of each of the two halves that a stream stages in."""

QUOTAS = (8, 16, 32)
"""Thread blocks that a copying kernel may have: of an H200's 132 multiprocessors, the shares that calibration tries."""

KERNEL = "kernel-16"
"""The engine that needs nothing but a GPU and registered memory."""

QUANTIZE = "quantize"
"""The engine of blocks that are not kept byte for byte: no other can move them, and it moves no others."""

_BATCH_MAX = 1 << 14

_logger = logging.getLogger(__name__)


class CopyEngine(Protocol):
    """One way to copy blocks."""

    @property
    def name(self) -> str:
        """For a person and for reports."""

    def copy(self, copy: SpanCopy, stream: int) -> None:
        """Enqueue. Raises DeviceError."""

    def close(self) -> None:
        """Give back what it holds, once no copy of it runs."""


class Kernel(Protocol):
    """A kernel that moves blocks between a cache and GPU memory."""

    def copy(self, copy: SpanCopy, stream: int) -> None:
        """Enqueue. Raises DeviceError."""


class KernelEngine:
    """GPU threads load and store the rows themselves, across the link if the slots are in host memory.

    Args:
        runtime: Of the GPU.
        quota: Most thread blocks of a launch: the multiprocessors that it may keep from other work.
    """

    def __init__(self, runtime: CudaRuntime, quota: int) -> None:
        self.name = f"kernel-{quota}"
        self._runtime = runtime
        self._quota = quota

    def copy(self, copy: SpanCopy, stream: int) -> None:
        """One launch a table of `tierstore.device.copy_table`."""
        direction = "gather" if copy.store else "scatter"
        for launch in launches(copy.segments, copy.slots, copy.block_ids):
            grid = min(self._quota, -(-launch.num_tiles * WARP // THREADS))
            self._runtime.launch(f"{direction}_{launch.vector_nbytes}", grid, launch.table, stream)

    def close(self) -> None:
        """Nothing to give back."""


class PieceEngine:
    """One call for each contiguous piece, to the GPU's copy units. The only way from and to pageable memory.

    Args:
        runtime: Of the GPU.
    """

    name = "pieces"

    def __init__(self, runtime: CudaRuntime) -> None:
        self._runtime = runtime

    def copy(self, copy: SpanCopy, stream: int) -> None:
        """Cut it, and move the pieces."""
        self.move(copy, cut_pieces(copy), stream)

    def move(self, copy: SpanCopy, pieces: Pieces, stream: int) -> None:
        """Enqueue pieces of a copy, to the slots where it is a store."""
        pages, hosts, nbytes = split_pieces(pieces, origin=copy.origin, slice_nbytes=SLICE_NBYTES)
        dsts, srcs = (hosts, pages) if copy.store else (pages, hosts)
        self._enqueue(dsts, srcs, nbytes, stream)

    def _enqueue(self, dsts: Int64Array, srcs: Int64Array, nbytes: Int64Array, stream: int) -> None:
        for dst, src, length in zip(dsts.tolist(), srcs.tolist(), nbytes.tolist(), strict=True):
            self._runtime.copy(dst, src, length, stream)

    def close(self) -> None:
        """Nothing to give back."""


class BatchEngine(PieceEngine):
    """Thousands of pieces a call, to the GPU's copy units. Needs CUDA 12.8 and registered memory."""

    name = "batch"

    def _enqueue(self, dsts: Int64Array, srcs: Int64Array, nbytes: Int64Array, stream: int) -> None:
        for first in range(0, len(dsts), _BATCH_MAX):
            part = slice(first, first + _BATCH_MAX)
            self._runtime.copy_batch(dsts[part], srcs[part], nbytes[part], stream)


class StagedEngine:
    """Kernels gather blocks in GPU memory, and copy units move them from there as a whole; loads go the other way.

    Two buffers alternate: while the copy units move one, a kernel fills or empties the other. The copy units use a
    stream of their own, ordered with the given one by events both ways.

    Args:
        runtime: Of the GPU.
        kernel: Gathers and scatters, or quantizes and brings back.
        pieces: Moves what is gathered.
        half_nbytes: GPU memory of each half.

    Raises:
        DeviceMemoryError: The GPU has no such memory left.
    """

    name = "staged"

    def __init__(self, runtime: CudaRuntime, kernel: Kernel, pieces: PieceEngine, half_nbytes: int) -> None:
        self._runtime = runtime
        self._kernel = kernel
        self._pieces = pieces
        self._half_nbytes = half_nbytes
        self._memory = runtime.allocate(2 * half_nbytes)
        self._side = runtime.new_stream(high_priority=False)
        self._free: list[Mark | None] = [None, None]
        self._turn = itertools.cycle((0, 1))

    def copy(self, copy: SpanCopy, stream: int) -> None:
        """Copy in rounds of as many blocks as one half of the staging memory takes, larger blocks in parts.

        Copies that gain nothing by gathering are not staged: blocks of one row, or with rows too long to be staged.
        """
        if copy.quantized is None and _gathers_nothing(copy, self._half_nbytes):
            self._pieces.copy(copy, stream)
            return
        self._runtime.hold(self._side, self._runtime.record(stream))
        for part in cut_to_fit(copy, self._half_nbytes):
            per_round = self._half_nbytes // part.pitch_nbytes
            for first in range(0, len(copy.slots), per_round):
                half = next(self._turn)
                place = self._memory + half * self._half_nbytes
                self._round(half, *part.round(slice(first, first + per_round), place), stream)
        if copy.store:
            self._runtime.hold(stream, self._runtime.record(self._side))

    def _round(self, half: int, in_staging: SpanCopy, across: Pieces, stream: int) -> None:
        """Fill one half and empty it: by kernel, then copy units in a store; the other way round in a load."""
        gather_or_scatter = partial(self._kernel.copy, in_staging, stream)
        move_whole = partial(self._pieces.move, in_staging, across, self._side)
        steps = [(stream, gather_or_scatter), (self._side, move_whole)]
        (first, fill), (second, empty) = steps if in_staging.store else steps[::-1]
        free = self._free[half]
        if free is not None:
            self._runtime.hold(first, free)
        fill()
        self._runtime.hold(second, self._runtime.record(first))
        empty()
        self._free[half] = self._runtime.record(second)

    def close(self) -> None:
        """Give back memory and stream."""
        self._runtime.drop_stream(self._side)
        self._runtime.free(self._memory)


def _gathers_nothing(copy: SpanCopy, half_nbytes: int) -> bool:
    """Whether the copy units move a copy as well by themselves: blocks of one row, of long rows, or with holes."""
    segments = copy.segments
    one_row = len(segments) == 1 and int(segments["num_rows"][0]) == 1
    return one_row or int(segments["row_nbytes"].max()) >= half_nbytes or len(copy.filled()) > 1


class EngineShelf:
    """The engines of one stream by name, each made when it is first asked for.

    Args:
        runtime: Of the GPU.
        staging_nbytes: GPU memory of each of the two halves to stage in.
    """

    def __init__(self, runtime: CudaRuntime, staging_nbytes: int = STAGING_NBYTES) -> None:
        self._runtime = runtime
        self._staging_nbytes = staging_nbytes
        self._made: dict[str, CopyEngine] = {}

    def take(self, name: str) -> CopyEngine:
        """An engine of `engine_names`, or `QUANTIZE`.

        If the GPU has no memory left for staging, this is the kernel engine, or the piece engine if kernels cannot
        reach host memory. Quantizing has no substitute, and raises DeviceMemoryError.
        """
        engine = self._made.get(name)
        if engine is None:
            try:
                engine = self._make(name)
            except DeviceMemoryError as error:
                if name == QUANTIZE:
                    raise
                _logger.warning("blocks are copied without staging: %s", error)
                engine = self._make(KERNEL if self._runtime.facts.reaches_host else PieceEngine.name)
            self._made[name] = engine
        return engine

    def close(self) -> None:
        """Give back what they hold, once no copy of theirs runs."""
        while self._made:
            self._made.popitem()[1].close()

    def _make(self, name: str) -> CopyEngine:
        runtime = self._runtime
        facts = runtime.facts
        pieces = BatchEngine(runtime) if facts.has_batches and facts.reaches_host else PieceEngine(runtime)
        if name == StagedEngine.name:
            return StagedEngine(runtime, KernelEngine(runtime, max(QUOTAS)), pieces, self._staging_nbytes)
        if name == QUANTIZE:  # piece by piece across, for pageable memory too: a block is but a few pieces
            kernel = QuantizeKernel(runtime, max(QUOTAS))
            return StagedEngine(runtime, kernel, PieceEngine(runtime), self._staging_nbytes)
        if name == PieceEngine.name:
            return PieceEngine(runtime)
        return pieces if name == BatchEngine.name else KernelEngine(runtime, int(name.removeprefix("kernel-")))


def engine_names(facts: GpuFacts) -> list[str]:
    """Every engine that a GPU has, first those that disturb other work on it least."""
    batch = [BatchEngine.name] if facts.has_batches and facts.reaches_host else []
    kernels = [f"kernel-{quota}" for quota in QUOTAS] if facts.reaches_host else []
    return [*batch, StagedEngine.name, *kernels, PieceEngine.name]
