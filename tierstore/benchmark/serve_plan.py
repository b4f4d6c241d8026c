"""The plan of one run against a service: what is measured, and all sizes. Pure arithmetic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tierstore.errors import ConfigError
from tierstore.settings import format_size
from tierstore.types import PAGE_NBYTES

if TYPE_CHECKING:
    from pathlib import Path

    from tierstore.layout import KVLayout

__all__ = ["ServePlan"]

_SLAB_NBYTES = 64 << 20
_SLAB_SLOTS_MIN = 8
_POOL_SLABS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class ServePlan:
    """What to measure, and with how much.

    Attributes:
        layout: Gives the block its size.
        host_nbytes: The service's pool.
        folder: Where sockets may lie; exists.
        clients: Concurrent clients, each with a connection and a thread of its own.
        batch: Blocks a call.
        seconds: Wall time for each link.
        get_share: The share of gets among the calls of the load.
        skew: Of the load's keys: the n-th most popular is asked for n**-skew times as often as the first.
        index_blocks: Blocks that the service knows when look-ups are measured.

    Raises:
        ConfigError: The calls do not fit the pool, or a number makes no sense.
    """

    layout: KVLayout
    host_nbytes: int
    folder: Path
    clients: int
    batch: int
    seconds: float
    get_share: float = 0.9
    skew: float = 1.0
    index_blocks: int = 1 << 16

    def __post_init__(self) -> None:
        if self.host_nbytes < self.host_nbytes_min:
            raise ConfigError(
                f"a host pool of {format_size(self.host_nbytes)} is too small for {self.clients} clients with "
                f"{self.batch} blocks of {format_size(self.layout.block_nbytes)} a call; use a smaller --batch, fewer "
                f"--clients or a --host-size of at least {format_size(self.host_nbytes_min)}"
            )

    @property
    def slot_nbytes(self) -> int:
        """Bytes of a block's place in the pool."""
        return -(-self.layout.block_nbytes // PAGE_NBYTES) * PAGE_NBYTES

    @property
    def call_nbytes(self) -> int:
        """Payload of one call of one client."""
        return self.batch * self.layout.block_nbytes

    @property
    def slab_nbytes(self) -> int:
        """Slab of the pool: room for the least number of slots that one may have."""
        return max(_SLAB_NBYTES, _SLAB_SLOTS_MIN * self.slot_nbytes)

    @property
    def host_nbytes_min(self) -> int:
        """Of the pool: half of it may be lent, and what is being put must not push out what is being got."""
        return max(_POOL_SLABS * self.slab_nbytes, 4 * self.clients * self.batch * self.slot_nbytes)

    @property
    def num_held_calls(self) -> int:
        """Calls of each client whose blocks the pool holds while gets are measured: half of it."""
        return max(1, self.host_nbytes // 2 // (self.clients * self.batch * self.slot_nbytes))
