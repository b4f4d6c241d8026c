"""The half of the connector in the scheduler: what a request may load, what it waits for, what is saved.

Called on the scheduler's thread in every step. It opens no file, waits for no socket and for no copy. What is promised
lies in host memory at that moment; a block that is gone when the worker comes for it is computed instead. Whatever the
store refuses or loses costs hits, and never a request.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from vllm.v1.metrics.cache_hit_source import CacheHitSource

from tierstore.connectors.vllm import pages
from tierstore.connectors.vllm.adapters import Adapters
from tierstore.connectors.vllm.jobs import LoadJob, Part, StepJobs, StepReport
from tierstore.connectors.vllm.patience import Patience, Stopwatch
from tierstore.connectors.vllm.saves import Saves
from tierstore.connectors.vllm.stats import Count, StepCounts
from tierstore.connectors.vllm.waiting import NO_PARENT, Waiting
from tierstore.errors import TierstoreError

if TYPE_CHECKING:
    from tierstore.connectors.vllm.jobs import WorkerCache
    from tierstore.connectors.vllm.options import Options
    from tierstore.connectors.vllm.pages import Group
    from tierstore.connectors.vllm.seat import Seat
    from tierstore.handle import NamespaceHandle

__all__ = ["SchedulerHalf"]

_DRAIN_SECONDS = 30.0

T = TypeVar("T")
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
        self._handle: NamespaceHandle | None = None
        self._requests: dict[str, Waiting] = {}
        self._loading: set[bytes] = set()
        self._loads: list[LoadJob] = []
        self._num_ranks = 0
        self._counts = StepCounts()
        self._adapters = Adapters()
        self._stopwatch = Stopwatch(vllm_config.max_concurrent_batches)
        self._patience = Patience(options.lookups_max, options.lookup_seconds)
        self._saves = Saves(options, self._group, num_workers=vllm_config.parallel_config.world_size)

    def open(self, seat: Seat, caches: list[WorkerCache]) -> None:
        """Take the namespace that the worker has found; until then nothing hits and nothing is saved."""
        ((namespace,),) = [cache.namespaces for cache in caches]
        self._handle = seat.store(_not_open).namespace(namespace)

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

    # Requests.

    def add_request(self, request: Any) -> None:
        """A request waits: its blocks are kept, and read ahead of its turn."""
        state = self._requests[request.request_id] = Waiting(request, self._num_ranks)
        self._num_ranks += 1
        if request.lora_request is not None and request.lora_request.load_inplace:
            self._adapters.forget(request.lora_request.lora_path)
        if self._may_load and self._handle is not None:
            keys = self._keys(state)
            self._ask(lambda handle: handle.hint(added=[(state.rank or 0, keys)]), None)

    def remove_request(self, request: Any, block_ids: tuple[list[int], ...]) -> None:
        """A request has ended or was given up. A load for it goes on until the worker reports its end."""
        state = self._requests.get(request.request_id)
        if state is None:
            return
        self._leave_queue(state)
        if self._may_save and self._handle is not None and not state.failed:
            self._saves.flush(state, self._keys(state), block_ids[0])
        if not state.loading:
            del self._requests[request.request_id]

    def _leave_queue(self, state: Waiting) -> None:
        """It waits no longer: its blocks age like any other's."""
        self._patience.end(state.request.request_id)
        rank, state.rank = state.rank, None
        if rank is not None and self._may_load:
            self._ask(lambda handle: handle.hint(removed=[rank]), None)
        if state.prefetch is not None:
            state.prefetch.cancel()
            state.prefetch = None

    # What may be loaded.

    def match(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        """How many tokens a load would bring behind those computed, and whether it goes on beside other requests."""
        state = self._requests.get(request.request_id)
        tokens = self._group.store_tokens
        if state is None or self._handle is None:
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

    def _promise(self, state: Waiting, all_keys: Sequence[bytes], first: int) -> int | None:
        """Blocks from `first` that lie in host memory and are worth loading; None where waiting brings more."""
        keys = all_keys[first:]
        if not keys:
            return 0
        advice = self._ask(lambda handle: handle.plan_load(keys), None)
        if advice is None:
            return 0
        head = self._ask(lambda handle: handle.lookup(all_keys[:first]), 0)  # the engine may hold what the store lost
        state.cursor = first + advice.leading if head == first else head
        if advice.stop == 0:
            return 0
        state.in_host = advice.in_host if state.in_host is None else state.in_host
        under_way = keys[0] in self._loading
        if advice.in_host == advice.stop and not under_way:
            return int(advice.in_host)
        if state.prefetch is None and advice.in_host < advice.stop:
            seconds, wanted = self._options.lookup_seconds, keys[: advice.stop]
            state.prefetch = self._ask(lambda handle: handle.prefetch(wanted, deadline_seconds=seconds), None)
        reading = state.prefetch is not None and not state.prefetch.done()
        if (under_way or reading) and self._patience.may_wait(state.request.request_id):
            self._counts.add(Count.HELD_BACK, 1)
            return None
        if advice.in_host < advice.stop:  # it may have come since
            advice = self._ask(lambda handle: handle.plan_load(keys), advice)
        return int(advice.in_host)

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
        in_host = num_tokens if state is None or state.in_host is None else state.in_host * self._group.store_tokens
        from_host = min(num_tokens, in_host)
        sources = {CacheHitSource.HOST: from_host, CacheHitSource.DISK: num_tokens - from_host}
        return {source: count for source, count in sources.items() if count}

    # Steps.

    def plan_step(self, scheduler_output: Any) -> StepJobs:
        """What the workers do in this step."""
        self._stopwatch.begin(scheduler_output.num_scheduled_tokens, self._computed)
        loads, self._loads = self._loads, []
        if self._may_save and self._handle is not None:
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
            self._ask(
                lambda handle: handle.report_prefill(prefix_tokens=prefix, num_tokens=tokens, seconds=seconds), None
            )
        report = output.kv_connector_worker_meta
        if isinstance(report, StepReport):
            for job_id, count in report.saved.items():
                self._saves.ended(job_id, count)
            for request_id in report.failed_loads & self._requests.keys():
                state = self._requests[request_id]
                state.failed = True
                state.cursor = 0
        ended = set(output.finished_recving or ()) if self._options.load == "async" else set(self._requests)
        for request_id in ended:
            waiting = self._requests.get(request_id)
            if waiting is not None:
                self._loading.difference_update(waiting.loading)
                waiting.loading = ()
                if waiting.request.is_finished():
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
        if self._handle is None:
            return False
        try:
            self._handle.clear()
        except TierstoreError as error:
            _logger.error("the cache cannot be cleared: %s", error)
            return False
        return True

    def close(self) -> None:
        """Let go of the queue."""
        for state in list(self._requests.values()):
            self._leave_queue(state)
        self._handle = None
        self._adapters.close()

    def _keys(self, state: Waiting) -> Sequence[bytes]:
        """Keys of every block of the store whose tokens are all known; none while its adapter is not."""
        lora, k = state.request.lora_request, self._group.blocks_per_store_block
        if lora is None:
            return state.keys(k, None)
        adapter = self._adapters.digest(lora.lora_path)
        return [] if adapter is None else state.keys(k, adapter)

    def _ask(self, question: Callable[[NamespaceHandle], T], otherwise: T) -> T:
        """Ask the store; what it refuses is no hit."""
        if self._handle is None:
            return otherwise
        try:
            return question(self._handle)
        except TierstoreError as error:
            _logger.warning("the store is left alone: %s", error)
            return otherwise


def _not_open() -> Any:
    raise AssertionError("the worker's half opens the store before the scheduler's asks for it")
