"""What shapes a block's bytes: sizes, refusals and the fingerprint."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tierstore.errors import LayoutError
from tierstore.layout import DTYPE_NBYTES, KVLayout, MemoryOrder, PageKind, PageSpec

LAYOUT = KVLayout.attention(layers=2, kv_heads=8, head_size=128, block_tokens=16)


def test_a_block_holds_both_planes_of_every_layer() -> None:
    assert LAYOUT.page_nbytes == (2 * 16 * 8 * 128 * 2,) * 2
    assert LAYOUT.block_nbytes == 131072


def test_an_mla_block_holds_one_latent_row_a_token_and_layer() -> None:
    assert KVLayout.mla(layers=61, latent_size=576, block_tokens=16).block_nbytes == 61 * 16 * 576 * 2


def test_a_state_page_has_one_size_whatever_the_tokens() -> None:
    state = PageSpec("conv", PageKind.STATE, 1, 4096, 1)
    assert state.nbytes(block_tokens=16, item_nbytes=2) == state.nbytes(block_tokens=256, item_nbytes=2) == 8192


def test_an_opaque_block_has_just_the_bytes_asked_for() -> None:
    assert KVLayout.opaque(block_nbytes=100_000).block_nbytes == 100_000


VARIANTS = [
    replace(LAYOUT, block_tokens=32),
    replace(LAYOUT, dtype="float16"),
    replace(LAYOUT, dtype="float8_e4m3"),
    replace(LAYOUT, order=MemoryOrder.HND),
    replace(LAYOUT, pages=LAYOUT.pages[:1]),
    replace(LAYOUT, pages=LAYOUT.pages[::-1]),
    *(
        replace(LAYOUT, pages=(replace(LAYOUT.pages[0], **change), *LAYOUT.pages[1:]))
        for change in ({"name": "x"}, {"kind": PageKind.SLIDING}, {"kv_heads": 4}, {"head_size": 64}, {"planes": 1})
    ),
]


def test_layouts_that_differ_in_any_field_have_different_fingerprints() -> None:
    prints = {layout.fingerprint for layout in (LAYOUT, *VARIANTS)}
    assert len(prints) == 1 + len(VARIANTS)
    assert {len(one) for one in prints} == {32}


def test_the_fingerprint_of_a_layout_never_changes() -> None:
    assert LAYOUT.fingerprint.hex() == "5b18a9704940dba35123e9502b483d71e864196e88171e17824a3947db3532fe"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"pages": ()}, "at least one page"),
        ({"block_tokens": 0}, "block_tokens is 0"),
        ({"block_tokens": 16.0}, "block_tokens is 16.0; it must be of type int"),
        ({"order": "HND"}, "order is 'HND'; pass MemoryOrder.NHD or MemoryOrder.HND"),
        ({"dtype": "bf16"}, "dtype 'bf16' is unknown; use one of float32"),
        ({"block_tokens": 1 << 22}, "is too large; use fewer block_tokens"),
    ],
)
def test_an_impossible_layout_is_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(LayoutError, match=message):
        replace(LAYOUT, **change)  # type: ignore[arg-type]


@pytest.mark.parametrize("field", ["kv_heads", "head_size", "planes"])
def test_a_page_without_heads_elements_or_planes_is_refused(field: str) -> None:
    with pytest.raises(LayoutError, match=f"page 'layers.0': {field} is 0"):
        replace(LAYOUT.pages[0], **{field: 0})  # type: ignore[arg-type]


def test_a_page_of_no_known_kind_is_refused() -> None:
    with pytest.raises(LayoutError, match=r"page 'layers\.0' is of kind 'full'; pass a str and a PageKind"):
        replace(LAYOUT.pages[0], kind="full")  # type: ignore[arg-type]


def test_every_dtype_has_the_element_size_that_torch_gives_it() -> None:
    import torch

    names = {"float8_e4m3": "float8_e4m3fn"}
    assert {name: getattr(torch, names.get(name, name)).itemsize for name in DTYPE_NBYTES} == DTYPE_NBYTES
