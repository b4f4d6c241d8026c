"""The store: opens and closes everything below it, and hands out namespaces. The entry point of the embedded library.

Every verb of a namespace checks its arguments before anything happens, plans under the engine's lock and returns
a transfer at once. The links' threads move the bytes. `tierstore.aio` has the same verbs for asyncio.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
from contextlib import ExitStack
from types import TracebackType
from typing import TYPE_CHECKING

from tierstore.assembly import build
from tierstore.config import StoreConfig
from tierstore.errors import ClosedError, IdentityError
from tierstore.handle import NamespaceHandle
from tierstore.health import Service, TierHealth
from tierstore.keys import Namespace
from tierstore.metrics import Metric
from tierstore.monitor.log_lines import write_log
from tierstore.monitor.showing import handle_kind, show
from tierstore.shield import Shield
from tierstore.transfer import catalogue, scheduling
from tierstore.transfer.future import Transfer, TransferResult
from tierstore.types import PAGE_NBYTES, Generation, TierName

if TYPE_CHECKING:
    from collections.abc import Callable

    from tierstore.device.base import Device
    from tierstore.disk.base import Disk
    from tierstore.metrics import Metrics
    from tierstore.tiers.host_pool import HostPool
    from tierstore.transfer.engine import Engine

__all__ = ["NamespaceHandle", "Store", "Transfer", "TransferResult"]


_LOSSY = "KV of %s is stored as %s, which loses precision: what a get brings is near what was put, not equal to it"

_logger = logging.getLogger(__name__)


class Store:
    """A hierarchical KV store in this process.

    Args:
        config: Path of a TOML file, or loaded settings. None reads the file that ``TIERSTORE_CONFIG`` names and the
            rest of the environment.
        disk: An implementation of `tierstore.disk.base.Disk` to use instead of the local folder ``ssd_dir``.
        device: An implementation of `tierstore.device.base.Device` to use instead of the one ``device_name`` names.
        device_pool: A contiguous tensor of the device that the caller lends for the device pool until the store is
            closed. None: the store allocates ``device_pool_size`` bytes.
        settings: Single settings by argument name, such as ``host_size="1 GiB"`` or ``ssd_dir="kv-cache"``;
            they override all others.

    Attributes:
        config: Every setting.
        opened_at: Unix time.
        monitor_address: Where metrics and the status page are served, ``host:port``; None if they are not.

    Raises:
        ConfigError: A setting is unknown or impossible.
        AddressError: ``monitor.address`` cannot be listened on.
        MemoryLimitError: The pool does not fit the memory it may take.
        FolderError: The SSD folder cannot be used, is owned by a live process or has another format.
    """

    def __init__(
        self,
        config: StoreConfig | str | os.PathLike[str] | None = None,
        *,
        disk: Disk | None = None,
        device: Device | None = None,
        device_pool: object = None,
        **settings: object,
    ) -> None:
        if isinstance(config, StoreConfig):
            assert not settings, "pass loaded settings or single ones, not both"
            self.config = config
        else:
            self.config = StoreConfig.load(config, overrides=settings)
        write_log(self.config.log)
        self._new_handle = handle_kind(self.config)
        self.monitor_address: str | None = None
        self._counted: list[Callable[[], Metrics]] = []
        self._handles: dict[bytes, NamespaceHandle] = {}
        self._num_generations = 0
        self._opening = threading.Lock()
        self.opened_at = time.time()
        self._owner_pid = os.getpid()
        self._standing = ExitStack()
        self._shield = Shield()
        with ExitStack() as undo:  # also after a signal handler's exception while the store is being built
            undo.callback(self._shield.close)
            undo.callback(self._shield.later, self._standing.close)
            self._shield(lambda: self._build(disk, device, device_pool))
            undo.pop_all()
        atexit.register(self.close)

    def _build(self, disk: Disk | None, device: Device | None, device_pool: object) -> None:
        self._house = build(self.config, disk, self._shield, device=device, device_pool=device_pool)
        self._standing.callback(self._house.closing.close)
        self.monitor_address = show(self, self._standing)

    def namespace(self, namespace: Namespace) -> NamespaceHandle:
        """The verbs of one namespace. The first call blocks on the manifest; later calls return the same handle.

        Raises:
            ConfigError: A block is too large for the pool's slabs.
            IdentityError: The argument is not a `Namespace`.
            DiskError: The manifest cannot be written.
            ClosedError: The store is closed.
        """
        if not isinstance(namespace, Namespace):
            raise IdentityError(f"a namespace of type {type(namespace).__name__}; pass Namespace(model=…, layout=…)")
        return self._shield(lambda: self._open(namespace))

    def _open(self, namespace: Namespace) -> NamespaceHandle:
        with self._opening:
            self._check_open()
            handle = self._handles.get(namespace.fingerprint)
            if handle is None:
                manifest = self._house.manifest
                epoch = 0 if manifest is None else manifest.epochs.get(namespace.fingerprint, 0)
                generation = self._open_generation(namespace, epoch)  # refuses blocks larger than a slab
                with ExitStack() as undo:
                    undo.callback(self.engine.end_life, generation.number)
                    if manifest is not None:
                        manifest.register(namespace)
                    undo.pop_all()
                for batch in self._house.recovered.pop(namespace.fingerprint, []):
                    recency = self._house.recency
                    usage = None if recency is None else recency.of(batch.fingerprint, batch.hashes)
                    catalogue.adopt(self.engine, generation.number, batch.hashes, batch.extents, usage)
                if namespace.stored_as is not None:
                    _logger.warning(_LOSSY, namespace.model, namespace.stored_as)
                handle = self._handles[namespace.fingerprint] = self._new_handle(
                    self._house, namespace, generation, self._begin_next
                )
            return handle

    def _open_generation(self, namespace: Namespace, epoch: int) -> Generation:
        layout = namespace.stored_layout
        generation = Generation(self._num_generations, namespace.fingerprint, epoch, layout)
        slot_nbytes = -(-layout.block_nbytes // PAGE_NBYTES) * PAGE_NBYTES
        self._house.engine.open_life(generation, slot_nbytes)
        self._num_generations += 1
        return generation

    def _begin_next(self, handle: NamespaceHandle) -> None:
        """End a namespace's epoch, durably, and move its handle into the next. Blocks."""
        self._shield(lambda: self._advance(handle))

    def _advance(self, handle: NamespaceHandle) -> None:
        with self._opening:
            self._check_open()
            manifest, current = self._house.manifest, handle.generation
            fingerprint = handle.namespace.fingerprint
            epoch = current.epoch + 1 if manifest is None else manifest.advance(fingerprint)
            handle.generation = self._open_generation(handle.namespace, epoch)
            self.engine.end_life(current.number)

    @property
    def engine(self) -> Engine:
        """The engine; for measurements."""
        return self._house.engine

    @property
    def pool(self) -> HostPool:
        """The host pool's memory; for measurements."""
        return self._house.pool

    @property
    def device(self) -> Device:
        """The device whose caches are copied."""
        return self._house.device

    def flush(self) -> Transfer:
        """Make everything put so far durable, write-backs included. Does not block.

        The result has one outcome: IO_ERROR if a write or a sync has failed since a flush last ended, else OK.
        Write-backs that were not admitted, or were dropped for lack of room, do not count. Without an SSD tier the
        flush waits only for puts to end.
        """
        return self.engine.start(lambda planner: planner.flush(), num_blocks=1, block_nbytes=0)

    def end_session(self, session_id: int) -> None:
        """Forget the waiting requests of an engine that has gone; see `NamespaceHandle.hint`. Does not block."""
        scheduling.end_session(self.engine, session_id)

    def metrics(self) -> dict[str, float]:
        """Every metric now, by its Prometheus name, such as ``tierstore_link_bytes_total{link="load"}``."""
        return self.read_metrics().snapshot()

    def metrics_text(self) -> str:
        """Every metric now, histograms included, in Prometheus's text format."""
        return self.read_metrics().render()

    def read_metrics(self) -> Metrics:
        """Every metric now, in a copy that belongs to the caller."""
        return self._shield(self._metrics)

    def _metrics(self) -> Metrics:
        """Return a copy, so that nothing is rendered under the lock."""
        ssd, metrics = self._house.ssd, self._house.metrics
        codec_seconds = [] if ssd is None else ssd.take_codec_seconds()
        with self.engine.planning() as planner:
            planner.gauge()
            if ssd is not None:
                metrics.set(Metric.SSD_USED_BYTES, ssd.used_nbytes)
            for verb, seconds in codec_seconds:
                metrics.add(Metric.CODEC_SECONDS, seconds, verb)
            for link, num_jobs in self._house.links.num_queued.items():
                metrics.set(Metric.LINK_QUEUED_JOBS, num_jobs, link)
            copied = metrics.copy()
        for counted in self._counted:
            copied.add_all(counted())
        return copied

    def count_in(self, counted: Callable[[], Metrics]) -> None:
        """Add metrics that other parts count to every copy of the metrics, while this store is open.

        Args:
            counted: Called for each copy, on the thread that reads it; must not block.
        """
        self._counted.append(counted)

    def health(self) -> dict[str, TierHealth]:
        """The health of each tier by its name: in service or not, since when and why. "ssd" only with an SSD tier."""
        return self._shield(self._health)

    def _health(self) -> dict[str, TierHealth]:
        health: dict[str, TierHealth] = {TierName.HOST: TierHealth(Service.SERVING, self.opened_at)}
        if self._house.ssd is not None:
            with self.engine.planning() as planner:
                found = planner.health
                since = time.time() - self.engine.now() + found.since
                health[TierName.SSD] = TierHealth(found.service, max(since, self.opened_at), found.why)
        return health

    def check(self) -> None:
        """Assert every invariant of the planner; for tests. Costs a pass over all blocks under the lock."""
        self._shield(self._check)

    def _check(self) -> None:
        with self.engine.planning() as planner:
            planner.check()

    def close(self) -> None:
        """Finish what is in flight, sync, release memory, threads and files. Blocks; may be called twice.

        In a forked child it does nothing: all of these belong to the parent.
        """
        atexit.unregister(self.close)
        if os.getpid() != self._owner_pid:
            return
        self._shield(self._standing.close)
        self._shield.close()

    def _check_open(self) -> None:
        if self.engine.closed:
            raise ClosedError("the store is closed; open a new Store")

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
