"""The blocks of the torture: who they are, which bytes they have, and where they lie in a chunk file.

Called by every other module here. A block's bytes follow from its space, its number and its incarnation, which
grows when a delete or clear of it has been acknowledged; so bytes that came back say whose they are, and bytes of
an earlier incarnation are a deletion undone. Remembers nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from crc32c import crc32c

from tierstore.keys import Namespace
from tierstore.layout import KVLayout
from tierstore.tiers.record import HEADER, KIND_BLOCK, KIND_TOMBSTONE, record_pages, valid_headers
from tierstore.types import HASH_NBYTES, PAGE_NBYTES

if TYPE_CHECKING:
    from tierstore.types import UInt8Array

__all__ = [
    "NUMBERS",
    "SHARED",
    "SPACES",
    "Block",
    "Record",
    "block_hash",
    "block_nbytes",
    "owner_of",
    "payload",
    "records_in",
    "rows",
]

NUMBERS: Final = 48
"""Blocks a space; a number has the same hash in every space."""

SPACES: Final = (
    Namespace("torture", KVLayout.opaque(block_nbytes=8192), tenant="first"),
    Namespace("torture", KVLayout.opaque(block_nbytes=3000)),
    Namespace("torture", KVLayout.opaque(block_nbytes=8192), tenant="second"),
    Namespace("torture", KVLayout.opaque(block_nbytes=8192), tenant="shared"),
)
"""Two layouts: whole pages, and blocks with room for their checksum; the tenants share an array and its files."""

SHARED: Final = len(SPACES) - 1
"""The space that every caller uses; nothing in it is deleted or cleared."""

_STRIPE: Final = np.dtype(
    [("magic", "S8"), ("space", "<u4"), ("number", "<u4"), ("incarnation", "<u8"), ("position", "<u8"), ("own", "V32")]
)
"""64 bytes of a block."""

_MAGIC: Final = b"TORTURED"


class Block(NamedTuple):
    """A block of a space."""

    space: int
    number: int


@dataclass(frozen=True, slots=True)
class Record:
    """One intact record in a chunk file.

    Attributes:
        block: What it holds; None for a tombstone, or a block that is not of the torture.
        deletes: The blocks that a tombstone deletes.
        sequence: Of the record.
        start: Its first byte in the file.
        stop: The byte behind its last.
    """

    block: Block | None
    deletes: tuple[Block, ...]
    sequence: int
    start: int
    stop: int


@cache
def block_hash(number: int) -> bytes:
    """The hash of the blocks with this number."""
    return hashlib.sha256(b"torture %d" % number).digest()


def block_nbytes(space: int) -> int:
    """Bytes of a block of a space."""
    return SPACES[space].layout.block_nbytes


@lru_cache(4096)
def payload(block: Block, incarnation: int) -> UInt8Array:
    """uint8[block_nbytes]: every 64 bytes name the block, the incarnation and their own position."""
    nbytes = block_nbytes(block.space)
    stripes = np.zeros(-(-nbytes // _STRIPE.itemsize), _STRIPE)
    stripes["magic"] = _MAGIC
    stripes["space"], stripes["number"] = block
    stripes["incarnation"] = incarnation
    stripes["position"] = np.arange(len(stripes))
    stripes["own"] = np.void(hashlib.sha256(repr((block, incarnation)).encode()).digest())
    found = stripes.view(np.uint8)[:nbytes]
    found.flags.writeable = False
    return found


def rows(blocks: Sequence[Block], incarnations: Sequence[int]) -> UInt8Array:
    """uint8[n, block_nbytes]: the bytes of each block, all of one space."""
    return np.stack([payload(block, own) for block, own in zip(blocks, incarnations, strict=True)])


def owner_of(row: UInt8Array) -> tuple[Block, int] | None:
    """The block and the incarnation whose bytes these are, all of them; None where they are of no block."""
    first = row[: _STRIPE.itemsize].view(_STRIPE)[0]
    block, incarnation = Block(int(first["space"]), int(first["number"])), int(first["incarnation"])
    if first["magic"] != _MAGIC or block.space >= len(SPACES) or len(row) != block_nbytes(block.space):
        return None
    return (block, incarnation) if np.array_equal(row, payload(block, incarnation)) else None


def records_in(contents: bytes | memoryview) -> list[Record]:
    """The intact records of a chunk file, or of a piece of one that starts at a page.

    Looks at every page, whatever the store would make of the file. Copies of headers in a footer are none, for what
    follows them is no payload.
    """
    whole = np.frombuffer(contents, np.uint8, count=len(contents) // PAGE_NBYTES * PAGE_NBYTES)
    pages = whole.view(HEADER)
    found: list[Record] = []
    for page in np.flatnonzero(valid_headers(pages)).tolist():
        header = pages[page]
        nbytes = int(header["encoded_nbytes"])
        start, stop = page * PAGE_NBYTES, (page + int(record_pages(header["encoded_nbytes"]))) * PAGE_NBYTES
        body = whole[start + PAGE_NBYTES : start + PAGE_NBYTES + nbytes]
        if stop > len(whole) or crc32c(body.data) != header["payload_checksum"]:
            continue
        space, numbers = _spaces().get(header["fingerprint"].tobytes()), _numbers()
        block: Block | None = None
        deletes: tuple[Block, ...] = ()
        if space is not None and header["kind"] == KIND_BLOCK:
            number = numbers.get(header["block_hash"].tobytes())
            block = None if number is None else Block(space, number)
        elif space is not None and header["kind"] == KIND_TOMBSTONE:
            hashes = [row.tobytes() for row in body.reshape(-1, HASH_NBYTES)]
            deletes = tuple(Block(space, numbers[name]) for name in hashes if name in numbers)
        found.append(Record(block, deletes, int(header["sequence"]), start, stop))
    return found


@cache
def _spaces() -> dict[bytes, int]:
    return {space.fingerprint: index for index, space in enumerate(SPACES)}


@cache
def _numbers() -> dict[bytes, int]:
    return {block_hash(number): number for number in range(NUMBERS)}
