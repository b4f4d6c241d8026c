"""Blocks that name their owner every 64 bytes, and the small store that tests keep them in.

Called by the tests of the whole store. Bytes are made from the owner alone, so that a block which came back
is compared with what its owner must have put; nothing here remembers anything.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from tierstore.config import StoreConfig
from tierstore.disk.base import Disk
from tierstore.keys import Namespace
from tierstore.layout import KVLayout
from tierstore.store import NamespaceHandle, Store
from tierstore.transfer.future import TransferResult

if TYPE_CHECKING:
    from tierstore.types import UInt8Array

__all__ = [
    "SENTINEL",
    "SMALL",
    "TIMEOUT_SECONDS",
    "block_hash",
    "chunk_nbytes",
    "get",
    "namespace",
    "num_descriptors",
    "num_pins",
    "payload",
    "quiet",
    "rows",
    "small_store",
]

SENTINEL: Final = 0xA5
"""What a destination is filled with before a get."""

TIMEOUT_SECONDS: Final = 30.0
"""What takes longer hangs."""

SMALL: Final[dict[str, object]] = {
    "host_size": "256 KiB",
    "host_slab_size": "64 KiB",
    "ssd_size": "1 MiB",
    "ssd_file_size": "128 KiB",
    "ssd_free_floor": "4 KiB",
    "prefetch_cold_seconds": 0,
}
"""Settings under which a few dozen blocks evict and reclaim: 32 slots of 8 KiB, 8 chunk files of 7 of them."""


def small_store(disk: Disk | None = None, *, device_pool: object = None, **changed: object) -> Store:
    """A store of the small settings, some of them changed, over a disk or the folder that they name."""
    return Store(StoreConfig.load(overrides=SMALL | changed), disk=disk, device_pool=device_pool)


def namespace(block_nbytes: int = 8192, model: str = "model") -> Namespace:
    """A namespace of blocks of so many bytes."""
    return Namespace(model, KVLayout.opaque(block_nbytes=block_nbytes))


def block_hash(name: object) -> bytes:
    """The hash of the block with this name."""
    return hashlib.sha256(repr(name).encode()).digest()


def payload(owner: object, nbytes: int) -> UInt8Array:
    """uint8[nbytes]: every 64 bytes hold a digest of the owner and their own position."""
    digest = np.frombuffer(block_hash(("owner", owner)), np.uint8)
    stripes = np.empty((-(-nbytes // 64), 64), np.uint8)
    stripes[:, :32] = digest
    stripes[:, 32:40] = np.arange(len(stripes), dtype="<u8")[:, None].view(np.uint8)
    stripes[:, 40:] = digest[:24]
    return stripes.reshape(-1)[:nbytes].copy()


def rows(owners: Sequence[object], nbytes: int) -> UInt8Array:
    """uint8[n, nbytes]: the payload of each owner."""
    return np.stack([payload(owner, nbytes) for owner in owners])


def get(handle: NamespaceHandle, hashes: Sequence[bytes], expected: UInt8Array) -> TransferResult:
    """Get blocks and assert that the leading ones are as expected and that no other row was written."""
    buffer = np.full_like(expected, SENTINEL)
    result = handle.get(hashes, buffer).result(TIMEOUT_SECONDS)
    assert np.array_equal(buffer[: result.leading], expected[: result.leading]), "bytes of another block"
    assert (buffer[result.leading :] == SENTINEL).all(), "a row behind the leading ones was written"
    return result


def chunk_nbytes(folder: Path) -> int:
    """Bytes that the chunk files of a folder take; one that is given back meanwhile takes none."""
    nbytes = 0
    for path in folder.glob("arrays/*/[co]*"):
        with suppress(FileNotFoundError):
            nbytes += path.stat().st_blocks * 512
    return nbytes


def num_descriptors(root: Path) -> int:
    """Descriptors of this process that lead to chunk files of a folder, or to their folders."""
    links = []
    for number in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # the one that lists them
            links.append(os.readlink(f"/proc/self/fd/{number}"))
    return sum(link.startswith(f"{root}/arrays/") for link in links)


def num_pins(store: Store) -> int:
    """Pins of all blocks in all tiers, and jobs in flight."""
    with store.engine.planning() as planner:
        directory = planner.directory
        return int(directory.host.pins.sum() + directory.ssd.pins.sum()) + planner.num_jobs


@contextmanager
def quiet() -> Iterator[None]:
    """Without the warnings of a disk that fails by intent."""
    logging.disable(logging.ERROR)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
