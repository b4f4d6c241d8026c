"""Describes a caller's array or tensor in numbers: its address, strides and element type.

Called to bind caches and check copies. Takes numpy arrays and torch tensors of any device. It does not import torch,
and never reads, writes or copies an element.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from tierstore.errors import LayoutError
from tierstore.layout import DTYPE_NBYTES

if TYPE_CHECKING:
    from tierstore.types import UInt8Array

__all__ = ["TensorView", "check_dtype", "describe", "view_address", "view_tensor"]


@dataclass(frozen=True, slots=True, eq=False)
class TensorView:
    """An array or tensor as numbers.

    Attributes:
        owner: The array or tensor, which keeps the memory.
        address: Of the element whose indices are all 0.
        shape: Extent of each axis.
        strides: Bytes from one element to the next along each axis; may be negative.
        item_nbytes: Bytes of an element.
        dtype: A KV dtype, or the name of another dtype; empty if the elements only hold bits, such as uint16.
        memory: Its memory, by torch's name: ``"cpu"``, ``"cuda:0"``.
        writable: Whether it may be written to.
    """

    owner: object
    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    item_nbytes: int
    dtype: str
    memory: str
    writable: bool

    def __str__(self) -> str:
        return describe(self.owner)

    @property
    def in_place(self) -> bool:
        """Whether its memory is still where it was; a tensor's may be freed or moved under it."""
        return isinstance(self.owner, np.ndarray) or _address(self.owner) == self.address

    @property
    def nbytes(self) -> int:
        """Of all elements."""
        return math.prod(self.shape) * self.item_nbytes

    @property
    def contiguous(self) -> bool:
        """Whether the elements lie one behind the other in order of their indices."""
        end = self.item_nbytes
        for stride, extent in zip(reversed(self.strides), reversed(self.shape), strict=True):
            if extent > 1 and stride != end:
                return False
            end *= extent
        return True

    @property
    def overlaps(self) -> bool:
        """Whether two elements may share a byte, as those of a broadcast array do."""
        end = self.item_nbytes
        for stride, extent in sorted((abs(stride), extent) for stride, extent in zip(self.strides, self.shape)):  # noqa: B905
            if extent > 1 and stride < end:
                return True
            end += (extent - 1) * stride
        return False


def view_tensor(buffer: object) -> TensorView:
    """Look at a caller's numpy array or torch tensor.

    Raises:
        LayoutError: It is neither, holds objects, or has no memory of its own, as a sparse tensor.
    """
    if isinstance(buffer, np.ndarray):
        if buffer.dtype.hasobject or not buffer.dtype.isnative:
            raise LayoutError(f"{describe(buffer)} cannot hold blocks; pass plain numbers of this machine's byte order")
        address, read_only = buffer.__array_interface__["data"]
        return TensorView(
            buffer,
            address,
            buffer.shape,
            buffer.strides,
            buffer.itemsize,
            _kv_dtype(buffer.dtype),
            "cpu",
            not read_only,
        )
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(buffer, torch.Tensor):
        raise LayoutError(f"{describe(buffer)} is no buffer of blocks; pass a numpy array or a torch tensor")
    if buffer.layout is not torch.strided:
        raise LayoutError(f"{describe(buffer)} is laid out as {buffer.layout}; pass a strided tensor")
    item_nbytes = buffer.element_size()
    strides = tuple(stride * item_nbytes for stride in buffer.stride())
    memory, dtype = str(buffer.device), _kv_dtype(buffer.dtype)
    return TensorView(buffer, _address(buffer), tuple(buffer.shape), strides, item_nbytes, dtype, memory, writable=True)


def view_address(address: int, nbytes: int, owner: object = None) -> UInt8Array:
    """Memory of a device as uint8[nbytes], which keeps its owner, for code that reads addresses and sizes.

    Looking into it is a fault where the device is no CPU.
    """
    interface = {"version": 3, "typestr": "|u1", "data": (address, False), "shape": (nbytes,)}
    return np.asarray(_Address(interface, owner))


class _Address:
    __slots__ = ("__array_interface__", "owner")

    def __init__(self, interface: dict[str, object], owner: object) -> None:
        self.__array_interface__ = interface
        self.owner = owner


def check_dtype(view: TensorView, dtype: str) -> None:
    """Refuse a tensor of another KV dtype than the layout's; raw unsigned integers hold any, and uint8 is held by any.

    Raises:
        LayoutError: Naming both.
    """
    if view.dtype not in {"", dtype, "uint8"} and dtype != "uint8":
        raise LayoutError(f"{view} holds {view.dtype}, for a layout of {dtype}; pass {dtype}, or the bytes as uint8")


def describe(buffer: object) -> str:
    """A buffer in words: dtype and shape, or its type."""
    dtype, shape = getattr(buffer, "dtype", None), getattr(buffer, "shape", None)
    return f"{dtype}{list(shape)}" if dtype is not None and shape is not None else f"a {type(buffer).__name__}"


def _address(tensor: Any) -> int:
    """Where a torch tensor's first element lies; 0 where its memory has been given back."""
    return int(tensor.data_ptr()) if tensor.untyped_storage().nbytes() else 0


@cache
def _kv_dtype(dtype: object) -> str:
    """The KV dtype that a numpy or torch dtype is, or its own name; empty for one that only holds bits."""
    name = str(dtype).removeprefix("torch.").removesuffix("fn")
    holds_numbers = name in DTYPE_NBYTES or "float" in name or "complex" in name
    return name if holds_numbers else ""
