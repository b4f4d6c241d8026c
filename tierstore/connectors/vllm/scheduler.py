"""The scheduler's half of the connector: decides what a request may load, what it waits for and what is saved.

Called on the scheduler's thread in every step. It opens no file and waits for no socket or copy. A promised block is in
host memory at that moment; if it is gone when the worker loads it, the engine computes it instead. A refusal or loss in
the store costs hits, never a request.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from vllm.v1.metrics.cache_hit_source import CacheHitSource

from tierstore.connectors.vllm import pages
from tierstore.connectors.vllm.adapters import Adapters
from tierstore.connectors.vllm.advice import Here, Kept, There
from tierstore.connectors.vllm.events import Events
from tierstore.connectors.vllm.jobs import LoadJob, Part, StepJobs, StepReport
from tierstore.connectors.vllm.patience import Stopwatch
from tierstore.connectors.vllm.promises import Promises
from tierstore.connectors.vllm.saves import Saves
from tierstore.connectors.vllm.stats import Count, StepCounts
from tierstore.connectors.vllm.waiting import Waiting
from tierstore.errors import TierstoreError

if TYPE_CHECKING:
    from tierstore.connectors.vllm.advice import Advisor
    from tierstore.connectors.vllm.hosting import Opened
    from tierstore.connectors.vllm.jobs import WorkerCache
    from tierstore.connectors.vllm.options import Options
    from tierstore.connectors.vllm.pages import Group
    from tierstore.connectors.vllm.seat import Seat

__all__ = ["SchedulerHalf"]

_DRAIN_SECONDS = 30.0
_SALT_NBYTES = 32

_logger = logging.getLogger("vllm.tierstore.scheduler")


class SchedulerHalf:
    """The scheduler's side.

    Args:
        vllm_config: The engine's.
        options: The connector's.
        groups: Of layers, with blocks of one size.
        seat: Where the worker's half of this process sits.
    """

    def __init__(self, vllm_config: Any, options: Options, groups: list[Group], seat: Seat) -> None:
        self._groups = groups
        self._tokens, self._engine_blocks = groups[0].store_tokens, groups[0].blocks_per_store_block
        self._options = options
        self._seat = seat
        transfer = vllm_config.kv_transfer_config
        self._alone = options.load == "async" and vllm_config.max_concurrent_batches == 1
        self._may_load, self._may_save = transfer.is_kv_consumer, transfer.is_kv_producer
        self._leaves_token = options.load == "layerwise" or any(group.window is not None for group in groups)
        self._kept: list[Kept] = []
        self._advisor: Advisor | None = None
        self._promises: Promises | None = None
        self._events: Events | None = None
        self._publishes = vllm_config.kv_events_config is not None and (
            vllm_config.kv_events_config.enable_kv_cache_events
        )
        self._requests: dict[str, Waiting] = {}
        self._loads: list[LoadJob] = []
        self._counts = StepCounts()
        self._adapters = Adapters()
        self._salt = b""  # of the keys; see `clear`
        self._stopwatch = Stopwatch(vllm_config.max_concurrent_batches)
        workers = vllm_config.parallel_config.world_size
        self._saves = Saves(options, groups, num_workers=workers, saved=self._offered)

    def open(self, seat: Seat, open_store: Callable[[], Opened], caches: list[WorkerCache]) -> None:
        """Take the namespaces that the workers have found; until then nothing hits and nothing is saved."""
        store = seat.store(open_store)
        for number, group in enumerate(self._groups):
            found = {cache.namespaces[number].fingerprint: cache.namespaces[number] for cache in caches}
            for namespace in found.values():
                self._kept.append(Kept(store.namespace(namespace), number, group.window, len(self._kept)))
        self._advisor = (Here if self._options.mode == "embedded" else There)(self._kept)
        self._promises = Promises(self._options, self._advisor, lambda: self._counts.add(Count.HELD_BACK, 1))
        if self._publishes:
            num_shards = sum(kept.group == 0 for kept in self._kept)
            self._events = Events(self._groups[0], num_shards=num_shards, tell=self._advisor.tell)

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
        state = self._requests[request.request_id] = Waiting(request, self._salt)
        if request.lora_request is not None and request.lora_request.load_inplace:
            self._adapters.forget(request.lora_request.lora_path)
        if self._may_load and self._promises is not None:
            self._promises.begin(state, self._loadable(state))

    def remove_request(self, request: Any, block_ids: tuple[list[int], ...]) -> None:
        """A request has ended or was given up. A load for it goes on until the worker reports its end."""
        state = self._requests.get(request.request_id)
        if state is None:
            return
        self._leave_queue(state)
        if self._may_save and self._advisor is not None and not state.failed:
            self._saves.flush(state, self._keys(state), block_ids)
        if not state.loading:
            del self._requests[request.request_id]

    def _leave_queue(self, state: Waiting) -> None:
        if self._promises is not None:
            self._promises.end(state)

    # What may be loaded.

    def match(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        """How many tokens a load would bring behind those computed, and whether it goes on beside other requests."""
        state = self._requests.get(request.request_id)
        if state is None or self._promises is None:
            return 0, False
        state.computed = num_computed_tokens
        first, rest = divmod(num_computed_tokens, self._tokens)
        state.cursor = min(state.cursor, first)
        if not self._may_load or state.failed or rest or request.skip_reading_prefix_cache:
            return 0, False
        promised = self._promises.promise(state, self._loadable(state), first)
        if promised is None:
            return None, False
        return promised * self._tokens, promised > 0 and self._options.load == "async"

    def _loadable(self, state: Waiting) -> Sequence[bytes]:
        """Keys of the blocks that a load may bring; a token is left to compute where the engine needs that.

        With layer-wise loads it computes in the same step. With a sliding window it would compute the last token anew,
        and the load has brought what is behind that token's window, not behind the one before.
        """
        keys = self._keys(state)
        if self._leaves_token:
            keys = keys[: (state.request.num_tokens - 1) // self._tokens]
        return keys

    def allocated(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """The engine has taken a promise: load it into the blocks that it allocated."""
        state = self._requests.get(request.request_id)
        if state is None:
            return
        self._leave_queue(state)
        if num_external_tokens == 0:
            return
        first, stop = (tokens // self._tokens for tokens in (state.computed, state.computed + num_external_tokens))
        keys = self._keys(state)
        assert self._promises is not None, "what is loaded was promised"
        state.loading = tuple(keys[first:stop])
        self._promises.loading.update(state.loading)
        ids = blocks.get_block_ids()
        parts = [
            self._part(number, keys, ids[group.group_id], (first, stop)) for number, group in enumerate(self._groups)
        ]
        job = LoadJob(request.request_id, [part for part in parts if part.keys])
        if self._alone and self._seat.worker is not None:
            self._seat.worker.start_load(job)  # pinned at once, and no step runs that could write into these blocks
        else:
            self._loads.append(job)

    def _part(self, number: int, keys: Sequence[bytes], block_ids: Sequence[int], span: tuple[int, int]) -> Part:
        """What a group loads of a span of the store's blocks; the engine has none for what its window leaves out."""
        (first, stop), k = span, self._engine_blocks
        while first < stop and block_ids[first * k] == self._saves.pool.null_block.block_id:
            first += 1
        parent = self._groups[number].parent(keys, first)
        return Part(number, list(keys[first:stop]), pages.id_rows(block_ids[first * k : stop * k], k), parent)

    def hit_sources(self, request: Any, num_tokens: int) -> dict[CacheHitSource, int]:
        """Where the tokens of a load came from."""
        state = self._requests.get(request.request_id)
        from_host = num_tokens if state is None else state.from_host(num_tokens, self._tokens)
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
                    self._saves.add(state, self._keys(state), block_ids, num_tokens)
        return StepJobs(loads, self._saves.take(), layerwise=self._options.load == "layerwise")

    def step_done(self, output: Any) -> None:
        """Take in what the workers report: blocks come free, requests go on."""
        measured = self._stopwatch.end()
        if measured is not None:
            prefix, tokens, seconds = measured
            self._tell(
                lambda kept: kept.handle.report_prefill(prefix_tokens=prefix, num_tokens=tokens, seconds=seconds)
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
        for request_id in ended & self._requests.keys():
            state = self._requests[request_id]
            self._end_load(state)
            if state.request.is_finished():
                del self._requests[request_id]

    def _end_load(self, state: Waiting) -> None:
        if state.loading and self._promises is not None:
            self._promises.loading.difference_update(state.loading)
            self._offered(state.request, state.computed // self._tokens, state.loading)
        state.loading = ()

    def _offered(self, request: Any, first: int, keys: Sequence[bytes]) -> None:
        """Blocks of a request should be in the store now, from the `first` one."""
        if self._events is not None:
            self._events.expect(request, first, keys)

    def _computed(self, request_id: str) -> int:
        state = self._requests.get(request_id)
        return 0 if state is None else int(state.request.num_computed_tokens)

    def take_counts(self) -> StepCounts:
        """What was counted since the last call."""
        counts, self._counts = self._counts, StepCounts()
        return counts

    def take_events(self) -> Sequence[Any]:
        """What has changed in the store since the last call, where vLLM publishes it."""
        return () if self._events is None else self._events.take()

    @property
    def saving(self) -> bool:
        """Whether blocks of the engine are held for saves."""
        return self._saves.pending

    def clear(self) -> bool:
        """Forget every block of the namespaces. Blocks.

        A reset may follow an update of the weights in place, which is in no digest. So the keys of blocks saved from
        now on have a salt that no other engine and no later start of this one knows.
        """
        self._salt = secrets.token_bytes(_SALT_NBYTES)
        if self._events is not None:
            self._events.forget()
        try:
            for kept in self._kept:
                kept.handle.clear()
        except TierstoreError as error:
            _logger.error("the cache cannot be cleared: %s", error)
            return False
        return bool(self._kept)

    def close(self) -> None:
        """Let go of the queue."""
        for state in list(self._requests.values()):
            self._leave_queue(state)
        if self._advisor is not None:
            self._advisor.close()
        self._advisor = self._promises = None
        self._kept = []
        self._adapters.close()

    def _keys(self, state: Waiting) -> Sequence[bytes]:
        """Keys of the store's blocks whose tokens are all known; none while its adapter is not, nor after a reset."""
        lora = state.request.lora_request
        adapter = b"" if lora is None else self._adapters.digest(lora.lora_path)
        return [] if adapter is None or state.salt != self._salt else state.keys(self._engine_blocks, adapter)

    def _tell(self, message: Callable[[Kept], object]) -> None:
        if self._advisor is not None:
            self._advisor.tell(message)
