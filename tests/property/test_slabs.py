"""Whatever is taken, given back and drained, every slot is in one place and every byte in one slot."""

from __future__ import annotations

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tierstore.control.slabs import SlotAllocator
from tierstore.types import PAGE_NBYTES

SLOT_PAGES = (1, 2, 3)
SLAB_PAGES = 25
SLABS = 6


class Slabs(RuleBasedStateMachine):
    @initialize()
    def open_a_pool(self) -> None:
        self.slots = SlotAllocator(pool_nbytes=SLABS * SLAB_PAGES * PAGE_NBYTES, slab_nbytes=SLAB_PAGES * PAGE_NBYTES)
        self.classes = [self.slots.open_class(pages * PAGE_NBYTES) for pages in SLOT_PAGES]
        self.owner_of: dict[int, int] = {}
        """The class of the slot in use that covers a page of the pool."""
        self.used: list[list[int]] = [[] for _ in SLOT_PAGES]

    @rule(slot_class=st.sampled_from(range(len(SLOT_PAGES))), count=st.integers(0, 60))
    def take(self, slot_class: int, count: int) -> None:
        free = self.slots.free(slot_class)
        taken = self.slots.take(slot_class, count).tolist()
        assert len(taken) == min(count, free)
        assert taken == sorted(taken)
        for first in taken:
            assert first // SLAB_PAGES == (first + SLOT_PAGES[slot_class] - 1) // SLAB_PAGES
            for page in range(first, first + SLOT_PAGES[slot_class]):
                assert page not in self.owner_of, f"page {page} is in two slots"
                self.owner_of[page] = slot_class
        self.used[slot_class] += taken

    @rule(slot_class=st.sampled_from(range(len(SLOT_PAGES))), data=st.data())
    def give_back(self, slot_class: int, data: st.DataObject) -> None:
        used = self.used[slot_class]
        order = data.draw(st.permutations(used))
        given = order[: data.draw(st.integers(0, len(order)))]
        self.slots.give_back(slot_class, np.array(given, np.int32))
        for first in given:
            used.remove(first)
            for page in range(first, first + SLOT_PAGES[slot_class]):
                del self.owner_of[page]

    @precondition(lambda self: self.drains())
    @rule(data=st.data())
    def begin_drain(self, data: st.DataObject) -> None:
        slab, to_class = data.draw(st.sampled_from(self.drains()))
        idle = not any(page in self.owner_of for page in range(slab * SLAB_PAGES, (slab + 1) * SLAB_PAGES))
        before = self.slots.num_slabs(to_class)
        self.slots.begin_drain(slab, to_class)
        assert (slab in self.slots.draining) == (not idle)
        assert self.slots.num_slabs(to_class) == before + idle

    @precondition(lambda self: self.slots.draining)
    @rule(data=st.data())
    def end_drain(self, data: st.DataObject) -> None:
        slab, to_class = data.draw(st.sampled_from(sorted(self.slots.draining.items())))
        for slot_class, used in enumerate(self.used):
            inside = [page for page in used if page // SLAB_PAGES == slab]
            self.slots.give_back(slot_class, np.array(inside, np.int32))
            for first in inside:
                used.remove(first)
                for page in range(first, first + SLOT_PAGES[slot_class]):
                    del self.owner_of[page]
        assert slab not in self.slots.draining
        assert len(self.slots.slots_of(slab)) == SLAB_PAGES // SLOT_PAGES[to_class]

    def drains(self) -> list[tuple[int, int]]:
        """Every drain that may begin now."""
        donors = [
            (slab, slot_class)
            for slab in range(SLABS)
            for slot_class in self.classes
            if slab not in self.slots.draining
            and self.owner(slab) == slot_class
            and self.slots.num_slabs(slot_class) > 1
        ]
        return [(slab, other) for slab, donor in donors for other in self.classes if other != donor]

    def owner(self, slab: int) -> int:
        return int(self.slots._owner[slab])

    @invariant()
    def all_slots_are_in_one_place(self) -> None:
        self.slots.check()
        for slot_class, used in enumerate(self.used):
            assert self.slots.used(slot_class) == len(used)
        for slab in self.slots.draining:
            assert any(page in self.owner_of for page in self.slots.slots_of(slab).tolist())


TestSlabs = Slabs.TestCase
TestSlabs.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
