"""A paged cache and a pool of slots in plain memory, and what copying between them must do, by numpy's indexing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from tierstore.device.segments import SEGMENT

if TYPE_CHECKING:
    from tierstore.device.segments import Segments
    from tierstore.types import Int64Array, UInt8Array

    Allocate: TypeAlias = Callable[[int], UInt8Array]

POISON = 0xDB


@dataclass(frozen=True)
class Shape:
    """One tensor of a cache, which makes one segment; the gaps are bytes behind each row and behind each block."""

    num_blocks: int
    num_rows: int
    row_nbytes: int
    row_gap: int = 0
    block_gap: int = 0

    @property
    def block_stride(self) -> int:
        return self.num_rows * (self.row_nbytes + self.row_gap) + self.block_gap

    @property
    def nbytes(self) -> int:
        return self.num_blocks * self.block_stride - self.block_gap - self.row_gap

    def rows(self, memory: UInt8Array, block_id: int) -> list[UInt8Array]:
        starts = (block_id * self.block_stride + row * (self.row_nbytes + self.row_gap) for row in range(self.num_rows))
        return [memory[start : start + self.row_nbytes] for start in starts]


@dataclass(frozen=True)
class PagedCopy:
    """Tensors, a pool of slots, and which block goes into which slot."""

    shapes: tuple[Shape, ...]
    tensors: list[UInt8Array]
    pool: UInt8Array
    slot_nbytes: int
    pairs: list[tuple[int, int]]

    @classmethod
    def make(
        cls,
        allocate: Allocate,
        shapes: tuple[Shape, ...],
        pairs: list[tuple[int, int]],
        seed: int,
    ) -> PagedCopy:
        """Random tensors and a poisoned pool, in memory that `allocate` gives by its size."""
        source = np.random.default_rng(seed)
        tensors = [allocate(shape.nbytes) for shape in shapes]
        for tensor in tensors:
            tensor[:] = source.integers(0, 256, tensor.shape, np.uint8)
        slot_nbytes = sum(shape.num_rows * shape.row_nbytes for shape in shapes)
        num_slots = 1 + max((slot for slot, _ in pairs), default=0)
        pool = allocate(slot_nbytes * num_slots)
        pool[:] = POISON
        return cls(shapes, tensors, pool, slot_nbytes, pairs)

    @property
    def segments(self) -> Segments:
        rows = []
        offset = 0
        for shape, tensor in zip(self.shapes, self.tensors, strict=True):
            row_stride = shape.row_nbytes + shape.row_gap
            rows.append((tensor.ctypes.data, shape.block_stride, shape.num_rows, row_stride, shape.row_nbytes, offset))
            offset += shape.num_rows * shape.row_nbytes
        return np.array(rows, SEGMENT)

    @property
    def slots(self) -> Int64Array:
        return np.array([self.pool.ctypes.data + slot * self.slot_nbytes for slot, _ in self.pairs], np.int64)

    @property
    def block_ids(self) -> Int64Array:
        return np.array([block_id for _, block_id in self.pairs], np.int64)

    def block(self, block_id: int) -> UInt8Array:
        """A block's bytes in slot order, by indexing."""
        parts = zip(self.shapes, self.tensors, strict=True)
        return np.concatenate([row for shape, tensor in parts for row in shape.rows(tensor, block_id)])

    def check_store(self, run: Callable[[], None]) -> None:
        """Run a store of every pair, and compare all memory with what it must be then."""
        before = [tensor.copy() for tensor in self.tensors]
        expected = self.pool.copy()
        for slot, block_id in self.pairs:
            expected[slot * self.slot_nbytes : (slot + 1) * self.slot_nbytes] = self.block(block_id)
        run()
        assert np.array_equal(self.pool, expected)
        assert all(np.array_equal(tensor, old) for tensor, old in zip(self.tensors, before, strict=True))

    def check_load(self, run: Callable[[], None], seed: int) -> None:
        """The same of a load, from a pool of other random bytes."""
        self.pool[:] = np.random.default_rng(seed).integers(0, 256, self.pool.shape, np.uint8)
        before = self.pool.copy()
        expected = [tensor.copy() for tensor in self.tensors]
        for slot, block_id in self.pairs:
            offset = slot * self.slot_nbytes
            for shape, tensor in zip(self.shapes, expected, strict=True):
                for row in shape.rows(tensor, block_id):
                    row[:] = before[offset : offset + len(row)]
                    offset += len(row)
        run()
        assert all(np.array_equal(tensor, new) for tensor, new in zip(self.tensors, expected, strict=True))
        assert np.array_equal(self.pool, before)
