"""A recorded trace as columns: which blocks each request asked for, when, and how many tokens they are.

Made by the readers of this package and used by all of it. Blocks are numbered from 0 in order of appearance, so
that every column is an array; `Trace.hashes` gives each a hash for the planner.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tierstore.errors import ConfigError
from tierstore.types import HASH_NBYTES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tierstore.types import Int32Array, Int64Array, UInt8Array, UInt64Array

__all__ = ["Asked", "Trace"]

_GOLDEN = 0x9E3779B97F4A7C15
"""The step of SplitMix64 (Steele, Lea and Flood: Fast splittable pseudorandom number generators, OOPSLA 2014)."""


class Asked(NamedTuple):
    """One request as a reader finds it.

    Attributes:
        line: Where in the file, from 1.
        seconds: When it came, on any clock.
        num_tokens: Of its prompt.
        blocks: Names of its blocks in prefix order; equal names are equal prefixes.
    """

    line: int
    seconds: float
    num_tokens: int
    blocks: Sequence[Hashable]


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """Requests in order of arrival.

    Attributes:
        name: For a person.
        block_tokens: Tokens a block; the last block of a request may hold fewer.
        seconds: float64[n]; arrival since the first, never falling.
        num_tokens: int64[n].
        blocks: int32[m]; every block reference, request after request.
        starts: int64[n + 1]; where each request's references begin.
        hashes: uint8[u, 32]; of every distinct block.
    """

    name: str
    block_tokens: int
    seconds: NDArray[np.float64]
    num_tokens: Int64Array
    blocks: Int32Array
    starts: Int64Array
    hashes: UInt8Array = field(repr=False)

    @classmethod
    def of(cls, name: str, requests: Iterable[Asked], block_tokens: int | None = None) -> Trace:
        """Number the blocks and find how many tokens each has, where that is not given.

        Raises:
            ConfigError: There is no request, one names a block twice, or the tokens a block cannot be told.
        """
        numbers: dict[Hashable, int] = {}
        seconds, num_tokens, blocks, starts = [], [], [], [0]
        for asked in requests:
            own = [numbers.setdefault(block, len(numbers)) for block in asked.blocks]
            if len(set(own)) < len(own):
                raise ConfigError(f"{name}, line {asked.line}: a request names a block twice; each prefix is one block")
            seconds.append(asked.seconds)
            num_tokens.append(asked.num_tokens)
            blocks += own
            starts.append(len(blocks))
        if not blocks:
            raise ConfigError(f"{name} holds no request with a block; give a trace that does")
        arrivals = np.maximum.accumulate(np.array(seconds, np.float64))
        lengths, offsets = np.array(num_tokens, np.int64), np.array(starts, np.int64)
        return cls(
            name=name,
            block_tokens=_block_tokens(name, lengths, np.diff(offsets)) if block_tokens is None else block_tokens,
            seconds=arrivals - arrivals[0],
            num_tokens=lengths,
            blocks=np.array(blocks, np.int32),
            starts=offsets,
            hashes=_hashes(len(numbers)),
        )

    def __len__(self) -> int:
        return len(self.num_tokens)

    @property
    def num_unique(self) -> int:
        """Distinct blocks."""
        return len(self.hashes)

    def request(self, index: int) -> Int32Array:
        """The blocks of one request, in prefix order."""
        return self.blocks[self.starts[index] : self.starts[index + 1]]

    def tokens_of(self, leading: Int64Array) -> Int64Array:
        """Tokens of the first int64[n] blocks of each request: a last block may be partly filled."""
        tokens: Int64Array = np.minimum(leading * self.block_tokens, self.num_tokens)
        return tokens

    def requests_of_references(self) -> Int32Array:
        """int32[m]; the request that each reference belongs to."""
        return np.repeat(np.arange(len(self), dtype=np.int32), np.diff(self.starts))


def _block_tokens(name: str, num_tokens: Int64Array, num_blocks: Int64Array) -> int:
    """The power of two that fits every request: its blocks hold its tokens, one block fewer would not."""
    some = num_blocks > 0
    tokens, blocks = num_tokens[some], num_blocks[some]
    for block_tokens in (1 << power for power in range(17)):
        if ((blocks * block_tokens >= tokens) & ((blocks - 1) * block_tokens < tokens)).all():
            return block_tokens
    raise ConfigError(f"{name}: no power of two is the tokens a block of every request; give --block-tokens")


def _hashes(count: int) -> UInt8Array:
    """Distinct hashes without a pattern: four lanes of SplitMix64 over the block's number."""
    lanes = HASH_NBYTES // 8
    mixed: UInt64Array = np.arange(1, count * lanes + 1, dtype=np.uint64) * np.uint64(_GOLDEN)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    return mixed.view(np.uint8).reshape(count, HASH_NBYTES)
