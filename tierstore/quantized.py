"""KV that the store keeps as one byte an element: which schemes there are, and how a block of them lies in its slot.

Pure data. Named by `tierstore.keys`, since it is part of an identity; done by devices
(`tierstore.device.quantization`). The floors between see blocks of bytes and know nothing of it.
"""

from __future__ import annotations

from dataclasses import dataclass

from tierstore.errors import LayoutError
from tierstore.layout import KVLayout, PageKind, PageSpec

__all__ = ["SCHEMES", "QuantizedBlock"]

SCHEMES = {"fp8_e4m3": 448.0, "int8": 127.0}
"""Largest value that each scheme's codes reach; a group is scaled so that its largest becomes that."""

_SCALE_NBYTES = 4
_ALIGNMENT = 16
_ELEMENTS = ("bfloat16", "float16", "float32")


@dataclass(frozen=True, slots=True)
class QuantizedBlock:
    """How a block lies in its slot: the codes of all elements, then the scales.

    Attributes:
        scheme: A key of `SCHEMES`.
        dtype: Of the cache: bfloat16, float16 or float32.
        group: Elements that share a scale: a head's share of a token.
        num_elements: Of a block.

    Raises:
        LayoutError: Another scheme or dtype, or a block that is not whole groups.
    """

    scheme: str
    dtype: str
    group: int
    num_elements: int

    def __post_init__(self) -> None:
        if self.scheme not in SCHEMES:
            raise LayoutError(f"quantization {self.scheme!r} is unknown; use one of {', '.join(SCHEMES)}")
        if self.dtype not in _ELEMENTS:
            raise LayoutError(f"KV of {self.dtype} cannot be quantized; only {', '.join(_ELEMENTS)} can")
        if self.group < 1 or self.num_elements % self.group:
            raise LayoutError(f"a block of {self.num_elements} elements is not whole groups of {self.group}")

    @classmethod
    def of(cls, layout: KVLayout, scheme: str) -> QuantizedBlock:
        """Blocks of a layout, a scale for every token and head.

        Raises:
            LayoutError: Its pages have heads of different sizes, or hold no heads of tokens at all.
        """
        states = [page.name for page in layout.pages if page.kind is PageKind.STATE]
        if states:
            raise LayoutError(f"page {states[0]!r} is a state and cannot be quantized; store it as it is")
        sizes = sorted({page.head_size for page in layout.pages})
        if len(sizes) > 1:
            raise LayoutError(f"heads of {sizes} elements share no quantization; give each size a namespace of its own")
        return cls(scheme, layout.dtype, sizes[0], layout.block_nbytes // layout.item_nbytes)

    @property
    def num_groups(self) -> int:
        """Scales of a block."""
        return self.num_elements // self.group

    @property
    def scales_offset_nbytes(self) -> int:
        """Where the scales begin."""
        return -(-self.num_elements // _ALIGNMENT) * _ALIGNMENT

    @property
    def nbytes(self) -> int:
        """Bytes of a block in its slot."""
        return self.scales_offset_nbytes + self.num_groups * _SCALE_NBYTES

    def slot_ranges(self, begin_nbytes: int, end_nbytes: int) -> list[tuple[int, int]]:
        """(begin, end) in the slot of the codes, and of the scales, of bytes [begin, end) of the block as it was."""
        item_nbytes = 4 if self.dtype == "float32" else 2
        codes = begin_nbytes // item_nbytes, end_nbytes // item_nbytes
        scales = (self.scales_offset_nbytes + code // self.group * _SCALE_NBYTES for code in codes)
        first, last = scales
        return [codes, (first, last)]

    def stored_layout(self, block_tokens: int) -> KVLayout:
        """What every floor below the device knows of such blocks: bytes. The page's name says which, for people."""
        name = f"{self.scheme} codes of {self.num_groups} x {self.group} {self.dtype}, then float32 scales"
        return KVLayout((PageSpec(name, PageKind.STATE, 1, self.nbytes, 1),), block_tokens, "uint8")
