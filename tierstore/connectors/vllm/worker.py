"""The worker's half of the connector: binds the engine's cache, starts copies, reports how they ended.

Called by the model runner, on its thread, around each forward pass. It waits for a copy only with layer-wise loads, for
the layer's own. After any failure the engine computes the blocks itself.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tierstore.connectors.vllm import identity, pages
from tierstore.connectors.vllm.jobs import LoadJob, SaveJob, StepJobs, StepReport, WorkerCache
from tierstore.connectors.vllm.stats import Count, StepCounts
from tierstore.errors import TierstoreError

if TYPE_CHECKING:
    import torch

    from tierstore.connectors.vllm.advice import Handle
    from tierstore.connectors.vllm.hosting import Opened
    from tierstore.connectors.vllm.jobs import Part
    from tierstore.connectors.vllm.options import Options
    from tierstore.connectors.vllm.pages import Group
    from tierstore.device.base import Device
    from tierstore.device.paged_kv import PagedKV
    from tierstore.transfer.future import Transfer
    from tierstore.transfer.layers import LayerEvent

__all__ = ["WorkerHalf"]

_logger = logging.getLogger("vllm.tierstore.worker")


@dataclass(slots=True)
class _Load:
    """A load under way: what to copy, and the copies; none where the store refused."""

    job: LoadJob
    transfers: list[Transfer | None]

    def done(self) -> bool:
        return all(transfer is None or transfer.done() for transfer in self.transfers)

    def missing(self) -> set[int]:
        """Blocks of the engine that were not loaded; of finished copies."""
        lost: set[int] = set()
        for part, transfer in zip(self.job.parts, self.transfers, strict=True):
            leading = 0 if transfer is None else transfer.result().leading
            lost.update(block for row in part.block_ids for block in row[leading:])
        return lost


class WorkerHalf:
    """One worker's side.

    Args:
        vllm_config: The engine's.
        options: The connector's.
        groups: Of layers.
        kv_cache_config: What vLLM says of the cache.
    """

    def __init__(self, vllm_config: Any, options: Options, groups: list[Group], kv_cache_config: Any) -> None:
        self._vllm_config = vllm_config
        self._options = options
        self._groups = groups
        self._num_blocks = int(kv_cache_config.num_blocks)
        self._replicas = int(kv_cache_config.kv_tp_replicas)
        self._handles: list[Handle] = []
        self._caches: list[PagedKV] = []
        self._loads: dict[str, _Load] = {}
        self._saves: dict[int, list[Transfer]] = {}
        self._report = StepReport()
        self._whole_requests = len(groups) > 1 or groups[0].window is not None
        self._invalid: set[int] = set()
        self._failed: set[str] = set()
        self._counts = StepCounts()
        self._device: Device | None = None
        self._layer_groups: dict[str, int] = {}
        self.namespaces: WorkerCache | None = None

    def bind(self, store: Opened, device: Device, kv_caches: Mapping[str, torch.Tensor]) -> None:
        """Bind the cache that the model runner has made. Blocks on the weights' files and on the store's manifest."""
        by_layer = self._options.load == "layerwise"
        revision = identity.find_revision(self._vllm_config, self._options)
        namespaces = []
        for group in self._groups:
            layout = pages.lay_out(group, kv_caches, self._num_blocks)
            engine_config = identity.describe_engine(self._vllm_config, group.layers)
            namespaces.append(
                identity.make_namespace(
                    self._vllm_config,
                    self._options,
                    layout,
                    revision=revision,
                    engine_config=engine_config,
                    replicas=self._replicas,
                )
            )
            self._caches.append(pages.bind(group, layout, kv_caches, self._num_blocks, by_layer=by_layer))
        self._device = device
        self._layer_groups = {layer: index for index, layer in enumerate(self._groups[0].layers)}
        self._handles = [store.namespace(namespace) for namespace in namespaces]
        self.namespaces = WorkerCache(namespaces)

    def start_loads(self, jobs: StepJobs) -> None:
        """Start what the scheduler asks for; it runs beside the forward pass."""
        for job in jobs.loads:
            self.start_load(job)

    def start_load(self, job: LoadJob) -> None:
        """Start one load: from now on its blocks are pinned in host memory."""
        self._loads[job.request_id] = _Load(job, [self._get(part) for part in job.parts])

    def _get(self, part: Part) -> Transfer | None:
        try:
            return self._handles[part.group].get(part.keys, self._caches[part.group], block_ids=part.block_ids)
        except TierstoreError as error:
            _logger.warning("blocks cannot be loaded and are computed: %s", error)
            return None

    def wait_for_layer(self, layer: str) -> None:
        """Make this step wait for the loads of a layer before it computes it. Blocks on a CPU."""
        group = self._layer_groups.get(layer)
        if group is None:
            return
        for load in self._loads.values():
            for transfer in load.transfers:
                if transfer is not None:
                    self._wait(transfer.layer_ready(group))

    def _wait(self, event: LayerEvent) -> None:
        hold = getattr(self._device, "hold", None)
        copies = event.copies() if hold is not None else None
        if hold is None or copies is None:
            event.wait()
            return
        import torch

        for copied in copies:
            hold(torch.accelerator.current_stream(), copied)

    def end_layerwise_loads(self) -> None:
        """Wait for the loads that the step has used, so that failures are known before any block is saved. Blocks."""
        for load in self._loads.values():
            for transfer in load.transfers:
                if transfer is not None:
                    transfer.result()
        for request_id in list(self._loads):
            self._end_load(request_id)

    def start_saves(self, jobs: StepJobs) -> None:
        """Start saving the step's blocks, except those of requests that computed on blocks which failed to load."""
        for job in jobs.saves:
            if job.request_id in self._report.failed_loads:
                self._report.saved[job.job_id] += 1
            else:
                self._saves[job.job_id] = [put for part in job.parts if (put := self._put(job, part)) is not None]

    def _put(self, job: SaveJob, part: Part) -> Transfer | None:
        handle, cache = self._handles[part.group], self._caches[part.group]
        try:
            return handle.put(part.keys, cache, block_ids=part.block_ids, parent=part.parent)
        except TierstoreError as error:
            _logger.warning("blocks of request %s cannot be saved: %s", job.request_id, error)
            return None

    def finish_step(self, finished: set[str]) -> set[str]:
        """Look what has ended. Never waits.

        Args:
            finished: Requests that the engine has ended or given up.

        Returns:
            Requests whose loads have ended, in whatever way.
        """
        for request_id in finished & self._loads.keys():
            for transfer in self._loads[request_id].transfers:
                if transfer is not None:
                    transfer.cancel()
        ended = {request_id for request_id, load in self._loads.items() if load.done()}
        for request_id in ended:
            self._end_load(request_id)
        for job_id in self._take_saved():
            self._report.saved[job_id] += 1
        return ended

    def _end_load(self, request_id: str) -> None:
        load = self._loads.pop(request_id)
        lost = load.missing()
        for transfer in load.transfers:
            if transfer is not None:
                result = transfer.result()
                self._counts.add(Count.LOADED_BLOCKS, result.leading)
                self._counts.add(Count.LOADED_BYTES, result.nbytes)
                self._counts.add(Count.LOAD_SECONDS, result.seconds)
        if lost:
            self._counts.add(Count.LOST_BLOCKS, len(lost))
            self._report.failed_loads.add(request_id)
            if self._whole_requests:  # what a shorter prefix needs of a window has not been loaded
                self._failed.add(request_id)
            else:
                self._invalid |= lost

    def _take_saved(self) -> list[int]:
        """Jobs whose saves have ended, once."""
        ended = [job_id for job_id, puts in self._saves.items() if all(put.done() for put in puts)]
        for job_id in ended:
            for put in self._saves.pop(job_id):
                result = put.result()
                self._counts.add(Count.SAVED_BLOCKS, result.num_ok)
                self._counts.add(Count.SAVED_BYTES, result.nbytes)
                self._counts.add(Count.REFUSED_BLOCKS, len(result.codes) - result.num_ok)
        return ended

    def take_counts(self) -> StepCounts:
        """What was counted since the last call."""
        counts, self._counts = self._counts, StepCounts()
        return counts

    def take_invalid_blocks(self) -> set[int]:
        """Blocks that failed to load since the last call."""
        taken, self._invalid = self._invalid, set()
        return taken

    def take_failed_requests(self) -> set[str]:
        """Requests of which nothing counts as loaded, since the last call."""
        taken, self._failed = self._failed, set()
        return taken

    def take_report(self) -> StepReport | None:
        """What has changed since the last call."""
        report, self._report = self._report, StepReport()
        return report if report.saved or report.failed_loads else None

    def drain(self, seconds: float) -> set[int]:
        """Wait until saves have ended, at most so long; returns the jobs that have. Blocks."""
        until = time.monotonic() + seconds
        for puts in self._saves.values():
            for put in puts:
                try:
                    put.result(max(0.0, until - time.monotonic()))
                except TimeoutError:
                    break
        return set(self._take_saved())
