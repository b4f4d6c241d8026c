"""Writes exported blocks into one .safetensors file: the length of a header, the header as JSON, and tensors.

Called by the command line. Each namespace has its blocks in their true dtype, their hashes and their parents; its
identity is text in the file's metadata. Format: github.com/huggingface/safetensors, "Format".
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from tierstore.codec.base import RawCodec
from tierstore.tiers.zarr_metadata import ArraySpec
from tierstore.types import HASH_NBYTES

if TYPE_CHECKING:
    from tierstore.inspect.exporting import Export

__all__ = ["DTYPE_NAMES", "write_safetensors"]

DTYPE_NAMES = {
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "float8_e4m3": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "int8": "I8",
    "uint8": "U8",
}
"""What the format calls the dtypes of a layout."""

_LENGTH_NBYTES = 8


def write_safetensors(path: Path, exports: Sequence[Export]) -> int:
    """Write a new file; blocks. Returns how many blocks are in it. If it cannot be completed, it is removed.

    The header is written last, into room reserved for a header of all blocks; until then the file has no header.

    Raises:
        FileExistsError: There is something of that name.
        OSError: It cannot be written.
    """
    longest = len(_header(exports, [export.count for export in exports]))
    room = longest + -longest % _LENGTH_NBYTES
    with path.open("xb") as file, ExitStack() as undo:
        undo.callback(path.unlink)
        file.write(bytes(_LENGTH_NBYTES + room))
        counts = [_write(file, export) for export in exports]
        file.seek(0)
        file.write(room.to_bytes(_LENGTH_NBYTES, "little") + _header(exports, counts).ljust(room))
        undo.pop_all()
    return sum(counts)


def _write(file: BinaryIO, export: Export) -> int:
    hashes, parents = bytearray(), bytearray()
    for block in export.blocks():
        file.write(block.raw)
        hashes += block.block_hash
        parents += block.parent_hash
    file.write(hashes)
    file.write(parents)
    return len(hashes) // HASH_NBYTES


def _header(exports: Sequence[Export], counts: Sequence[int]) -> bytes:
    """The header of a file that holds so many blocks of each; never longer for fewer."""
    texts = {export.namespace.fingerprint.hex(): export.description for export in exports}
    header: dict[str, object] = {"__metadata__": texts}
    start = 0
    for export, count in zip(exports, counts, strict=True):
        axes = ArraySpec(export.layout, RawCodec()).block_axes
        dtype = "U8" if "byte" in axes else DTYPE_NAMES[export.layout.dtype]
        for name, kind, shape, row_nbytes in (
            ("blocks", dtype, list(axes.values()), export.layout.block_nbytes),
            ("hashes", "U8", [HASH_NBYTES], HASH_NBYTES),
            ("parents", "U8", [HASH_NBYTES], HASH_NBYTES),
        ):
            end = start + count * row_nbytes
            tensor = {"dtype": kind, "shape": [count, *shape], "data_offsets": [start, end]}
            header[f"{export.namespace.fingerprint.hex()}.{name}"] = tensor
            start = end
    return json.dumps(header).encode()
