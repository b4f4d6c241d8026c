"""Slots, classes and slabs changing hands."""

from __future__ import annotations

import numpy as np
import pytest

from tierstore.control.slabs import SLAB_SLOTS_MIN, SLABS_MIN, SlotAllocator
from tierstore.errors import ConfigError
from tierstore.types import PAGE_NBYTES

SLAB_PAGES = 16


def pool(*, slabs: int = 4) -> SlotAllocator:
    return SlotAllocator(pool_nbytes=slabs * SLAB_PAGES * PAGE_NBYTES, slab_nbytes=SLAB_PAGES * PAGE_NBYTES)


def test_takes_the_lowest_slots_first() -> None:
    slots = pool()
    small = slots.open_class(PAGE_NBYTES)
    assert slots.take(small, 3).tolist() == [0, 1, 2]
    assert slots.take(small, 2).tolist() == [3, 4]


def test_places_are_int64_page_numbers_a_slot_apart() -> None:
    slots = pool()
    pages = slots.take(slots.open_class(2 * PAGE_NBYTES), 3)
    assert pages.dtype == np.int64
    assert pages.tolist() == [0, 2, 4]


def test_a_size_has_one_class_however_often_it_is_opened() -> None:
    slots = pool()
    small, large = slots.open_class(PAGE_NBYTES), slots.open_class(2 * PAGE_NBYTES)
    assert slots.open_class(PAGE_NBYTES) == small != large == slots.open_class(2 * PAGE_NBYTES)


def test_what_comes_back_in_any_order_goes_out_as_a_run() -> None:
    slots = pool()
    small = slots.open_class(PAGE_NBYTES)
    pages = slots.take(small, 48)
    for piece in np.array_split(np.random.default_rng(0).permutation(pages), 7):
        slots.give_back(small, piece)
    assert slots.take(small, 20).tolist() == list(range(20))


def test_hands_out_in_order_of_address_however_much_is_free() -> None:
    slots = SlotAllocator(pool_nbytes=4 * 2048 * PAGE_NBYTES, slab_nbytes=2048 * PAGE_NBYTES)
    small = slots.open_class(PAGE_NBYTES)
    pages = slots.take(small, 4096)
    slots.give_back(small, pages[:2048])
    slots.give_back(small, pages[2048:])
    assert slots.take(small, 4096).tolist() == pages.tolist()


def test_takes_own_free_slots_before_it_claims_a_slab() -> None:
    slots = pool()
    small = slots.open_class(PAGE_NBYTES)
    slots.give_back(small, slots.take(small, SLAB_PAGES)[5:6])
    assert slots.take(small, 3).tolist() == [5, 16, 17]


def test_a_slot_that_does_not_divide_its_slab_never_straddles_two() -> None:
    slots = SlotAllocator(pool_nbytes=4 * 25 * PAGE_NBYTES, slab_nbytes=25 * PAGE_NBYTES)
    pages = slots.take(slots.open_class(3 * PAGE_NBYTES), 100)
    assert len(pages) == 4 * 8
    assert (slots.slab_of(pages) == slots.slab_of(pages + np.int32(2))).all()


def test_gives_what_there_is_where_more_is_asked_for() -> None:
    slots = pool()
    small, large = slots.open_class(PAGE_NBYTES), slots.open_class(2 * PAGE_NBYTES)
    assert len(slots.take(small, 3 * SLAB_PAGES)) == 48
    assert (slots.free(small), slots.free(large)) == (16, 8)
    assert len(slots.take(large, 100)) == 8
    assert len(slots.take(small, 1)) == len(slots.take(large, 1)) == 0
    assert (slots.used(small), slots.used(large), slots.num_slabs(small), slots.num_slabs(large)) == (48, 8, 3, 1)


def test_a_drained_slab_changes_hands_when_its_last_slot_is_back() -> None:
    slots = pool()
    small, large = slots.open_class(PAGE_NBYTES), slots.open_class(2 * PAGE_NBYTES)
    pages = slots.take(small, 4 * SLAB_PAGES - 3)
    slots.begin_drain(3, large)
    assert slots.draining == {3: large}
    assert slots.free(small) == 0
    inside = pages[slots.slab_of(pages) == 3]
    slots.give_back(small, np.append(inside[1:], np.int32(0)))
    assert (slots.free(small), slots.free(large)) == (1, 0)
    slots.give_back(small, inside[:1])
    assert slots.draining == {}
    assert slots.take(large, 9).tolist() == slots.slots_of(3).tolist() == list(range(48, 64, 2))
    assert (slots.num_slabs(small), slots.num_slabs(large)) == (3, 1)


def test_an_idle_slab_changes_hands_at_once() -> None:
    slots = pool()
    small, large = slots.open_class(PAGE_NBYTES), slots.open_class(2 * PAGE_NBYTES)
    slots.give_back(small, slots.take(small, 4 * SLAB_PAGES)[20:])
    assert slots.idle_slab(small) == -1
    assert slots.idle_slab(large) == 2
    slots.begin_drain(2, large)
    assert (slots.draining, slots.free(large), slots.free(small)) == ({}, 8, 28)
    slots.check()


