"""Tracks where blocks are, for KV events. The store sends no notices, so each step asks it about a slice of the blocks.

Blocks not reported yet come first, then a few of the others. Called on the scheduler's thread, which never waits: an
answer that has not arrived is picked up in a later step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Generic, TypeAlias, TypeVar

import numpy as np

from tierstore.advice import Place

if TYPE_CHECKING:
    from tierstore.types import UInt8Array

    Answers: TypeAlias = list[UInt8Array]
    """Of each shard where it has the blocks of a question; as many come as there are shards, in their own time."""

    Ask: TypeAlias = Callable[[Sequence[bytes], Answers], None]

__all__ = ["Followed"]

T = TypeVar("T")

_FRESH_SLICE, _TOLD_SLICE = 256, 32
"""Blocks that one step asks about: of those nobody has been told of, and of those that may have gone."""

_PATIENCE_STEPS = 1000
"""An answer that takes longer is not coming: the service had gone, or too much was asked of it."""


@dataclass(slots=True)
class _Question:
    """Blocks that the store has been asked about."""

    keys: list[bytes]
    answers: Answers = field(default_factory=list)
    steps: int = 0


class Followed(Generic[T]):
    """Blocks, and the place last reported for each.

    Args:
        ask: Asks every shard where it has blocks, without waiting.
        num_shards: How many shards must have a block for it to count.
        fresh_max: Most blocks followed and not reported yet; beyond that the oldest are dropped.
        told_max: Most blocks reported; beyond that the oldest are dropped and reported as gone.
    """

    def __init__(self, ask: Ask, *, num_shards: int, fresh_max: int = 1 << 14, told_max: int = 1 << 17) -> None:
        self._ask = ask
        self._num_shards = num_shards
        self._fresh_max = fresh_max
        self._told_max = told_max
        self._fresh: dict[bytes, T] = {}
        self._told: dict[bytes, tuple[T, Place]] = {}
        self._gone: list[tuple[T, Place, Place]] = []
        self._question: _Question | None = None

    def __contains__(self, key: bytes) -> bool:
        """Whether a block is followed."""
        return key in self._fresh or key in self._told

    def add(self, key: bytes, what: T) -> None:
        """Follow a block that should be in the store now; `what` is what is told of it."""
        if key not in self:
            self._fresh[key] = what
        for oldest in list(islice(self._fresh, max(0, len(self._fresh) - self._fresh_max))):
            del self._fresh[oldest]

    def forget(self) -> None:
        """Follow none of the blocks any longer; those reported are reported as gone by the next call of `changes`."""
        self._gone += [(what, was, Place.NOWHERE) for what, was in self._told.values()]
        self._fresh, self._told, self._question = {}, {}, None

    def changes(self) -> list[tuple[T, Place, Place]]:
        """What has moved since the last call, as far as is known, from where and to where. Asks about more."""
        gone, self._gone = self._gone, []
        question = self._question or self._begin()
        if question is None:
            return gone
        question.steps += 1
        answered = len(question.answers) == self._num_shards
        self._question = None if answered or question.steps > _PATIENCE_STEPS else question
        return [*gone, *self._settle(question)] if answered else gone

    def _begin(self) -> _Question | None:
        keys = [*islice(self._fresh, _FRESH_SLICE), *islice(self._told, _TOLD_SLICE)]
        if not keys:
            return None
        question = _Question(keys)
        self._ask(keys, question.answers)
        return question

    def _settle(self, question: _Question) -> Iterator[tuple[T, Place, Place]]:
        for key, shards in zip(question.keys, np.stack(question.answers, axis=1).tolist(), strict=True):
            if key in self._told:
                what, was = self._told.pop(key)  # to come last again
            elif key in self._fresh:
                what, was = self._fresh.pop(key), Place.NOWHERE
            else:
                continue
            now = Place.NOWHERE if Place.NOWHERE in shards else Place(max(shards))
            if now is Place.UNDER_WAY:  # ask again
                if was is Place.NOWHERE:
                    self._fresh[key] = what
                else:
                    self._told[key] = what, was
                continue
            if now is not was:
                yield what, was, now
            if now is not Place.NOWHERE:
                self._told[key] = what, now
        for key in list(islice(self._told, max(0, len(self._told) - self._told_max))):
            what, was = self._told.pop(key)
            yield what, was, Place.NOWHERE
