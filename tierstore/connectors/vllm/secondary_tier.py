"""tierstore as a tier behind vLLM's own CPU tier: name this module as `module_path`, and `TierStoreTier` as `type`.

For those who run vLLM's `TieringOffloadingSpec` and want the store's SSD behind it; docs/vllm.md says how. vLLM calls
everything here on its scheduler's thread: verbs are planned and return, and what has ended is asked for once a step.
Bytes pass from the CPU tier's rows through a small pool, which only stages them, to chunk files, and back.
"""

from __future__ import annotations

import dataclasses
import hashlib
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from vllm.platforms import current_platform
from vllm.v1.kv_offload.base import Locality, LookupResult, Medium, RequestOffloadingContext
from vllm.v1.kv_offload.tiering.base import JobResult, SecondaryTierManager

from tierstore.config import SETTINGS
from tierstore.connectors.vllm.options import Options
from tierstore.connectors.vllm.versions import check_version, installed_version
from tierstore.connectors.vllm.weights import digest_folder, find_folder
from tierstore.control.slabs import SLAB_SLOTS_MIN, SLABS_MIN
from tierstore.device.axes import PagedTensor
from tierstore.device.paged_kv import PagedKV
from tierstore.device.paging import slot_nbytes
from tierstore.encoding import encode_canonical
from tierstore.errors import ConfigError, TierstoreError
from tierstore.keys import Namespace
from tierstore.layout import KVLayout
from tierstore.settings import nearest
from tierstore.store import Store
from tierstore.types import HASH_NBYTES, Presence

if TYPE_CHECKING:
    from vllm.v1.kv_offload.base import OffloadingSpec, OffloadKey, ReqContext
    from vllm.v1.kv_offload.config import OffloadingConfig, OffloadingParallelConfig
    from vllm.v1.kv_offload.tiering.backpressure import BackpressureDetector
    from vllm.v1.kv_offload.tiering.base import TransferJob

    from tierstore.config import StoreConfig
    from tierstore.transfer.future import Transfer

__all__ = ["TierStoreTier"]

_HOST_NBYTES = 512 << 20
"""Size of the pool where nobody says and chunks are small: what is kept lies in vLLM's CPU tier or on SSD."""

_KEY_NBYTES = HASH_NBYTES + 4
"""Bytes of a key of vLLM whose block hash is of the sha256 family; the last four are the group's number."""

_OWN = ("locality", "revision", "tenant")
"""Options of the tier; all others are settings of the store."""

_ANSWERS = {Presence.HIT: LookupResult.HIT, Presence.PENDING: LookupResult.RETRY, Presence.MISS: LookupResult.MISS}

_logger = logging.getLogger("vllm.tierstore")


class _Lost(set["OffloadKey"]):
    """Blocks that a request was promised and did not get: it computes them, and asks no more."""


