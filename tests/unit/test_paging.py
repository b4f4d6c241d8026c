"""A caller's plain buffers as rows: viewed in place, or refused by name."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tierstore.device.paging import bind_rows
from tierstore.errors import LayoutError


@pytest.mark.parametrize(
    ("array", "block_nbytes"),
    [
        (np.zeros((4, 2, 3), np.float16), 12),
        (np.zeros((4, 2, 6), np.float32)[:, 1], 24),
        (np.zeros((8, 16), np.uint8)[::2, :5], 5),
        (np.zeros((4, 16), np.uint8)[::-1], 16),
        (np.zeros(4, np.int64), 8),
        (np.zeros((0, 16), np.uint8), 16),
    ],
    ids=["float16", "rows apart", "every other row", "backwards", "one number a block", "no blocks"],
)
def test_arrays_are_viewed_in_place(
    array: np.ndarray[tuple[int, ...], np.dtype[np.float32]], block_nbytes: int
) -> None:
    (rows,) = bind_rows(array, block_nbytes).views
    assert rows.shape == (len(array), 1, block_nbytes)
    rows[...] = 0xFF
    assert all(byte == 0xFF for byte in array.tobytes())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn, torch.float32])
def test_tensors_are_viewed_in_place(dtype: torch.dtype) -> None:
    tensor = torch.zeros((4, 2, 2, 8), dtype=dtype)[:, 1]
    (rows,) = bind_rows(tensor, 16 * dtype.itemsize).views
    rows[2] = np.arange(rows.shape[2], dtype=np.uint8)
    assert tensor.view(torch.uint8)[2].flatten().tolist() == list(range(rows.shape[2]))
    assert not tensor.view(torch.uint8)[[0, 1, 3]].any()


@pytest.mark.parametrize(
    ("buffers", "named"),
    [
        (bytearray(16), "bytearray"),
        (np.zeros((), np.uint8), r"uint8\[\]"),
        (np.zeros((2, 2), object), r"object\[2, 2\]"),
        (np.zeros((2, 8), ">u2"), r">u2\[2, 8\].*byte order"),
        (np.zeros((2, 4, 4), np.uint8)[:, :, 1:], r"\[2, 4, 3\].*contiguous"),
        (np.broadcast_to(np.zeros(16, np.uint8), (4, 16)), r"\[4, 16\].*overlap"),
        (torch.zeros(()), r"float32\[\]"),
        ([np.zeros((2, 4), np.float16), torch.zeros((2, 4))], r"float16\[2, 4\].*float32\[2, 4\]: 24 bytes.*16"),
        ([], "no buffer: 0 bytes.*16"),
    ],
)
def test_buffers_that_cannot_be_pages_are_refused_by_name(buffers: object, named: str) -> None:
    with pytest.raises(LayoutError, match=named):
        bind_rows(buffers, 16)
