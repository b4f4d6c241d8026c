"""Binds the cache that a caller passes to the blocks of a namespace, and checks memory lent as a pool."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tierstore.device.paged_kv import PagedKV
from tierstore.device.paging import bind_rows
from tierstore.device.tensors import view_address, view_tensor
from tierstore.errors import DeviceError, LayoutError
from tierstore.types import PAGE_NBYTES

if TYPE_CHECKING:
    from tierstore.device.base import Device
    from tierstore.keys import Namespace
    from tierstore.layout import KVLayout
    from tierstore.types import UInt8Array

__all__ = ["bind_for", "bind_lent"]


def bind_for(buffers: object, namespace: Namespace, device: Device) -> PagedKV:
    """A caller's cache, bound for the namespace's layout already, or its plain buffers as one.

    Raises:
        LayoutError: They do not fit.
        DeviceError: They lie elsewhere than the caches of the device, or have been freed.
    """
    layout = namespace.layout
    if isinstance(buffers, PagedKV):
        if buffers.layout is not None and buffers.layout != layout:
            raise LayoutError(f"the cache is bound for other blocks: {_difference(buffers.layout, layout)}")
        kv = buffers
        kv.check_in_place()
    else:
        kv = bind_rows(buffers, layout.block_nbytes, layout.dtype)
    if kv.memory != device.memory:
        raise DeviceError(f"{kv.tensors[0]} is on {kv.memory}; the store's device copies memory of {device.memory}")
    return kv.stored(namespace.quantized)


def bind_lent(tensor: object, device: Device) -> UInt8Array:
    """Memory that an engine lends the store for a pool, as ``uint8[nbytes]`` in whole pages, which keeps the tensor.

    Args:
        tensor: A numpy array or torch tensor of any dtype and shape, contiguous.
        device: Whose memory it must be.

    Raises:
        LayoutError: It has holes, is read-only, or has no memory of its own.
        DeviceError: It lies elsewhere.
    """
    view = view_tensor(tensor)
    if view.memory != device.memory:
        raise DeviceError(f"{view} is on {view.memory}; lend the store memory of its device, {device.memory}")
    if not view.contiguous or not view.writable or not view.address:
        raise LayoutError(f"{view} can be no pool; lend a contiguous tensor that may be written to")
    return view_address(view.address, view.nbytes // PAGE_NBYTES * PAGE_NBYTES, owner=tensor)


def _difference(bound: KVLayout, layout: KVLayout) -> str:
    """What differs between two layouts, in words."""
    ours, theirs = bound.as_fields(), layout.as_fields()
    names = [name for name in ours if ours[name] != theirs[name]]
    values = [f"{name} {ours[name]}, the namespace has {theirs[name]}" for name in names if name != "pages"]
    return "; ".join(values or ["its pages are not the namespace's"])
