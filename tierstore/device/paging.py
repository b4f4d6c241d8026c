"""A caller's buffers as pages, and the check that a copy stays inside them.

Called by the CPU and the simulated device before anything is enqueued; every device refuses with the same
words. Looks at shapes, strides and numbers only: it never reads, writes or copies a byte of KV.
"""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from tierstore.errors import DeviceError, LayoutError
from tierstore.types import PAGE_NBYTES

if TYPE_CHECKING:
    from tierstore.device.base import Pages
    from tierstore.types import Int32Array, Int64Array, UInt8Array

__all__ = ["check_copy", "slot_nbytes", "view_pages"]

_UINT8 = np.dtype(np.uint8)


def slot_nbytes(block_nbytes: int) -> int:
    """Bytes that a block takes in the pool: the next multiple of `PAGE_NBYTES`."""
    return -(-block_nbytes // PAGE_NBYTES) * PAGE_NBYTES


def view_pages(buffers: object, block_nbytes: int) -> list[UInt8Array]:
    """View host memory as pages without copying it; does not block.

    Args:
        buffers: One numpy array or CPU torch tensor of any dtype, or a list or tuple of them, one a page.
            The first axis counts blocks and each row is C-contiguous; rows may lie any distance apart. A
            read-only array may be stored from, not loaded into.
        block_nbytes: Bytes of a block: the rows of all buffers together.

    Returns:
        One uint8[num_blocks, page_nbytes] view a buffer; each keeps its buffer alive.

    Raises:
        LayoutError: A buffer is of another kind, lies otherwise, or the rows do not sum to `block_nbytes`.
    """
    parts = list(buffers) if isinstance(buffers, list | tuple) else [buffers]
    pages = [_view_rows(part) for part in parts]
    found = sum(page.shape[1] for page in pages)
    if found != block_nbytes:
        raise LayoutError(
            f"{', '.join(map(_describe, parts)) or 'no buffer'}: {found} bytes a block, expected {block_nbytes}; "
            "the first axis counts blocks and the rest of all buffers together is one block"
        )
    return pages


def check_copy(host: UInt8Array, slots: Int32Array, pages: Pages, block_ids: Int64Array, *, into_pool: bool) -> int:
    """Refuse a copy that would leave the pool or a page; does not block and moves nothing.

    Args:
        host: uint8[pool_nbytes].
        slots: int32[n]; offsets in the pool, in 4 KiB pages.
        pages: uint8[num_blocks, page_nbytes] views.
        block_ids: int64[n]; rows of the pages.
        into_pool: Whether `host` is written (a store) or the pages are (a load).

    Returns:
        Bytes of a block.

    Raises:
        LayoutError: An array has a wrong shape or dtype, or the destination is read-only.
        DeviceError: A slot or block id lies outside.
    """
    _check_array("host", host, ndim=1, written=into_pool)
    for page in pages:
        _check_array("a page", page, ndim=2, written=not into_pool)
    block_nbytes: int = sum(page.shape[1] for page in pages)
    if not block_nbytes:
        raise LayoutError(f"{len(pages)} pages of no bytes cannot be copied; pass at least one that has some")
    if slots.shape != block_ids.shape or slots.ndim != 1:
        raise LayoutError(f"slots has shape {slots.shape}, block_ids {block_ids.shape}; pass one slot a block id")
    num_slots = (host.nbytes - slot_nbytes(block_nbytes)) // PAGE_NBYTES + 1
    _check_range("slot", slots, num_slots, f"a pool of {host.nbytes} bytes and blocks of {block_nbytes}")
    num_blocks = min(len(page) for page in pages)
    _check_range("block id", block_ids, num_blocks, f"pages of {num_blocks} blocks")
    return block_nbytes


def _check_array(what: str, array: UInt8Array, *, ndim: int, written: bool) -> None:
    if array.ndim != ndim or array.dtype != _UINT8 or (array.size and array.strides[-1] != 1):
        raise LayoutError(f"{what} is {_describe(array)}; expected contiguous uint8 of {ndim} axes")
    if written and not array.flags.writeable:
        raise LayoutError(f"{what} is read-only, so nothing can be copied into it; pass a writable buffer")


def _check_range(what: str, values: Int32Array | Int64Array, end: int, where: str) -> None:
    outside = (values < 0) | (values >= end)
    if np.count_nonzero(outside):
        position = int(outside.argmax())
        raise DeviceError(
            f"{what} {values[position]} at position {position} lies outside {where}; use 0 … {max(end - 1, 0)}"
        )


def _view_rows(buffer: object) -> UInt8Array:
    array = _as_array(buffer)
    if array.ndim == 0 or array.dtype.hasobject:
        raise LayoutError(f"{_describe(buffer)} cannot hold blocks; pass plain numbers whose first axis counts blocks")
    if not _has_whole_rows(array):
        raise LayoutError(
            f"{_describe(buffer)} has rows that are not contiguous or that overlap (strides {array.strides} bytes); "
            "pass a C-contiguous buffer, or one buffer a page"
        )
    return array.reshape(len(array), math.prod(array.shape[1:])).view(np.uint8)


def _has_whole_rows(array: np.ndarray[Any, Any]) -> bool:
    if len(array) == 0:
        return True
    row = array[0]
    return bool(row.flags.c_contiguous) and (len(array) == 1 or abs(array.strides[0]) >= row.nbytes)


def _as_array(buffer: object) -> np.ndarray[Any, Any]:
    """The buffer itself, or a tensor's memory as bytes: one more axis of `itemsize`, since numpy lacks bfloat16."""
    if isinstance(buffer, np.ndarray):
        return buffer
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(buffer, torch.Tensor):
        raise LayoutError(f"{_describe(buffer)} is no buffer of blocks; pass a numpy array, a torch tensor or a list")
    if buffer.device.type != "cpu":
        raise LayoutError(f"{_describe(buffer)} is on {buffer.device}; this device copies memory of the CPU")
    if buffer.dim() == 0:
        return np.empty((), np.uint8)
    array: np.ndarray[Any, Any] = buffer.detach().unsqueeze(-1).view(torch.uint8).numpy()
    return array


def _describe(buffer: object) -> str:
    dtype, shape = getattr(buffer, "dtype", None), getattr(buffer, "shape", None)
    return f"{dtype}{list(shape)}" if dtype is not None and shape is not None else f"a {type(buffer).__name__}"
