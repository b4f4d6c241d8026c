"""Binding an engine's cache: rows as long as they can be, and by name whatever does not fit."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from tierstore.device.axes import PagedTensor
from tierstore.device.paged_kv import PagedKV
from tierstore.errors import DeviceError, LayoutError
from tierstore.layout import KVLayout, MemoryOrder, PageKind, PageSpec
from tierstore.testing.caches import ARRANGEMENTS

AXES = "plane block token head element"
LAYOUT = KVLayout.attention(layers=2, kv_heads=2, head_size=4, block_tokens=8)
SHAPE = (2, 5, 8, 2, 4)
BLOCK_ROWS = 8 * 2 * 4 * 2
"""Bytes of one plane of a block."""


def cache(**changes: Any) -> list[PagedTensor]:
    """Two layers of the layout, the second one changed."""
    tensors: dict[str, Any] = {"tensor": np.zeros(SHAPE, np.uint16), "axes": AXES, "pages": "layers.1"}
    return [PagedTensor(np.zeros(SHAPE, np.uint16), AXES, "layers.0"), PagedTensor(**tensors | changes)]


def rows(kv: PagedKV) -> list[tuple[int, int]]:
    """(num_rows, row_nbytes) of every segment."""
    return [(int(segment["num_rows"]), int(segment["row_nbytes"])) for segment in kv.segments]


@pytest.mark.parametrize("pages_per_group", [None, 1, 2])
@pytest.mark.parametrize("name", ARRANGEMENTS)
def test_segments_name_every_byte_of_a_block_once_and_where_it_lies(name: str, pages_per_group: int | None) -> None:
    arrangement = ARRANGEMENTS[name]
    memories = arrangement.memories(1)
    kv = arrangement.bind(memories, pages_per_group=pages_per_group)
    assert [index for group in kv.groups for span in group for index in range(span.first, span.end)] == list(
        range(len(kv.segments))
    )
    ids = np.array([3, 1, 2][: len(kv.num_blocks)], np.int64)
    block, times = np.zeros(kv.block_nbytes, np.uint8), np.zeros(kv.block_nbytes, np.uint8)
    for id_row, first, end in (span for group in kv.groups for span in group):
        for segment in range(first, end):
            rows = kv.views[segment][ids[id_row]].ravel()
            offset = int(kv.segments["slot_offset_nbytes"][segment])
            block[offset : offset + len(rows)] = rows
            times[offset : offset + len(rows)] += 1
    assert set(times) == {1}
    assert np.array_equal(block, arrangement.read(memories, ids))


@pytest.mark.parametrize(
    ("name", "pages_per_group", "found"),
    [
        ("planes apart", None, [(2, 384)] * 3),
        ("planes together", None, [(1, 768)] * 3),
        ("one tensor, block first", None, [(1, 2304)]),
        ("one tensor, block first", 1, [(1, 768)] * 3),
        ("one tensor, layer first", None, [(6, 384)]),
        ("one tensor, layer first", 1, [(2, 384)] * 3),
        ("heads first, for a layout of tokens first", 1, [(2, 24)] * 48),
        ("latent", None, [(1, 576)] * 3),
    ],
)
def test_rows_are_as_long_as_they_can_be_and_segments_as_few(
    name: str, pages_per_group: int | None, found: list[tuple[int, int]]
) -> None:
    arrangement = ARRANGEMENTS[name]
    assert rows(arrangement.bind(arrangement.memories(1), pages_per_group=pages_per_group)) == found


def test_layers_that_are_views_of_one_tensor_become_one_row() -> None:
    whole = torch.zeros((5, 2, 2, 8, 2, 4), dtype=torch.bfloat16)
    tensors = [
        PagedTensor(whole[:, layer], f"block {AXES.replace('block ', '')}", f"layers.{layer}") for layer in (0, 1)
    ]
    assert rows(PagedKV.bind(LAYOUT, tensors)) == [(1, LAYOUT.block_nbytes)]


def test_a_role_that_comes_twice_counts_its_major_axis_first() -> None:
    memory = np.arange(5 * 2 * 2 * 8 * 2, dtype=np.uint16).reshape(5, 2, 2, 8, 2)  # heads, and 4 elements as 2 times 2
    layout = KVLayout((PageSpec("k", PageKind.FULL, 2, 4, 1),), 8, "bfloat16", MemoryOrder.HND)
    kv = PagedKV.bind(layout, [PagedTensor(memory, "block head element token element", "k")])
    block = np.zeros(kv.block_nbytes, np.uint8)
    for offset, view in zip(kv.segments["slot_offset_nbytes"].tolist(), kv.views, strict=True):
        block[offset : offset + view[3].size] = view[3].ravel()
    assert np.array_equal(block.view(np.uint16), memory[3].transpose(0, 2, 1, 3).ravel())


def test_block_ids_reach_as_far_as_the_shortest_tensor_of_their_row() -> None:
    assert PagedKV.bind(LAYOUT, cache()).num_blocks == (5,)
    assert PagedKV.bind(LAYOUT, cache(tensor=np.zeros((2, 3, 8, 2, 4), np.uint16))).num_blocks == (3,)
    assert PagedKV.bind(LAYOUT, cache(tensor=np.zeros((2, 3, 8, 2, 4), np.uint16), id_rows=[1])).num_blocks == (5, 3)


def test_rows_of_ids_that_name_blocks_of_one_tensor_share_it() -> None:
    assert ARRANGEMENTS["hybrid"].bind(ARRANGEMENTS["hybrid"].memories(1)).sharing == ((0,), (1,), (2,))
    halves = ARRANGEMENTS["blocks of half the tokens"]
    assert halves.bind(halves.memories(1)).sharing == ((0, 1),)
    memory = np.zeros(SHAPE, np.uint16)  # two groups of layers in one memory, as engines keep hybrid models
    tensors = [PagedTensor(memory, AXES, f"layers.{layer}", id_rows=[layer]) for layer in (0, 1)]
    assert PagedKV.bind(LAYOUT, tensors).sharing == ((0, 1),)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"tensor": np.zeros((2, 5, 16, 2, 4), np.uint16)}, r"uint16\[2, 5, 16, 2, 4\] counts 16 tokens .* has 8"),
        ({"tensor": np.zeros((2, 5, 8, 3, 4), np.uint16)}, r"counts 3 heads .*'layers.1' has 2"),
        ({"tensor": np.zeros((2, 5, 8, 2, 5), np.uint16)}, r"counts 5 elements .* has 4"),
        ({"tensor": np.zeros((2, 5, 8, 2, 3), np.uint8)}, r"counts 3 elements .* has 8"),
        ({"tensor": np.zeros((3, 5, 8, 2, 4), np.uint16)}, r"counts 3 planes .* has 2"),
        ({"tensor": np.zeros(SHAPE[:-1], np.uint16), "axes": "plane block token head"}, "counts 1 elements .* has 4"),
        ({"tensor": np.zeros((5, 2, 8, 2, 4), np.uint16)}, "counts 5 planes"),
        ({"tensor": np.zeros(SHAPE, np.float16)}, "float16, for a layout of bfloat16"),
        ({"tensor": torch.zeros(SHAPE, dtype=torch.float16)}, "float16, for a layout of bfloat16"),
        ({"tensor": np.zeros(SHAPE, np.complex64)}, "complex64, for a layout of bfloat16"),
        ({"tensor": torch.zeros(SHAPE, dtype=torch.bfloat16, device="meta")}, "is on cpu, .* on meta"),
        ({"tensor": torch.zeros((2, 2)).to_sparse()}, "strided"),
        ({"tensor": [1, 2]}, "a list is no buffer"),
        ({"tensor": np.zeros((2, 5, 8, 2, 8), np.uint16)[..., ::2]}, "rows that are not contiguous"),
        ({"tensor": np.broadcast_to(np.zeros((5, 8, 2, 4), np.uint16), SHAPE)}, "share bytes"),
        ({"axes": "plane block token head"}, "5 axes, and 'plane block token head' names 4"),
        ({"axes": "plane block token heads element"}, "cannot count 'heads'; use block, layer"),
        ({"axes": "plane token token head element"}, "0 block axes"),
        ({"pages": "layers.2"}, "'layers.2'; name pages of the layout: 'layers.0', 'layers.1'"),
        ({"pages": []}, "no page"),
        ({"pages": "layers.0"}, "plane 0 of page 'layers.0' is in 2 of the tensors"),
        ({"pages": ["layers.0", "layers.1"]}, "counts 1 layers"),
        ({"planes": [0]}, "counts 2 planes .* has 1"),
        ({"planes": [0, 2]}, r"planes \[0, 2\]"),
        ({"planes": []}, r"planes \[\]"),
        ({"id_rows": []}, r"id_rows \[\]"),
        ({"id_rows": [0, 1, 2]}, r"id_rows \[0, 1, 2\]; 8 tokens"),
        ({"id_rows": [-1]}, r"id_rows \[-1\]"),
        ({"id_rows": [2]}, "row 1 of the block ids"),
    ],
)
def test_a_tensor_that_does_not_fit_the_layout_is_refused_by_name(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(LayoutError, match=named):
        PagedKV.bind(LAYOUT, cache(**changes))


def test_a_plane_that_no_tensor_holds_is_refused() -> None:
    missing = {"tensor": np.zeros((5, 8, 2, 4), np.uint16), "axes": "block token head element", "planes": [1]}
    with pytest.raises(LayoutError, match=r"plane 0 of page 'layers.1' is in 0 of the tensors"):
        PagedKV.bind(LAYOUT, cache(**missing))


def test_one_tensor_for_two_layers_is_refused() -> None:
    memory = np.zeros(SHAPE, np.uint16)
    with pytest.raises(LayoutError, match="two pages lie in the same memory"):
        PagedKV.bind(LAYOUT, [PagedTensor(memory, AXES, f"layers.{layer}") for layer in (0, 1)])


@pytest.mark.parametrize("pages_per_group", [0, -1])
def test_groups_hold_at_least_one_page(pages_per_group: int) -> None:
    with pytest.raises(LayoutError, match="pages_per_group"):
        PagedKV.bind(LAYOUT, cache(), pages_per_group=pages_per_group)


def test_bytes_and_bits_hold_any_dtype_and_a_layout_of_bytes_any_tensor() -> None:
    for tensor in (np.zeros((2, 5, 8, 2, 8), np.uint8), torch.zeros(SHAPE, dtype=torch.bfloat16)):
        assert rows(PagedKV.bind(LAYOUT, cache(tensor=tensor))) == [(2, BLOCK_ROWS)] * 2
    state = KVLayout((PageSpec("state", PageKind.STATE, 1, 48, 1),), 8, "uint8")
    kv = PagedKV.bind(state, [PagedTensor(torch.zeros((5, 12)), "block element", "state")])
    assert rows(kv) == [(1, 48)]


def _resize(tensor: torch.Tensor) -> None:
    tensor.untyped_storage().resize_(0)


def _swap(tensor: torch.Tensor) -> None:
    tensor.data = torch.zeros(SHAPE, dtype=torch.bfloat16)


@pytest.mark.parametrize("move", [_resize, _swap], ids=["freed", "moved"])
def test_a_tensor_whose_memory_has_gone_is_refused(move: Any) -> None:
    tensor = torch.zeros(SHAPE, dtype=torch.bfloat16)
    kv = PagedKV.bind(LAYOUT, cache(tensor=tensor))
    kv.check_in_place()
    move(tensor)
    with pytest.raises(DeviceError, match=r"bfloat16.*freed or moved since it was bound"):
        kv.check_in_place()


def test_a_cache_is_writable_where_all_of_it_is() -> None:
    memory = np.zeros(SHAPE, np.uint16)
    assert PagedKV.bind(LAYOUT, cache(tensor=memory)).writable
    memory.flags.writeable = False
    assert not PagedKV.bind(LAYOUT, cache(tensor=memory)).writable


@pytest.mark.parametrize("held", ["cache", "views"])
def test_a_bound_cache_keeps_its_tensors(held: str) -> None:
    tensor = torch.ones(SHAPE, dtype=torch.bfloat16)
    gone = weakref.ref(tensor)
    kept: PagedKV | Sequence[Any] = PagedKV.bind(LAYOUT, cache(tensor=tensor))
    if held == "views":
        assert isinstance(kept, PagedKV)
        kept = kept.views
    del tensor
    gc.collect()
    assert gone() is not None
    del kept
    gc.collect()
    assert gone() is None
