"""The plan of one run: what is measured, and all sizes. Pure arithmetic; called by the measuring modules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tierstore.errors import ConfigError
from tierstore.settings import format_size
from tierstore.tiers.chunkfile import slots_per_file
from tierstore.tiers.record import RecordShape
from tierstore.tiers.ssd import default_file_nbytes
from tierstore.types import PAGE_NBYTES

if TYPE_CHECKING:
    from pathlib import Path

    from tierstore.layout import KVLayout

__all__ = ["BenchmarkPlan"]

_MIB = 1 << 20
_CALL_NBYTES = 256 * _MIB
_BATCH_MAX = 1024
_SLAB_SLOTS_MIN = 8
_POOL_SLABS = 4
_FILE_SLOTS_MIN = 16
_FILES_SPARE = 3
"""One stays in reserve, one is being written, one takes the tombstones of blocks that only made room."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkPlan:
    """What to measure, and with how much.

    Attributes:
        layout: Gives the block its size.
        host_nbytes: Host pool of the host links.
        folder: Where the SSD tier and the limit's file may lie; exists.
        ssd_nbytes: Capacity of the SSD tier.
        codec: Codec of blocks on SSD.
        read_threads: Threads that read from the SSD, in the store and in the limit.
        batch: Blocks a call.
        seconds: Wall time for each link.

    Raises:
        ConfigError: A batch that does not fit the pool, or a tier too small to outgrow its pool.
    """

    layout: KVLayout
    host_nbytes: int
    folder: Path
    ssd_nbytes: int
    codec: str
    read_threads: int
    batch: int
    seconds: float

    def __post_init__(self) -> None:
        if self.host_nbytes < self.ssd_host_nbytes:
            raise ConfigError(
                f"a host pool of {format_size(self.host_nbytes)} is too small for {self.batch} blocks of "
                f"{format_size(self.block_nbytes)} a call; use a smaller --batch or a --host-size of at least "
                f"{format_size(self.ssd_host_nbytes)}"
            )
        if self.num_ssd_calls_max < self.num_ssd_calls_min:
            raise ConfigError(
                f"an SSD tier of {format_size(self.ssd_nbytes)} is too small to outgrow a host pool of "
                f"{format_size(self.ssd_host_nbytes)}; use an --ssd-size of at least "
                f"{format_size(self._ssd_nbytes_min)}"
            )

    @staticmethod
    def default_batch(block_nbytes: int) -> int:
        """Blocks a call where none are asked for: 256 MiB, beyond any processor's cache slice."""
        return min(_BATCH_MAX, max(1, _CALL_NBYTES // block_nbytes))

    @property
    def block_nbytes(self) -> int:
        """Bytes of a block."""
        return self.layout.block_nbytes

    @property
    def slot_nbytes(self) -> int:
        """Bytes of a block's place in the pool or in a file."""
        return -(-self.block_nbytes // PAGE_NBYTES) * PAGE_NBYTES

    @property
    def call_nbytes(self) -> int:
        """Payload of one call."""
        return self.batch * self.block_nbytes

    @property
    def slab_nbytes(self) -> int:
        """Slab of both pools: room for a call, and for the least number of slots."""
        return max(_SLAB_SLOTS_MIN, self.batch) * self.slot_nbytes

    @property
    def ssd_host_nbytes(self) -> int:
        """Pool of the store with an SSD tier: as small as it may be, so that reads do come from SSD."""
        return _POOL_SLABS * self.slab_nbytes

    @property
    def num_pool_calls(self) -> int:
        """Calls whose blocks that pool holds."""
        return self.ssd_host_nbytes // (self.batch * self.slot_nbytes)

    @property
    def num_ssd_calls_min(self) -> int:
        """Calls after which the tier holds twice what the pool does."""
        return max(6, 2 * self.num_pool_calls)

    @property
    def ssd_file_nbytes(self) -> int:
        """Length of a chunk file: that of a tier twice as large, so that few are begun, or longer for large blocks."""
        pitch_nbytes = RecordShape(self.block_nbytes).pitch_nbytes
        return max(default_file_nbytes(2 * self.ssd_nbytes), _FILE_SLOTS_MIN * (pitch_nbytes + PAGE_NBYTES))

    @property
    def num_ssd_calls_max(self) -> int:
        """Calls that fill the tier up to where it begins to reclaim."""
        num_files = self.ssd_nbytes // self.ssd_file_nbytes - _FILES_SPARE
        return max(0, num_files * self._file_slots // self.batch)

    @property
    def _file_slots(self) -> int:
        return slots_per_file(self.ssd_file_nbytes, RecordShape(self.block_nbytes))

    @property
    def _ssd_nbytes_min(self) -> int:
        num_files = -(-self.num_ssd_calls_min * self.batch // self._file_slots)
        return (num_files + _FILES_SPARE) * self.ssd_file_nbytes
