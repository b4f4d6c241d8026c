"""Builds the parts of a store from its configuration, bottom up, and closes them in the reverse order.

Called by `tierstore.store` alone. If a part cannot be built, those already built are closed again, so that a
failed start leaves no memory, thread, lock or file behind.
"""

from __future__ import annotations

import logging
import time
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, cast

from tierstore import registry
from tierstore.control.mind import Limits
from tierstore.control.planner import Planner
from tierstore.control.slabs import SlotAllocator, auto_slab_nbytes
from tierstore.device_pool import cut_pool, open_direct_reader, take_memory
from tierstore.errors import ConfigError
from tierstore.metrics import Metric, Metrics
from tierstore.recency import RecencyKeeper
from tierstore.shield import Shielded, unshielded
from tierstore.tiers.host_pool import HostPool
from tierstore.tiers.manifest import Manifest, ManifestView
from tierstore.tiers.read_only import ReadOnlySsdTier
from tierstore.tiers.ssd import SsdTier, default_file_nbytes
from tierstore.transfer.device_link import DeviceLink
from tierstore.transfer.engine import Engine
from tierstore.transfer.lending import LendingLink
from tierstore.transfer.links import Links
from tierstore.transfer.tier_link import ReadLink, WriteLink
from tierstore.types import PAGE_NBYTES, TierName

if TYPE_CHECKING:
    from collections.abc import Callable

    from tierstore.codec.base import Codec
    from tierstore.config import StoreConfig
    from tierstore.control.device_room import DevicePool
    from tierstore.device.base import Device
    from tierstore.disk.base import Disk
    from tierstore.policy.base import AdmissionPolicy, NewPolicy
    from tierstore.tiers.base import Recovered, Tier
    from tierstore.tiers.direct import DirectReader
    from tierstore.transfer.base import FarSide
    from tierstore.types import Plan, RequestId

__all__ = ["House", "build"]

_logger = logging.getLogger(__name__)

_TIER_JOBS_MAX = 1 << 16
_HOST_BLOCK_NBYTES = 4 << 10
_SSD_BLOCK_NBYTES = 8 << 10
_ENTRIES_MAX = 1 << 26
_YEAR_2020 = 1_577_836_800


@dataclass(slots=True)
class House:
    """The built parts of a running store.

    Attributes:
        config: The configuration it was built from.
        device: The device whose pages are copied.
        pool: The host pool.
        engine: The engine.
        links: The links that move blocks for the engine.
        metrics: Counted under the engine's lock.
        manifest: The manifest of the SSD folder; None without one.
        recovered: Blocks of an earlier run by namespace fingerprint, until the namespace is opened.
        recency: How the earlier run used its blocks; None without an SSD folder of the store's own.
        ssd: The SSD tier; None without one.
        closing: Closes everything.
    """

    config: StoreConfig
    device: Device
    pool: HostPool
    engine: Engine
    links: Links
    metrics: Metrics
    manifest: Manifest | ManifestView | None
    recovered: dict[bytes, list[Recovered]]
    recency: RecencyKeeper | None
    ssd: SsdTier | ReadOnlySsdTier | None
    closing: ExitStack


