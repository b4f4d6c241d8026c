"""Every way of copying, on a simulated GPU that does things late and in any order."""

from __future__ import annotations

import functools
import itertools
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.paged_copies import POISON, PagedCopy, Shape
from tierstore.device.copy_engines import QUANTIZE, EngineShelf, KernelEngine, PieceEngine, StagedEngine, engine_names
from tierstore.device.copy_pieces import Pieces, SpanCopy, cut_pieces, split_pieces
from tierstore.device.quantization import as_elements, as_float32, dequantize, quantize
from tierstore.quantized import QuantizedBlock
from tierstore.testing.sim_gpu import SimGpu

if TYPE_CHECKING:
    from tierstore.types import UInt8Array

OLD_DRIVER = replace(SimGpu().facts, driver=12040, has_batches=False)
OTHER_ADDRESSES = replace(SimGpu().facts, reaches_host=False)
ENGINES = engine_names(SimGpu().facts)


def allocate(nbytes: int) -> UInt8Array:
    return np.empty(nbytes, np.uint8)


def copy_on(gpu: SimGpu, engine: str, copy: PagedCopy, *, store: bool, staging_nbytes: int = 1 << 14) -> None:
    """One copy by one engine, its pool registered meanwhile, and everything given back."""
    gpu.enter()
    origin = copy.pool.ctypes.data
    gpu.register(origin, copy.pool.nbytes)
    stream = gpu.new_stream(high_priority=False)
    shelf = EngineShelf(gpu, staging_nbytes=staging_nbytes)
    shelf.take(engine).copy(SpanCopy(store, copy.segments, copy.slots, copy.block_ids, origin), stream)
    gpu.finish(gpu.record(stream))
    gpu.unregister(origin)
    shelf.close()
    gpu.drop_stream(stream)
    assert gpu.num_held == 0


shapes = st.builds(
    Shape,
    num_blocks=st.just(6),
    num_rows=st.integers(1, 3),
    row_nbytes=st.sampled_from([1, 64, 576, 1152, 4096]),
    row_gap=st.sampled_from([0, 3, 16]),
)


@pytest.mark.parametrize("engine", ENGINES)
@given(
    shapes=st.lists(shapes, min_size=1, max_size=3).map(tuple),
    slots=st.permutations(range(6)),
    block_ids=st.lists(st.integers(0, 5), unique=True),
    seed=st.integers(0, 2**32 - 1),
)
def test_every_engine_copies_what_indexing_would(
    engine: str, shapes: tuple[Shape, ...], slots: list[int], block_ids: list[int], seed: int
) -> None:
    copy = PagedCopy.make(allocate, shapes, list(zip(slots, block_ids, strict=False)), seed)
    copy.check_store(lambda: copy_on(SimGpu(seed), engine, copy, store=True))
    copy.check_load(lambda: copy_on(SimGpu(seed), engine, copy, store=False), seed)


@pytest.mark.parametrize("store", [True, False])
@pytest.mark.parametrize("seed", range(20))
def test_staging_goes_around_its_halves_without_overtaking_itself(seed: int, store: bool) -> None:
    copy = PagedCopy.make(allocate, (Shape(40, 2, 576), Shape(40, 1, 1000)), [(39 - i, i) for i in range(40)], seed)
    run = functools.partial(copy_on, SimGpu(seed), StagedEngine.name, copy, store=store)
    if store:
        copy.check_store(run)
    else:
        copy.check_load(run, seed)


@pytest.mark.parametrize("store", [True, False])
@pytest.mark.parametrize("staging_nbytes", [1 << 10, 1 << 12, 1 << 14])
def test_a_block_larger_than_the_staging_memory_is_staged_part_by_part(staging_nbytes: int, store: bool) -> None:
    gpu = SimGpu(3)
    shapes = (Shape(4, 9, 576, row_gap=16), Shape(4, 30, 64, row_gap=3), Shape(4, 1, 700))
    copy = PagedCopy.make(allocate, shapes, [(0, 1), (2, 3), (1, 0)], 1)
    run = functools.partial(copy_on, gpu, StagedEngine.name, copy, store=store, staging_nbytes=staging_nbytes)
    if store:
        copy.check_store(run)
    else:
        copy.check_load(run, 2)
    assert "launch" in {call[0] for call in gpu.calls}


