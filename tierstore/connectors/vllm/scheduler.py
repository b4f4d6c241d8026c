"""The half of the connector in the scheduler: what a request may load, what it waits for, what is saved.

Called on the scheduler's thread in every step. It opens no file, waits for no socket and for no copy. What is promised
lies in host memory at that moment; a block that is gone when the worker comes for it is computed instead. Whatever the
store refuses or loses costs hits, and never a request.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from vllm.v1.metrics.cache_hit_source import CacheHitSource

from tierstore.connectors.vllm import pages
from tierstore.connectors.vllm.adapters import Adapters
from tierstore.connectors.vllm.advice import Here, There
from tierstore.connectors.vllm.jobs import LoadJob, Part, StepJobs, StepReport
from tierstore.connectors.vllm.patience import Patience, Stopwatch
from tierstore.connectors.vllm.saves import Saves
from tierstore.connectors.vllm.stats import Count, StepCounts
from tierstore.connectors.vllm.waiting import NO_PARENT, Waiting
from tierstore.errors import TierstoreError

if TYPE_CHECKING:
    from tierstore.client import Client
    from tierstore.connectors.vllm.advice import Advisor, Found, Handle
    from tierstore.connectors.vllm.jobs import WorkerCache
    from tierstore.connectors.vllm.options import Options
    from tierstore.connectors.vllm.pages import Group
    from tierstore.connectors.vllm.seat import Seat
    from tierstore.store import Store

__all__ = ["SchedulerHalf"]

_DRAIN_SECONDS = 30.0

_logger = logging.getLogger("vllm.tierstore.scheduler")


class SchedulerHalf:
    """The scheduler's side.

    Args:
        vllm_config: The engine's.
        options: The connector's.
        groups: Of layers.
        seat: Where the worker's half of this process sits.
    """

    def __init__(self, vllm_config: Any, options: Options, groups: list[Group], seat: Seat) -> None:
        (self._group,) = groups
        self._options = options
        self._seat = seat
        transfer = vllm_config.kv_transfer_config
        self._alone = options.load == "async" and vllm_config.max_concurrent_batches == 1
        self._may_load, self._may_save = transfer.is_kv_consumer, transfer.is_kv_producer
        self._handles: list[Handle] = []
        self._advisor: Advisor | None = None
        self._requests: dict[str, Waiting] = {}
        self._loading: set[bytes] = set()
        self._loads: list[LoadJob] = []
        self._num_ranks = 0
        self._counts = StepCounts()
        self._adapters = Adapters()
        self._stopwatch = Stopwatch(vllm_config.max_concurrent_batches)
        self._patience = Patience(options.lookups_max, options.lookup_seconds)
        self._saves = Saves(options, self._group, num_workers=vllm_config.parallel_config.world_size)

    def open(self, seat: Seat, open_store: Callable[[], Store | Client], caches: list[WorkerCache]) -> None:
        """Take the namespaces that the workers have found; until then nothing hits and nothing is saved."""
        found = {namespace.fingerprint: namespace for cache in caches for namespace in cache.namespaces}
        store = seat.store(open_store)
        self._handles = [store.namespace(namespace) for namespace in found.values()]
        self._advisor = (Here if self._options.mode == "embedded" else There)(self._handles)

    def bind_pool(self, pool: Any) -> None:
        """Hold blocks of this pool while they are saved; and end saves before it is reset."""
        self._saves.pool = pool
        reset = pool.reset_prefix_cache

        def drain_and_reset() -> bool:
            self._drain()
            return bool(reset())

        pool.reset_prefix_cache = drain_and_reset

    def _drain(self) -> None:
        """End what is being saved by a worker of this process, so that no block is held. Blocks."""
        self._saves.forget_queued()
        if self._seat.worker is not None:
            for job_id in self._seat.worker.drain(_DRAIN_SECONDS):
                self._saves.ended(job_id, 1)

    def add_request(self, request: Any) -> None:
        """A request waits: its blocks are kept, and read ahead of its turn."""
        state = self._requests[request.request_id] = Waiting(request, self._num_ranks)
        self._num_ranks += 1
        if request.lora_request is not None and request.lora_request.load_inplace:
            self._adapters.forget(request.lora_request.lora_path)
        if self._may_load and self._advisor is not None:
            rank, keys = self._num_ranks - 1, list(self._keys(state))
            self._tell(lambda handle: handle.hint(added=[(rank, keys)]))
            self._advisor.begin(request.request_id, keys)

    def remove_request(self, request: Any, block_ids: tuple[list[int], ...]) -> None:
        """A request has ended or was given up. A load for it goes on until the worker reports its end."""
        state = self._requests.get(request.request_id)
        if state is None:
            return
        self._leave_queue(state)
        if self._may_save and self._advisor is not None and not state.failed:
            self._saves.flush(state, self._keys(state), block_ids[0])
        if not state.loading:
            del self._requests[request.request_id]

    def _leave_queue(self, state: Waiting) -> None:
        """It waits no longer: its blocks age like any other's."""
        self._patience.end(state.request.request_id)
        rank, state.rank = state.rank, None
        if rank is not None and self._may_load:
            self._tell(lambda handle: handle.hint(removed=[rank]))
        if self._advisor is not None:
            self._advisor.forget(state.request.request_id)
        state.stop_reading()

    # What may be loaded.

    def match(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        """How many tokens a load would bring behind those computed, and whether it goes on beside other requests."""
        state = self._requests.get(request.request_id)
        tokens = self._group.store_tokens
        if state is None or self._advisor is None:
            return 0, False
        state.computed = num_computed_tokens
        keys = self._keys(state)
        first, rest = divmod(num_computed_tokens, tokens)
        state.cursor = min(state.cursor, first)
        if not self._may_load or state.failed or rest or request.skip_reading_prefix_cache:
            return 0, False
        if self._options.load == "layerwise" and len(keys) * tokens >= request.num_tokens:
            keys = keys[: (request.num_tokens - 1) // tokens]  # a token must be left to compute
        promised = self._promise(state, keys, first)
        if promised is None:
            return None, False
        self._patience.end(request.request_id)
        return promised * tokens, promised > 0 and self._options.load == "async"

    def _promise(self, state: Waiting, keys: Sequence[bytes], first: int) -> int | None:
        """Blocks from `first` that lie in host memory and are worth loading; None where waiting brings more."""
        if first >= len(keys):
            return 0
        found = self._find(state, keys, first)
        if found is None:
            return None
        state.cursor = first + found.leading if found.head == first else found.head
        stop, in_host = min(found.stop, len(keys) - first), min(found.in_host, len(keys) - first)
        if stop == 0:
            return 0
        state.in_host = in_host if state.in_host is None else state.in_host
        under_way = keys[first] in self._loading
        if in_host == stop and not under_way:
            return in_host
        if state.prefetches is None and in_host < stop:
            wanted, seconds = list(keys[first : first + stop]), self._options.lookup_seconds
            state.prefetches = []
            self._tell(lambda handle: state.reads(handle.prefetch(wanted, deadline_seconds=seconds)))
        if (under_way or state.reading) and self._may_wait(state):
            return None
        if in_host < stop:  # it may have come since
            found = self._find(state, keys, first)
        return None if found is None else min(found.in_host, stop)

    def _find(self, state: Waiting, keys: Sequence[bytes], first: int) -> Found | None:
        """What the store holds of it; None where it is worth waiting for the answer."""
        assert self._advisor is not None, "nothing is asked before the cache is bound"
        request_id = state.request.request_id
        found = self._advisor.find(request_id, keys, first)
        if found is None:
            return None if self._may_wait(state) else self._advisor.last(request_id)
        return found

    def _may_wait(self, state: Waiting) -> bool:
        if not self._patience.may_wait(state.request.request_id):
            return False
        self._counts.add(Count.HELD_BACK, 1)
        return True

    def allocated(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """The engine has taken a promise: load it into the blocks that it allocated."""
        state = self._requests.get(request.request_id)
        if state is None:
            return
        self._leave_queue(state)
        if num_external_tokens == 0:
            return
        group, k = self._group, self._group.blocks_per_store_block
        first, stop = (
            tokens // group.store_tokens for tokens in (state.computed, state.computed + num_external_tokens)
        )
        all_keys = self._keys(state)
        keys = list(all_keys[first:stop])
        block_ids = blocks.get_block_ids()[group.group_id][first * k : stop * k]
        parent = all_keys[first - 1] if first else NO_PARENT
        state.loading = tuple(keys)
        self._loading.update(keys)
        part = Part(0, keys, pages.id_rows(block_ids, k), parent)
        job = LoadJob(request.request_id, [part])
        if self._alone and self._seat.worker is not None:
            self._seat.worker.start_load(job)  # pinned at once, and no step runs that could write into these blocks
        else:
            self._loads.append(job)

    def hit_sources(self, request: Any, num_tokens: int) -> dict[CacheHitSource, int]:
        """Where the tokens of a load came from."""
        state = self._requests.get(request.request_id)
        from_host = num_tokens if state is None else state.from_host(num_tokens, self._group.store_tokens)
        sources = {CacheHitSource.HOST: from_host, CacheHitSource.DISK: num_tokens - from_host}
        return {source: count for source, count in sources.items() if count}

    def plan_step(self, scheduler_output: Any) -> StepJobs:
        """What the workers do in this step."""
        self._stopwatch.begin(scheduler_output.num_scheduled_tokens, self._computed)
        loads, self._loads = self._loads, []
        if self._may_save and self._advisor is not None:
            for request_id, num_tokens in scheduler_output.num_scheduled_tokens.items():
                state = self._requests.get(request_id)
                if state is not None:
                    block_ids = scheduler_output.kv_connector_block_state.get_block_ids(request_id)
                    self._saves.add(state, self._keys(state), block_ids[self._group.group_id], num_tokens)
        return StepJobs(loads, self._saves.take(), layerwise=self._options.load == "layerwise")

    def step_done(self, output: Any) -> None:
        """Take in what the workers report: blocks come free, requests go on."""
        measured = self._stopwatch.end()
        if measured is not None:
            prefix, tokens, seconds = measured
            self._tell(lambda handle: handle.report_prefill(prefix_tokens=prefix, num_tokens=tokens, seconds=seconds))
        report = output.kv_connector_worker_meta
        if isinstance(report, StepReport):
            for job_id, count in report.saved.items():
                self._saves.ended(job_id, count)
            for request_id in report.failed_loads & self._requests.keys():
                state = self._requests[request_id]
                state.failed = True
                state.cursor = 0
        ended = set(output.finished_recving or ()) if self._options.load == "async" else set(self._requests)
        for request_id in ended & self._requests.keys():
            state = self._requests[request_id]
            self._loading.difference_update(state.loading)
            state.loading = ()
            if state.request.is_finished():
                del self._requests[request_id]

    def _computed(self, request_id: str) -> int:
        state = self._requests.get(request_id)
        return 0 if state is None else int(state.request.num_computed_tokens)

    def take_counts(self) -> StepCounts:
        """What was counted since the last call."""
        counts, self._counts = self._counts, StepCounts()
        return counts

    @property
    def saving(self) -> bool:
        """Whether blocks of the engine are held for saves."""
        return self._saves.pending

    def clear(self) -> bool:
        """Forget every block of the namespace. Blocks."""
        try:
            for handle in self._handles:
                handle.clear()
        except TierstoreError as error:
            _logger.error("the cache cannot be cleared: %s", error)
            return False
        return bool(self._handles)

    def close(self) -> None:
        """Let go of the queue."""
        for state in list(self._requests.values()):
            self._leave_queue(state)
        if self._advisor is not None:
            self._advisor.close()
        self._advisor, self._handles = None, []
        self._adapters.close()

    def _keys(self, state: Waiting) -> Sequence[bytes]:
        """Keys of every block of the store whose tokens are all known; none while its adapter is not."""
        lora, k = state.request.lora_request, self._group.blocks_per_store_block
        if lora is None:
            return state.keys(k, None)
        adapter = self._adapters.digest(lora.lora_path)
        return [] if adapter is None else state.keys(k, adapter)

    def _tell(self, message: Callable[[Handle], object]) -> None:
        if self._advisor is not None:
            self._advisor.tell(message)
