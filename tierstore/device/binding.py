"""What a verb is given as its cache, bound for the blocks of a namespace. Called by stores and clients."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tierstore.device.paged_kv import PagedKV
from tierstore.device.paging import bind_rows
from tierstore.errors import DeviceError, LayoutError

if TYPE_CHECKING:
    from tierstore.device.base import Device
    from tierstore.keys import Namespace
    from tierstore.layout import KVLayout

__all__ = ["bind_for"]


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


def _difference(bound: KVLayout, layout: KVLayout) -> str:
    """What differs between two layouts, in words."""
    ours, theirs = bound.as_fields(), layout.as_fields()
    names = [name for name in ours if ours[name] != theirs[name]]
    values = [f"{name} {ours[name]}, the namespace has {theirs[name]}" for name in names if name != "pages"]
    return "; ".join(values or ["its pages are not the namespace's"])
