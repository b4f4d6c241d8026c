"""One tensor of an engine's cache: the roles of its axes, and the bytes of a block that they hold.

The engine names the roles; `tierstore.device.paged_kv` cuts the tensor into segments. Roles are never guessed from
shapes: shapes are only compared with the layout.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from tierstore.device.segments import Loop, Segment, cut
from tierstore.device.tensors import check_dtype, view_tensor
from tierstore.errors import LayoutError
from tierstore.layout import KVLayout, MemoryOrder, PageKind, PageSpec

if TYPE_CHECKING:
    Axes: TypeAlias = list[tuple[int, int]]

__all__ = ["ROLES", "CutTensor", "PagedTensor"]

ROLES = ("block", "layer", "plane", "token", "head", "element")
"""What an axis may count."""


@dataclass(frozen=True, slots=True, eq=False)
class PagedTensor:
    """One tensor of an engine's cache, described.

    Attributes:
        tensor: A numpy array or torch tensor, on the store's device, as the engine holds it: padded, strided or a view.
        axes: The role of each axis in the tensor's order, such as ``"plane block token head element"``. ``block``
            counts the engine's blocks; ``layer`` the pages named; ``plane`` K and V; ``token``, ``head`` and
            ``element`` what their names say. A role may come twice, its major axis first (heads cut in pieces). One
            that does not come counts 1.
        pages: Names of the layout's pages that it holds: one, or as many as its layer axis counts, in that order.
        planes: The planes that it holds; None for all. ``[0]`` is K alone, if V lies in a tensor of its own.
        id_rows: The rows of the block ids that name its blocks. One row if the engine's blocks hold as many tokens as
            the layout's; k rows, in the order of their tokens, if k of the engine's blocks make one.
    """

    tensor: object
    axes: str
    pages: str | Sequence[str]
    planes: Sequence[int] | None = None
    id_rows: Sequence[int] = (0,)


class CutTensor:
    """A described tensor, checked against a layout.

    Attributes:
        view: The tensor's address, shape and strides.
        id_rows: As described.
        num_blocks: Blocks that it holds.
        held: (page, plane) of everything that it holds, by position in the layout.
        place: Address of block 0 and stride to the next; tensors that share it share their blocks.

    Raises:
        LayoutError: It does not fit, named by its dtype and shape.
    """

    def __init__(self, described: PagedTensor, layout: KVLayout) -> None:
        self.view = view_tensor(described.tensor)
        check_dtype(self.view, layout.dtype)
        self.id_rows = tuple(described.id_rows)
        self._layout = layout
        self._axes = self._name_axes(described.axes)
        self._pages = self._find_pages(described)
        self._spec = layout.pages[self._pages[0]]
        self._planes = tuple(range(self._spec.planes)) if described.planes is None else tuple(described.planes)
        self._check_extents()
        ((self.num_blocks, self._block_stride_nbytes),) = self._axes["block"]
        self.place = self.view.address, self._block_stride_nbytes
        self.held = [(page, plane) for page in self._pages for plane in self._planes]

    def segments(self) -> Iterator[tuple[int, int, Segment]]:
        """(page, row of block ids, segment) of everything it holds; pages by position in the layout."""
        layout, spec = self._layout, self._spec
        head_nbytes = spec.head_size * layout.item_nbytes
        num_tokens = _num_tokens(spec, layout)
        if layout.order is MemoryOrder.NHD:
            token_nbytes, head_step_nbytes = spec.kv_heads * head_nbytes, head_nbytes
        else:
            token_nbytes, head_step_nbytes = head_nbytes, num_tokens * head_nbytes
        loops = [
            *_loops(self._axes["token"], token_nbytes),
            *_loops(self._axes["head"], head_step_nbytes),
            *_loops(self._axes["element"], self.view.item_nbytes),
            Loop(self.view.item_nbytes, 1, 1),
        ]
        plane_nbytes = num_tokens * spec.kv_heads * head_nbytes
        part_nbytes = num_tokens // len(self.id_rows) * token_nbytes
        for layer, page in enumerate(self._pages):
            page_offset = sum(layout.page_nbytes[:page])
            for step, plane in enumerate(self._planes):
                address = self.view.address + _offset(self._axes["layer"], layer) + _offset(self._axes["plane"], step)
                for part, id_row in enumerate(self.id_rows):
                    slot_offset = page_offset + plane * plane_nbytes + part * part_nbytes
                    for segment in cut(
                        loops,
                        address=address,
                        block_stride_nbytes=self._block_stride_nbytes,
                        slot_offset_nbytes=slot_offset,
                    ):
                        yield page, id_row, segment

    def _name_axes(self, roles: str) -> dict[str, Axes]:
        names = roles.split()
        unknown = [name for name in names if name not in ROLES]
        if unknown:
            raise LayoutError(f"an axis cannot count {unknown[0]!r}; use {', '.join(ROLES)}")
        if len(names) != len(self.view.shape):
            raise LayoutError(f"{self.view} has {len(self.view.shape)} axes, and {roles!r} names {len(names)}")
        if names.count("block") != 1:
            raise LayoutError(f"{roles!r} names {names.count('block')} block axes; a tensor has one")
        axes: dict[str, Axes] = {role: [] for role in ROLES}
        for name, extent, stride in zip(names, self.view.shape, self.view.strides, strict=True):
            axes[name].append((extent, stride))
        return axes

    def _find_pages(self, described: PagedTensor) -> list[int]:
        positions = {page.name: position for position, page in enumerate(self._layout.pages)}
        named = [described.pages] if isinstance(described.pages, str) else list(described.pages)
        unknown = [name for name in named if name not in positions]
        if unknown or not named:
            raise LayoutError(
                f"{self.view} is for {repr(unknown[0]) if unknown else 'no page'}; name pages of the layout: "
                f"{_listed(list(positions))}"
            )
        pages = [positions[name] for name in named]
        shapes = {_shape(self._layout.pages[page]) for page in pages}
        if len(shapes) > 1:
            raise LayoutError(f"{self.view} is for {_listed(named)}, which differ in shape; bind each on its own")
        return pages

    def _check_extents(self) -> None:
        view, spec, layout = self.view, self._spec, self._layout
        num_tokens = _num_tokens(spec, layout)
        if not self.id_rows or num_tokens % len(self.id_rows) or min(self.id_rows) < 0:
            raise LayoutError(
                f"{view} has id_rows {list(self.id_rows)}; {num_tokens} tokens need 1 or more, alike long"
            )
        outside = [plane for plane in self._planes if not 0 <= plane < spec.planes]
        if outside or not self._planes:
            raise LayoutError(f"{view} has planes {list(self._planes)}; page {spec.name!r} has {spec.planes}")
        expected = {
            "layer": len(self._pages),
            "plane": len(self._planes),
            "token": num_tokens // len(self.id_rows),
            "head": spec.kv_heads,
            "element": spec.head_size * layout.item_nbytes / view.item_nbytes,
        }
        for role, count in expected.items():
            found = math.prod(extent for extent, _ in self._axes[role])
            if found != count:
                raise LayoutError(
                    f"{view} counts {found} {role}s where page {spec.name!r} has {count:g}; check axes, or view the "
                    "tensor so that each axis counts one thing"
                )
        if any(extent > 1 and stride != view.item_nbytes for extent, stride in self._axes["element"][-1:]):
            raise LayoutError(f"{view} has rows that are not contiguous (strides {view.strides} bytes)")
        if view.overlaps:
            raise LayoutError(f"{view} has elements that share bytes (strides {view.strides} bytes)")


def _num_tokens(spec: PageSpec, layout: KVLayout) -> int:
    return 1 if spec.kind is PageKind.STATE else layout.block_tokens


def _shape(spec: PageSpec) -> tuple[bool, int, int, int]:
    return spec.kind is PageKind.STATE, spec.kv_heads, spec.head_size, spec.planes


def _loops(axes: Axes, step_nbytes: int) -> Iterator[Loop]:
    """The axes of one role, of which the last steps by `step_nbytes` in the slot."""
    for extent, stride in reversed(axes):
        yield Loop(extent, stride, step_nbytes)
        step_nbytes *= extent


def _offset(axes: Axes, position: int) -> int:
    """Bytes from the first to one position along the axes of one role."""
    offset = 0
    for extent, stride in reversed(axes):
        position, step = divmod(position, extent)
        offset += step * stride
    return offset


def _listed(names: Sequence[str]) -> str:
    shown = [repr(name) for name in names[:4]]
    return ", ".join(shown) + (f" … {names[-1]!r}" if len(names) > len(shown) else "")
