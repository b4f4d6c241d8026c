"""The look-ahead window: which blocks waiting requests will need, the nearest first. Pure; held by the directory.

A waiting request is stored as hints of at most a slice of its blocks each, ordered by turn. A block that several
hints name belongs to the one whose turn comes first; the others (mentions) are kept in order of arrival, and the
block passes to the next when its hint leaves. The directory's column `next_use` stores the number of the hint that a
held block belongs to, 0 for none. Blocks that the directory does not hold are kept here until it does. The window
orders its blocks for eviction from each pool and for fetching; it moves nothing and evicts nothing.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from tierstore.control.index import HashIndex
from tierstore.control.numbers import Numbers
from tierstore.types import TierName

if TYPE_CHECKING:
    from tierstore.control.entry import Places
    from tierstore.control.requests import Request
    from tierstore.types import Int64Array, UInt32Array, UInt64Array

__all__ = ["NEVER", "Hint", "Window"]

NEVER = 1 << 32
"""A turn later than that of any request."""


@dataclass(slots=True, eq=False)
class Hint:
    """Up to a slice of the blocks that a waiting request will ask for.

    Attributes:
        number: Unique in one run, from 1; later ones are higher.
        turn: The request's turn; smaller is sooner.
        request: Its blocks, as the request that reads them ahead.
        slots: int64[n]; the window's slot of each block.
        mentions: int64[n]; the window's record that this hint names each block.
        previous: The hint of the blocks before these in the same request.
        whole: Whether all its blocks were usable when last looked at; if not, later hints of the request are skipped.
        offered: Pools in which it is listed as one that may have evictable blocks.
        wanted: Whether it is listed as one that may have blocks to fetch.
    """

    number: int
    turn: int
    request: Request
    slots: Int64Array
    mentions: Int64Array
    previous: Hint | None
    whole: bool = True
    offered: set[TierName] = field(default_factory=set)
    wanted: bool = False


class Window:
    """Hinted blocks, and the hints that name them.

    Args:
        capacity: Mentions of blocks it can hold; callers drop hints beyond that.
        next_use: uint32 column of the directory, kept up to date here.
        pools: The directory's places in each pool that blocks are evicted from; only read.
    """

    def __init__(self, capacity: int, next_use: UInt32Array, pools: Mapping[TierName, Places]) -> None:
        self._next_use = next_use
        self._pools = pools
        self._index = HashIndex(capacity)
        self._slots = Numbers(capacity)
        self._entry = np.zeros(capacity, np.int32)  # entry + 1; 0 where the directory does not hold the block
        self._first = np.zeros(capacity, np.int32)  # mention + 1
        self._last = np.zeros(capacity, np.int32)
        self._mentions = Numbers(capacity)
        self._hint = np.zeros(capacity, np.uint32)
        self._turn = np.zeros(capacity, np.uint32)
        self._following = np.zeros(capacity, np.int32)  # mention + 1
        self._over = np.zeros(capacity, np.bool_)
        self._hints: dict[int, Hint] = {}
        self._last_number = 0
        self._furthest: dict[tuple[TierName, int], list[tuple[int, int, Hint]]] = {}
        self._nearest: list[tuple[int, int, Hint]] = []

    @property
    def room(self) -> int:
        """Mentions that `add` can still take."""
        return self._mentions.room

    @property
    def num_blocks(self) -> int:
        """Distinct blocks in the window, whether the directory holds them or not."""
        return self._slots.num_used

    def add(self, request: Request, turn: int, entries: Int64Array, previous: Hint | None) -> tuple[Hint, Int64Array]:
        """Enter distinct blocks of a waiting request. Needs `room`.

        Args:
            request: Its hashes are the blocks, in prefix order.
            turn: The turn of the waiting request.
            entries: int64[n] of the directory; -1 where it does not hold a block.
            previous: The hint of the blocks before these.

        Returns:
            The hint, and the entries that are new in the window: the policy may not evict them from now on.
        """
        self._last_number += 1
        number = self._last_number
        slots = self._open_slots(request.life.number, request.keys, entries)
        mentions = self._mentions.take(len(slots))
        self._hint[mentions] = number
        self._turn[mentions] = turn
        self._over[mentions] = False
        links, heads = mentions + 1, self._first[slots].astype(np.int64)
        alone = heads == 0
        first = alone | (self._turn[heads - 1] > turn)
        self._following[mentions] = np.where(first, heads, 0)
        self._first[slots[first]] = links[first]
        self._last[slots[alone]] = links[alone]
        behind = slots[~first]
        self._following[self._last[behind].astype(np.int64) - 1] = links[~first]
        self._last[behind] = links[~first]
        hint = self._hints[number] = Hint(number, turn, request, slots, mentions, previous)
        held = self._held(slots[first])
        fresh = held[self._next_use[held] == 0]
        self._next_use[held] = number
        self._offer_loose(held)
        self._want(hint)
        return hint, fresh

    def _open_slots(self, generation: int, keys: UInt64Array, entries: Int64Array) -> Int64Array:
        slots = self._index.find(generation, keys)
        new = slots < 0
        fresh = self._slots.take(int(np.count_nonzero(new)))
        self._index.insert(generation, keys[new], fresh)
        self._entry[fresh] = entries[new] + 1
        slots[new] = fresh
        return slots

    def remove(self, hint: Hint) -> Int64Array:
        """Remove a hint: its blocks pass to the next hint that names them. Returns the entries that none names."""
        del self._hints[hint.number]
        self._over[hint.mentions] = True
        slots = hint.slots
        before, pending = self._first[slots], slots
        while len(pending):
            heads = self._first[pending].astype(np.int64)
            over = heads > 0
            over &= self._over[heads - 1]
            pending = pending[over]
            ended = heads[over] - 1
            self._first[pending] = self._following[ended]
            self._mentions.give_back(ended)
        after = self._first[slots]
        passed = slots[(after != before) & (after != 0)]
        taken = passed[self._entry[passed] > 0]
        entries = self._entry[taken].astype(np.int64) - 1
        self._next_use[entries] = self._hint[self._first[taken] - 1]
        self._offer_loose(entries)
        return self._close_slots(slots[after == 0])

    def _close_slots(self, slots: Int64Array) -> Int64Array:
        left = self._held(slots)
        self._next_use[left] = 0
        self._last[slots] = 0
        self._entry[slots] = 0
        self._index.remove(slots)
        self._slots.give_back(slots)
        return left

    def _held(self, slots: Int64Array) -> Int64Array:
        entries = self._entry[slots].astype(np.int64)
        held: Int64Array = entries[entries > 0] - 1
        return held

    def meet(self, generation: int, keys: UInt64Array, entries: Int64Array) -> None:
        """The directory holds new blocks: link those that hints name to their entries."""
        self._next_use[entries] = 0
        if not self._hints:
            return
        slots = self._index.find(generation, keys)
        known = (slots >= 0).nonzero()[0]
        slots, entries = slots[known], entries[known]
        self._entry[slots] = entries + 1
        self._next_use[entries] = self._hint[self._first[slots] - 1]

    def part(self, generation: int, keys: UInt64Array, entries: Int64Array) -> None:
        """The directory holds these blocks of the window no longer; their hints keep naming them."""
        self._next_use[entries] = 0
        self._entry[self._index.find(generation, keys)] = 0

    def turns(self, generation: int, keys: UInt64Array) -> UInt32Array:
        """The turn of the hint that each block belongs to, given uint64[n, 4] keys; 0 where none names it."""
        slots = self._index.find(generation, keys)
        turns = self._turn[self._first[slots] - 1]
        turns[slots < 0] = 0
        return turns

    def entries(self, hint: Hint) -> Int64Array:
        """int64[n]; the directory's entries of a hint's blocks, -1 where it does not hold one."""
        return self._entry[hint.slots].astype(np.int64) - 1

    def _offer_loose(self, entries: Int64Array) -> None:
        """Offer those of these blocks that are evictable, in every pool that holds them."""
        for pool, places in self._pools.items():
            self.offer(entries[places.loose(entries)], pool)

    def offer(self, entries: Int64Array, pool: TierName = TierName.HOST) -> None:
        """Blocks of the window, given by entry, may have become evictable in a pool."""
        if not self._hints:
            return
        for number in sorted(set(self._next_use[entries].tolist())):
            hint = self._hints.get(number)
            if hint is not None and pool not in hint.offered:
                hint.offered.add(pool)
                furthest = self._furthest.setdefault((pool, hint.request.life.class_in(pool)), [])
                self._list(furthest, (-hint.turn, -hint.number, hint))

    def victims(
        self, slot_class: int, count: int, *, after_turn: int = 0, pool: TierName = TierName.HOST
    ) -> Int64Array:
        """Up to `count` evictable blocks of the window in a pool, the latest turn and the tail first.

        Only turns after `after_turn` count. The blocks stay in the window until the caller evicts them.
        """
        furthest, found = self._furthest.get((pool, slot_class), []), [np.empty(0, np.int64)]
        while furthest and count and -furthest[0][0] > after_turn:
            hint = furthest[0][2]
            entries = self.entries(hint)
            entries = entries[entries >= 0]
            own = entries[(self._next_use[entries] == hint.number) & self._pools[pool].loose(entries)][::-1]
            found.append(own[:count])
            if len(own) > count:
                break
            count -= len(own)
            heapq.heappop(furthest)
            hint.offered.remove(pool)
        return np.concatenate(found)

    def evicted(self, entries: Int64Array) -> None:
        """Blocks of the window were evicted from a pool: list their hints to be fetched again."""
        for number in sorted(set(self._next_use[entries].tolist())):
            hint = self._hints.get(number)
            if hint is not None:
                self._want(hint)

    def _want(self, hint: Hint) -> None:
        if not hint.wanted:
            hint.wanted = True
            self._list(self._nearest, (hint.turn, hint.number, hint))

    def _list(self, heap: list[tuple[int, int, Hint]], row: tuple[int, int, Hint]) -> None:
        """Add a row to a heap; purge the rows of removed hints once they may be the majority."""
        if len(heap) > 2 * len(self._hints):
            heap[:] = [row for row in heap if row[2].number in self._hints]
            heapq.heapify(heap)
        heapq.heappush(heap, row)

    def nearest(self) -> Hint | None:
        """The hint of the nearest turn that may have blocks to fetch."""
        while self._nearest and self._nearest[0][2].request.done:
            self.fetched()
        return self._nearest[0][2] if self._nearest else None

    def fetched(self) -> None:
        """Nothing is left to fetch for the `nearest` hint."""
        heapq.heappop(self._nearest)[2].wanted = False

    def check(self, index: HashIndex) -> None:
        """Assert that every list is whole and that the column says what the lists say.

        Args:
            index: The directory's.
        """
        slots = self._slots.used()
        heads = self._first[slots]
        assert (heads > 0).all(), "a block is in the window and nobody waits for it"
        assert not self._over[heads - 1].any(), "a block counts with a hint that has left"
        held = slots[self._entry[slots] > 0]
        entries = self._entry[held].astype(np.int64) - 1
        assert (self._next_use[entries] == self._hint[self._first[held] - 1]).all(), "next_use is not the first hint"
        assert np.count_nonzero(self._next_use) == len(entries), "next_use of a block that nobody waits for"
        assert (self._index.keys[held] == index.keys[entries]).all(), "a slot of the window holds another block's entry"
        for pool, places in self._pools.items():
            for number in np.unique(self._next_use[entries[places.loose(entries)]]).tolist():
                listed = pool in self._hints[number].offered
                assert listed, f"hint {number} has evictable blocks in {pool} and is not listed"
        links, num_mentions = self._first[slots], 0
        while len(links):
            num_mentions += len(links)
            links = self._following[links - 1]
            links = links[links > 0]
        assert num_mentions == self._mentions.num_used, f"{num_mentions} of {self._mentions.num_used} mentions listed"
