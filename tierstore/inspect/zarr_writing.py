"""Writes exported blocks into a plain Zarr v3 store: one group for each namespace, with blocks, hashes and parents.

Called by the command line. Elements of KV dtypes that Zarr does not have are unsigned integers of their size, as
in the store itself; the true dtype is in the attributes.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import zarr

from tierstore.codec.base import RawCodec
from tierstore.tiers.zarr_metadata import ArraySpec
from tierstore.types import HASH_NBYTES

if TYPE_CHECKING:
    from tierstore.inspect.exporting import Export

__all__ = ["write_zarr"]

_CHUNK_NBYTES = 16 << 20


def write_zarr(path: Path, exports: Sequence[Export]) -> int:
    """Write a new store; blocks. Returns how many blocks are in it. If it cannot be completed, it is removed.

    Raises:
        FileExistsError: There is something of that name.
        OSError: It cannot be written.
    """
    path.mkdir()
    with ExitStack() as undo:
        undo.callback(shutil.rmtree, path, ignore_errors=True)
        root = zarr.open_group(path, mode="w", zarr_format=3)
        count = sum(_write(root.create_group(export.namespace.fingerprint.hex()), export) for export in exports)
        undo.pop_all()
    return count


def _write(group: zarr.Group, export: Export) -> int:
    layout, axes = export.layout, ArraySpec(export.layout, RawCodec()).block_axes
    shape = tuple(axes.values())
    dtype = np.dtype("u1" if "byte" in axes else f"<u{layout.item_nbytes}")
    rows = max(1, min(export.count, _CHUNK_NBYTES // layout.block_nbytes))
    group.attrs.update(json.loads(export.description))
    blocks = group.create_array(
        "blocks",
        shape=(export.count, *shape),
        chunks=(rows, *shape),
        dtype=dtype,
        compressors=None,
        fill_value=0,
        dimension_names=["block", *axes],
        attributes={"dtype": layout.dtype, **json.loads(export.description)},
    )
    pending = np.empty((rows, math.prod(shape) * dtype.itemsize), dtype=np.uint8)
    hashes, parents, count = bytearray(), bytearray(), 0

    def flush(until: int) -> None:
        first = (until - 1) // rows * rows
        blocks[first:until] = pending[: until - first].view(dtype).reshape(-1, *shape)

    for block in export.blocks():
        pending[count % rows] = np.frombuffer(block.raw, dtype=np.uint8)
        hashes += block.block_hash
        parents += block.parent_hash
        count += 1
        if count % rows == 0:
            flush(count)
    if count % rows:
        flush(count)
    blocks.resize((count, *shape))
    for name, packed in (("hashes", hashes), ("parents", parents)):
        table = np.frombuffer(packed, dtype=np.uint8).reshape(-1, HASH_NBYTES)
        group.create_array(name, data=table, chunks=(max(1, count), HASH_NBYTES), compressors=None)
    return count
