"""Reads a store's folder: namespaces, arrays, and chunk files, which are opened one by one.

Every offline tool calls it first. Reads only, and keeps only the present file open. A live owner may add and remove
files meanwhile; a file that is gone when it is to be opened is skipped, and that is noted.
"""

from __future__ import annotations

import errno
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

from tierstore import registry
from tierstore.errors import DiskError, FolderFormatError, LayoutError
from tierstore.layout import KVLayout, MemoryOrder, PageKind, PageSpec
from tierstore.tiers.chunkfile import ChunkFile, ChunkName
from tierstore.tiers.manifest import read_manifest
from tierstore.tiers.whole_file import read_whole
from tierstore.tiers.zarr_metadata import ZARR_NAME, ArraySpec, Geometry, ZarrArrays

if TYPE_CHECKING:
    from collections.abc import Callable

    from tierstore.codec.base import Codec
    from tierstore.disk.base import Disk

__all__ = ["FolderArray", "FolderFile", "FolderNamespace", "StoreFolder"]

_ARRAY_NAME = re.compile(r"([0-9a-f]{64})-(.+)")


@dataclass(frozen=True, slots=True)
class FolderNamespace:
    """A namespace that the manifest knows.

    Attributes:
        fingerprint: 32 bytes.
        epoch: The living one.
        identity: What the manifest says of it.
        layout: Of its blocks; None where the identity does not say.
    """

    fingerprint: bytes
    epoch: int
    identity: Mapping[str, object]
    layout: KVLayout | None

    @property
    def text(self) -> str:
        """The identity on one line: what is set, the layout left out."""
        known = {name: value for name, value in self.identity.items() if name != "layout" and value is not None}
        return " ".join(f"{name}={value}" for name, value in known.items())

    def matches(self, text: str) -> bool:
        """Whether a text is the beginning of the fingerprint or a part of the identity."""
        return self.fingerprint.hex().startswith(text.lower()) or text in self.text


@dataclass(frozen=True, slots=True)
class FolderFile:
    """A chunk file's name and length when the folder was listed."""

    name: ChunkName
    nbytes: int


@dataclass(frozen=True, slots=True)
class FolderArray:
    """A folder of chunk files.

    Attributes:
        name: Of the folder.
        layout: Of its blocks; None where no namespace of it is known.
        codec: None where it is not installed.
        geometry: As its metadata says, or else as they would say for its longest file; None where that is unknown too.
        described: Whether its metadata is as the store writes it.
        files: Open and sealed ones, by number.
    """

    name: str
    layout: KVLayout | None
    codec: Codec | None
    geometry: Geometry | None
    described: bool
    files: Sequence[FolderFile]

    @property
    def text(self) -> str:
        """The layout on one line."""
        if self.layout is None:
            return "layout unknown"
        pages, tokens = len(self.layout.pages), self.layout.block_tokens
        block = f"blocks of {self.layout.block_nbytes} bytes"
        return f"{block}: {pages} pages, {tokens} tokens, {self.layout.dtype}, {self.layout.order}"

    @property
    def spec(self) -> ArraySpec | None:
        """Layout and codec; None where one is not known."""
        return ArraySpec(self.layout, self.codec) if self.layout and self.codec else None


