"""Quantization: the kernels on the CPU against numpy, bit for bit, and numpy against other people's formats."""

from __future__ import annotations

import ctypes
from functools import partial
from typing import TYPE_CHECKING

import ml_dtypes
import numpy as np
import pytest

from tests.kernels.conftest import Compile, Guarded
from tests.paged_copies import POISON, PagedCopy, Shape
from tierstore.device.quantization import dequantize, kernel_name, quantize, quantize_tables
from tierstore.errors import LayoutError
from tierstore.quantized import SCHEMES, QuantizedBlock

if TYPE_CHECKING:
    from tierstore.types import UInt8Array

DTYPES = {"bfloat16": np.dtype(ml_dtypes.bfloat16), "float16": np.dtype(np.float16), "float32": np.dtype(np.float32)}
GROUPS = (1, 33, 64, 128, 576)


class Blocks:
    """A quantized copy of a paged cache with values that KV has, and slots for its codes and scales."""

    def __init__(self, guarded: Guarded, dtype: str, scheme: str, group: int, seed: int) -> None:
        self.dtype = DTYPES[dtype]
        row_nbytes = 2 * group * self.dtype.itemsize
        shapes = (Shape(3, 2, row_nbytes, row_gap=row_nbytes), Shape(3, 1, row_nbytes))
        self.copy = PagedCopy.make(partial(guarded, at_start=False), shapes, [(0, 2), (1, 0)], seed)
        self.layout = QuantizedBlock(scheme, dtype, group, self.copy.slot_nbytes // self.dtype.itemsize)
        self.slots = [guarded(self.layout.nbytes + -self.layout.nbytes % 16, at_start=False) for _ in self.copy.pairs]
        random = np.random.default_rng(seed)
        for tensor in self.copy.tensors:
            sizes = np.exp2(random.integers(-40, 40, tensor.nbytes // self.dtype.itemsize))
            values = random.standard_normal(len(sizes)) * sizes
            tensor.view(self.dtype)[:] = values.clip(-6e4, 6e4).astype(self.dtype)
        for slot in self.slots:
            slot[:] = POISON

    def run(self, library: ctypes.CDLL, *, store: bool) -> None:
        slots = np.array([slot.ctypes.data for slot in self.slots], np.int64)
        kernel = getattr(library, f"run_{kernel_name(self.layout, store=store)}")
        for table in quantize_tables(self.layout, self.copy.segments, slots, self.copy.block_ids):
            kernel(2, 64, ctypes.c_void_p(table.ctypes.data))

    def expected(self, block_id: int) -> UInt8Array:
        """A slot's bytes as numpy makes them."""
        values = self.copy.block(block_id).view(self.dtype).astype(np.float32).reshape(-1, self.layout.group)
        codes, scales = quantize(values, self.layout.scheme)
        slot = np.full(len(self.slots[0]), POISON, np.uint8)
        slot[: codes.size] = codes.ravel()
        slot[self.layout.scales_offset_nbytes :][: scales.nbytes] = scales.view(np.uint8)
        return slot


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_kernels_give_numpys_bits_both_ways_and_touch_nothing_else(
    compile_kernels: Compile, guarded: Guarded, dtype: str, scheme: str, group: int
) -> None:
    library = compile_kernels("quantize")
    blocks = Blocks(guarded, dtype, scheme, group, seed=group)
    before = [tensor.copy() for tensor in blocks.copy.tensors]
    blocks.run(library, store=True)
    for slot, (_, block_id) in zip(blocks.slots, blocks.copy.pairs, strict=True):
        assert np.array_equal(slot, blocks.expected(block_id))
    assert all(np.array_equal(tensor, old) for tensor, old in zip(blocks.copy.tensors, before, strict=True))

    loaded = [slot.copy() for slot in blocks.slots]
    expected = [tensor.copy() for tensor in blocks.copy.tensors]
    for slot, (_, block_id) in zip(loaded, blocks.copy.pairs, strict=True):
        codes = slot[: blocks.layout.num_elements].reshape(-1, group)
        scales = slot[blocks.layout.scales_offset_nbytes :][: 4 * len(codes)].view(np.float32)
        flat = dequantize(codes, scales, scheme).astype(blocks.dtype).ravel().view(np.uint8)
        for shape, tensor in zip(blocks.copy.shapes, expected, strict=True):
            for row in shape.rows(tensor, block_id):
                row[:], flat = flat[: len(row)], flat[len(row) :]
    blocks.run(library, store=False)
    assert all(np.array_equal(tensor, new) for tensor, new in zip(blocks.copy.tensors, expected, strict=True))
    assert all(np.array_equal(slot, old) for slot, old in zip(blocks.slots, loaded, strict=True))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_every_half_of_a_cache_goes_in_and_out_as_numpy_has_it(
    compile_kernels: Compile, guarded: Guarded, dtype: str
) -> None:
    """All 65,536 bit patterns, neighbours in groups."""
    library = compile_kernels("quantize")
    layout = QuantizedBlock("fp8_e4m3", dtype, 32, 1 << 16)
    copy = PagedCopy.make(partial(guarded, at_start=False), (Shape(1, 1, 1 << 17),), [(0, 0)], 1)
    halves = np.arange(1 << 16, dtype=np.uint16)
    copy.tensors[0][:] = halves.view(np.uint8)
    slot = guarded(layout.nbytes, at_start=False)
    slots = np.array([slot.ctypes.data], np.int64)
    tables = list(quantize_tables(layout, copy.segments, slots, copy.block_ids))
    for way in ("quantize", "dequantize"):
        kernel = getattr(library, f"run_{way}_{dtype}_fp8_e4m3")
        kernel(1, 32, ctypes.c_void_p(tables[0].ctypes.data))
    values = halves.view(DTYPES[dtype]).astype(np.float32).reshape(-1, 32)
    with np.errstate(over="ignore"):
        expected = dequantize(*quantize(values, "fp8_e4m3"), "fp8_e4m3").astype(DTYPES[dtype])
    found = copy.tensors[0].view(DTYPES[dtype]).reshape(-1, 32)
    finite = np.isfinite(values)
    assert np.array_equal(found[finite].view(np.uint16), expected[finite].view(np.uint16))
    assert np.isnan(found[~finite].astype(np.float32)).all()


def test_codes_are_those_of_the_format_that_others_call_e4m3fn() -> None:
    values = np.random.default_rng(1).standard_normal((4096, 8)).astype(np.float32)
    values[:, 0] = 448.0  # the largest of each group, so that the scale is 1
    values[:, 1:] *= np.exp2(np.random.default_rng(2).integers(-12, 9, (4096, 7))).astype(np.float32)
    values = values.clip(-448, 448)
    codes, scales = quantize(values, "fp8_e4m3")
    assert set(scales.tolist()) == {1.0}
    assert np.array_equal(codes, values.astype(ml_dtypes.float8_e4m3fn).view(np.uint8))
    every = np.arange(256, dtype=np.uint8)
    every = every[(every & 0x7F) != 0x7F]
    decoded = dequantize(every[None], np.ones(1, np.float32), "fp8_e4m3")[0]
    assert np.array_equal(decoded, every.view(ml_dtypes.float8_e4m3fn).astype(np.float32))


@pytest.mark.parametrize(("scheme", "error"), [("fp8_e4m3", 1 / 16), ("int8", 1 / 127)])
def test_what_comes_back_is_as_near_as_the_scheme_promises(scheme: str, error: float) -> None:
    values = np.random.default_rng(3).standard_normal((512, 128)).astype(np.float32)
    near = dequantize(*quantize(values, scheme), scheme)
    largest = np.abs(values).max(axis=1, keepdims=True)
    bound = np.maximum(np.abs(values), largest / 448 / 2) if scheme == "fp8_e4m3" else largest
    assert (np.abs(near - values) <= bound * error).all()


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_group_that_is_not_finite_never_comes_back_as_numbers(scheme: str, bad: float) -> None:
    values = np.ones((2, 8), np.float32)
    values[1, 3] = bad
    back = dequantize(*quantize(values, scheme), scheme)
    assert np.isfinite(back[0]).all()
    assert np.isnan(back[1]).all()


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_group_of_next_to_nothing_becomes_zeros(scheme: str) -> None:
    codes, scales = quantize(np.full((1, 8), 1e-38, np.float32), scheme)
    assert not codes.any()
    assert scales[0] == 0.0


def test_what_cannot_be_quantized_is_refused(guarded: Guarded) -> None:
    for scheme, dtype, group, named in (
        ("int4", "bfloat16", 64, "int4"),
        ("int8", "float8_e4m3", 64, "float8_e4m3"),
        ("int8", "bfloat16", 60, "64.* groups of 60"),
    ):
        with pytest.raises(LayoutError, match=named):
            QuantizedBlock(scheme, dtype, group, 64)
    copy = PagedCopy.make(partial(guarded, at_start=False), (Shape(1, 2, 96),), [(0, 0)], 1)
    block = QuantizedBlock("int8", "bfloat16", 32, 96)
    with pytest.raises(LayoutError, match="rows of 96 bytes"):
        list(quantize_tables(block, copy.segments, copy.slots, copy.block_ids))
