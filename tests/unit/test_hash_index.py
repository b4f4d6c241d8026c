"""The hash index against a dict, with keys that all fall into one bucket among the rest."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tierstore.control.index import HashIndex, as_keys
from tierstore.testing.engine_world import chain

CAPACITY = 24
NUM_KEYS = 30


def one_bucket(count: int) -> np.ndarray[tuple[int, ...], np.dtype[np.uint64]]:
    """Distinct keys whose words cancel out to the same number, so that the index mixes them to one bucket."""
    keys = np.zeros((count, 4), np.uint64)
    keys[:, 2] = keys[:, 3] = np.arange(count)
    return keys


KEYS = {"one bucket": one_bucket(NUM_KEYS), "spread": as_keys(chain("index", NUM_KEYS)).copy()}
kinds = pytest.mark.parametrize("kind", KEYS)


@pytest.mark.parametrize("held", [1, 5, 7, NUM_KEYS])
@kinds
def test_finds_every_key_and_no_other(kind: str, held: int) -> None:
    index = HashIndex(NUM_KEYS)
    keys = KEYS[kind]
    entries = np.arange(held, dtype=np.int64)[::-1].copy()
    index.insert(3, keys[:held], entries)
    assert index.find(3, keys).tolist() == entries.tolist() + [-1] * (NUM_KEYS - held)
    assert (index.find(4, keys) == -1).all()


def test_a_key_that_differs_in_one_word_is_another() -> None:
    index = HashIndex(8)
    key = KEYS["spread"][:1]
    index.insert(0, key, np.array([5], np.int64))
    for word in range(4):
        other = key.copy()
        other[0, word] ^= np.uint64(1)
        assert index.find(0, other).tolist() == [-1]
        same_bucket = other.copy()
        same_bucket[0, (word + 1) % 4] ^= np.uint64(1)
        assert index.find(0, same_bucket).tolist() == [-1]


def test_finds_a_key_that_is_asked_for_several_times() -> None:
    index = HashIndex(8)
    index.insert(0, KEYS["one bucket"][:4], np.arange(4, dtype=np.int64))
    assert index.find(0, KEYS["one bucket"][[3, 0, 3, 3, 1, 1, 2, 3, 0]]).tolist() == [3, 0, 3, 3, 1, 1, 2, 3, 0]


def test_finds_nothing_in_nothing() -> None:
    index = HashIndex(1)
    assert index.find(0, KEYS["spread"][:0]).tolist() == []
    assert index.find(0, np.zeros((9, 4), np.uint64)).tolist() == [-1] * 9


def test_refuses_to_remove_what_it_does_not_hold() -> None:
    index = HashIndex(8)
    index.insert(0, KEYS["one bucket"][:2], np.array([0, 1], np.int64))
    index.remove(np.array([0], np.int64))
    with pytest.raises(AssertionError, match="entry 0 is not in bucket"):
        index.remove(np.array([0], np.int64))


changes = st.lists(
    st.tuples(st.booleans(), st.integers(0, 1), st.sets(st.integers(0, NUM_KEYS - 1), min_size=1)), max_size=20
)


@kinds
@given(history=changes)
def test_agrees_with_a_dict(kind: str, history: list[tuple[bool, int, set[int]]]) -> None:
    index, model = HashIndex(CAPACITY), dict[tuple[int, int], int]()
    keys = KEYS[kind]
    for insert, generation, chosen in history:
        if insert:
            free = [entry for entry in range(CAPACITY) if entry not in model.values()]
            new = [key for key in chosen if (generation, key) not in model][: len(free)]
            model |= {(generation, key): entry for key, entry in zip(new, free, strict=False)}
            index.insert(generation, keys[new], np.array(free[: len(new)], np.int64))
        else:
            old = [key for key in chosen if (generation, key) in model]
            index.remove(np.array([model.pop((generation, key)) for key in old], np.int64))
        for number in (0, 1):
            wanted = [model.get((number, key), -1) for key in range(NUM_KEYS)]
            assert index.find(number, keys).tolist() == wanted
            assert [index.find(number, keys[key : key + 1])[0] for key in range(NUM_KEYS)] == wanted
