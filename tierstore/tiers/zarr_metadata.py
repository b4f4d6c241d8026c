"""Makes the folder a Zarr hierarchy: writes and reads the `zarr.json` of its groups and arrays.

Called by the SSD tier when it starts and when it begins an array. An array has one layout and one codec; its
chunk files are Zarr shards, its blocks the inner chunks. Only offline tools and tests use Zarr itself.
"""

from __future__ import annotations

import errno
import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tierstore.disk.base import Disk
from tierstore.errors import DiskError
from tierstore.layout import MemoryOrder, PageKind
from tierstore.tiers.chunkfile import slots_per_file
from tierstore.tiers.footer import footer_nbytes
from tierstore.tiers.record import FORMAT_VERSION, RecordShape
from tierstore.tiers.whole_file import read_whole, replace_whole
from tierstore.types import PAGE_NBYTES

if TYPE_CHECKING:
    from tierstore.codec.base import Codec
    from tierstore.layout import KVLayout

__all__ = ["ZARR_NAME", "ArraySpec", "Geometry", "ZarrArrays"]

ZARR_NAME = "zarr.json"

_ATTRIBUTE = "tierstore"
"""The one attribute of an array, under which all of ours are."""

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Geometry:
    """What all files of an array have in common.

    Attributes:
        file_nbytes: Length of each file; never changed.
        slots: Blocks that each may hold; never changed.
        axes: Axes of the array: blocks, and those of one block.
    """

    file_nbytes: int
    slots: int
    axes: int


@dataclass(frozen=True, slots=True)
class ArraySpec:
    """The array for the blocks of one layout and codec."""

    layout: KVLayout
    codec: Codec

    @property
    def name(self) -> str:
        """Its folder under ``arrays``."""
        return f"{self.layout.fingerprint.hex()}-{self.codec.name}"

    @property
    def longest(self) -> RecordShape:
        """The shape of a record whose block does not compress."""
        return RecordShape(self.codec.max_encoded_nbytes(self.layout.block_nbytes))

    def _slots(self, file_nbytes: int) -> int:
        """Blocks that a file may hold: twice as many as raw ones where they are compressed; 0 where none fits."""
        nbytes = self.layout.block_nbytes
        compresses = self.codec.max_encoded_nbytes(nbytes) != nbytes
        slots = slots_per_file(file_nbytes, RecordShape(nbytes)) * (2 if compresses else 1)
        return slots if footer_nbytes(slots, slots) + self.longest.pitch_nbytes <= file_nbytes else 0

    def geometry(self, file_nbytes: int) -> Geometry:
        """The geometry of a new array; one of 0 slots where a block is too long for its files."""
        return Geometry(file_nbytes, self._slots(file_nbytes), 1 + len(self.block_axes))

    @property
    def block_axes(self) -> dict[str, int]:
        """Names and lengths of a block's axes: those of its pages where all are alike, else its bytes."""
        first, *others = self.layout.pages
        alike = all(
            (page.kv_heads, page.head_size, page.planes) == (first.kv_heads, first.head_size, first.planes)
            for page in others
        )
        if not alike or any(page.kind is PageKind.STATE for page in self.layout.pages):
            return {"byte": self.layout.block_nbytes}
        inner = {"token": self.layout.block_tokens, "head": first.kv_heads}
        if self.layout.order is MemoryOrder.HND:
            inner = dict(reversed(inner.items()))
        return {"page": len(self.layout.pages), "plane": first.planes, **inner, "element": first.head_size}

    def metadata(self, geometry: Geometry, *, files: int) -> dict[str, object]:
        """The array's ``zarr.json``, its shape covering so many files."""
        axes, item_nbytes = self.block_axes, self.layout.item_nbytes
        block_shape = list(axes.values())
        return {
            "zarr_format": 3,
            "node_type": "array",
            "shape": [files * geometry.slots, *block_shape],
            "data_type": "uint8" if "byte" in axes else f"uint{8 * item_nbytes}",
            "fill_value": 0,
            "dimension_names": ["block", *axes],
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [geometry.slots, *block_shape]}},
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "."}},
            "codecs": [
                {
                    "name": "sharding_indexed",
                    "configuration": {
                        "chunk_shape": [1, *block_shape],
                        "codecs": [_BYTES, *self.codec.zarr_codecs(item_nbytes), _CRC32C],
                        "index_codecs": [_BYTES, _CRC32C],
                        "index_location": "end",
                    },
                }
            ],
            "attributes": {
                _ATTRIBUTE: {
                    "format": FORMAT_VERSION,
                    "codec": self.codec.name,
                    "file_nbytes": geometry.file_nbytes,
                    "slots_per_file": geometry.slots,
                    "layout": self.layout.as_fields(),
                }
            },
        }


