"""The copy kernels, run on the CPU from their own source: right bytes, and none outside."""

from __future__ import annotations

import ctypes
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kernels.conftest import Compile, Guarded
from tests.paged_copies import POISON, PagedCopy, Shape
from tierstore.device.copy_table import BLOCKS_MAX, SEGMENTS_MAX, launches, vector_nbytes
from tierstore.device.segments import SEGMENT


def run(library: ctypes.CDLL, direction: str, copy: PagedCopy, *, grid: int = 3, threads: int = 64) -> None:
    for launch in launches(copy.segments, copy.slots, copy.block_ids):
        kernel = getattr(library, f"run_{direction}_{launch.vector_nbytes}")
        kernel(grid, threads, ctypes.c_void_p(launch.table.ctypes.data))


def check_both_ways(
    library: ctypes.CDLL,
    guarded: Guarded,
    shapes: tuple[Shape, ...],
    pairs: list[tuple[int, int]],
    *,
    at_start: bool,
    seed: int = 1,
) -> None:
    copy = PagedCopy.make(partial(guarded, at_start=at_start), shapes, pairs, seed)
    copy.check_store(lambda: run(library, "gather", copy))
    copy.check_load(lambda: run(library, "scatter", copy), seed + 1)


shapes = st.builds(
    Shape,
    num_blocks=st.integers(4, 6),
    num_rows=st.integers(1, 4),
    row_nbytes=st.sampled_from([1, 2, 3, 24, 63, 64, 144, 576, 656, 1152, 2047, 2048, 2049, 4112]),
    row_gap=st.sampled_from([0, 0, 1, 16]),
    block_gap=st.sampled_from([0, 0, 7, 64]),
)


@settings(max_examples=60)
@given(
    shapes=st.lists(shapes, min_size=1, max_size=4).map(tuple),
    block_ids=st.lists(st.integers(0, 3), unique=True),
    order=st.permutations(range(4)),
    seed=st.integers(0, 2**32 - 1),
    at_start=st.booleans(),
)
def test_any_rows_are_copied_as_indexing_would_and_nothing_else_is_touched(
    compile_kernels: Compile,
    guarded: Guarded,
    shapes: tuple[Shape, ...],
    block_ids: list[int],
    order: list[int],
    seed: int,
    at_start: bool,
) -> None:
    library = compile_kernels("gather_scatter")
    pairs = list(zip(order, block_ids, strict=False))
    check_both_ways(library, guarded, shapes, pairs, at_start=at_start, seed=seed)


@pytest.mark.parametrize("row_nbytes", [1, 576, 656, 1152, 2048, 18432, 65536])
@pytest.mark.parametrize("row_gap", [0, 16])
def test_every_row_size_of_the_field_is_exact(
    compile_kernels: Compile, guarded: Guarded, row_nbytes: int, row_gap: int
) -> None:
    library = compile_kernels("gather_scatter")
    shape = Shape(num_blocks=3, num_rows=2, row_nbytes=row_nbytes, row_gap=row_gap)
    pairs = [(0, 2), (1, 0)]
    for at_start in (True, False):
        check_both_ways(library, guarded, (shape, shape), pairs, at_start=at_start)


@pytest.mark.parametrize("row_nbytes", [576, 656, 1152, 4096])
def test_rows_of_whole_vectors_take_the_widest_kernel(guarded: Guarded, row_nbytes: int) -> None:
    shape = Shape(num_blocks=2, num_rows=4, row_nbytes=row_nbytes)
    copy = PagedCopy.make(partial(guarded, at_start=True), (shape,), [(0, 1)], 1)
    assert vector_nbytes(copy.segments, copy.slots) == 16


@pytest.mark.parametrize(
    ("column", "value", "width"),
    [
        ("base_address", 8, 8),
        ("block_stride_nbytes", -4, 4),
        ("row_stride_nbytes", 2, 2),
        ("row_nbytes", 1, 1),
        ("slot_offset_nbytes", 24, 8),
    ],
)
def test_one_number_out_of_line_narrows_the_kernel(column: str, value: int, width: int) -> None:
    segments = np.zeros(2, SEGMENT)
    segments["num_rows"] = 2
    for name in segments.dtype.names or ():
        if name != "num_rows":
            segments[name] = 256
    segments[column][1] = value
    assert vector_nbytes(segments, np.array([4096], np.int64)) == width
    assert vector_nbytes(segments, np.array([4097], np.int64)) == 1


def test_the_stride_of_a_single_row_does_not_count() -> None:
    segments = np.zeros(1, SEGMENT)
    segments["num_rows"], segments["row_nbytes"], segments["row_stride_nbytes"] = 1, 64, 3
    assert vector_nbytes(segments, np.array([0], np.int64)) == 16


def test_copies_larger_than_a_table_are_cut_into_several(compile_kernels: Compile, guarded: Guarded) -> None:
    library = compile_kernels("gather_scatter")
    num_blocks = BLOCKS_MAX + 3
    shapes = tuple(Shape(num_blocks, 1, 16) for _ in range(SEGMENTS_MAX + 1))
    pairs = [(num_blocks - 1 - block_id, block_id) for block_id in range(num_blocks)]
    copy = PagedCopy.make(partial(guarded, at_start=True), shapes, pairs, 3)
    assert len(list(launches(copy.segments, copy.slots, copy.block_ids))) == 4
    copy.check_store(lambda: run(library, "gather", copy))
    copy.check_load(lambda: run(library, "scatter", copy), 4)


@pytest.mark.parametrize(("grid", "threads"), [(1, 32), (1, 256), (7, 96), (64, 256)])
def test_the_launch_shape_changes_no_byte(compile_kernels: Compile, guarded: Guarded, grid: int, threads: int) -> None:
    library = compile_kernels("gather_scatter")
    copy = PagedCopy.make(partial(guarded, at_start=True), (Shape(3, 3, 656), Shape(3, 1, 5000)), [(0, 2), (2, 0)], 6)
    run(library, "gather", copy, grid=grid, threads=threads)
    for slot, block_id in copy.pairs:
        assert np.array_equal(copy.pool[slot * copy.slot_nbytes :][: copy.slot_nbytes], copy.block(block_id))
    assert set(copy.pool[copy.slot_nbytes : 2 * copy.slot_nbytes].tolist()) == {POISON}


def test_rows_may_run_backwards_through_the_cache(compile_kernels: Compile, guarded: Guarded) -> None:
    library = compile_kernels("gather_scatter")
    copy = PagedCopy.make(partial(guarded, at_start=True), (Shape(2, 3, 48),), [(0, 1)], 7)
    segments = copy.segments
    segments["base_address"] += 2 * 48
    segments["row_stride_nbytes"] = -48
    (launch,) = launches(segments, copy.slots, copy.block_ids)
    library.run_gather_16(1, 32, ctypes.c_void_p(launch.table.ctypes.data))
    assert np.array_equal(copy.pool.reshape(3, 48), np.stack(copy.shapes[0].rows(copy.tensors[0], 1)[::-1]))
