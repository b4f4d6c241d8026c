"""Finds the blocks of a folder as a start would find them, without starting.

Called by listing and by export. Footers of sealed files are trusted; open files are scanned and their payloads
verified. Of each identity the latest record counts, as in `tierstore.tiers.recovery`. Reads only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tierstore.errors import DiskError
from tierstore.inspect.folder import FolderArray, FolderFile, StoreFolder
from tierstore.tiers.footer import Keys, read_footer
from tierstore.tiers.living import FOUND, Census, last_of_each
from tierstore.tiers.record import KIND_TOMBSTONE
from tierstore.tiers.scan import Scanner
from tierstore.tiers.tombstone import read_tombstone

if TYPE_CHECKING:
    from tierstore.tiers.chunkfile import ChunkFile
    from tierstore.tiers.living import FoundArray
    from tierstore.tiers.record import BoolArray

__all__ = ["FileContents", "read_contents", "read_keys"]


@dataclass(frozen=True, slots=True, eq=False)
class FileContents:
    """What one chunk file holds.

    Attributes:
        array: Whose file it is.
        file: Its name, its uuid known, and its length.
        blocks: The keys of its blocks, dead ones among them.
        alive: bool[n]; which of them a start would find.
        num_tombstones: Records of deletions.
    """

    array: FolderArray
    file: FolderFile
    blocks: Keys
    alive: BoolArray
    num_tombstones: int

    def alive_of(self, fingerprint: bytes) -> BoolArray:
        """bool[n]; which of the blocks live in one namespace."""
        own: BoolArray = (self.blocks.rows["fingerprint"] == np.frombuffer(fingerprint, np.uint8)).all(axis=1)
        return own & self.alive

    @property
    def alive_nbytes(self) -> int:
        """Bytes of living blocks as they lie there, encoded."""
        return int(self.blocks.rows["encoded_nbytes"][self.alive].sum())


def read_keys(chunk: ChunkFile, array: FolderArray) -> tuple[Keys, bool, bool]:
    """The records of a file; blocks. The chunk learns its uuid.

    Returns:
        Their keys, whether these come from a footer, and whether every page looked at could be read.

    Raises:
        DiskError: The footer of a sealed file cannot be read.
    """
    footer, readable = None, True
    if chunk.name.axes and array.geometry:
        footer = read_footer(chunk.file, nbytes=chunk.nbytes, slots=array.geometry.slots)
    if footer is None:
        keys, readable = Scanner().records(chunk)
    else:
        keys = footer
    chunk.know(keys)
    return keys, footer is not None, readable


def read_contents(folder: StoreFolder, advance: Callable[[int], None] = lambda _nbytes: None) -> list[FileContents]:
    """Read what every file holds; blocks. A file that has gone or cannot be read is skipped, with a line.

    Args:
        folder: The folder.
        advance: Told how many more bytes of files are done with.
    """
    census = Census(folder.epochs)
    files: list[tuple[FolderArray, FolderFile, Keys, FoundArray]] = []
    deleted: list[FoundArray] = [np.empty(0, FOUND)]
    for array in folder.arrays:
        for file in array.files:
            try:
                with folder.open(file) as chunk:
                    if chunk is not None:
                        keys = _intact_keys(chunk, array)
                        tombstones = [read_tombstone(chunk, page) for page in chunk.tombstone_pages]
                        deleted.append(census.deleted(tombstone for tombstone in tombstones if tombstone))
                        files.append((array, FolderFile(chunk.name, chunk.nbytes), keys, census.blocks(keys)))
            except DiskError as error:
                folder.skipped.append(f"{file.name.path}: {error}")
            advance(file.nbytes)
    found = [blocks for *_, blocks in files]
    last = last_of_each(np.concatenate([*found, *deleted]))
    return [
        _contents(array, file, keys, blocks[last[end - len(blocks) : end]])
        for (array, file, keys, blocks), end in zip(files, np.cumsum([len(blocks) for blocks in found]), strict=True)
    ]


def _intact_keys(chunk: ChunkFile, array: FolderArray) -> Keys:
    keys, sealed, _ = read_keys(chunk, array)
    if sealed:
        return keys
    intact, _ = Scanner().intact(chunk, keys)
    return keys.only(intact)


def _contents(array: FolderArray, file: FolderFile, keys: Keys, living: FoundArray) -> FileContents:
    tombstones = keys.rows["kind"] == KIND_TOMBSTONE
    blocks = keys.only(~tombstones)
    alive = np.isin(blocks.pages, living["page"])
    return FileContents(array, file, blocks, alive, int(np.count_nonzero(tombstones)))