def test_a_class_keeps_its_last_slab() -> None:
    slots = pool()
    small, large = slots.open_class(PAGE_NBYTES), slots.open_class(2 * PAGE_NBYTES)
    slots.give_back(small, slots.take(small, 1))
    assert slots.idle_slab(large) == -1
    with pytest.raises(AssertionError, match="slab 0 is the last of class 0"):
        slots.begin_drain(0, large)


def test_a_slab_drains_to_one_class_at_a_time_and_never_to_its_own() -> None:
    slots = pool()
    small, large = slots.open_class(PAGE_NBYTES), slots.open_class(2 * PAGE_NBYTES)
    slots.take(small, 2 * SLAB_PAGES)
    with pytest.raises(AssertionError, match="slab 0 of class 0 cannot go to 0"):
        slots.begin_drain(0, small)
    with pytest.raises(AssertionError, match="slab 2 of class -1 cannot go to 1"):
        slots.begin_drain(2, large)
    slots.begin_drain(0, large)
    with pytest.raises(AssertionError, match="slab 0 is draining already"):
        slots.begin_drain(0, large)


@pytest.mark.parametrize(
    ("pages", "message"),
    [([1, 1], "given back twice"), ([1, 9], r"not in use: \[9\]"), ([1, 16], "of another class than 0")],
)
def test_refuses_slots_that_it_did_not_hand_out(pages: list[int], message: str) -> None:
    slots = pool()
    small, large = slots.open_class(PAGE_NBYTES), slots.open_class(PAGE_NBYTES * 2)
    slots.take(small, 3)
    slots.take(large, 8)
    with pytest.raises(AssertionError, match=message):
        slots.give_back(small, np.array(pages, np.int32))


def test_check_notices_a_slot_that_is_free_and_used() -> None:
    slots = pool()
    small = slots.open_class(PAGE_NBYTES)
    slots.take(small, 3)
    slots.check()
    slots._classes[small].add(np.array([1], np.int32))
    with pytest.raises(AssertionError, match="class 0 lists as free what is not"):
        slots.check()


def test_a_pool_of_too_few_slabs_names_the_settings() -> None:
    with pytest.raises(ConfigError, match=r"\[host\] size is 64 KiB, less than 4 slabs of 32 KiB; .* 128 KiB.* 16 KiB"):
        SlotAllocator(pool_nbytes=65536, slab_nbytes=32768)


def test_a_slab_that_is_no_number_of_pages_names_the_setting() -> None:
    with pytest.raises(ConfigError, match=r"\[host\] slab_size is 5000 bytes"):
        SlotAllocator(pool_nbytes=1 << 20, slab_nbytes=5000)


def test_a_pool_beyond_int32_pages_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"at most 8 TiB"):
        SlotAllocator(pool_nbytes=(8 << 40) + (1 << 30), slab_nbytes=1 << 30)


def test_a_slot_too_large_for_its_slab_names_the_settings() -> None:
    slots = pool()
    slots.open_class(SLAB_PAGES // SLAB_SLOTS_MIN * PAGE_NBYTES)
    with pytest.raises(ConfigError, match=r"a slot of 12 KiB.*slab_size to at least 96 KiB .* 384 KiB"):
        slots.open_class(3 * PAGE_NBYTES)


def test_a_slot_that_is_no_number_of_pages_is_refused() -> None:
    with pytest.raises(AssertionError, match="whole pages"):
        pool().open_class(PAGE_NBYTES + 1)


def test_what_is_left_beyond_the_last_slab_is_not_used() -> None:
    slots = SlotAllocator(pool_nbytes=(SLABS_MIN * 16 + 15) * PAGE_NBYTES, slab_nbytes=16 * PAGE_NBYTES)
    assert slots.capacity_slabs == SLABS_MIN
    assert len(slots.take(slots.open_class(PAGE_NBYTES), 100)) == 64


def test_a_slot_has_another_generation_each_time_it_is_taken() -> None:
    slots = pool()
    small = slots.open_class(PAGE_NBYTES)
    pages = slots.take(small, 4)
    first = slots.generations[pages].copy()
    slots.give_back(small, pages)
    slots.take(small, 2)
    assert (slots.generations[pages] != first).tolist() == [True, True, False, False]


def test_a_slab_that_changes_hands_changes_the_generation_of_every_slot_that_was_in_it() -> None:
    slots = pool()
    small, large = slots.open_class(PAGE_NBYTES), slots.open_class(2 * PAGE_NBYTES)
    pages = slots.take(small, 4 * SLAB_PAGES)
    first = slots.generations.copy()
    slots.give_back(small, pages[:SLAB_PAGES])
    slots.begin_drain(0, large)
    assert (slots.generations != first).nonzero()[0].tolist() == list(range(SLAB_PAGES))
