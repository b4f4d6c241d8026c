"""Chooses live blocks of a folder and reads them, decoded and verified, for export.

Called by the command line, which passes them to `tierstore.inspect.zarr_writing` or `tierstore.inspect.safetensors`.
Reads only. A block that does not verify is left out and reported.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from tierstore.errors import DiskError
from tierstore.inspect.verifying import decode_block, read_bodies

if TYPE_CHECKING:
    from tierstore.inspect.contents import FileContents
    from tierstore.inspect.folder import FolderNamespace, StoreFolder
    from tierstore.layout import KVLayout
    from tierstore.tiers.record import BoolArray
    from tierstore.types import UInt8Array

__all__ = ["Export", "ExportedBlock", "choose"]


@dataclass(frozen=True, slots=True)
class ExportedBlock:
    """One block: its hash, the one before it in its chain (zeros: none, or not known) and its bytes, decoded."""

    block_hash: bytes
    parent_hash: bytes
    raw: memoryview


@dataclass(slots=True)
class Export:
    """The chosen blocks of one namespace.

    Attributes:
        namespace: The namespace.
        layout: Of its blocks.
        count: Chosen blocks. Those that verify are read.
        bad: One line for each block that does not verify, once it has been read.
    """

    namespace: FolderNamespace
    layout: KVLayout
    count: int
    bad: list[str] = field(default_factory=list)
    _folder: StoreFolder | None = None
    _files: Sequence[tuple[FileContents, BoolArray]] = ()

    @property
    def description(self) -> str:
        """The namespace as one JSON object, for whoever finds the blocks."""
        space = self.namespace
        return json.dumps(
            {"fingerprint": space.fingerprint.hex(), "epoch": space.epoch, "identity": dict(space.identity)}
        )

    def blocks(self) -> Iterator[ExportedBlock]:
        """Read them, file by file; blocks."""
        assert self._folder is not None, "made by choose"
        for contents, chosen in self._files:
            path = contents.file.name.path
            try:
                with self._folder.open(contents.file) as chunk:
                    if chunk is None or contents.array.codec is None:
                        self.bad.append(f"{path}: {np.count_nonzero(chosen)} blocks cannot be read")
                        continue
                    keys = contents.blocks.only(chosen)
                    for row, body in read_bodies(chunk, contents.array, keys, np.arange(len(keys))):
                        key = keys.rows[row]
                        raw = None if body is None else decode_block(contents.array, key, body)
                        if raw is None:
                            self.bad.append(f"{path} block {key['block_hash'].tobytes().hex()}: it is not whole")
                        else:
                            yield ExportedBlock(key["block_hash"].tobytes(), key["parent_hash"].tobytes(), raw)
            except DiskError as error:
                self.bad.append(f"{path}: {error}")


def choose(
    folder: StoreFolder,
    contents: Sequence[FileContents],
    namespaces: Sequence[FolderNamespace],
    hashes: Sequence[bytes],
) -> tuple[list[Export], list[str]]:
    """Choose living blocks.

    Args:
        folder: The folder.
        contents: Of its files.
        namespaces: Whose blocks.
        hashes: Those with these hashes; none given: all of them.

    Returns:
        One export for each namespace that has some, wide elements first; and one line for each hash that no block
        has, and for each namespace whose layout is not known.
    """
    wanted = np.frombuffer(b"".join(hashes), dtype=np.uint8).reshape(-1, 32)
    exports: list[Export] = []
    missing: list[str] = []
    found: set[bytes] = set()
    for space in namespaces:
        files = [(file, file.alive_of(space.fingerprint) & _among(file, wanted)) for file in contents]
        files = [(file, chosen) for file, chosen in files if chosen.any()]
        found |= {own.tobytes() for file, chosen in files for own in file.blocks.rows["block_hash"][chosen]}
        if files and space.layout is None:
            missing.append(f"namespace {space.fingerprint.hex()}: its layout is not known")
        elif files and space.layout:
            count = sum(int(np.count_nonzero(chosen)) for _, chosen in files)
            exports.append(Export(space, space.layout, count, [], folder, files))
    exports.sort(key=lambda export: -export.layout.item_nbytes)
    return exports, [*missing, *(f"block {name.hex()}: no such block" for name in hashes if name not in found)]


def _among(file: FileContents, wanted: UInt8Array) -> BoolArray:
    """bool[n]; blocks with one of these hashes, or all where there are none."""
    if not len(wanted):
        return np.ones(len(file.blocks), dtype=np.bool_)
    names = {name.tobytes() for name in wanted}
    return np.array([own.tobytes() in names for own in file.blocks.rows["block_hash"]], dtype=np.bool_)