class TierStoreTier(SecondaryTierManager):  # type: ignore[misc]
    """A store behind vLLM's CPU tier. Blocks while it opens, in `drain_jobs` and in `shutdown`, and nowhere else.

    Args:
        offloading_spec: vLLM's.
        primary_kv_view: The CPU tier's memory: a row for each of its chunks, which are the store's blocks.
        tier_type: The name under which vLLM counts what this tier does.
        backpressure_detector: vLLM's own, where it is configured.
        options: `locality`, as vLLM's own tiers take it; `revision` and `tenant`, as the connector takes them; settings
            of the store by argument name.

    Raises:
        ConfigError: An option is unknown or does not fit, or nothing tells the weights from others.
        FolderError, MemoryLimitError: The store cannot be opened.
    """

    medium: ClassVar[Medium] = Medium.STORAGE

    def __init__(
        self,
        offloading_spec: OffloadingSpec,
        primary_kv_view: memoryview,
        tier_type: str,
        backpressure_detector: BackpressureDetector | None = None,
        **options: object,
    ) -> None:
        super().__init__(offloading_spec, primary_kv_view, tier_type, backpressure_detector)
        check_version()
        self.locality, own = _read(options)
        view = memoryview(primary_kv_view)  # of its own: vLLM releases the one it gave, whoever looks at it
        rows = np.asarray(view).view(np.uint8)
        config = _configure(own, offloading_spec.config.parallel, row_nbytes=rows.shape[1])
        namespace = _namespace(offloading_spec.config, own, row_nbytes=rows.shape[1])
        self._kv: PagedKV | None = PagedKV.bind(namespace.layout, [PagedTensor(rows, "block element", "block")])
        self._under_way: dict[int, tuple[TransferJob, Transfer | None]] = {}
        self._warned = False
        with ExitStack() as undo:
            self._store = undo.enter_context(Store(config))
            self._handle = self._store.namespace(namespace)
            undo.pop_all()

    def on_new_request(self, req_context: ReqContext) -> RequestOffloadingContext:
        """No wish: chunks are offered as they are filled."""
        return RequestOffloadingContext()

    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        """Whether a chunk is in the store, from memory."""
        if not self._is_reproducible(key) or key in (req_context.get_state(_Lost) or ()):
            return LookupResult.MISS
        return _ANSWERS[self._handle.presence(_hashes([key]))[0]]

    def submit_store(self, job_metadata: TransferJob) -> None:
        """Start copying chunks into the store, which writes them to SSD behind that."""
        self._submit(job_metadata, self._handle.put)

    def submit_load(self, job_metadata: TransferJob) -> None:
        """Start copying chunks from the store."""
        self._submit(job_metadata, self._handle.get)

    def _submit(self, job: TransferJob, verb: Callable[..., Transfer]) -> None:
        keys = list(job.keys)
        transfer = None
        if all(map(self._is_reproducible, keys)):
            try:
                transfer = verb(_hashes(keys), self._kv, block_ids=job.chunk_ids)
            except TierstoreError as error:
                _logger.warning("a job of %d chunks was not started: %s", len(keys), error)
        self._under_way[job.job_id] = job, transfer

    def get_finished_jobs(self) -> Iterable[JobResult]:
        """Jobs that have ended since the last call."""
        ended = [(job, moved) for job, moved in self._under_way.values() if moved is None or moved.done()]
        for job, _ in ended:
            del self._under_way[job.job_id]
        return [_report(job, moved) for job, moved in ended]

    def drain_jobs(self) -> None:
        """Wait until every job has ended. Blocks."""
        for _, transfer in self._under_way.values():
            if transfer is not None:
                transfer.result()

    def shutdown(self) -> None:
        """Close the store, which finishes what is under way, and let go of the CPU tier's memory. Blocks."""
        self._store.close()
        self._kv = None

    def _is_reproducible(self, key: OffloadKey) -> bool:
        """Whether another process would find this key again; says so once where it would not."""
        if len(key) == _KEY_NBYTES:
            return True
        if not self._warned:
            self._warned = True
            _logger.error(
                "block hashes of %d bytes are seeded anew in every process, or not safe against collisions, so nothing "
                "is kept; start vLLM with --prefix-caching-hash-algo sha256 or sha256_cbor",
                len(key) - 4,
            )
        return False


def _hashes(keys: Sequence[OffloadKey]) -> list[bytes]:
    """The store's hashes of vLLM's keys, each a block hash and a group's number."""
    return [hashlib.sha256(key).digest() for key in keys]


def _report(job: TransferJob, transfer: Transfer | None) -> JobResult:
    """What vLLM is told of a job that has ended; None is one that never began."""
    if transfer is None:
        return JobResult(job.job_id, False)
    result = transfer.result()
    if result.ok or not job.is_promotion:
        return JobResult(job.job_id, result.ok, None, result.seconds, result.nbytes)
    keys = list(job.keys)
    lost = job.req_context.get_state(_Lost) or _Lost()
    lost.update(keys[result.leading :])
    job.req_context.set_state(lost)
    return JobResult(job.job_id, False, keys[: result.leading] or None, result.seconds, result.nbytes)


