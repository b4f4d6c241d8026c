"""The order that `Lru` keeps, beyond what every policy must do."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tierstore.policy.lru import Lru
from tierstore.testing.contracts.policy import MODEL_CAPACITY, PolicyModel, batches, pack


def victims(lru: Lru, count: int) -> list[int]:
    found = lru.victims(count)
    assert found is not None
    return list(found.tolist())


def lru_of(*entries: int) -> Lru:
    lru = Lru(8)
    lru.insert(pack(entries))
    return lru


def test_names_the_least_recently_used_first() -> None:
    lru = lru_of(3, 1, 2)
    lru.touch(pack([3]))
    assert victims(lru, 3) == [1, 2, 3]


def test_touches_a_batch_in_its_order() -> None:
    lru = lru_of(0, 1, 2, 3)
    lru.touch(pack([2, 0]))
    assert victims(lru, 4) == [1, 3, 2, 0]


def test_counts_an_entry_touched_twice_where_it_came_last() -> None:
    lru = lru_of(0, 1, 2)
    lru.touch(pack([0, 1, 0]))
    assert victims(lru, 3) == [2, 1, 0]


def test_an_exposed_entry_has_kept_its_age() -> None:
    lru = lru_of(0, 1, 2)
    lru.set_evictable(pack([0]), False)
    assert victims(lru, 2) == [1, 2]
    lru.set_evictable(pack([0]), True)
    assert victims(lru, 3) == [0, 1, 2]


def test_counts_a_shielded_entry_named_twice_once() -> None:
    lru = lru_of(0, 1, 2)
    lru.set_evictable(pack([0, 0]), False)
    assert lru.num_evictable == 2


def test_takes_a_reversed_view() -> None:
    lru = Lru(8)
    lru.insert(pack([0, 1, 2])[::-1])
    assert victims(lru, 3) == [2, 1, 0]


@given(batches, st.integers(0, MODEL_CAPACITY))
def test_agrees_with_an_ordered_dict(history: list[tuple[str, list[int]]], count: int) -> None:
    lru, model = Lru(MODEL_CAPACITY), PolicyModel()
    for verb, entries in history:
        model.apply(lru, verb, entries)
        assert victims(lru, len(model.evictable)) == model.evictable
    if count <= len(model.evictable):
        assert victims(lru, count) == model.evictable[:count]


@pytest.mark.parametrize("verb", ["touch", "remove"])
def test_refuses_an_entry_that_is_not_held(verb: str) -> None:
    lru = lru_of(0, 1)
    with pytest.raises(AssertionError, match=r"not held: \[5\]"):
        getattr(lru, verb)(pack([1, 5]))


def test_refuses_to_shield_an_entry_that_is_not_held() -> None:
    with pytest.raises(AssertionError, match=r"not held: \[-1\]"):
        lru_of(0).set_evictable(pack([-1]), False)


def test_refuses_to_insert_a_held_entry() -> None:
    with pytest.raises(AssertionError, match=r"already held: \[1\]"):
        lru_of(0, 1).insert(pack([2, 1]))


@pytest.mark.parametrize("verb", ["insert", "remove"])
def test_refuses_a_batch_that_names_an_entry_twice(verb: str) -> None:
    lru = Lru(8) if verb == "insert" else lru_of(2)
    with pytest.raises(AssertionError, match="twice"):
        getattr(lru, verb)(pack([2, 2]))


@pytest.mark.parametrize("entry", [-1, 8])
def test_refuses_an_entry_outside_its_capacity(entry: int) -> None:
    with pytest.raises(AssertionError, match=r"outside 0…7"):
        Lru(8).insert(pack([entry]))