def build(
    config: StoreConfig,
    disk: Disk | None = None,
    shield: Shielded = unshielded,
    *,
    device: Device | None = None,
    device_pool: object = None,
) -> House:
    """Build every part. Blocks: takes the pool's memory and scans the SSD folder.

    Args:
        config: Every setting.
        disk: Used instead of the folder that the settings name.
        shield: For the engine.
        device: Used instead of the one that the settings name.
        device_pool: A tensor in device memory, lent for the device pool. None: allocate what the settings say.

    Raises:
        TierstoreError: From the part that cannot be built.
    """
    with ExitStack() as stack:
        folder = ExitStack()
        pool_nbytes = config.host.size // PAGE_NBYTES * PAGE_NBYTES
        slots = SlotAllocator(pool_nbytes=pool_nbytes, slab_nbytes=_slab_nbytes(config, pool_nbytes))
        if device is None:
            device = cast("Callable[[], Device]", registry.load("devices", config.device.name))()
        pool = _host_pool(config, device, pool_nbytes, stack)
        slots.generations = pool.generations
        metrics = Metrics()
        metrics.set(Metric.HOST_REGISTERED_BYTES, device.pinned_nbytes)
        manifest, tier = None, None
        stack.callback(folder.close)
        if disk is None and config.ssd.enabled:
            disk = _local_disk(config)
        if disk is None and config.ssd.read_only:
            raise ConfigError("ssd.read_only looks at a folder, and there is none; set ssd.dir, or leave it out")
        pools = {TierName.HOST: pool.view} | take_memory(config, device, device_pool, folder)
        direct = open_direct_reader(config, device, pools, folder)
        if disk is not None:
            manifest, tier = _open_ssd(config, disk, pool, folder, direct)
        recovered, files = _recover(tier)
        num_recovered = sum(len(batch.hashes) for batches in recovered.values() for batch in batches)
        cut = cut_pool(config, pools)
        planner = _planner(config, slots, metrics, cut, with_ssd=tier is not None, num_recovered=num_recovered)
        if files:
            planner.catalogue.adopt_files(files)
        memory: dict[RequestId, FarSide] = {}
        load, store = (DeviceLink(device, pools, memory, name) for name in ("load", "store"))
        read, write = _tier_links(tier, config)
        links = Links(load, store, read, write, LendingLink(memory))
        engine = Engine(planner, links, memory, _steady_clock(), shield=shield)
        if isinstance(tier, SsdTier) and tier.shortage:
            engine.tell(partial(_begin_short, tier.shortage))
        recency = None if disk is None or config.ssd.read_only else RecencyKeeper(disk, engine, recovered)
        if recency is not None:
            folder.callback(recency.close)
        stack.callback(_leave_where_stuck, engine, folder)
        stack.callback(engine.close)
        return House(config, device, pool, engine, links, metrics, manifest, recovered, recency, tier, stack.pop_all())


def _begin_short(why: str, planner: Planner, now: float) -> tuple[None, Plan]:
    """Start with writes to SSD turned off for want of room, and probe for room from the start."""
    planner.health.found_short(why, now)
    return None, planner.expire(now)


def _leave_where_stuck(engine: Engine, folder: ExitStack) -> None:
    """If a disk call hangs, keep the SSD folder, its lock and the memory that is read into until the process ends."""
    if engine.stuck:
        folder.pop_all()
        _logger.error("the disk of the SSD folder hangs: the folder stays claimed until this process has ended")


def _local_disk(config: StoreConfig) -> Disk:
    new_disk = cast("Callable[..., Disk]", registry.load("disks", "posix"))
    return new_disk(config.ssd.dir, read_only=config.ssd.read_only)


def _open_ssd(
    config: StoreConfig, disk: Disk, pool: HostPool, stack: ExitStack, direct: DirectReader | None
) -> tuple[Manifest | ManifestView, SsdTier | ReadOnlySsdTier]:
    """Claim the folder and open its tier; read-only, open it without a claim."""
    if config.ssd.read_only:
        view = ManifestView.read(disk)
        return view, ReadOnlySsdTier(disk, pool.view, view.epochs, codecs=_codecs(), reads_max=config.ssd.read_threads)
    manifest = Manifest.open(disk)
    stack.callback(manifest.close)
    tier = SsdTier(
        disk,
        pool.view,
        manifest,
        capacity_nbytes=config.ssd.size,
        free_floor_nbytes=config.ssd.free_floor,
        file_nbytes=config.ssd.file_size,
        codec=_codec(config.codec.name),
        other_codecs=_codecs(),
        reads_max=config.ssd.read_threads,
        direct=direct,
    )
    stack.callback(tier.close)
    return manifest, tier


def _codecs() -> dict[str, Callable[[], Codec]]:
    """A factory for each registered codec, by name."""
    return {name: partial(_codec, name) for name in registry.names("codecs")}


def _codec(name: str) -> Codec:
    return cast("Callable[[], Codec]", registry.load("codecs", name))()


