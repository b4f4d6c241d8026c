"""Allocates the slots of a pool. Pure: page numbers only, never the memory itself.

The pool is cut into slabs; a slab belongs to one slot class, or is still unclaimed. The planner takes
slots, gives them back, and drains a slab of one class to hand it to another. A slot is named by its first page
(offset / `PAGE_NBYTES`): int64 in every array here but the columns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tierstore.errors import ConfigError
from tierstore.settings import format_size
from tierstore.types import PAGE_NBYTES

if TYPE_CHECKING:
    from tierstore.types import Int32Array, Int64Array, UInt32Array

__all__ = ["SLABS_MIN", "SLAB_SLOTS_MIN", "SlotAllocator", "auto_slab_nbytes"]

SLABS_MIN = 4
"""Slabs that a pool must have."""

SLAB_SLOTS_MIN = 8
"""Slots that a slab must hold of any size, so that the unused tail of a slab is at most an eighth of it."""

_SLAB_NBYTES_MAX = 64 << 20
_NOBODY = -1
_SORTED_SLOTS = 1024
"""Length of the part of a free list that is kept sorted: merging into so many slots costs 2 microseconds."""


def auto_slab_nbytes(pool_nbytes: int) -> int:
    """Bytes of a slab by default: 64 MiB, or less in a small pool."""
    return max(PAGE_NBYTES, min(_SLAB_NBYTES_MAX, pool_nbytes // SLABS_MIN // PAGE_NBYTES * PAGE_NBYTES))


class _SlotClass:
    """One slot size: its counts and its free slots; the next to be taken are in order of address.

    The free list is at the end of its column and grows downwards: taking and adding are slices, and memory is
    touched only for as many slots as were ever free.
    """

    def __init__(self, *, slot_pages: int, slab_slots: int, slabs_max: int) -> None:
        self.slot_pages = slot_pages
        self.slab_slots = slab_slots
        self.num_slabs = 0
        self.num_used = 0
        self._column = np.empty(slab_slots * slabs_max, np.int32)
        self._first = len(self._column)

    @property
    def num_free(self) -> int:
        return len(self._column) - self._first

    @property
    def free_pages(self) -> Int64Array:
        return self._column[self._first :].astype(np.int64)

    def add(self, pages: Int64Array) -> None:
        first = self._first - len(pages)
        self._column[first : self._first] = pages
        self._first = first
        self._column[first : first + max(len(pages), _SORTED_SLOTS)].sort(kind="stable")  # merges what is in order

    def take(self, count: int) -> Int64Array:
        first = self._first
        self._first = min(first + count, len(self._column))
        return self._column[first : self._first].astype(np.int64)

    def keep(self, kept: Int64Array) -> None:
        self._first = len(self._column) - len(kept)
        self._column[self._first :] = kept


class SlotAllocator:
    """Slots of several sizes in one pool.

    Every slab is unclaimed, or owned by one class. An owned slab may be draining towards another class: its free
    slots are withheld, and it is handed over when its last used slot comes back.

    Args:
        pool_nbytes: Size of the pool; the rest behind the last whole slab is not used.
        slab_nbytes: Size of a slab; a multiple of `PAGE_NBYTES`.

    Attributes:
        generations: uint32[pool pages]; the number at a slot's first page changes whenever the slot is given to another
            block. The array may be placed in memory that other processes map.

    Raises:
        ConfigError: The slab is no whole number of pages, or the pool has fewer than `SLABS_MIN` slabs, or
            more pages than an int32 can count.
    """

    def __init__(self, *, pool_nbytes: int, slab_nbytes: int) -> None:
        if slab_nbytes < PAGE_NBYTES or slab_nbytes % PAGE_NBYTES:
            raise ConfigError(
                f"[host] slab_size is {slab_nbytes} bytes; it must be a positive multiple of {PAGE_NBYTES} bytes"
            )
        if pool_nbytes < SLABS_MIN * slab_nbytes:
            most = pool_nbytes // SLABS_MIN // PAGE_NBYTES * PAGE_NBYTES
            raise ConfigError(
                f"[host] size is {format_size(pool_nbytes)}, less than {SLABS_MIN} slabs of {format_size(slab_nbytes)};"
                f" set it to at least {format_size(SLABS_MIN * slab_nbytes)}"
                + (f", or [host] slab_size to at most {format_size(most)}" if most else "")
            )
        if pool_nbytes > PAGE_NBYTES << 31:
            raise ConfigError(
                f"[host] size is {format_size(pool_nbytes)}; set it to at most {format_size(PAGE_NBYTES << 31)}"
            )
        self.slab_nbytes = slab_nbytes
        self.capacity_slabs = pool_nbytes // slab_nbytes
        self._slab_pages = slab_nbytes // PAGE_NBYTES
        self._num_claimed = 0  # slabs are claimed in order of address and never become unclaimed again
        self._owner = np.full(self.capacity_slabs, _NOBODY, np.int32)
        self._next_owner = np.full(self.capacity_slabs, _NOBODY, np.int32)
        self._used = np.zeros(self.capacity_slabs, np.int64)
        self._is_used = np.zeros(self.capacity_slabs * self._slab_pages, np.bool_)  # at a used slot's first page
        self.generations: UInt32Array = np.zeros(len(self._is_used), np.uint32)
        self._classes: list[_SlotClass] = []
        self._class_of_nbytes: dict[int, int] = {}

    def open_class(self, slot_nbytes: int) -> int:
        """The class of this slot size; it is created, without a slab, if it is new.

        Raises:
            ConfigError: A slab would hold fewer than `SLAB_SLOTS_MIN` slots.
        """
        assert slot_nbytes > 0, f"a slot of {slot_nbytes} bytes"
        assert slot_nbytes % PAGE_NBYTES == 0, f"a slot of {slot_nbytes} bytes; it must be whole pages of {PAGE_NBYTES}"
        if slot_nbytes in self._class_of_nbytes:
            return self._class_of_nbytes[slot_nbytes]
        slab_nbytes_min = SLAB_SLOTS_MIN * slot_nbytes
        if slab_nbytes_min > self.slab_nbytes:
            raise ConfigError(
                f"a block needs a slot of {format_size(slot_nbytes)}, more than an eighth of a slab of "
                f"{format_size(self.slab_nbytes)}; set [host] slab_size to at least {format_size(slab_nbytes_min)} and "
                f"[host] size to at least {format_size(SLABS_MIN * slab_nbytes_min)}, or use fewer tokens a block"
            )
        self._classes.append(
            _SlotClass(
                slot_pages=slot_nbytes // PAGE_NBYTES,
                slab_slots=self.slab_nbytes // slot_nbytes,
                slabs_max=self.capacity_slabs,
            )
        )
        self._class_of_nbytes[slot_nbytes] = len(self._classes) - 1
        return self._class_of_nbytes[slot_nbytes]

    def take(self, slot_class: int, count: int) -> Int64Array:
        """Take up to `count` slots, returned ascending; claims unclaimed slabs once the class's own run out."""
        own = self._classes[slot_class]
        parts = [own.take(count)]
        missing = count - len(parts[0])
        while missing and self._num_claimed < self.capacity_slabs:
            self._give_slab(self._num_claimed, slot_class)
            self._num_claimed += 1
            parts.append(own.take(missing))
            missing -= len(parts[-1])
        pages = parts[0] if len(parts) == 1 else np.concatenate(parts)
        if not len(pages):
            return pages
        pages.sort()
        self._is_used[pages] = True
        self.generations[pages] += 1
        self._used += np.bincount(self.slab_of(pages), minlength=self.capacity_slabs)
        own.num_used += len(pages)
        return pages

    def give_back(self, slot_class: int, pages: Int32Array | Int64Array) -> None:
        """Give used slots back, in any order. A draining slab is handed over with its last used slot."""
        pages = np.sort(pages).astype(np.int64)
        slabs = self.slab_of(pages)
        count = np.count_nonzero
        assert count(self._is_used[pages]) == len(pages), f"not in use: {pages[~self._is_used[pages]]}"
        assert not count(pages[1:] == pages[:-1]), f"a slot is given back twice: {pages}"
        assert not count(self._owner[slabs] != slot_class), f"slots of another class than {slot_class}: {pages}"
        self._is_used[pages] = False
        self._used -= np.bincount(slabs, minlength=self.capacity_slabs)
        own = self._classes[slot_class]
        own.num_used -= len(pages)
        if len(self._classes) == 1:  # so no slab is draining
            own.add(pages)
            return
        withheld = self._next_owner[slabs] != _NOBODY
        own.add(pages[~withheld])
        for slab in set(slabs[withheld].tolist()):
            self._hand_over_if_empty(slab)

    def begin_drain(self, slab: int, to_class: int) -> None:
        """Withhold a slab's slots from its class, and give it to another once all are free, which may be at once."""
        slot_class = int(self._owner[slab])
        assert slot_class not in (_NOBODY, to_class), f"slab {slab} of class {slot_class} cannot go to {to_class}"
        assert self._next_owner[slab] == _NOBODY, f"slab {slab} is draining already"
        assert self.num_slabs(slot_class) > 1, f"slab {slab} is the last of class {slot_class}"
        own = self._classes[slot_class]
        own.keep(own.free_pages[self.slab_of(own.free_pages) != slab])
        own.num_slabs -= 1
        self._next_owner[slab] = to_class
        self._hand_over_if_empty(slab)

    def idle_slab(self, to_class: int) -> int:
        """A slab of another class without used slots, not its last one; or -1. `begin_drain` hands it over at once."""
        if len(self._classes) == 1:
            return -1
        idle = (self._used == 0) & (self._owner != _NOBODY) & (self._owner != to_class)
        for slab in np.flatnonzero(idle).tolist():
            if self.num_slabs(int(self._owner[slab])) > 1:
                return slab
        return -1

    def free(self, slot_class: int) -> int:
        """Slots that `take` could hand out now, unclaimed slabs included."""
        unclaimed = self.capacity_slabs - self._num_claimed
        own = self._classes[slot_class]
        return own.num_free + unclaimed * own.slab_slots

    def used(self, slot_class: int) -> int:
        """Slots handed out and not given back, those in draining slabs included."""
        return self._classes[slot_class].num_used

    @property
    def num_used(self) -> int:
        """Slots of any size handed out and not given back."""
        return sum(own.num_used for own in self._classes)

    @property
    def num_free(self) -> int:
        """Slots of any size that are free; unclaimed slabs count as slots of the largest."""
        unclaimed = self.capacity_slabs - self._num_claimed
        return sum(own.num_free for own in self._classes) + unclaimed * min(
            (own.slab_slots for own in self._classes), default=0
        )

    def num_slabs(self, slot_class: int) -> int:
        """Slabs that serve the class; a draining one serves none."""
        return self._classes[slot_class].num_slabs

    @property
    def draining(self) -> dict[int, int]:
        """Slabs that are draining, with the class each will go to."""
        slabs = np.flatnonzero(self._next_owner != _NOBODY)
        return dict(zip(slabs.tolist(), self._next_owner[slabs].tolist(), strict=True))

    def slab_of(self, pages: Int32Array | Int64Array) -> Int64Array:
        """The slab of each page."""
        slabs: Int64Array = pages // np.int64(self._slab_pages)
        return slabs

    def slots_of(self, slab: int) -> Int64Array:
        """Every slot of a claimed slab, used or not, ascending."""
        slot_class = int(self._owner[slab])
        assert slot_class != _NOBODY, f"slab {slab} is not claimed"
        own = self._classes[slot_class]
        first = slab * self._slab_pages
        return np.arange(first, first + own.slab_slots * own.slot_pages, own.slot_pages)

    def check(self) -> None:
        """Assert that free + used + withheld is every slot of every claimed slab, and that none is there twice."""
        used = self._is_used.reshape(self.capacity_slabs, self._slab_pages).sum(axis=1)
        claimed = np.arange(self.capacity_slabs) < self._num_claimed
        draining = self._next_owner != _NOBODY
        assert np.array_equal(used, self._used), "the counts of used slots are not what is used"
        assert np.array_equal(self._owner != _NOBODY, claimed), "claimed slabs and owned slabs differ"
        assert not self._used[~claimed].any(), "an unclaimed slab has used slots"
        assert self._used[draining].all(), "an empty slab is still draining"
        for slot_class, own in enumerate(self._classes):
            owned = self._owner == slot_class
            serving = np.flatnonzero(owned & ~draining).tolist()
            slots = np.concatenate([np.empty(0, np.int64), *map(self.slots_of, serving)])
            free = slots[~self._is_used[slots]]
            assert np.array_equal(np.sort(own.free_pages), free), f"class {slot_class} lists as free what is not"
            assert own.num_used == self._used[owned].sum(), f"class {slot_class} counts {own.num_used} used slots"
            assert own.num_slabs == len(serving), f"class {slot_class} counts {own.num_slabs} slabs"
            assert serving or not owned.any(), f"class {slot_class} has no slab left that serves it"

    def _give_slab(self, slab: int, slot_class: int) -> None:
        self._owner[slab] = slot_class
        self._next_owner[slab] = _NOBODY
        own = self._classes[slot_class]
        own.num_slabs += 1
        own.add(self.slots_of(slab))
        first = slab * self._slab_pages
        self.generations[first : first + self._slab_pages] += 1  # also at the first pages of its former slots

    def _hand_over_if_empty(self, slab: int) -> None:
        if self._used[slab] == 0:
            self._give_slab(slab, int(self._next_owner[slab]))