@pytest.mark.parametrize("staging_nbytes", [1 << 10, 1 << 11, 1 << 15])
def test_quantized_blocks_larger_than_the_staging_memory_ended_their_stream(staging_nbytes: int) -> None:
    gpu, group = SimGpu(4), 33
    shapes = (Shape(5, 7, 2 * 2 * group, row_gap=12), Shape(5, 1, 40 * 2 * group), Shape(5, 2, 2 * group, row_gap=2))
    copy = PagedCopy.make(allocate, shapes, [(0, 3), (1, 1), (2, 4)], 1)
    for tensor in copy.tensors:
        tensor[:] = np.random.default_rng(2).standard_normal(tensor.nbytes // 2).astype(np.float16).view(np.uint8)
    block = QuantizedBlock("int8", "float16", group, copy.slot_nbytes // 2)
    pool = np.full((3, block.nbytes + -block.nbytes % 4096), POISON, np.uint8)
    slots = pool.ctypes.data + np.arange(3) * pool.strides[0]

    def run(*, store: bool) -> None:
        gpu.enter()
        stream, shelf = gpu.new_stream(high_priority=False), EngineShelf(gpu, staging_nbytes=staging_nbytes)
        span = SpanCopy(store, copy.segments, slots, copy.block_ids, pool.ctypes.data, block)
        shelf.take(QUANTIZE).copy(span, stream)
        gpu.finish(gpu.record(stream))
        shelf.close()
        gpu.drop_stream(stream)
        assert gpu.num_held == 0

    run(store=True)
    expected, brought = np.full_like(pool, POISON), {}
    for slot, block_id in copy.pairs:
        codes, scales = quantize(as_float32(copy.block(block_id), "float16").reshape(-1, group), "int8")
        expected[slot, : codes.size] = codes.ravel()
        expected[slot, block.scales_offset_nbytes :][: scales.nbytes] = scales.view(np.uint8)
        brought[block_id] = as_elements(dequantize(codes, scales, "int8"), "float16").ravel()
    assert np.array_equal(pool, expected)
    for tensor in copy.tensors:
        tensor[:] = 0
    run(store=False)
    assert all(np.array_equal(copy.block(block_id), values) for block_id, values in brought.items())
    assert not copy.block(0).any()


@pytest.mark.parametrize("store", [True, False])
def test_rows_longer_than_the_staging_memory_go_without_it(store: bool) -> None:
    gpu = SimGpu()
    copy = PagedCopy.make(allocate, (Shape(2, 2, 5000, row_gap=8),), [(0, 1)], 1)
    run = functools.partial(copy_on, gpu, StagedEngine.name, copy, store=store, staging_nbytes=4096)
    if store:
        copy.check_store(run)
    else:
        copy.check_load(run, 2)
    assert {call[0] for call in gpu.calls} == {"new_stream", "copy_batch", "record"}


def test_a_single_row_of_a_block_is_not_staged() -> None:
    gpu = SimGpu()
    copy = PagedCopy.make(allocate, (Shape(3, 1, 5000),), [(0, 1), (1, 2)], 1)
    copy.check_store(lambda: copy_on(gpu, StagedEngine.name, copy, store=True))
    assert {call[0] for call in gpu.calls} == {"new_stream", "copy_batch", "record"}


def test_a_gpu_without_memory_to_stage_in_copies_by_kernel() -> None:
    gpu = SimGpu(memory_nbytes=0)
    assert isinstance(EngineShelf(gpu).take(StagedEngine.name), KernelEngine)


def test_an_old_driver_copies_piece_by_piece() -> None:
    assert "batch" not in engine_names(OLD_DRIVER)
    gpu = SimGpu(facts=OLD_DRIVER)
    copy = PagedCopy.make(allocate, (Shape(3, 1, 64),), [(0, 2), (2, 0)], 1)
    copy.check_store(lambda: copy_on(gpu, StagedEngine.name, copy, store=True))
    assert [call[0] for call in gpu.calls].count("copy") == 2


@pytest.mark.parametrize("engine", engine_names(OTHER_ADDRESSES))
def test_where_the_gpu_sees_host_memory_elsewhere_only_the_driver_names_it(engine: str) -> None:
    assert engine in {"staged", "pieces"}
    copy = PagedCopy.make(allocate, (Shape(3, 2, 2500, row_gap=4),), [(0, 2), (2, 0)], 1)
    copy.check_store(lambda: copy_on(SimGpu(facts=OTHER_ADDRESSES), engine, copy, store=True))
    copy.check_load(lambda: copy_on(SimGpu(facts=OTHER_ADDRESSES), engine, copy, store=False), 2)


def test_a_kernel_stays_within_its_quota_and_asks_for_no_idle_blocks() -> None:
    gpu = SimGpu()
    small = PagedCopy.make(allocate, (Shape(2, 1, 64),), [(0, 1)], 1)
    large = PagedCopy.make(allocate, (Shape(2, 1, 1 << 20),), [(0, 1)], 1)
    for copy in (small, large):
        copy_on(gpu, "kernel-8", copy, store=True)
    assert [call[2:] for call in gpu.calls if call[0] == "launch"] == [("gather_16", "1"), ("gather_16", "8")]


def test_memory_registered_in_slices_is_copied_slice_by_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = SimGpu()
    gpu.enter()
    monkeypatch.setattr("tierstore.device.copy_engines.SLICE_NBYTES", 4096)
    copy = PagedCopy.make(allocate, (Shape(3, 1, 5000),), [(0, 2), (1, 1), (2, 0)], 1)
    origin = copy.pool.ctypes.data
    for start in range(0, copy.pool.nbytes, 4096):
        gpu.register(origin + start, min(4096, copy.pool.nbytes - start))
    stream = gpu.new_stream(high_priority=False)

    def run() -> None:
        PieceEngine(gpu).copy(SpanCopy(True, copy.segments, copy.slots, copy.block_ids, origin), stream)
        gpu.finish(gpu.record(stream))

    copy.check_store(run)
    assert [call[0] for call in gpu.calls].count("copy") == 6


@given(
    hosts=st.lists(st.integers(0, 500), min_size=1, max_size=5),
    nbytes=st.lists(st.integers(1, 300), min_size=5, max_size=5),
    slice_nbytes=st.integers(1, 200),
)
def test_splitting_keeps_every_byte_and_crosses_no_cut(hosts: list[int], nbytes: list[int], slice_nbytes: int) -> None:
    whole = Pieces(np.arange(len(hosts)) * 10_000, np.array(hosts) + 7, np.array(nbytes[: len(hosts)]))
    split = split_pieces(whole, origin=7, slice_nbytes=slice_nbytes)

    def bytes_of(pieces: Pieces) -> list[tuple[int, int]]:
        rows = zip(*(column.tolist() for column in pieces), strict=True)
        return [(page + i, host + i) for page, host, length in rows for i in range(length)]

    assert bytes_of(split) == bytes_of(whole)
    assert np.array_equal((split.hosts - 7) // slice_nbytes, (split.hosts + split.nbytes - 8) // slice_nbytes)


def test_neighbours_on_both_sides_are_one_piece() -> None:
    copy = PagedCopy.make(allocate, (Shape(4, 2, 64),), [(0, 1), (1, 2), (2, 0)], 1)
    pieces = cut_pieces(SpanCopy(True, copy.segments, copy.slots, copy.block_ids, 0))
    assert pieces.nbytes.tolist() == [256, 128]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("first", "second"), list(itertools.product(ENGINES, repeat=2)))
def test_a_load_reads_what_the_store_before_it_on_the_stream_has_written(first: str, second: str, seed: int) -> None:
    gpu = SimGpu(seed)
    gpu.enter()
    copy = PagedCopy.make(allocate, (Shape(6, 2, 256),), [(0, 0), (1, 1), (2, 2)], seed)
    origin = copy.pool.ctypes.data
    gpu.register(origin, copy.pool.nbytes)
    stream = gpu.new_stream(high_priority=False)
    shelf = EngineShelf(gpu, staging_nbytes=1 << 10)
    stored = SpanCopy(True, copy.segments, copy.slots, copy.block_ids, origin)
    shelf.take(first).copy(stored, stream)
    shelf.take(second).copy(SpanCopy(False, copy.segments, copy.slots, copy.block_ids + 3, origin), stream)
    gpu.finish(gpu.record(stream))
    assert all(np.array_equal(copy.block(block_id), copy.block(block_id + 3)) for block_id in range(3))
