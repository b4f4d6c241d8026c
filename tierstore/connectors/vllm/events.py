"""KV events: tell request routers which blocks the store holds, and when it no longer holds them.

vLLM publishes them with the events of its own cache. Called by the scheduler's half; a service is asked on a thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from vllm.distributed.kv_events import MEDIUM_CPU, MEDIUM_STORAGE, BlockRemoved, BlockStored
from vllm.v1.core.kv_cache_utils import maybe_convert_block_hash

from tierstore.advice import Place
from tierstore.connectors.vllm.following import Followed

if TYPE_CHECKING:
    from tierstore.connectors.vllm.advice import Kept
    from tierstore.connectors.vllm.following import Answers
    from tierstore.connectors.vllm.pages import Group

    Tell: TypeAlias = Callable[[Callable[[Kept], object]], None]

__all__ = ["Events"]

_MEDIUMS = {Place.HOST: MEDIUM_CPU, Place.SSD: MEDIUM_STORAGE}


@dataclass(frozen=True, slots=True)
class _Block:
    """What is told of one of the store's blocks.

    Attributes:
        hashes: vLLM's, of each of its blocks in it.
        parent: That of the block before; None for the first.
        tokens: Of all of them.
        lora: Adapter's number and name; None twice without one.
    """

    hashes: list[Any]
    parent: Any
    tokens: list[int]
    lora: tuple[int | None, str | None]


class Events:
    """What is told of the store's blocks.

    Args:
        group: A group of layers; of several, the one that keeps every block of a prompt.
        num_shards: How many shards must have a block for it to count.
        tell: Sends a message to every group and shard, without waiting.
    """

    def __init__(self, group: Group, *, num_shards: int, tell: Tell) -> None:
        self._group = group
        self._tell = tell
        self._blocks: Followed[_Block] = Followed(self._ask, num_shards=num_shards)

    def _ask(self, keys: Sequence[bytes], answers: Answers) -> None:
        def answer(kept: Kept) -> None:
            if kept.group == 0:
                answers.append(kept.handle.places(keys))

        self._tell(answer)

    def expect(self, request: Any, first: int, keys: Sequence[bytes]) -> None:
        """Blocks of a request, from its `first` of the store's, have been offered to the store or loaded from it."""
        lora = request.lora_request
        named = (None, None) if lora is None else (lora.adapter_id, lora.lora_name)
        k, tokens = self._group.blocks_per_store_block, self._group.store_tokens
        for index, key in enumerate(keys, first):
            if key in self._blocks:
                continue
            hashes = [maybe_convert_block_hash(value) for value in request.block_hashes[index * k : (index + 1) * k]]
            parent = maybe_convert_block_hash(request.block_hashes[index * k - 1]) if index else None
            own = list(request.all_token_ids[index * tokens : (index + 1) * tokens])
            self._blocks.add(key, _Block(hashes, parent, own, named))

    def forget(self) -> None:
        """The store's blocks are found no longer; the next `take` says so."""
        self._blocks.forget()

    def take(self) -> list[BlockStored | BlockRemoved]:
        """What has changed since the last call, as far as the store has been asked."""
        return list(self._told())

    def _told(self) -> Iterator[BlockStored | BlockRemoved]:
        for block, was, now in self._blocks.changes():
            if was in _MEDIUMS:
                yield BlockRemoved(block_hashes=block.hashes, medium=_MEDIUMS[was], group_idx=self._group.group_id)
            if now in _MEDIUMS:
                lora_id, lora_name = block.lora
                yield BlockStored(
                    block_hashes=block.hashes,
                    parent_block_hash=block.parent,
                    token_ids=block.tokens,
                    block_size=self._group.block_tokens,
                    lora_id=lora_id,
                    medium=_MEDIUMS[now],
                    lora_name=lora_name,
                    group_idx=self._group.group_id,
                )
