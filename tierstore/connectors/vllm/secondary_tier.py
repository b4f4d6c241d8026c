"""tierstore as a tier behind vLLM's own CPU tier: name this module as `module_path`, and `TierStoreTier` as `type`.

It puts the store's SSD behind vLLM's `TieringOffloadingSpec`; docs/vllm.md says how. vLLM calls everything here on its
scheduler's thread: jobs are started and return, and vLLM collects ended ones once a step. Bytes go from the CPU tier's
rows through a small staging pool to chunk files, and back.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import OffloadingConnectorStats
from vllm.v1.kv_offload.base import (
    LookupResult,
    Medium,
    OffloadingCounterMetadata,
    OffloadingEvent,
    RequestOffloadingContext,
)
from vllm.v1.kv_offload.tiering.base import JobResult, SecondaryTierManager

from tierstore.advice import Place
from tierstore.connectors.vllm import tier_setup
from tierstore.connectors.vllm.following import Followed
from tierstore.connectors.vllm.tier_jobs import Moving
from tierstore.connectors.vllm.versions import check_version
from tierstore.device.axes import PagedTensor
from tierstore.device.paged_kv import PagedKV
from tierstore.device.paging import slot_nbytes
from tierstore.store import Store
from tierstore.types import HASH_NBYTES, Presence

if TYPE_CHECKING:
    from vllm.v1.kv_offload.base import OffloadingMetricMetadata, OffloadingSpec, OffloadKey, ReqContext
    from vllm.v1.kv_offload.tiering.backpressure import BackpressureDetector
    from vllm.v1.kv_offload.tiering.base import TransferJob

    from tierstore.connectors.vllm.following import Answers
    from tierstore.transfer.future import Transfer

__all__ = ["TierStoreTier"]

_KEY_NBYTES = HASH_NBYTES + 4
"""Bytes of a key of vLLM whose block hash is of the sha256 family; the last four are the group's number."""

_PIECES = 4
"""Pieces of a job that would fill the pool, which also holds what is on its way to SSD."""

REFUSED_CHUNKS, LOST_CHUNKS = "vllm:tierstore_tier_refused_chunks", "vllm:tierstore_tier_lost_chunks"

_MEANINGS = {
    REFUSED_CHUNKS: "chunks that the store did not take: SSD is too slow or full",
    LOST_CHUNKS: "chunks that were promised and could not be loaded",
}

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
        self.locality, own = tier_setup.read(options)
        view = memoryview(primary_kv_view)  # of its own: vLLM releases the one it gave, whoever looks at it
        rows = np.asarray(view).view(np.uint8)
        config = tier_setup.configure(own, offloading_spec.config.parallel, row_nbytes=rows.shape[1])
        namespace = tier_setup.namespace(offloading_spec.config, own, row_nbytes=rows.shape[1])
        self._kv: PagedKV | None = PagedKV.bind(namespace.layout, [PagedTensor(rows, "block element", "block")])
        self._piece = max(1, config.host.size // slot_nbytes(rows.shape[1]) // _PIECES)
        self._under_way: list[Moving] = []
        self._counts = OffloadingConnectorStats()
        self._warned = False
        with ExitStack() as undo:
            self._store = undo.enter_context(Store(config))
            self._handle = self._store.namespace(namespace)
            undo.pop_all()
        publishes = offloading_spec.kv_events_config.enable_kv_cache_events
        self._followed: Followed[OffloadKey] | None = Followed(self._ask, num_shards=1) if publishes else None

    def on_new_request(self, req_context: ReqContext) -> RequestOffloadingContext:
        """No wish: chunks are offered as they are filled."""
        return RequestOffloadingContext()

    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        """Whether a chunk is in the store, from memory."""
        if not self._is_reproducible(key) or key in (req_context.get_state(_Lost) or ()):
            return LookupResult.MISS
        return _ANSWERS[self._handle.presence(_hashes([key]))[0]]

    def submit_store(self, job_metadata: TransferJob) -> None:
        """Start copying chunks into the store, which writes them to SSD behind that.

        A job of several pieces waits for SSD with each: the next one takes its place in the pool.
        """
        put: Callable[..., Transfer] = self._handle.put
        if len(job_metadata.keys) > self._piece:
            put = partial(put, durable=True)
        self._submit(job_metadata, put, self._store.flush)

    def submit_load(self, job_metadata: TransferJob) -> None:
        """Start copying chunks from the store."""
        self._submit(job_metadata, self._handle.get, None)

    def _submit(
        self, job: TransferJob, verb: Callable[..., Transfer], make_room: Callable[[], Transfer] | None
    ) -> None:
        keys = list(job.keys)
        hashes = _hashes(keys) if all(map(self._is_reproducible, keys)) else []

        def move(span: slice) -> Transfer:
            own = hashes[span]
            return verb(own, self._kv, block_ids=job.chunk_ids[span][: len(own)])

        self._under_way.append(Moving(job, move, make_room, piece=self._piece))

    def get_finished_jobs(self) -> Iterable[JobResult]:
        """Jobs that have ended since the last call; begins the next piece of the others."""
        ended = [moving for moving in self._under_way if moving.done()]
        self._under_way = [moving for moving in self._under_way if moving not in ended]
        return [self._report(moving) for moving in ended]

    def _report(self, moving: Moving) -> JobResult:
        """What vLLM is told of a job that has ended."""
        job, keys = moving.job, list(moving.job.keys)
        moved, left = keys[: moving.moved], keys[moving.moved :]
        if self._followed is not None:
            for key, chunk_hash in zip(moved, _hashes(moved), strict=True):
                self._followed.add(chunk_hash, key)
        if not job.is_promotion:
            self._count(REFUSED_CHUNKS, len(left))
            return JobResult(job.job_id, moving.whole, None, moving.seconds, moving.nbytes or None)
        if left:
            self._count(LOST_CHUNKS, len(left))
            lost = job.req_context.get_state(_Lost) or _Lost()
            lost.update(left)
            job.req_context.set_state(lost)
        return JobResult(job.job_id, not left, moved or None if left else None, moving.seconds, moving.nbytes or None)

    def drain_jobs(self) -> None:
        """Wait until every job has ended. Blocks."""
        for moving in self._under_way:
            moving.finish()

    def take_events(self) -> Iterable[OffloadingEvent]:
        """Chunks that the store holds now and did not, or no longer, where vLLM publishes them."""
        if self._followed is None:
            return
        for key, was, now in self._followed.changes():
            if Place.NOWHERE in (was, now):  # what only changes its tier in the store stays
                yield OffloadingEvent(
                    [key],
                    self.medium,
                    removed=now is Place.NOWHERE,
                    locality=self.locality,
                    ownership=self.tier_type,
                    removal_expected=True,
                )

    def _ask(self, keys: Sequence[bytes], answers: Answers) -> None:
        answers.append(self._handle.places(keys))

    @classmethod
    def build_metric_definitions(cls, extra_config: dict[str, Any]) -> dict[str, OffloadingMetricMetadata]:
        """What `get_stats` counts."""
        return {
            name: OffloadingCounterMetadata(f"tierstore: {meaning}.", labelnames=("tier",))
            for name, meaning in _MEANINGS.items()
        }

    def get_stats(self) -> OffloadingConnectorStats | None:
        """What was counted since the last call, beside what vLLM counts of every tier itself."""
        counts, self._counts = self._counts, OffloadingConnectorStats()
        return None if counts.is_empty() else counts

    def _count(self, name: str, number: int) -> None:
        if number:
            self._counts.increase_counter(name, number, (self.tier_type,))

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
