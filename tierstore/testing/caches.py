"""Caches as engines lay them out, in small, each with numpy's own indexing as the oracle for its blocks.

For those who write or measure a device: every arrangement is a case of the contract. Nothing here uses strides or
addresses, so that what it calls a block owes nothing to the code under test.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from tierstore.device.axes import ROLES, PagedTensor
from tierstore.device.paged_kv import PagedKV
from tierstore.layout import KVLayout, MemoryOrder, PageKind, PageSpec

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tierstore.types import Int64Array, UInt8Array

    View: TypeAlias = Callable[[NDArray[np.uint16]], NDArray[np.uint16]]

__all__ = ["ARRANGEMENTS", "Arrangement", "Part"]

_BLOCKS = 8
_TOKENS = 8
_LAYERS = 3


def _whole(memory: NDArray[np.uint16]) -> NDArray[np.uint16]:
    return memory


@dataclass(frozen=True, slots=True)
class Part:
    """One tensor of an arrangement.

    Attributes:
        shape: Of the memory, uint16.
        axes: As `PagedTensor.axes`, of what `view` makes of the memory.
        pages: As `PagedTensor.pages`.
        view: The engine's tensor in that memory: a slice of it, or with its axes in another order.
        planes: As `PagedTensor.planes`.
        id_rows: As `PagedTensor.id_rows`.
    """

    shape: tuple[int, ...]
    axes: str
    pages: tuple[str, ...]
    view: View = _whole
    planes: tuple[int, ...] | None = None
    id_rows: tuple[int, ...] = (0,)


@dataclass(frozen=True, slots=True)
class Arrangement:
    """One way to lay a cache out."""

    layout: KVLayout
    parts: tuple[Part, ...]

    def memories(self, seed: int) -> list[NDArray[np.uint16]]:
        """Fresh random memory for every part."""
        generator = np.random.default_rng(seed)
        return [generator.integers(0, 1 << 16, part.shape, np.uint16) for part in self.parts]

    def bind(self, memories: Sequence[object], *, pages_per_group: int | None = None) -> PagedKV:
        """Bind memories that are sliced and transposed as numpy's are: arrays, or tensors of any device."""
        tensors = [
            PagedTensor(part.view(memory), part.axes, part.pages, part.planes, part.id_rows)  # type: ignore[arg-type]
            for part, memory in zip(self.parts, memories, strict=True)
        ]
        return PagedKV.bind(self.layout, tensors, pages_per_group=pages_per_group)

    def read(self, memories: Sequence[NDArray[np.uint16]], ids: Int64Array) -> UInt8Array:
        """uint8[block_nbytes]: the block that a column of block ids names."""
        found: dict[tuple[str, int], list[NDArray[np.uint16]]] = {}
        for part, memory in zip(self.parts, memories, strict=True):
            for id_row in part.id_rows:
                for place, tokens in self._planes(part, part.view(memory), int(ids[id_row])):
                    found.setdefault(place, []).append(tokens)
        planes = [
            self._ordered(np.concatenate(found[page.name, plane]))
            for page in self.layout.pages
            for plane in range(page.planes)
        ]
        return np.concatenate([plane.ravel() for plane in planes]).view(np.uint8)

    def write(self, memories: Sequence[NDArray[np.uint16]], ids: Int64Array, block: UInt8Array) -> None:
        """The other way round."""
        values = block.view(np.uint16)
        planes: dict[tuple[str, int], NDArray[np.uint16]] = {}
        for page in self.layout.pages:
            tokens = 1 if page.kind is PageKind.STATE else self.layout.block_tokens
            stored = self._ordered(np.empty((tokens, page.kv_heads, page.head_size), np.uint16))
            for plane in range(page.planes):
                planes[page.name, plane] = self._ordered(values[: stored.size].reshape(stored.shape))
                values = values[stored.size :]
        for part, memory in zip(self.parts, memories, strict=True):
            for position, id_row in enumerate(part.id_rows):
                for place, rows in self._planes(part, part.view(memory), int(ids[id_row])):
                    rows[:] = planes[place][position * len(rows) : (position + 1) * len(rows)]

    def _ordered(self, plane: NDArray[np.uint16]) -> NDArray[np.uint16]:
        """A plane [token, head, element] in the layout's order, and back."""
        return plane.swapaxes(0, 1) if self.layout.order is MemoryOrder.HND else plane

    def _planes(
        self, part: Part, tensor: NDArray[np.uint16], block_id: int
    ) -> list[tuple[tuple[str, int], NDArray[np.uint16]]]:
        """Each plane of one block in a tensor, [token, head, element], in place."""
        names = part.axes.split()
        order = sorted(range(len(names)), key=lambda axis: ROLES.index(names[axis]))
        ordered = tensor.transpose(order)
        for position, role in enumerate(ROLES):  # one axis a role: those that lack get one of 1
            if role not in names:
                ordered = np.expand_dims(ordered, position)
        block = ordered[block_id]
        spec = next(page for page in self.layout.pages if page.name == part.pages[0])
        planes = range(spec.planes) if part.planes is None else part.planes
        return [
            ((page, plane), block[layer, step])
            for layer, page in enumerate(part.pages)
            for step, plane in enumerate(planes)
        ]


