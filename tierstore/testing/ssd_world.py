"""An SSD tier on a simulated disk, whose lives end by close, by kill or by a power loss.

For tests of the tier and of what stands on it. Every `start` is a new process's view of the same folder.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from tierstore.codec.base import Codec, RawCodec
from tierstore.disk.base import Disk, Entry
from tierstore.keys import Namespace
from tierstore.layout import KVLayout
from tierstore.testing.block_user import BlockUser
from tierstore.testing.sim_disk import SimDisk
from tierstore.tiers.frame import aligned_buffer
from tierstore.tiers.manifest import Manifest
from tierstore.tiers.ssd import SsdTier
from tierstore.tiers.zarr_metadata import ZARR_NAME
from tierstore.types import Generation

if TYPE_CHECKING:
    from tierstore.tiers.direct import DirectReader
    from tierstore.types import UInt8Array

__all__ = ["SsdWorld"]


class SsdWorld:
    """A folder with an SSD tier of small files.

    Args:
        disk: Another disk than a simulated one.
        capacity_nbytes: Of the tier; may be changed between lives.
        file_nbytes: Of a chunk file.
        codec: Of what is written; may be changed between lives.
        open_files_max: Chunk files that the tier keeps open.
        direct: What reads into the device pool.

    Attributes:
        disk: Where the folder is.
        sim: The same, to be told what fails; of no effect where another disk was given.
        pool: uint8[pool_nbytes]; survives every life.
        free_floor_nbytes: Of the next life.
    """

    def __init__(
        self,
        disk: Disk | None = None,
        *,
        capacity_nbytes: int = 1 << 20,
        file_nbytes: int = 64 << 10,
        codec: Codec | None = None,
        open_files_max: int | None = None,
        direct: DirectReader | None = None,
    ) -> None:
        self.capacity_nbytes = capacity_nbytes
        self.file_nbytes = file_nbytes
        self.codec = codec or RawCodec()
        self.open_files_max = open_files_max
        self.direct = direct
        self.free_floor_nbytes = 0
        self.sim = SimDisk()
        self.disk: Disk = self.sim if disk is None else disk
        self.pool: UInt8Array = aligned_buffer(1 << 20)
        self.manifest: Manifest | None = None
        self.tier: SsdTier | None = None

    def generation(self, block_nbytes: int = 100, tenant: str | None = None) -> Generation:
        """The living generation of a namespace of opaque blocks; see `register`."""
        return self.register(Namespace("model", KVLayout.opaque(block_nbytes=block_nbytes), tenant=tenant))

    def register(self, namespace: Namespace) -> Generation:
        """The living generation of a namespace, registered in the running life or in one of its own."""
        manifest = self.manifest or Manifest.open(self.disk)
        epoch = manifest.register(namespace)
        if self.manifest is None:
            manifest.close()
        return Generation(0, namespace.fingerprint, epoch, namespace.layout)

    def start(self) -> SsdTier:
        """Begin a life, after ending the one before without a close."""
        self.kill()
        self.manifest = Manifest.open(self.disk)
        self.tier = SsdTier(
            self.disk,
            self.pool,
            self.manifest,
            capacity_nbytes=self.capacity_nbytes,
            file_nbytes=self.file_nbytes,
            free_floor_nbytes=self.free_floor_nbytes,
            codec=self.codec,
            open_files_max=self.open_files_max,
            direct=self.direct,
            clock=lambda: 1_700_000_000_000_000_000,
        )
        return self.tier

    def begin(self, block_nbytes: int = 100) -> tuple[SsdTier, BlockUser]:
        """Begin a life in an empty folder, with a user of one namespace."""
        tier = self.start()
        assert not list(tier.recover()), "the folder is not empty"
        return tier, BlockUser(self.pool, self.generation(block_nbytes))

    def close(self) -> None:
        """End a life in order."""
        if self.tier is not None:
            self.tier.close()
        if self.manifest is not None:
            self.manifest.close()
        self.tier = self.manifest = None

    def kill(self) -> None:
        """End a life as kill -9 does: what was written stays."""
        self.sim.kill()
        self.close()

    def crash(self, seed: int | None = None) -> None:
        """End a life as a power loss does: of what is not synced nothing is kept, or by a seed some sectors."""
        self.sim.crash(Random(seed), torn=seed is not None)
        self.close()

    def files(self) -> dict[str, int]:
        """Path and length of every chunk file."""
        found: dict[str, int] = {}
        for array in self.disk.look("arrays").entries:
            entries = self.disk.look(f"arrays/{array.name}").entries if array.is_folder else ()
            found |= {f"arrays/{array.name}/{entry.name}": entry.nbytes for entry in entries if _is_chunk_file(entry)}
        return found


def _is_chunk_file(entry: Entry) -> bool:
    return not entry.name.startswith(ZARR_NAME)