class StoreFolder:
    """What lies in one folder. Made by `read`.

    Attributes:
        disk: The folder's disk.
        uuid: Of the store.
        namespaces: All that the manifest knows, in its order.
        arrays: By name.
        skipped: One line for each thing that was skipped, with the reason.
    """

    def __init__(
        self, disk: Disk, uuid: str, namespaces: list[FolderNamespace], arrays: list[FolderArray], skipped: list[str]
    ) -> None:
        self.disk = disk
        self.uuid = uuid
        self.namespaces = namespaces
        self.arrays = arrays
        self.skipped = skipped

    @classmethod
    def read(cls, disk: Disk) -> StoreFolder:
        """List a folder; blocks.

        Raises:
            FolderFormatError: It is no store's folder, or one of another format version.
            DiskError: It cannot be read.
        """
        content = read_manifest(disk)
        if content is None:
            raise FolderFormatError("this is not a store's folder: it holds no store.json; give the one of [ssd] dir")
        namespaces = [
            FolderNamespace(bytes.fromhex(name), known["epoch"], known["identity"], _layout(known["identity"]))
            for name, known in content["namespaces"].items()
        ]
        skipped: list[str] = []
        layouts = {space.layout.fingerprint.hex(): space.layout for space in namespaces if space.layout}
        arrays = [
            _read_array(disk, entry.name, layouts.get(match[1]), match[2], skipped)
            for entry in disk.look("arrays").entries
            if entry.is_folder and (match := _ARRAY_NAME.fullmatch(entry.name))
        ]
        return cls(disk, content["uuid"], namespaces, arrays, skipped)

    @property
    def epochs(self) -> dict[bytes, int]:
        """The living epoch of every known namespace, by fingerprint."""
        return {space.fingerprint: space.epoch for space in self.namespaces}

    @property
    def nbytes(self) -> int:
        """Of all chunk files."""
        return sum(file.nbytes for array in self.arrays for file in array.files)

    @contextmanager
    def open(self, file: FolderFile) -> Iterator[ChunkFile | None]:
        """A chunk file, open while the context lasts; None, and a line in `skipped`, where it has gone.

        Raises:
            DiskError: It is there and cannot be opened.
        """
        try:
            opened = self.disk.open(file.name.path)
        except DiskError as error:
            if error.errno != errno.ENOENT:
                raise
            self.skipped.append(f"{file.name.path}: sealed or given back meanwhile")
            yield None
            return
        try:
            yield ChunkFile(0, file.name, opened, nbytes=opened.nbytes)
        finally:
            opened.close()


def _read_array(disk: Disk, name: str, layout: KVLayout | None, codec_name: str, skipped: list[str]) -> FolderArray:
    codec = None
    if codec_name in registry.names("codecs"):
        codec = cast("Callable[[], Codec]", registry.load("codecs", codec_name))()
    files = []
    for entry in disk.look(f"arrays/{name}").entries:
        chunk = None if entry.is_folder else ChunkName.parse(name, entry.name)
        if chunk is not None:
            files.append(FolderFile(chunk, entry.nbytes))
        elif entry.name not in (ZARR_NAME, f"{ZARR_NAME}.new"):
            skipped.append(f"arrays/{name}/{entry.name}: not a chunk file's name")
    geometry = ZarrArrays(disk).adopt(name, lambda _nbytes: 0)  # for no files: nothing is written
    array = FolderArray(name, layout, codec, geometry, geometry is not None, sorted(files, key=_number))
    if geometry is None and array.spec and files:
        assumed = array.spec.geometry(max(file.nbytes for file in files))
        return replace(array, geometry=assumed if assumed.slots else None)
    return replace(array, described=_is_described(disk, array))


def _is_described(disk: Disk, array: FolderArray) -> bool:
    """Whether the metadata is word for word what the store writes for such an array."""
    spec, geometry = array.spec, array.geometry
    if spec is None or geometry is None:
        return array.described
    metadata = json.loads(read_whole(disk, f"arrays/{array.name}/{ZARR_NAME}"))
    return bool(metadata == spec.metadata(geometry, files=metadata["shape"][0] // geometry.slots))


def _number(file: FolderFile) -> int:
    return file.name.number


def _layout(identity: Mapping[str, object]) -> KVLayout | None:
    """The layout that an identity holds; None where it holds none that can be read."""
    try:
        fields = cast("Mapping[str, object]", identity["layout"])
        rows = cast("Sequence[tuple[str, str, int, int, int]]", fields["pages"])
        pages = tuple(PageSpec(name, PageKind(kind), *sizes) for name, kind, *sizes in rows)
        tokens, dtype = cast("int", fields["block_tokens"]), cast("str", fields["dtype"])
        return KVLayout(pages, tokens, dtype, MemoryOrder(cast("str", fields["order"])))
    except (KeyError, TypeError, ValueError, LayoutError):
        return None
