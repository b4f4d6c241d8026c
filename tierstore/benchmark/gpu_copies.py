"""Copies blocks between a cache on a GPU and a pinned pool, with every copy engine and with one plain copy.

Called by `tierstore.benchmark.gpu_links` and by ``bench.gpu``. It uses the GPU through the store's own runtime, and
verifies the copies by numpy's indexing. Only one of these should copy at a time: they share the link.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tierstore.device.copy_engines import EngineShelf
from tierstore.device.copy_pieces import SpanCopy
from tierstore.device.pinning import PinnedMemory
from tierstore.device.segments import SEGMENT
from tierstore.errors import DeviceError
from tierstore.tiers.host_pool import HostPool
from tierstore.types import PAGE_NBYTES

if TYPE_CHECKING:
    from tierstore.device.cuda_runtime import CudaRuntime
    from tierstore.device.segments import Segments
    from tierstore.types import UInt8Array

__all__ = ["CacheShape", "GpuCopies"]

_POISON = 0xA5


@dataclass(frozen=True, slots=True)
class CacheShape:
    """A cache of one tensor a layer.

    Attributes:
        layers: Tensors, each one segment of a block.
        num_rows: Rows of a block in one of them.
        row_nbytes: Bytes of a row.
        row_gap_nbytes: Bytes between two rows; with 0 a tensor's rows of a block are one piece.
    """

    layers: int
    num_rows: int
    row_nbytes: int
    row_gap_nbytes: int = 0

    @property
    def block_nbytes(self) -> int:
        """Bytes of a block."""
        return self.layers * self.num_rows * self.row_nbytes


class GpuCopies:
    """A cache of random blocks, a pinned pool that takes them all, and two streams with their engines. Blocks.

    Args:
        runtime: Of the GPU; entered by the calling thread.
        shape: Of the cache.
        num_blocks: In cache and pool.

    Raises:
        DeviceError: The pool cannot be pinned, or the GPU has no memory for the cache.
    """

    def __init__(self, runtime: CudaRuntime, shape: CacheShape, num_blocks: int) -> None:
        self.shape = shape
        self.num_blocks = num_blocks
        self.nbytes = num_blocks * shape.block_nbytes
        self._runtime = runtime
        runtime.enter()
        self._slot_nbytes = -(-shape.block_nbytes // PAGE_NBYTES) * PAGE_NBYTES
        self._pool = HostPool(num_blocks * self._slot_nbytes)
        self._pool.view.fill(_POISON)
        self._pinned = PinnedMemory(runtime, self._pool.view)
        if not self._pinned.nbytes:
            raise DeviceError("the pool cannot be pinned, so copies from and to it say nothing; raise ulimit -l")
        self._block_stride = shape.num_rows * (shape.row_nbytes + shape.row_gap_nbytes)
        self._cache_nbytes = shape.layers * num_blocks * self._block_stride
        self._cache = runtime.allocate(self._cache_nbytes)
        self._order = np.random.default_rng(1).permutation(num_blocks).astype(np.int64)
        self._tensors = np.random.default_rng(2).integers(0, 256, self._cache_nbytes, np.uint8)
        self._expected = self._blocks(self._tensors)
        self._streams = [runtime.new_stream(high_priority=False) for _ in range(2)]
        self._shelves = [EngineShelf(runtime) for _ in range(2)]

    def close(self) -> None:
        """Give everything back."""
        for stream, shelf in zip(self._streams, self._shelves, strict=True):
            shelf.close()
            self._runtime.drop_stream(stream)
        self._runtime.free(self._cache)
        self._pinned.release()
        self._pool.close()

    def copy(self, engine: str, *, store: bool) -> None:
        """All blocks by one engine. Blocks until they have moved."""
        self._enqueue(engine, slice(None), 0, store=store)
        self._finish(0)

    def copy_both_ways(self, engine: str) -> None:
        """Half of the blocks each way, at once."""
        half = self.num_blocks // 2
        self._enqueue(engine, slice(None, half), 0, store=True)
        self._enqueue(engine, slice(half, None), 1, store=False)
        self._finish(0)
        self._finish(1)

    def copy_plain(self, *, store: bool) -> None:
        """As many bytes, contiguous on both sides, by one call. Blocks. What is stored or loaded is not a block."""
        dst, src = (self._pinned.address, self._cache) if store else (self._cache, self._pinned.address)
        self._runtime.copy(dst, src, min(self.nbytes, self._cache_nbytes), self._streams[0])
        self._finish(0)

    def prepare(self, *, store: bool) -> None:
        """Fill the source with its blocks, and the destination with bytes of no block. Blocks.

        Loads and stores use inverse bytes, so that a copy that never ran cannot find its bytes already in place.
        """
        if store:
            self._write_cache(self._tensors)
            self._pool.view.fill(_POISON)
        else:
            self._pool.view.reshape(self.num_blocks, -1)[:, : self.shape.block_nbytes] = ~self._expected
            self._write_cache(np.full(self._cache_nbytes, _POISON, np.uint8))

    def num_wrong(self, *, store: bool) -> int:
        """Blocks that did not arrive as they are, and gaps that were written to. Blocks."""
        if store:
            found = self._pool.view.reshape(self.num_blocks, -1)
            outside = found[:, self.shape.block_nbytes :]
            return _count(found[:, : self.shape.block_nbytes] != self._expected) + _count(outside != _POISON)
        tensors = self._read_cache()
        gaps = self._rows(tensors)[..., self.shape.row_nbytes :]
        return _count(self._blocks(tensors) != ~self._expected) + _count((gaps != _POISON).reshape(len(gaps), -1))

    def _enqueue(self, engine: str, blocks: slice, side: int, *, store: bool) -> None:
        slots = self._pinned.address + np.arange(self.num_blocks, dtype=np.int64) * self._slot_nbytes
        copy = SpanCopy(store, self._segments(), slots[blocks], self._order[blocks], self._pinned.address)
        self._shelves[side].take(engine).copy(copy, self._streams[side])

    def _finish(self, side: int) -> None:
        self._runtime.finish(self._runtime.record(self._streams[side]))

    def _segments(self) -> Segments:
        shape = self.shape
        stride = shape.row_nbytes + shape.row_gap_nbytes
        whole = shape.num_rows * shape.row_nbytes
        num_rows, row_nbytes = (shape.num_rows, shape.row_nbytes) if shape.row_gap_nbytes else (1, whole)
        rows = [
            (
                self._cache + layer * self.num_blocks * self._block_stride,
                self._block_stride,
                num_rows,
                stride,
                row_nbytes,
            )
            for layer in range(shape.layers)
        ]
        return np.array([(*row, layer * whole) for layer, row in enumerate(rows)], SEGMENT)

    def _rows(self, tensors: UInt8Array) -> UInt8Array:
        """uint8[layers, num_blocks, num_rows, row and gap]."""
        shape = self.shape
        return tensors.reshape(shape.layers, self.num_blocks, shape.num_rows, -1)

    def _blocks(self, tensors: UInt8Array) -> UInt8Array:
        """uint8[num_blocks, block_nbytes], in the order of their slots."""
        rows = self._rows(tensors)[..., : self.shape.row_nbytes]
        return rows[:, self._order].swapaxes(0, 1).reshape(self.num_blocks, -1)

    def _write_cache(self, tensors: UInt8Array) -> None:
        self._runtime.copy(self._cache, tensors.ctypes.data, tensors.nbytes, self._streams[0])
        self._finish(0)

    def _read_cache(self) -> UInt8Array:
        tensors = np.empty(self._cache_nbytes, np.uint8)
        self._runtime.copy(tensors.ctypes.data, self._cache, tensors.nbytes, self._streams[0])
        self._finish(0)
        return tensors


def _count(differs: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]) -> int:
    """Rows with a difference anywhere."""
    return int(np.count_nonzero(differs.any(axis=1))) if differs.size else 0
