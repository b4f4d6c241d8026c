"""Plans saves: each block once, as soon as the step that fills it is planned, and held until all workers are done.

Holding a block takes a reference in the engine's own pool: its request can free it, yet no other request gets it while
it is saved. Called by the scheduler's half, on the scheduler's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any, TypeAlias

from tierstore.connectors.vllm import pages
from tierstore.connectors.vllm.jobs import Part, SaveJob

if TYPE_CHECKING:
    from tierstore.connectors.vllm.options import Options
    from tierstore.connectors.vllm.pages import Group
    from tierstore.connectors.vllm.waiting import Waiting

    BlockIds: TypeAlias = Sequence[Sequence[int]]
    """A request's blocks, by vLLM's number of a group."""

    Saved: TypeAlias = Callable[[Any, int, Sequence[bytes]], None]

__all__ = ["Saves"]


@dataclass(slots=True)
class _Held:
    """One job: blocks of the engine, whose they are and where in its prompt, the workers that have not reported it."""

    blocks: list[Any]
    request: Any
    first: int
    keys: list[bytes]
    workers_left: int


class Saves:
    """Saves under way and those of the next step.

    Args:
        options: The connector's.
        groups: Of layers, with blocks of one size.
        num_workers: Who report each job.
        saved: Called with a request, the first of its blocks that have been offered to the store, and their keys.

    Attributes:
        pool: vLLM's block pool; nothing is saved before it is there.
    """

    def __init__(self, options: Options, groups: Sequence[Group], *, num_workers: int, saved: Saved) -> None:
        self.pool: Any = None
        self._options = options
        self._groups = groups
        self._tokens = groups[0].store_tokens
        self._engine_blocks = groups[0].blocks_per_store_block
        self._saved = saved
        self._num_workers = num_workers
        self._job_ids = count()
        self._held: dict[int, _Held] = {}
        self._queued: list[SaveJob] = []
        self._keys: set[bytes] = set()
        self._num_held = 0

    @property
    def pending(self) -> bool:
        """Whether any block is held."""
        return bool(self._held)

    def add(self, state: Waiting, keys: Sequence[bytes], block_ids: BlockIds, num_tokens: int) -> None:
        """Save what a request will have filled once `num_tokens` more are computed in this step.

        A key is there only once all tokens of its block are known, so no guessed token is ever saved.
        """
        computed = state.request.num_computed_tokens
        state.cursor = min(state.cursor, -(-computed // self._tokens))
        self._save(state, keys, block_ids, computed + num_tokens)

    def flush(self, state: Waiting, keys: Sequence[bytes], block_ids: BlockIds) -> None:
        """Save what an ended request had filled and no step has saved; its blocks are about to be freed."""
        request = state.request
        self._save(state, keys, block_ids, request.num_computed_tokens - request.num_output_placeholders)

    def _save(self, state: Waiting, keys: Sequence[bytes], block_ids: BlockIds, num_computed: int) -> None:
        own = [block_ids[group.group_id] for group in self._groups]
        k = self._engine_blocks
        if self._options.prompt_only:
            num_computed = min(num_computed, state.request.num_prompt_tokens)
        if any(group.draft for group in self._groups):
            num_computed -= 1  # the draft layers' last entry is made again when the next token is known
        first = state.cursor
        stop = min(len(keys), num_computed // self._tokens, *(len(ids) // k for ids in own))
        if self.pool is None or stop <= first:
            return
        at_once = k * len(own)
        held_max = max(at_once, int(self._options.pinned_share * self.pool.num_gpu_blocks))
        stop = min(stop, first + max(0, held_max - self._num_held) // at_once)
        state.cursor = max(stop, first)
        fresh = [index for index in range(first, stop) if keys[index] not in self._keys]
        for begin, end in _runs(fresh):
            self._hold(state.request, keys, own, (begin, end))

    def _hold(
        self, request: Any, keys: Sequence[bytes], block_ids: Sequence[Sequence[int]], span: tuple[int, int]
    ) -> None:
        """Begin one job: blocks of the store from `span[0]` to `span[1]`, of every group that still has them."""
        k, parts, blocks = self._engine_blocks, [], []
        for group, ids in enumerate(block_ids):
            for begin, end in _runs([index for index in range(*span) if self._is_whole(ids, index)]):
                own = list(ids[begin * k : end * k])
                parent = self._groups[group].parent(keys, begin)
                parts.append(Part(group, list(keys[begin:end]), pages.id_rows(own, k), parent))
                blocks += [self.pool.blocks[block_id] for block_id in own]
        if not parts:
            return
        self.pool.touch(blocks)
        job_id, own_keys = next(self._job_ids), list(keys[slice(*span)])
        self._held[job_id] = _Held(blocks, request, span[0], own_keys, self._num_workers)
        self._keys.update(own_keys)
        self._num_held += len(blocks)
        self._queued.append(SaveJob(job_id, request.request_id, parts))

    def _is_whole(self, ids: Sequence[int], index: int) -> bool:
        """Whether a group has all of a block of the store, and none of it has left its window."""
        k = self._engine_blocks
        return not any(self.pool.blocks[block_id].is_null for block_id in ids[index * k : (index + 1) * k])

    def take(self) -> list[SaveJob]:
        """The jobs of this step."""
        queued, self._queued = self._queued, []
        return queued

    def forget_queued(self) -> None:
        """Let go of what no worker has been told of."""
        for job in self.take():
            self.ended(job.job_id, self._num_workers)

    def ended(self, job_id: int, num_workers: int) -> None:
        """So many workers have done a job, however it ended; after the last one its blocks are let go."""
        held = self._held.get(job_id)
        if held is None:
            return
        held.workers_left -= num_workers
        if held.workers_left <= 0:
            del self._held[job_id]
            self._keys.difference_update(held.keys)
            self._num_held -= len(held.blocks)
            self.pool.free_blocks(reversed(held.blocks))
            self._saved(held.request, held.first, held.keys)


def _runs(indices: list[int]) -> list[tuple[int, int]]:
    """Runs of neighbours as [begin, end)."""
    runs: list[tuple[int, int]] = []
    for index in indices:
        if runs and runs[-1][1] == index:
            runs[-1] = runs[-1][0], index + 1
        else:
            runs.append((index, index + 1))
    return runs