_BYTES = {"name": "bytes", "configuration": {"endian": "little"}}
_CRC32C = {"name": "crc32c"}
_GROUP = {"zarr_format": 3, "node_type": "group", "attributes": {}}


class ZarrArrays:
    """The arrays of one folder whose geometry is known, by name.

    Args:
        disk: The folder's disk.

    Attributes:
        unread: Names of arrays whose metadata the disk did not give; to be adopted, not declared.
    """

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._known: dict[str, Geometry] = {}
        self.unread: set[str] = set()

    def get(self, array: str) -> Geometry | None:
        """The geometry of an array; None where it is not known."""
        return self._known.get(array)

    @property
    def any(self) -> str:
        """The name of an array whose geometry is known; empty where there is none."""
        return next(iter(self._known), "")

    @property
    def longest_file_nbytes(self) -> int:
        """Length of the files of the array that has the longest ones; 0 where no array is known."""
        return max((geometry.file_nbytes for geometry in self._known.values()), default=0)

    def declare(self, spec: ArraySpec, geometry: Geometry, *, files: int) -> None:
        """Write the metadata of an array, and of the groups above it where they are missing; blocks.

        Raises:
            DiskError: It could not be written.
        """
        for folder, prefix in (("", ""), ("arrays", "arrays/")):
            if all(entry.name != ZARR_NAME for entry in self._disk.look(folder).entries):
                self._save(f"{prefix}{ZARR_NAME}", _GROUP)
        self._save(_path(spec.name), spec.metadata(geometry, files=files))
        self._known[spec.name] = geometry

    def adopt(self, array: str, files: Callable[[int], int]) -> Geometry | None:
        """Take over an array of an earlier run; blocks.

        Args:
            array: Its name.
            files: How many files of a length there may be; the array's shape is made to cover them.

        Returns:
            Its geometry; None, with a warning, if its metadata is missing or not written by tierstore.
        """
        path = _path(array)
        try:
            metadata = json.loads(read_whole(self._disk, path))
            geometry = _geometry(metadata)
        except (DiskError, ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
            if isinstance(error, DiskError) and error.errno not in (errno.ENOENT, errno.EINVAL):
                self.unread.add(array)
            _logger.warning(
                "%s does not describe an array of this store (%s: %s); its files are scanned, none is continued",
                path, type(error).__name__, error,
            )  # fmt: skip
            return None
        self._known[array] = geometry
        wanted = files(geometry.file_nbytes) * geometry.slots
        if wanted > metadata["shape"][0]:
            metadata["shape"][0] = wanted
            try:
                self._save(path, metadata)
            except DiskError as error:
                _logger.warning("Zarr readers will miss the newest files of %s: %s", array, error)
        return geometry

    def _save(self, path: str, metadata: Mapping[str, object]) -> None:
        replace_whole(self._disk, path, json.dumps(metadata, indent=1).encode() + b"\n", padding=b" ")


def _path(array: str) -> str:
    return f"arrays/{array}/{ZARR_NAME}"


def _fits(file_nbytes: int, slots: int) -> bool:
    """Whether a file has room for the shortest record beside its footer."""
    return file_nbytes % PAGE_NBYTES == 0 and footer_nbytes(slots, slots) + 2 * PAGE_NBYTES <= file_nbytes


def _geometry(metadata: Mapping[str, object]) -> Geometry:
    shape, attributes = metadata["shape"], metadata["attributes"]
    if not isinstance(shape, list) or not isinstance(attributes, dict):
        raise TypeError("shape or attributes are of another kind")
    ours = attributes[_ATTRIBUTE]
    file_nbytes, slots, length = int(ours["file_nbytes"]), int(ours["slots_per_file"]), int(shape[0])
    if ours["format"] != FORMAT_VERSION or slots < 1 or length % slots or not _fits(file_nbytes, slots):
        raise ValueError(f"format {ours['format']}, {file_nbytes} bytes and {slots} slots a file, {length} in all")
    return Geometry(file_nbytes, slots, len(shape))