def _named(layers: int) -> list[str]:
    return [f"layers.{layer}" for layer in range(layers)]


def _each(shape: tuple[int, ...], axes: str, view: View = _whole) -> tuple[Part, ...]:
    """A tensor of one kind for every layer."""
    return tuple(Part(shape, axes, (name,), view) for name in _named(_LAYERS))


def _attention(order: MemoryOrder = MemoryOrder.NHD, block_tokens: int = _TOKENS) -> KVLayout:
    return KVLayout.attention(layers=_LAYERS, kv_heads=2, head_size=12, block_tokens=block_tokens, order=order)


def _hybrid() -> Arrangement:
    """Full and sliding attention, a latent and a state: pages of four sizes, named by three rows of block ids."""
    pages = (
        PageSpec("full", PageKind.FULL, 2, 12, 2),
        PageSpec("sliding", PageKind.SLIDING, 1, 20, 2),
        PageSpec("latent", PageKind.MLA, 1, 36, 1),
        PageSpec("state", PageKind.STATE, 1, 500, 1),
    )
    return Arrangement(
        KVLayout(pages, _TOKENS, "bfloat16"),
        (
            Part((2, _BLOCKS, _TOKENS, 2, 12), "plane block token head element", ("full",)),
            Part((_BLOCKS + 3, 2, _TOKENS, 1, 20), "block plane token head element", ("sliding",), id_rows=(1,)),
            Part((_BLOCKS, _TOKENS, 36), "block token element", ("latent",)),
            Part((_BLOCKS + 1, 512), "block element", ("state",), lambda memory: memory[:, :500], id_rows=(2,)),
        ),
    )


ARRANGEMENTS: dict[str, Arrangement] = {
    "planes apart": Arrangement(_attention(), _each((2, _BLOCKS, _TOKENS, 2, 12), "plane block token head element")),
    "planes together": Arrangement(_attention(), _each((_BLOCKS, 2, _TOKENS, 2, 12), "block plane token head element")),
    "heads first": Arrangement(
        _attention(MemoryOrder.HND), _each((_BLOCKS, 2, 2, _TOKENS, 12), "block plane head token element")
    ),
    "heads first, for a layout of tokens first": Arrangement(
        _attention(), _each((_BLOCKS, 2, 2, _TOKENS, 12), "block plane head token element")
    ),
    "tokens first, transposed to heads first": Arrangement(
        _attention(MemoryOrder.HND),
        _each((2, _BLOCKS, _TOKENS, 2, 12), "plane block head token element", lambda memory: memory.swapaxes(2, 3)),
    ),
    "K and V in tensors of their own": Arrangement(
        _attention(),
        tuple(
            Part((_BLOCKS, _TOKENS, 2, 12), "block token head element", (name,), planes=(plane,))
            for plane in (1, 0)
            for name in _named(_LAYERS)
        ),
    ),
    "one tensor, block first": Arrangement(
        _attention(),
        (Part((_BLOCKS, _LAYERS, 2, _TOKENS, 2, 12), "block layer plane token head element", tuple(_named(_LAYERS))),),
    ),
    "one tensor, layer first": Arrangement(
        _attention(),
        (Part((_LAYERS, 2, _BLOCKS, _TOKENS, 2, 12), "layer plane block token head element", tuple(_named(_LAYERS))),),
    ),
    "padded": Arrangement(
        _attention(),
        _each(
            (_BLOCKS, 2, _TOKENS + 1, 3, 20),
            "block plane token head element",
            lambda memory: memory[:, :, 1:, :2, 4:16],
        ),
    ),
    "every other block": Arrangement(
        _attention(),
        _each((2, 2 * _BLOCKS, _TOKENS, 2, 12), "plane block token head element", lambda memory: memory[:, ::2]),
    ),
    "latent": Arrangement(
        KVLayout.mla(layers=_LAYERS, latent_size=36, block_tokens=_TOKENS),
        _each((_BLOCKS, _TOKENS, 36), "block token element"),
    ),
    "blocks of half the tokens": Arrangement(
        _attention(MemoryOrder.HND),
        tuple(
            Part((2, _BLOCKS, 2, _TOKENS // 2, 12), "plane block head token element", (name,), id_rows=(0, 1))
            for name in _named(_LAYERS)
        ),
    ),
    "hybrid": _hybrid(),
}
"""Every arrangement by its name, over memory of uint16 in a layout of bfloat16."""
