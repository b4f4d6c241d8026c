"""Builds the device pool of a store: its memory (allocated or lent), its slabs, and direct reads from SSD into it.

Called by `tierstore.assembly` while a store is built; see docs/gpu.md.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, cast

from tierstore import registry
from tierstore.control.device_room import DevicePool
from tierstore.control.slabs import SlotAllocator, auto_slab_nbytes
from tierstore.device.binding import bind_lent
from tierstore.disk.gds import open_gds
from tierstore.errors import ConfigError
from tierstore.tiers.direct import DirectReader
from tierstore.types import PAGE_NBYTES, TierName

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import ExitStack

    from tierstore.config import StoreConfig
    from tierstore.device.base import Device
    from tierstore.policy.base import AdmissionPolicy
    from tierstore.types import UInt8Array

__all__ = ["cut_pool", "open_direct_reader", "take_memory"]

_logger = logging.getLogger(__name__)


def take_memory(config: StoreConfig, device: Device, lent: object, stack: ExitStack) -> dict[TierName, UInt8Array]:
    """The pool's memory, where there is to be one: what was lent, or so much as the settings say.

    Args:
        config: Every setting.
        device: Whose memory it is.
        lent: A contiguous tensor of the device, written to by nobody else meanwhile; None takes memory.
        stack: Gives back what was taken.

    Raises:
        ConfigError: Memory is lent, and more is to be taken.
        LayoutError, DeviceError: What was lent can be no pool of this device.
        DeviceMemoryError: There is no such memory left.
    """
    nbytes = config.device.pool_size // PAGE_NBYTES * PAGE_NBYTES
    if lent is not None:
        if nbytes:
            raise ConfigError(
                f"a device pool is lent, and device.pool_size is {nbytes}; lend one or set the other to 0"
            )
        memory = bind_lent(lent, device)
        stack.callback(device.adopt(memory))
    elif nbytes:
        memory, free = device.allocate(nbytes)
        stack.callback(free)
    else:
        return {}
    return {TierName.DEVICE_POOL: memory}


def cut_pool(config: StoreConfig, pools: Mapping[TierName, UInt8Array]) -> DevicePool | None:
    """The pool as the planner sees it, cut like the host pool by default. Raises ConfigError."""
    if TierName.DEVICE_POOL not in pools:
        return None
    admission = cast("Callable[[], AdmissionPolicy]", registry.load("admissions", config.device.pool_admission))()
    if admission.asks_when_leaving:
        raise ConfigError(
            f'device.pool_admission is "{config.device.pool_admission}", which waits until blocks leave a pool; blocks '
            "enter this one as they are used: choose second-hit, continued or always"
        )
    nbytes = pools[TierName.DEVICE_POOL].nbytes
    return DevicePool(SlotAllocator(pool_nbytes=nbytes, slab_nbytes=auto_slab_nbytes(nbytes)), admission)


def open_direct_reader(
    config: StoreConfig, device: Device, pools: Mapping[TierName, UInt8Array], stack: ExitStack
) -> DirectReader | None:
    """What reads from SSD into the pool, where that is asked for; by what way is said once. Raises ConfigError."""
    if not config.device.direct_reads:
        return None
    if TierName.DEVICE_POOL not in pools or not config.ssd.enabled or not config.ssd.dir or config.ssd.read_only:
        raise ConfigError("device.direct_reads needs device.pool_size and an ssd.dir that is the store's own; set both")
    far = open_gds(config.ssd.dir, on_gpu=device.memory != "cpu")
    way = "through scratch in host memory: kvikio is not installed (tierstore[gds])" if far is None else far.way
    _logger.log(logging.WARNING if far is None else logging.INFO, "blocks go from SSD into the device pool %s", way)
    direct = DirectReader(device, pools[TierName.DEVICE_POOL], far)
    stack.callback(direct.close)
    return direct