def _read(given: Mapping[str, object]) -> tuple[Locality | None, Options]:
    """Options of the tier, and with them settings of its store."""
    known = {*_OWN, *(setting.argument for setting in SETTINGS), *(setting.key for setting in SETTINGS)}
    for name in sorted(given.keys() - known):
        raise ConfigError(f"secondary_tiers: {name} is not an option; {nearest(name, known)}")
    locality = given.get("locality")
    if locality is not None and locality not in Locality.__members__:
        raise ConfigError(f"secondary_tiers: locality is {locality!r}; give {' or '.join(Locality.__members__)}")
    own = Options.read({name: value for name, value in given.items() if name != "locality"})
    return None if locality is None else Locality(locality), own


def _configure(options: Options, parallel: OffloadingParallelConfig, *, row_nbytes: int) -> StoreConfig:
    """Settings of the store: with a folder, and with a pool that fits its blocks where nobody says another."""
    config = options.store_config(
        dp_rank=parallel.data_parallel_index, dp_size=parallel.data_parallel_size, device="cpu"
    )
    if not config.ssd.enabled:
        raise ConfigError(
            "secondary_tiers: ssd_dir is not set, so nothing would be kept; name a folder of this machine"
        )
    if config.sources.keys() & {"host.size", "host.slab_size"}:
        return config
    slab_nbytes = max(_HOST_NBYTES // 8, SLAB_SLOTS_MIN * slot_nbytes(row_nbytes))
    size = max(_HOST_NBYTES, SLABS_MIN * slab_nbytes)
    return dataclasses.replace(config, host=dataclasses.replace(config.host, size=size, slab_size=slab_nbytes))


def _namespace(config: OffloadingConfig, options: Options, *, row_nbytes: int) -> Namespace:
    """All that vLLM tells a tier and that shapes the bytes of a row. Blocks on the weights' files."""
    name, parallel, cache = Path(config.model.name), config.parallel, config.cache
    fields = {
        "vllm": ".".join((installed_version() or "").split(".")[:2]),
        "device": current_platform.device_type,
        "groups": [[group.group_id, group.tokens_per_block, list(group.layer_names)] for group in config.groups],
        "tokens_per_hash": cache.tokens_per_hash,
        "blocks_per_chunk": cache.blocks_per_chunk,
        "worker_kv_bytes_per_block": config.worker_kv_bytes_per_block,
        "workers": [parallel.rank, parallel.world_size, parallel.pcp_size, parallel.dcp_size],
        "replicated": config.replicated_layout,
        "canonical": config.canonical_layout,
        "layout": config.kv_cache_layout,
    }
    block_tokens = config.groups[0].tokens_per_block * cache.blocks_per_chunk
    return Namespace(
        model=name.name if name.is_dir() else config.model.name,
        layout=KVLayout.opaque(block_nbytes=row_nbytes, block_tokens=block_tokens),
        revision=_find_revision(config.model.name) if options.revision is None else options.revision,
        engine_config=hashlib.sha256(b"tierstore vllm tier 1\0" + encode_canonical(fields)).hexdigest(),
        quantization=config.model.dtype,
        tp_size=parallel.tp_size,
        pp_size=parallel.pp_size,
        tenant=options.tenant,
    )


def _find_revision(model: str) -> str:
    """A digest of the model's weights and configuration. Blocks on files.

    Raises:
        ConfigError: They are not here, or here more than once: a tier is not told which revision the engine runs.
    """
    folder = find_folder(model, None)
    if folder is None or (not Path(model).is_dir() and len(list(folder.parent.iterdir())) > 1):
        found = "not on this machine" if folder is None else "on this machine in several revisions"
        raise ConfigError(
            f"secondary_tiers: the weights of {model!r} are {found}, so nothing tells them from others; set revision "
            "to what names them"
        )
    configuration = folder / "config.json"
    shape = hashlib.sha256(configuration.read_bytes() if configuration.exists() else b"").hexdigest()
    return f"{digest_folder(folder)}-{shape}"
