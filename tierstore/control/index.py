"""Maps (generation, block hash) to an entry number. Pure numpy columns; called by the directory and the window.

A chained hash table of fixed capacity over packed 32-byte hashes. Batch look-ups are vectorised, by `take`, which
gathers rows of keys six times faster than indexing does. The few keys deep in a chain, and single insertions
and removals, go through memoryviews, which are several times faster than indexing an array. All columns are
zero-initialised, so that only used entries take memory: chain links hold entry + 1, and zero ends a chain.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tierstore.types import Int64Array, UInt64Array

__all__ = ["HashIndex", "as_keys", "identity_prefixes"]

_SPREAD = np.uint64(0x9E3779B97F4A7C15)
_FOUR_TRUE = 0x01010101
_SCALAR_BELOW = 6
"""Pending keys below which a scalar walk beats another vectorised round (measured by bench/mind.py)."""


def as_keys(hashes: NDArray[np.uint8]) -> UInt64Array:
    """View uint8[n, 32] block hashes as uint64[n, 4] without a copy."""
    return hashes.view(np.uint64)


def identity_prefixes(fingerprint: bytes, keys: UInt64Array) -> UInt64Array:
    """uint64[n] short names of uint64[n, 4] keys of one namespace: unique enough for advice, not for bytes."""
    return keys[:, 0] ^ np.frombuffer(fingerprint, np.uint64, count=1)


class HashIndex:
    """Chained hash table over entries 0 … capacity-1; holds at most `capacity` keys, each once."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        num_buckets = 1 << max(3, (capacity - 1).bit_length())
        self._shift = np.uint64(65 - num_buckets.bit_length())
        self._heads = np.zeros(num_buckets, np.int32)
        self._next = np.zeros(capacity, np.int32)
        self.keys = np.zeros((capacity, 4), np.uint64)
        self.generation = np.zeros(capacity, np.uint32)
        self._heads_view = self._heads.data
        self._next_view = self._next.data

    def _buckets(self, generation: int | NDArray[np.uint32], keys: UInt64Array) -> Int64Array:
        mixed = keys[:, 0] ^ keys[:, 1] ^ keys[:, 2] ^ keys[:, 3]
        mixed ^= np.asarray(generation, np.uint64)
        mixed *= _SPREAD
        mixed >>= self._shift
        return mixed.view(np.int64)

    def find(self, generation: int, keys: UInt64Array) -> Int64Array:
        """Entries of uint64[n, 4] keys, -1 where a key is not held."""
        found = np.full(len(keys), -1, np.int64)
        link = self._heads.take(self._buckets(generation, keys))
        pending = link.nonzero()[0]
        entry = link.take(pending).astype(np.int64) - 1
        wanted = keys.take(pending, axis=0)
        while len(pending) > _SCALAR_BELOW:
            same = self.hold(generation, wanted, entry)
            found[pending[same]] = entry[same]
            link = self._next.take(entry)
            deeper = (~same & (link != 0)).nonzero()[0]
            pending, wanted = pending.take(deeper), wanted.take(deeper, axis=0)
            entry = link.take(deeper).astype(np.int64) - 1
        for position, first in zip(pending.tolist(), entry.tolist(), strict=True):
            found[position] = self._walk(generation, keys[position], first)
        return found

    def hold(self, generation: int, keys: UInt64Array, entries: Int64Array) -> NDArray[np.bool_]:
        """Which entries hold the key at the same position. Four equal words give four true bytes, `_FOUR_TRUE`."""
        same: NDArray[np.bool_] = (self.keys.take(entries, axis=0) == keys).view(np.uint32)[:, 0] == _FOUR_TRUE
        same &= self.generation.take(entries) == generation
        return same

    def _walk(self, generation: int, key: UInt64Array, entry: int) -> int:
        wanted = key.tobytes()
        while entry >= 0:
            if self.generation[entry] == generation and self.keys[entry].tobytes() == wanted:
                return entry
            entry = self._next_view[entry] - 1
        return -1

    def insert(self, generation: int, keys: UInt64Array, entries: Int64Array) -> None:
        """Store distinct keys, not held yet, in free entries."""
        self.keys[entries] = keys
        self.generation[entries] = generation
        buckets = self._buckets(generation, keys)
        links = entries + 1
        self._next[entries] = self._heads[buckets]
        self._heads[buckets] = links
        # If several keys share a bucket, only the last has become its head: chain the others one by one.
        lost = (self._heads[buckets] != links).nonzero()[0]
        heads, chain = self._heads_view, self._next_view
        for bucket, link in zip(buckets[lost].tolist(), links[lost].tolist(), strict=True):
            chain[link - 1] = heads[bucket]
            heads[bucket] = link

    def remove(self, entries: Int64Array) -> None:
        """Take held entries' keys out."""
        buckets = self._buckets(self.generation.take(entries), self.keys.take(entries, axis=0))
        first = self._heads[buckets] == entries + 1
        self._heads[buckets[first]] = self._next[entries[first]]
        heads, chain = self._heads_view, self._next_view
        for bucket, entry in zip(buckets[~first].tolist(), entries[~first].tolist(), strict=True):
            link = entry + 1
            step = heads[bucket]
            if step == link:
                heads[bucket] = chain[entry]
                continue
            while chain[step - 1] != link:
                step = chain[step - 1]
                assert step, f"entry {entry} is not in bucket {bucket} of the index"
            chain[step - 1] = chain[entry]
