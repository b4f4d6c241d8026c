"""Binds a caller's plain buffers as a cache of rows, and checks that a copy stays inside the cache and the pool.

Called before anything is enqueued, so that every device refuses with the same messages. It looks at shapes, strides
and numbers only, and never reads, writes or copies a byte of KV.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

import numpy as np

from tierstore.device.paged_kv import PagedKV
from tierstore.device.segments import Segment, Span, as_table
from tierstore.device.tensors import TensorView, check_dtype, describe, view_tensor
from tierstore.errors import DeviceError, LayoutError
from tierstore.types import PAGE_NBYTES

if TYPE_CHECKING:
    from tierstore.types import Int32Array, Int64Array, UInt8Array

__all__ = ["bind_pool", "bind_rows", "check_copy", "slot_nbytes"]


def slot_nbytes(block_nbytes: int) -> int:
    """Bytes that a block takes in the pool: the next multiple of `PAGE_NBYTES`."""
    return -(-block_nbytes // PAGE_NBYTES) * PAGE_NBYTES


def bind_rows(buffers: object, block_nbytes: int, dtype: str = "uint8") -> PagedKV:
    """Bind buffers whose rows are blocks, or shares of blocks. Does not block and copies nothing.

    Args:
        buffers: One numpy array or torch tensor, or a list or tuple of them, one a page. The first axis counts
            blocks and each row is C-contiguous; rows may lie any distance apart. A read-only array may be stored
            from, not loaded into.
        block_nbytes: Bytes of a block: the rows of all buffers together.
        dtype: KV dtype of the rows; see `tierstore.device.tensors.check_dtype`.

    Returns:
        One page group a buffer, and one row of block ids for all.

    Raises:
        LayoutError: A buffer is of another kind, lies otherwise, or the rows do not sum to `block_nbytes`.
    """
    views = [view_tensor(part) for part in (buffers if isinstance(buffers, list | tuple) else [buffers])]
    segments: list[Segment] = []
    offset = 0
    for view in views:
        check_dtype(view, dtype)
        if view.memory != views[0].memory:
            raise LayoutError(
                f"{views[0]} is on {views[0].memory}, {view} on {view.memory}; pass buffers of one device"
            )
        width = _row_nbytes(view)
        segments.append(Segment(view.address, view.strides[0], 1, width, width, offset))
        offset += width
    if offset != block_nbytes:
        raise LayoutError(
            f"{', '.join(map(str, views)) or 'no buffer'}: {offset} bytes a block, expected {block_nbytes}; "
            "the first axis counts blocks and the rest of all buffers together is one block"
        )
    return PagedKV(
        block_nbytes=block_nbytes,
        segments=as_table(segments),
        groups=tuple([(Span(0, index, index + 1),) for index in range(len(views))]),
        num_blocks=(min([view.shape[0] for view in views], default=0),),
        memory=views[0].memory if views else "cpu",
        tensors=tuple(views),
    )


def bind_pool(pool: UInt8Array, block_nbytes: int, memory: str) -> PagedKV:
    """A pool of the store's own as a cache: block i of it begins in the pool's i-th 4 KiB, where slots begin.

    Args:
        pool: uint8[pool_nbytes].
        block_nbytes: Bytes of a block as slots hold it.
        memory: Where the pool lies, as torch names it.
    """
    address = int(pool.__array_interface__["data"][0])
    view = TensorView(pool, address, pool.shape, pool.strides, 1, "uint8", memory, writable=True)
    return PagedKV(
        block_nbytes=block_nbytes,
        segments=as_table([Segment(address, PAGE_NBYTES, 1, block_nbytes, block_nbytes, 0)]),
        groups=((Span(0, 0, 1),),),
        num_blocks=((pool.nbytes - block_nbytes) // PAGE_NBYTES + 1,),
        memory=memory,
        tensors=(view,),
    )


def check_copy(
    host: UInt8Array,
    slots: Int32Array,
    kv: PagedKV,
    block_ids: Int64Array,
    *,
    memory: str,
    into_pool: bool,
    groups: range | None = None,
    num_events: int = 0,
) -> range:
    """Refuse a copy that would leave the pool or the cache; does not block and moves nothing.

    Args:
        host: uint8[pool_nbytes].
        slots: int32[n]; offsets in the pool, in 4 KiB pages.
        kv: The cache.
        block_ids: int64[num_id_rows, n]; blocks of the cache.
        memory: Where the device's caches lie.
        into_pool: Whether `host` is written (a store) or the cache is (a load).
        groups: Page groups to copy; None for all.
        num_events: Events that the copy waits for, one a group from the first.

    Returns:
        The page groups to copy.

    Raises:
        LayoutError: An array has a wrong shape or dtype, the destination is read-only, there is no such group.
        DeviceError: A slot or block id lies outside; the cache is of another device, or has been freed.
    """
    _check_pool(host, written=into_pool)
    if kv.memory != memory:
        raise DeviceError(f"{kv.tensors[0]} is on {kv.memory}; this device copies memory of {memory}")
    if not into_pool and not kv.writable:
        raise LayoutError("the cache is read-only, so nothing can be loaded into it; pass writable buffers")
    kv.check_in_place()
    if slots.ndim != 1 or block_ids.shape != (len(kv.num_blocks), len(slots)):
        raise LayoutError(
            f"slots have shape {slots.shape}, block ids {block_ids.shape}; pass one slot a block and "
            f"{len(kv.num_blocks)} rows of block ids"
        )
    num_slots = (host.nbytes - slot_nbytes(kv.stored_nbytes)) // PAGE_NBYTES + 1
    _check_range("slot", slots, num_slots, f"a pool of {host.nbytes} bytes and blocks of {kv.stored_nbytes}")
    for ids, num_blocks in zip(block_ids, kv.num_blocks, strict=True):
        _check_range("block id", ids, num_blocks, f"a cache of {num_blocks} blocks")
    copied = range(len(kv.groups)) if groups is None else groups
    if copied.step != 1 or not 0 <= copied.start <= copied.stop <= len(kv.groups):
        raise LayoutError(f"there are no page groups {copied}; the cache has {len(kv.groups)}")
    if num_events > max(1, len(copied)):
        raise LayoutError(f"{num_events} events for {len(copied)} page groups; pass one a group, or one for all")
    return copied


def _check_pool(host: UInt8Array, *, written: bool) -> None:
    if host.ndim != 1 or host.dtype != np.uint8 or (host.size and host.strides != (1,)):
        raise LayoutError(f"the pool is {describe(host)}; expected contiguous uint8 of 1 axis")
    if written and not host.flags.writeable:
        raise LayoutError("the pool is read-only, so nothing can be stored in it; pass writable memory")


def _check_range(what: str, values: Int32Array | Int64Array, end: int, where: str) -> None:
    outside = (values < 0) | (values >= end)
    if np.count_nonzero(outside):
        position = int(outside.argmax())
        raise DeviceError(
            f"{what} {values[position]} at position {position} lies outside {where}; use 0 … {max(end - 1, 0)}"
        )


def _row_nbytes(view: TensorView) -> int:
    """Bytes of a buffer's row, which must be contiguous and apart from the next one."""
    if not view.shape:
        raise LayoutError(f"{view} cannot hold blocks; pass a buffer whose first axis counts blocks")
    row_nbytes = view.item_nbytes
    for extent, stride in reversed(list(zip(view.shape[1:], view.strides[1:], strict=True))):
        if extent > 1 and stride != row_nbytes and 0 not in view.shape:
            _refuse_rows(view)
        row_nbytes *= extent
    if view.shape[0] > 1 and abs(view.strides[0]) < row_nbytes:
        _refuse_rows(view)
    return row_nbytes


def _refuse_rows(view: TensorView) -> NoReturn:
    raise LayoutError(
        f"{view} has rows that are not contiguous or that overlap (strides {view.strides} bytes); pass a "
        "C-contiguous buffer, one buffer a page, or a PagedKV"
    )