def _tier_links(tier: Tier | None, config: StoreConfig) -> tuple[ReadLink, WriteLink] | tuple[None, None]:
    """The read link has two threads for each concurrent read: half of them verify while the others read."""
    if tier is None:
        return None, None
    read = ReadLink(tier, name="ssd-read", threads=2 * config.ssd.read_threads, capacity=_TIER_JOBS_MAX)
    return read, WriteLink(tier, name="ssd-write", capacity=_TIER_JOBS_MAX)


def _recover(tier: SsdTier | ReadOnlySsdTier | None) -> tuple[dict[bytes, list[Recovered]], list[int]]:
    """An earlier run's blocks by namespace, and its files: first those with blocks, in the order of recovery."""
    recovered: dict[bytes, list[Recovered]] = {}
    files: dict[int, None] = {}
    if tier is not None:
        for batch in tier.recover():
            recovered.setdefault(batch.fingerprint, []).append(batch)
            files.update(dict.fromkeys(batch.extents.file.tolist()))
        files.update(dict.fromkeys(tier.files))
    return recovered, list(files)


def _planner(
    config: StoreConfig,
    slots: SlotAllocator,
    metrics: Metrics,
    device_pool: DevicePool | None,
    *,
    with_ssd: bool,
    num_recovered: int,
) -> Planner:
    """The planner. Limits that are not set become shares of the pool."""
    pool_nbytes = slots.capacity_slabs * slots.slab_nbytes
    limits = Limits(
        requests_max=config.links.requests_max,
        read_threads=config.ssd.read_threads,
        read_batch_nbytes=config.links.read_batch,
        write_inflight_nbytes_max=config.links.write_inflight or pool_nbytes // 4,
        prefetch_inflight_nbytes_max=pool_nbytes // 4 if config.prefetch.inflight is None else config.prefetch.inflight,
        prefetch_share=config.prefetch.share,
        cold_seconds=config.prefetch.cold_seconds,
        write_nbytes_per_day=config.ssd.write_budget_nbytes,
        stall_seconds=config.ssd.stall_seconds,
        prefill_tokens_per_second=config.prefill.tokens_per_second,
        direct_reads=config.device.direct_reads,
        rewrite_share=config.ssd.rewrite_share,
    )
    ssd_nbytes = config.ssd.size if with_ssd else 0
    near_nbytes = pool_nbytes if device_pool is None else pool_nbytes + device_pool.nbytes
    capacity = min(near_nbytes // _HOST_BLOCK_NBYTES + ssd_nbytes // _SSD_BLOCK_NBYTES, _ENTRIES_MAX)
    file_nbytes = config.ssd.file_size or default_file_nbytes(config.ssd.size)
    return Planner(
        capacity=max(capacity, num_recovered + pool_nbytes // PAGE_NBYTES // 2, 1024),
        slots=slots,
        new_policy=cast("NewPolicy", registry.load("policies", config.policy.name)),
        admission=cast("Callable[[], AdmissionPolicy]", registry.load("admissions", config.admission.name))(),
        limits=limits,
        metrics=metrics,
        reclaim_below_nbytes=file_nbytes if with_ssd else None,
        device_pool=device_pool,
    )


def _host_pool(config: StoreConfig, device: Device, pool_nbytes: int, stack: ExitStack) -> HostPool:
    """The host pool, pinned if the device wants that."""
    pool = HostPool(pool_nbytes, shared=bool(config.host.shared))
    stack.callback(pool.close)
    stack.callback(device.pin(pool.view))
    if config.host.populate:
        pool.populate(0, pool_nbytes)
    return pool


def _steady_clock() -> Callable[[], float]:
    """Seconds since 2020: the wall clock at start, then the monotonic clock. Ages stay comparable across restarts."""
    offset = time.time() - _YEAR_2020 - time.monotonic()
    return lambda: time.monotonic() + offset


def _slab_nbytes(config: StoreConfig, pool_nbytes: int) -> int:
    """The slab size as set, or else 64 MiB, less if the pool is small."""
    if config.host.slab_size is not None:
        return config.host.slab_size
    return auto_slab_nbytes(pool_nbytes)
