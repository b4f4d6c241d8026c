"""The output of `tierstore inspect ls`: namespaces, arrays, files and blocks, as plain values and as lines of text.

Called by the command line. Pure: everything has been read before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TypedDict

import numpy as np

if TYPE_CHECKING:
    from tierstore.inspect.contents import FileContents
    from tierstore.inspect.folder import FolderArray, FolderNamespace, StoreFolder

__all__ = ["ListedArray", "ListedBlock", "ListedFile", "ListedNamespace", "Listing", "list_folder", "listing_lines"]


class ListedNamespace(TypedDict):
    """One namespace; blocks and bytes are those of living blocks."""

    fingerprint: str
    epoch: int
    identity: dict[str, object]
    text: str
    blocks: int
    nbytes: int


class ListedFile(TypedDict):
    """One chunk file; `alive_nbytes` are of living blocks, encoded."""

    path: str
    state: str
    nbytes: int
    alive: int
    dead: int
    tombstones: int
    alive_nbytes: int


class ListedArray(TypedDict):
    """One array; `file_nbytes` is None where nothing says it."""

    name: str
    layout: str
    codec: str
    file_nbytes: int | None
    files: list[ListedFile]


class ListedBlock(TypedDict):
    """One living block; `parent` is None at the start of a chain, or where it is not known."""

    hash: str
    parent: str | None
    namespace: str
    file: str
    slot: int
    nbytes: int
    created: str


class Listing(TypedDict):
    """The whole listing. Without `--blocks` it has no blocks."""

    uuid: str
    namespaces: list[ListedNamespace]
    arrays: list[ListedArray]
    blocks: list[ListedBlock]
    skipped: list[str]


def list_folder(
    folder: StoreFolder,
    contents: Sequence[FileContents],
    namespaces: Sequence[FolderNamespace],
    *,
    with_blocks: bool,
) -> Listing:
    """Say what lies in a folder.

    Args:
        folder: The folder.
        contents: Of its files.
        namespaces: Those to list, with their arrays and blocks.
        with_blocks: Whether every block is listed.
    """
    blocks = [block for file in contents for block in _blocks(file, namespaces)] if with_blocks else []
    layouts = {space.layout for space in namespaces}
    return Listing(
        uuid=folder.uuid,
        namespaces=[_namespace(space, contents) for space in namespaces],
        arrays=[
            _array(array, [file for file in contents if file.array is array])
            for array in folder.arrays
            if array.layout in layouts or len(namespaces) == len(folder.namespaces)
        ],
        blocks=blocks,
        skipped=list(folder.skipped),
    )


def _namespace(space: FolderNamespace, contents: Sequence[FileContents]) -> ListedNamespace:
    own = [file.blocks.rows["encoded_nbytes"][file.alive_of(space.fingerprint)] for file in contents]
    return ListedNamespace(
        fingerprint=space.fingerprint.hex(),
        epoch=space.epoch,
        identity=dict(space.identity),
        text=space.text,
        blocks=sum(len(nbytes) for nbytes in own),
        nbytes=sum(int(nbytes.sum()) for nbytes in own),
    )


def _array(array: FolderArray, contents: Sequence[FileContents]) -> ListedArray:
    return ListedArray(
        name=array.name,
        layout=array.text,
        codec=array.name.partition("-")[2],
        file_nbytes=array.geometry.file_nbytes if array.geometry else None,
        files=[
            ListedFile(
                path=file.file.name.path,
                state="sealed" if file.file.name.axes else "open",
                nbytes=file.file.nbytes,
                alive=int(np.count_nonzero(file.alive)),
                dead=int(np.count_nonzero(~file.alive)),
                tombstones=file.num_tombstones,
                alive_nbytes=file.alive_nbytes,
            )
            for file in contents
        ],
    )


def _blocks(file: FileContents, namespaces: Sequence[FolderNamespace]) -> Iterator[ListedBlock]:
    for space in namespaces:
        for row in np.flatnonzero(file.alive_of(space.fingerprint)).tolist():
            key = file.blocks.rows[row]
            parent = key["parent_hash"].tobytes()
            yield ListedBlock(
                hash=key["block_hash"].tobytes().hex(),
                parent=parent.hex() if any(parent) else None,
                namespace=space.fingerprint.hex(),
                file=file.file.name.path,
                slot=int(key["slot"]),
                nbytes=int(key["encoded_nbytes"]),
                created=datetime.fromtimestamp(int(key["created_ns"]) / 1e9, UTC).isoformat(timespec="milliseconds"),
            )


def listing_lines(listing: Listing) -> Iterator[str]:
    """The same for people to read, line by line."""
    for space in listing["namespaces"]:
        yield f"namespace {space['fingerprint']}"
        yield f"  {space['text']}"
        yield f"  epoch {space['epoch']}, {space['blocks']} blocks, {_size(space['nbytes'])}"
    for array in listing["arrays"]:
        length = array["file_nbytes"]
        yield f"array {array['name']}"
        yield f"  {array['layout']}; {array['codec']}; files of {_size(length) if length else 'unknown length'}"
        for file in array["files"]:
            name = file["path"].rpartition("/")[2]
            counts = f"{file['alive']:8} alive {file['dead']:8} dead {file['tombstones']:5} tombstones"
            yield f"  {file['state']:6} {counts}  {_size(file['alive_nbytes']):>10} of {_size(file['nbytes'])}  {name}"
    for block in listing["blocks"]:
        yield (
            f"block {block['hash']}  parent {block['parent'] or '-':64}  {block['file']}  slot {block['slot']}  "
            f"{block['nbytes']} bytes  {block['created']}"
        )
    files = [file for array in listing["arrays"] for file in array["files"]]
    yield (
        f"total {len(listing['namespaces'])} namespaces, {len(files)} files, "
        f"{sum(file['alive'] for file in files)} blocks alive and {sum(file['dead'] for file in files)} dead, "
        f"{_size(sum(file['alive_nbytes'] for file in files))} alive in {_size(sum(file['nbytes'] for file in files))}"
    )


def _size(nbytes: int) -> str:
    for unit, step in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if nbytes >= step:
            return f"{nbytes / step:.1f} {unit}"
    return f"{nbytes} B"
