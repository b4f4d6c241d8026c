"""KV events: tells whoever routes requests by them which blocks the store holds, and when it holds them no longer.

vLLM publishes them with those of its own cache. Nobody tells the connector when a block moves or goes, so the store is
asked: a slice in every step, new blocks first. Called by the scheduler's half; a service is asked on its thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from vllm.distributed.kv_events import MEDIUM_CPU, MEDIUM_STORAGE, BlockRemoved, BlockStored
from vllm.v1.core.kv_cache_utils import maybe_convert_block_hash

from tierstore.advice import Place

if TYPE_CHECKING:
    from tierstore.connectors.vllm.advice import Kept
    from tierstore.connectors.vllm.pages import Group
    from tierstore.types import UInt8Array

    Tell: TypeAlias = Callable[[Callable[[Kept], object]], None]

__all__ = ["Events"]

_FRESH_SLICE, _TOLD_SLICE = 256, 32
"""Blocks that one step asks about: of those nobody has been told of, and of those that may have gone."""

_FRESH_MAX, _TOLD_MAX = 1 << 14, 1 << 17
"""Blocks that are followed; of more, the oldest are given up, and taken back where they were told of."""

_PATIENCE_STEPS = 1000
"""An answer that takes longer is not coming: the service had gone, or too much was asked of it."""

_MEDIUMS = {Place.HOST: MEDIUM_CPU, Place.SSD: MEDIUM_STORAGE}


@dataclass(slots=True)
class _Block:
    """What is told of one of the store's blocks.

    Attributes:
        hashes: vLLM's, of each of its blocks in it.
        parent: That of the block before; None for the first.
        tokens: Of all of them.
        lora: Adapter's number and name; None twice without one.
        medium: Where it has been told to be; None where nobody has been told.
    """

    hashes: list[Any]
    parent: Any
    tokens: list[int]
    lora: tuple[int | None, str | None]
    medium: str | None = None


@dataclass(slots=True)
class _Question:
    """Blocks that the store has been asked about, and what each shard has answered so far."""

    keys: list[bytes]
    answers: list[UInt8Array] = field(default_factory=list)
    steps: int = 0


class Events:
    """What is told of the store's blocks.

    Args:
        group: Of layers; where there are several, the one that keeps every block of a prompt.
        num_shards: That must have a block, so that it counts.
        tell: Has every group and shard told something, and does not wait for it.
    """

    def __init__(self, group: Group, *, num_shards: int, tell: Tell) -> None:
        self._group = group
        self._num_shards = num_shards
        self._tell = tell
        self._fresh: dict[bytes, _Block] = {}
        self._told: dict[bytes, _Block] = {}
        self._question: _Question | None = None

    def expect(self, request: Any, first: int, keys: Sequence[bytes]) -> None:
        """Blocks of a request, from its `first` of the store's, have been offered to the store or loaded from it."""
        lora = request.lora_request
        named = (None, None) if lora is None else (lora.adapter_id, lora.lora_name)
        k, tokens = self._group.blocks_per_store_block, self._group.store_tokens
        for index, key in enumerate(keys, first):
            if key in self._told or key in self._fresh:
                continue
            hashes = [maybe_convert_block_hash(value) for value in request.block_hashes[index * k : (index + 1) * k]]
            parent = maybe_convert_block_hash(request.block_hashes[index * k - 1]) if index else None
            own = list(request.all_token_ids[index * tokens : (index + 1) * tokens])
            self._fresh[key] = _Block(hashes, parent, own, named)
        for key in list(islice(self._fresh, max(0, len(self._fresh) - _FRESH_MAX))):
            del self._fresh[key]

    def take(self) -> list[BlockStored | BlockRemoved]:
        """What has changed since the last call, as far as the store has been asked. Asks it about more."""
        question = self._question or self._ask()
        if question is None:
            return []
        question.steps += 1
        answered = len(question.answers) == self._num_shards
        self._question = None if answered or question.steps > _PATIENCE_STEPS else question
        return list(self._settle(question)) if answered else []

    def _ask(self) -> _Question | None:
        keys = [*islice(self._fresh, _FRESH_SLICE), *islice(self._told, _TOLD_SLICE)]
        if not keys:
            return None
        question = _Question(keys)

        def answer(kept: Kept) -> None:
            if kept.group == 0:
                question.answers.append(kept.handle.places(keys))

        self._tell(answer)
        return question

    def _settle(self, question: _Question) -> Iterator[BlockStored | BlockRemoved]:
        for key, places in zip(question.keys, np.stack(question.answers, axis=1).tolist(), strict=True):
            block = self._fresh.pop(key, None) or self._told.pop(key, None)
            if block is None:
                continue
            if Place.UNDER_WAY in places:
                (self._fresh if block.medium is None else self._told)[key] = block
                continue
            medium = None if Place.NOWHERE in places else _MEDIUMS[Place(max(places))]
            if block.medium not in (None, medium):
                yield self._removed(block)
            if medium is None:
                continue
            if block.medium != medium:
                block.medium = medium
                yield self._stored(block)
            self._told[key] = block
        for key in list(islice(self._told, max(0, len(self._told) - _TOLD_MAX))):
            yield self._removed(self._told.pop(key))

    def _stored(self, block: _Block) -> BlockStored:
        lora_id, lora_name = block.lora
        return BlockStored(
            block_hashes=block.hashes,
            parent_block_hash=block.parent,
            token_ids=block.tokens,
            block_size=self._group.block_tokens,
            lora_id=lora_id,
            medium=block.medium,
            lora_name=lora_name,
            group_idx=self._group.group_id,
        )

    def _removed(self, block: _Block) -> BlockRemoved:
        return BlockRemoved(block_hashes=block.hashes, medium=block.medium, group_idx=self._group.group_id)
