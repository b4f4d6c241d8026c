"""A real folder with an SSD tier, and what Zarr readers see in it beside what must be there.

Called by the tests with Zarr as the oracle: zarr-python, and TensorStore where the codec is its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import tensorstore
import zarr

from tierstore.codec.base import Codec, RawCodec
from tierstore.codec.lz4 import Lz4Codec
from tierstore.disk.posix import PosixDisk
from tierstore.keys import Namespace
from tierstore.layout import KVLayout
from tierstore.testing.block_user import BlockUser
from tierstore.testing.ssd_world import SsdWorld
from tierstore.tiers.chunkfile import ChunkFile, ChunkName
from tierstore.tiers.frame import aligned_buffer
from tierstore.tiers.record import KIND_BLOCK
from tierstore.tiers.scan import Scanner

__all__ = ["ATTENTION", "CODECS", "HalfNoise", "ZarrFolder", "seen_by_tensorstore", "seen_by_zarr"]

ATTENTION = KVLayout.attention(layers=2, kv_heads=2, head_size=16, block_tokens=8)
CODECS: list[Codec] = [RawCodec(), Lz4Codec()]


class HalfNoise(BlockUser):
    """A user whose blocks compress to about a half."""

    def payload(self, name: int) -> bytes:
        noise = super().payload(name)
        return (noise[: len(noise) // 2] + bytes([name % 256]) * len(noise))[: len(noise)]


class ZarrFolder:
    """A world in a real folder, and what is sealed in it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.world = SsdWorld(disk=PosixDisk(str(root)), capacity_nbytes=2 << 20)
        self.world.pool = aligned_buffer(2 << 20)

    def user(self, layout: KVLayout, tenant: str | None = None) -> HalfNoise:
        return HalfNoise(self.world.pool, self.world.register(Namespace("model", layout, tenant=tenant)))

    def array(self, layout: KVLayout, codec: Codec) -> Path:
        return self.root / "arrays" / f"{layout.fingerprint.hex()}-{codec.name}"

    def expected(self, array: Path, user: HalfNoise, names: Sequence[int]) -> dict[int, bytes]:
        """Payload by row of the array: of every block that a header in a sealed file names."""
        by_hash = {user.block_hash(name): user.payload(name) for name in names}
        rows: dict[int, bytes] = {}
        (slots, *_) = zarr.open_array(array, mode="r").shards or ()
        for path in array.glob("c.*"):
            name = ChunkName.parse(array.name, path.name)
            assert name is not None
            file = self.world.disk.open(f"arrays/{array.name}/{path.name}")
            keys, readable = Scanner().records(ChunkFile(0, name, file, nbytes=path.stat().st_size))
            file.close()
            assert readable
            for row in keys.rows[keys.rows["kind"] == KIND_BLOCK]:
                rows[name.number * slots + int(row["slot"])] = by_hash[row["block_hash"].tobytes()]
        return rows

    def seen(self, array: Path, user: HalfNoise, names: Sequence[int]) -> dict[int, bytes]:
        """What every Zarr reader sees in an array, which is what must be there."""
        expected = self.expected(array, user, names)
        assert seen_by_zarr(array) == expected
        if array.name.endswith(f"-{RawCodec.name}"):
            assert seen_by_tensorstore(array) == expected
        return expected


def seen_by_zarr(array: Path) -> dict[int, bytes]:
    """Bytes by row, of the rows that are not all zero."""
    content = np.asarray(zarr.open_array(array, mode="r")[:])
    flat = content.reshape(len(content), -1)
    return {row: flat[row].tobytes() for row in np.flatnonzero(flat.any(axis=1)).tolist()}


def seen_by_tensorstore(array: Path) -> dict[int, bytes]:
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{array}/"}}
    content = np.asarray(tensorstore.open(spec, read=True).result().read().result())
    flat = content.reshape(len(content), -1)
    return {row: flat[row].tobytes() for row in np.flatnonzero(flat.any(axis=1)).tolist()}
