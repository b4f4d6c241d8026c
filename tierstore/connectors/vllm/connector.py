"""The class that vLLM calls: it passes each call to this process's half of the connector, and does nothing itself.

The method list is vLLM's; `tests/vllm` compares it with the installed base class.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, cast

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorRole,
    KVConnectorTransferResults,
    SupportsHMA,
)
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats
from vllm.v1.metrics.cache_hit_source import CacheHitSource

from tierstore import registry
from tierstore.connectors.vllm import identity, pages
from tierstore.connectors.vllm.jobs import StepJobs, StepReport, WorkerCache
from tierstore.connectors.vllm.options import Options
from tierstore.connectors.vllm.scheduler import SchedulerHalf
from tierstore.connectors.vllm.seat import Seat
from tierstore.connectors.vllm.stats import PrometheusCounts, StepCounts
from tierstore.connectors.vllm.worker import WorkerHalf
from tierstore.errors import ConfigError
from tierstore.store import Store

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from tierstore.connectors.vllm.hosting import Opened
    from tierstore.device.base import Device

__all__ = ["TierStoreConnector"]

_logger = logging.getLogger("vllm.tierstore")


class TierStoreConnector(KVConnectorBase_V1, SupportsHMA):  # type: ignore[misc]
    """Keeps the KV of prompts in a tierstore, and brings it back instead of computing it again."""

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self._options = Options.read(self._kv_transfer_config.kv_connector_extra_config)
        identity.check_prefixes(vllm_config)
        groups = pages.find_groups(kv_cache_config, self._options.blocks_per_store_block)
        _check(vllm_config, self._options, groups)
        identity.check_hash_tokens(vllm_config, kv_cache_config, groups[0].block_tokens)
        self._seat = Seat.take(str(self._kv_transfer_config.engine_id))
        self._scheduler: SchedulerHalf | None = None
        self._worker: WorkerHalf | None = None
        if role == KVConnectorRole.SCHEDULER:
            self._scheduler = SchedulerHalf(vllm_config, self._options, groups, self._seat)
        else:
            self._worker = WorkerHalf(vllm_config, self._options, groups, kv_cache_config)
            self._seat.worker = self._worker

    @property
    def requires_kv_delivery(self) -> bool:
        """No: a dropped save only causes a later miss, so vLLM need not compute anything again for it."""
        return False

    @classmethod
    def requires_piecewise_for_cudagraph(cls, extra_config: dict[str, Any]) -> bool:
        """Loads that a layer waits for cannot be captured in a graph."""
        return Options.read(extra_config).load == "layerwise"

    # The worker's half.

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        """Bind the cache, opening the store where this process holds it."""
        device = open_device(next(iter(kv_caches.values())).device.type)
        self.worker.bind(self._seat.store(lambda: self._open(device)), device, kv_caches)

    def _open(self, device: Device) -> Opened:
        """The store itself if this process holds it, otherwise a client of the process that does."""
        parallel, engine_id = self._vllm_config.parallel_config, str(self._kv_transfer_config.engine_id)
        if self._options.mode == "service":
            from tierstore.client import Client

            assert self._options.endpoint is not None, "checked when the options were read"
            return Client(self._options.endpoint, device=device, name=f"vLLM {engine_id}")
        config = self._options.store_config(
            dp_rank=parallel.data_parallel_index, dp_size=parallel.data_parallel_size, device=device.name
        )
        if parallel.world_size == 1:
            return Store(config, device=device)
        from tierstore.connectors.vllm import hosting

        if self._worker is None:
            return hosting.Hosting(config, engine_id)
        return hosting.visit(engine_id, device)

    def get_handshake_metadata(self) -> WorkerCache | None:
        """What the scheduler's half must know of the cache."""
        return self.worker.namespaces

    def handle_preemptions(self, kv_connector_metadata: StepJobs) -> None:
        """Start loads that this step does not wait for. They start before its compute, and so run beside it."""
        if not kv_connector_metadata.layerwise:
            self.worker.start_loads(kv_connector_metadata)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Start loads that the layers of this step wait for."""
        if self._jobs.layerwise:
            self.worker.start_loads(self._jobs)

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Wait until a layer's blocks are there, where loads are layer by layer."""
        if self._jobs.layerwise:
            self.worker.wait_for_layer(layer_name)

    def save_kv_layer(self, layer_name: str, kv_layer: torch.Tensor, attn_metadata: Any, **kwargs: Any) -> None:
        """Nothing: a step's blocks are saved together, once it has been computed."""

    def wait_for_save(self) -> None:
        """Start saving; waits for nothing but the end of loads that this step has used layer by layer."""
        if self._jobs.layerwise:
            self.worker.end_layerwise_loads()
        self.worker.start_saves(self._jobs)

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        """Requests whose loads have ended."""
        return None, self.worker.finish_step(finished_req_ids) or None

    def get_block_ids_with_load_errors(self) -> set[int]:
        """Blocks that must be computed after all."""
        return self.worker.take_invalid_blocks()

    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        """As `get_finished`, and requests that must be computed from the start."""
        results = super().get_transfer_results(finished_req_ids)
        results.failed_recving |= self.worker.take_failed_requests()
        return results

    def build_connector_worker_meta(self) -> StepReport | None:
        """What the scheduler's half learns of this step."""
        return self.worker.take_report()

    # The scheduler's half.

    def set_xfer_handshake_metadata_pp_aware(self, metadata: dict[tuple[int, int], WorkerCache]) -> None:
        """Take what the workers say of their caches, by pipeline and tensor rank."""
        caches = [metadata[ranks] for ranks in sorted(metadata)]
        self.scheduler.open(self._seat, lambda: self._open(open_device("cpu")), caches)

    def bind_gpu_block_pool(self, gpu_block_pool: Any) -> None:
        """Remember the pool whose blocks are held while they are saved."""
        self.scheduler.bind_pool(gpu_block_pool)

    def on_new_request(self, request: Any) -> None:
        """A request waits."""
        self.scheduler.add_request(request)

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        """How many tokens behind the computed ones a load would bring; None to be asked again."""
        return self.scheduler.match(request, num_computed_tokens)

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """Blocks were allocated: load what was promised."""
        self.scheduler.allocated(request, blocks, num_external_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> StepJobs:
        """Everything the workers do in this step."""
        return self.scheduler.plan_step(scheduler_output)

    def update_connector_output(self, connector_output: Any) -> None:
        """Take what the workers report."""
        self.scheduler.step_done(connector_output)

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        """A request has ended; its blocks may be freed, since those being saved are held."""
        self.scheduler.remove_request(request, (block_ids,))
        return False, None

    def request_finished_all_groups(
        self, request: Any, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        """As `request_finished`."""
        self.scheduler.remove_request(request, block_ids)
        return False, None

    def has_pending_push_work(self) -> bool:
        """Whether the engine must go on stepping for the sake of saves."""
        return self.scheduler.saving

    def has_pending_block_frees(self) -> bool:
        """Whether blocks come free soon, so that nobody need be preempted."""
        return self.scheduler.saving

    def get_external_cache_hit_sources(self, request: Any, num_external_tokens: int) -> dict[CacheHitSource, int]:
        """How many of a load's tokens lay in host memory when they were asked for, and how many on SSD."""
        return self.scheduler.hit_sources(request, num_external_tokens)

    def get_kv_connector_stats(self) -> KVConnectorStats | None:
        """What either half has counted since the last call."""
        counts = (self._worker or self.scheduler).take_counts()
        return None if counts.is_empty() else counts

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> KVConnectorStats:
        """The counts that another process has sent."""
        return StepCounts(data=data or {})

    @classmethod
    def build_prom_metrics(
        cls,
        vllm_config: Any,
        metric_types: Any,
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> KVConnectorPromMetrics:
        """The counters that vLLM's own endpoint exports."""
        return PrometheusCounts(vllm_config, metric_types, labelnames, per_engine_labelvalues)

    def take_events(self) -> Iterable[Any]:
        """KV events of the store's blocks since the last call."""
        return self.scheduler.take_events()

    def reset_cache(self) -> bool | None:
        """Forget all blocks of this engine's namespaces, durably. Blocks."""
        return self.scheduler.clear()

    def shutdown(self) -> None:
        """Leave the store; the last half closes it, which finishes what is under way."""
        if self._scheduler is not None:
            self._scheduler.close()
        self._seat.leave()

    @property
    def worker(self) -> WorkerHalf:
        """This process's half, where it is a worker's."""
        assert self._worker is not None, "called on the scheduler's half"
        return self._worker

    @property
    def scheduler(self) -> SchedulerHalf:
        """This process's half, where it is the scheduler's."""
        assert self._scheduler is not None, "called on a worker's half"
        return self._scheduler

    @property
    def _jobs(self) -> StepJobs:
        jobs = self._get_connector_metadata()
        assert isinstance(jobs, StepJobs), f"metadata of another connector: {type(jobs).__name__}"
        return jobs


def open_device(name: str) -> Device:
    """The store's device for the caches of an engine's, by torch's name of it."""
    return cast("Callable[[], Device]", registry.load("devices", name))()


def _check(vllm_config: Any, options: Options, groups: Sequence[pages.Group]) -> None:
    """Refuse set-ups that cannot work, before anything is opened."""
    identity.check_hashes(vllm_config)
    parallel = vllm_config.parallel_config
    if options.load == "layerwise" and options.blocks_per_store_block > 1:
        raise ConfigError('load "layerwise" needs blocks_per_store_block 1; drop one of the two')
    if options.load == "layerwise" and (len(groups) > 1 or groups[0].window is not None):
        raise ConfigError('load "layerwise" serves no model with sliding windows or state; set load to "async"')
    if parallel.nnodes > 1:
        raise ConfigError(f"workers on {parallel.nnodes} hosts cannot reach one pool of host memory; use one host")
    if parallel.decode_context_parallel_size > 1 or parallel.prefill_context_parallel_size > 1:
        raise ConfigError("context parallelism cannot be served yet; run without it")
    if vllm_config.kv_transfer_config.kv_load_failure_policy != "recompute":
        _logger.warning(
            'kv_load_failure_policy is "fail": a block that is lost fails its request; set it to "recompute"'
        )
