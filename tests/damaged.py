"""A folder with sealed and open files, deletes, clears, two namespaces and both codecs, and how to damage it.

Called by the tests of the offline tools. Every block's bytes follow from its number and its model, so that what
is listed, exported or found again is compared with what was put.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tests.payload import TIMEOUT_SECONDS, block_hash, payload, small_store
from tierstore.disk.posix import PosixDisk
from tierstore.inspect.checkup import Checkup, check_folder
from tierstore.inspect.folder import StoreFolder
from tierstore.inspect.repair import plan_repair
from tierstore.keys import Namespace
from tierstore.layout import KVLayout
from tierstore.store import NamespaceHandle
from tierstore.tiers.manifest import Manifest
from tierstore.tiers.record import HEADER, KIND_BLOCK, KIND_TOMBSTONE, valid_headers
from tierstore.types import Presence

if TYPE_CHECKING:
    from tierstore.types import UInt8Array

__all__ = [
    "BLOCKS",
    "LAYOUT",
    "MODELS",
    "block",
    "check",
    "expected",
    "files",
    "flip",
    "headers",
    "held",
    "living",
    "make",
    "owner_of",
    "payload_in",
    "put",
    "repair",
    "space",
    "tombstones",
]

MODELS = ("first", "second")

BLOCKS = 30
"""Numbers of blocks that were put: half of them raw, then half of them lz4. Every fifth is deleted."""

LAYOUT = KVLayout.attention(layers=2, kv_heads=2, head_size=32, block_tokens=16)
"""Blocks of 8 KiB, in axes that a Zarr reader sees."""


def space(model: str) -> Namespace:
    return Namespace(model, LAYOUT)


def block(model: str, number: int) -> UInt8Array:
    """The bytes of a block; odd ones do not compress."""
    if number % 2:
        seed = int.from_bytes(block_hash((model, number))[:8], "little")
        return np.random.default_rng(seed).integers(0, 256, LAYOUT.block_nbytes, dtype=np.uint8)
    return payload((model, number), LAYOUT.block_nbytes)


def put(handle: NamespaceHandle, model: str, numbers: range) -> None:
    blocks = np.stack([block(model, number) for number in numbers])
    result = handle.put([block_hash(number) for number in numbers], blocks, durable=True).result(TIMEOUT_SECONDS)
    assert result.ok, result.outcomes


def make(root: Path) -> None:
    """Two runs of a store: raw, then lz4."""
    for codec, numbers in (("raw", range(BLOCKS // 2)), ("lz4", range(BLOCKS // 2, BLOCKS))):
        with small_store(ssd_dir=root, ssd_size="2 MiB", codec_name=codec) as store:
            for model in MODELS:
                handle = store.namespace(space(model))
                if codec == "raw":
                    put(handle, model, numbers[:3])
                    handle.clear()
                put(handle, model, numbers)
                handle.delete([block_hash(number) for number in numbers[::5]]).result(TIMEOUT_SECONDS)


def expected() -> set[int]:
    """Numbers of the blocks that live in each namespace."""
    return {number for number in range(BLOCKS) if number % 5}


def living(root: Path, model: str) -> set[int]:
    """The blocks that a store finds in a folder, each compared with what was put."""
    with small_store(ssd_dir=root, ssd_size="2 MiB") as store:
        handle = store.namespace(space(model))
        presence = handle.presence([block_hash(number) for number in range(BLOCKS)])
        found = set()
        for number in (number for number, there in enumerate(presence) if there is Presence.HIT):
            buffer = np.zeros((1, LAYOUT.block_nbytes), np.uint8)
            if handle.get([block_hash(number)], buffer).result(TIMEOUT_SECONDS).ok:
                assert np.array_equal(buffer[0], block(model, number)), "bytes of another block"
                found.add(number)
        return found


def files(root: Path, state: str, codec: str = "*") -> list[Path]:
    """Chunk files that are ``open`` or ``sealed``, by number."""
    pattern = "open-*" if state == "open" else "c.*"
    return sorted(root.glob(f"arrays/*-{codec}/{pattern}"))


def headers(path: Path, kind: int = KIND_BLOCK) -> list[int]:
    """Where the records of a file begin, in bytes; those of one kind, and no copies in a footer."""
    pages = np.frombuffer(path.read_bytes()[: path.stat().st_size // 4096 * 4096], np.uint8).view(HEADER)
    chosen = valid_headers(pages) & (pages["kind"] == kind)
    seen: set[int] = set()
    places = []
    for page in np.flatnonzero(chosen).tolist():
        sequence = int(pages["sequence"][page])
        if sequence not in seen:
            seen.add(sequence)
            places.append(page * 4096)
    return places


def owner_of(path: Path, place: int) -> set[tuple[str, int]]:
    """The model and number of the record at a place; nothing where no store would find that block."""
    with path.open("rb") as file:
        file.seek(place)
        row = np.frombuffer(file.read(4096), np.uint8).view(HEADER)[0]
    models = {space(model).fingerprint: model for model in MODELS}
    numbers = {block_hash(number): number for number in expected()}
    number = numbers.get(row["block_hash"].tobytes())
    return {(models[row["fingerprint"].tobytes()], number)} if number is not None and row["epoch"] == 1 else set()


def flip(path: Path, offset: int) -> None:
    """Turn one bit of a file, counted from its end where the offset is negative."""
    with path.open("r+b") as file:
        file.seek(offset, 0 if offset >= 0 else 2)
        byte = file.read(1)[0]
        file.seek(-1, 1)
        file.write(bytes([byte ^ 1]))


def payload_in(path: Path, record: int) -> set[tuple[str, int]]:
    """Spoil the payload of one of a file's records; returns what it held, if a store would find it."""
    place = headers(path)[record]
    owner = owner_of(path, place)
    flip(path, place + 4096 + 100)
    return owner


def tombstones(path: Path) -> list[int]:
    """Where a file's deletions begin."""
    return headers(path, KIND_TOMBSTONE)


def check(root: Path) -> Checkup:
    """Verify a folder, without Zarr."""
    return check_folder(StoreFolder.read(PosixDisk(str(root), read_only=True)))


@contextmanager
def held(root: Path) -> Iterator[PosixDisk]:
    """A folder that is claimed."""
    disk = PosixDisk(str(root))
    manifest = Manifest.open(disk)
    try:
        yield disk
    finally:
        manifest.close()


def repair(root: Path) -> list[str]:
    """Mend a folder, and say what was done; nothing is left."""
    with held(root) as disk:
        mends, left = plan_repair(StoreFolder.read(disk))
        assert left == []
        lines = [line for mend in mends for line in mend.lines]
        for mend in mends:
            mend.apply(disk)
    return lines
