"""KV layouts: the shape of a block's bytes, by pages, heads, dtype, tokens and memory order.

A block is the KV of `block_tokens` tokens over all pages of one layout, pages one after another in
the layout's order. A page is one tensor's share: one layer, or one state tensor of a hybrid model.
Pure data; the fingerprint names the layout alone (no model, no ranks).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

from tierstore.encoding import encode_canonical
from tierstore.errors import LayoutError

__all__ = ["DTYPE_NBYTES", "KVLayout", "MemoryOrder", "PageKind", "PageSpec"]

DTYPE_NBYTES = {
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "float8_e4m3": 1,
    "float8_e5m2": 1,
    "int8": 1,
    "uint8": 1,
}
"""Element sizes of the KV dtypes a layout may name."""


class PageKind(StrEnum):
    """What one tensor of the cache holds."""

    FULL = "full"
    """Keys and values of full attention."""
    SLIDING = "sliding"
    """Keys and values of sliding-window attention."""
    MLA = "mla"
    """The latent of multi-head latent attention: one plane, one head."""
    STATE = "state"
    """State of a recurrent or convolution layer: one fixed size a block, not a row a token."""


class MemoryOrder(StrEnum):
    """Order of tokens (N) and heads (H) inside a plane; the head dimension is always last."""

    NHD = "NHD"
    HND = "HND"


def _check_count(name: str, value: int) -> None:
    """Refuse what is no count; equal numbers of other types would not have equal fingerprints."""
    if type(value) is not int:
        raise LayoutError(f"{name} is {value!r}; it must be of type int")
    if value < 1:
        raise LayoutError(f"{name} is {value}; it must be at least 1")


@dataclass(frozen=True, slots=True)
class PageSpec:
    """One tensor's share of a block.

    Attributes:
        name: The tensor's name in the engine, such as ``"model.layers.0"``.
        kind: What it holds.
        kv_heads: Heads stored by this shard; 1 for MLA.
        head_size: Elements a head and token; for `STATE`, the elements of the whole state.
        planes: 2 where K and V lie apart in one tensor, 1 for MLA and state.
    """

    name: str
    kind: PageKind
    kv_heads: int
    head_size: int
    planes: int

    def __post_init__(self) -> None:
        if (type(self.name), type(self.kind)) != (str, PageKind):
            raise LayoutError(f"page {self.name!r} is of kind {self.kind!r}; pass a str and a PageKind")
        for field, value in (("kv_heads", self.kv_heads), ("head_size", self.head_size), ("planes", self.planes)):
            _check_count(f"page {self.name!r}: {field}", value)

    def nbytes(self, *, block_tokens: int, item_nbytes: int) -> int:
        """Bytes of this page in one block."""
        tokens = 1 if self.kind is PageKind.STATE else block_tokens
        return self.planes * tokens * self.kv_heads * self.head_size * item_nbytes


@dataclass(frozen=True)
class KVLayout:
    """What shapes a block's bytes.

    Attributes:
        pages: In the order in which a block holds them.
        block_tokens: Tokens a block.
        dtype: A key of `DTYPE_NBYTES`.
        order: Order of tokens and heads in every plane.

    Raises:
        LayoutError: No pages, an unknown dtype, or a block of no tokens.
    """

    pages: tuple[PageSpec, ...]
    block_tokens: int
    dtype: str
    order: MemoryOrder = MemoryOrder.NHD

    def __post_init__(self) -> None:
        if not self.pages:
            raise LayoutError("a layout needs at least one page; it has none")
        _check_count("block_tokens", self.block_tokens)
        if not isinstance(self.order, MemoryOrder):
            raise LayoutError(f"order is {self.order!r}; pass MemoryOrder.NHD or MemoryOrder.HND")
        if self.dtype not in DTYPE_NBYTES:
            raise LayoutError(f"dtype {self.dtype!r} is unknown; use one of {', '.join(DTYPE_NBYTES)}")
        if self.block_nbytes >= 1 << 32:
            raise LayoutError(f"a block of {self.block_nbytes} bytes is too large; use fewer block_tokens")

    @classmethod
    def attention(
        cls,
        *,
        layers: int,
        kv_heads: int,
        head_size: int,
        block_tokens: int,
        dtype: str = "bfloat16",
        order: MemoryOrder = MemoryOrder.NHD,
    ) -> KVLayout:
        """The layout of a model whose every layer is full attention (MHA or GQA)."""
        pages = tuple(PageSpec(f"layers.{layer}", PageKind.FULL, kv_heads, head_size, 2) for layer in range(layers))
        return cls(pages, block_tokens, dtype, order)

    @classmethod
    def mla(cls, *, layers: int, latent_size: int, block_tokens: int, dtype: str = "bfloat16") -> KVLayout:
        """The layout of a model with multi-head latent attention: one latent row a token and layer."""
        pages = tuple(PageSpec(f"layers.{layer}", PageKind.MLA, 1, latent_size, 1) for layer in range(layers))
        return cls(pages, block_tokens, dtype)

    @classmethod
    def opaque(cls, *, block_nbytes: int, block_tokens: int = 16) -> KVLayout:
        """The layout of blocks whose inside the caller keeps to itself."""
        return cls((PageSpec("block", PageKind.STATE, 1, block_nbytes, 1),), block_tokens, "uint8")

    @property
    def item_nbytes(self) -> int:
        """Bytes of one element."""
        return DTYPE_NBYTES[self.dtype]

    @cached_property
    def page_nbytes(self) -> tuple[int, ...]:
        """Bytes of each page in one block, in order."""
        return tuple(page.nbytes(block_tokens=self.block_tokens, item_nbytes=self.item_nbytes) for page in self.pages)

    @cached_property
    def block_nbytes(self) -> int:
        """Bytes of one block."""
        return sum(self.page_nbytes)

    @cached_property
    def fingerprint(self) -> bytes:
        """32 bytes that name this layout: equal layouts, and only those, have equal fingerprints."""
        return hashlib.sha256(b"tierstore layout 1\0" + encode_canonical(self.as_fields())).digest()

    def as_fields(self) -> dict[str, object]:
        """The layout as plain values, for the canonical encoding and for the manifest."""
        return {
            "pages": [[p.name, p.kind.value, p.kv_heads, p.head_size, p.planes] for p in self.pages],
            "block_tokens": self.block_tokens,
            "dtype": self.dtype,
            "order": self.order.value,
        }
