"""What every eviction and admission policy must do, as tests to subclass.

For those who write a policy: a fixture gives what makes it. The model here is also the reference for the
order of `Lru`. Never imported by the store.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tierstore.policy.base import AdmissionPolicy, BlockFacts, EvictionPolicy, Offer
from tierstore.types import TierName

if TYPE_CHECKING:
    from types import FrameType

    from _typeshed import TraceFunction

    from tierstore.types import Int64Array

__all__ = [
    "MODEL_CAPACITY",
    "AdmissionPolicyContract",
    "EvictionPolicyContract",
    "NewAdmissionPolicy",
    "NewEvictionPolicy",
    "PolicyModel",
    "batches",
    "facts_of",
    "offer_of",
    "pack",
]

NewEvictionPolicy: TypeAlias = Callable[[int], EvictionPolicy]
NewAdmissionPolicy: TypeAlias = Callable[[], AdmissionPolicy]

MODEL_CAPACITY = 12
"""Entries that `batches` names; few, so that verbs meet the same ones again and again."""

batches = st.lists(
    st.tuples(
        st.sampled_from(["insert", "touch", "remove", "shield", "expose"]),
        st.lists(st.integers(0, MODEL_CAPACITY - 1), unique=True),
    ),
    min_size=20,
    max_size=40,
)
"""Verbs and the entries that they name; the model leaves out those that the verb may not name. Left to
itself, hypothesis draws histories of five steps, too few to meet a wrong link."""


def pack(entries: Iterable[int]) -> Int64Array:
    """The entries as a policy takes them: int64[n]."""
    return np.array(list(entries), np.int64)


def facts_of(capacity: int) -> BlockFacts:
    """Columns for entries 0 … capacity-1: each a block of its own, as deep as its number."""
    return BlockFacts(
        tag=np.arange(1, capacity + 1, dtype=np.uint64),
        depth=np.arange(capacity, dtype=np.uint16),
        hits=np.zeros(capacity, np.uint16),
    )


def offer_of(hits: Sequence[int], *, again: bool = False, leaving: bool = False) -> Offer:
    """Blocks that were used so often, offered to the SSD tier."""
    return Offer(
        entries=pack(range(len(hits))),
        hits=np.array(hits, np.int32),
        again=np.full(len(hits), again),
        leaving=leaving,
        dst=TierName.SSD,
        block_nbytes=1 << 20,
    )


class PolicyModel:
    """What a policy holds, in the plainest way: least recently used first, with whether it is evictable."""

    def __init__(self) -> None:
        self.held: OrderedDict[int, bool] = OrderedDict()

    @property
    def evictable(self) -> list[int]:
        """Evictable entries, least recently used first."""
        return [entry for entry, evictable in self.held.items() if evictable]

    def apply(self, policy: EvictionPolicy, verb: str, entries: Iterable[int]) -> None:
        """Apply one verb to the model and to the policy, leaving out entries that it may not name."""
        named = [entry for entry in entries if (entry in self.held) != (verb == "insert")]
        for entry in named:
            if verb == "remove":
                del self.held[entry]
            elif verb == "touch":
                self.held.move_to_end(entry)
            else:
                self.held[entry] = verb != "shield"
        if verb in ("shield", "expose"):
            policy.set_evictable(pack(named), verb == "expose")
        else:
            getattr(policy, verb)(pack(named))


def _evict(policy: EvictionPolicy) -> None:
    """Let 80 entries go, eight at a time."""
    for _ in range(10):
        victims = policy.victims(8)
        assert victims is not None
        policy.remove(victims)


def _lines_run(call: Callable[[], object]) -> int:
    """How many lines of Python a call runs: what it costs, on however busy a machine."""
    num_lines = 0

    def count(_frame: FrameType, event: str, _argument: object) -> TraceFunction:
        nonlocal num_lines
        num_lines += event == "line"
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        call()
    finally:
        sys.settrace(before)
    return num_lines


class EvictionPolicyContract:
    """Every eviction policy, whatever its order. Subclass it beside a module fixture ``new_policy``."""

    def test_keeps_the_protocol(self, new_policy: NewEvictionPolicy) -> None:
        assert isinstance(new_policy(4), EvictionPolicy)

    def test_names_nobody_while_it_holds_nothing(self, new_policy: NewEvictionPolicy) -> None:
        policy = new_policy(4)
        assert (policy.num_evictable, policy.victims(1)) == (0, None)

    def test_names_all_it_is_asked_for_or_none(self, new_policy: NewEvictionPolicy) -> None:
        policy = new_policy(4)
        policy.insert(pack([0, 1, 2]))
        assert policy.victims(4) is None
        assert _victims(policy, 3) == {0, 1, 2}
        assert _victims(policy, 0) == set()

    def test_holds_its_victims_until_they_are_removed(self, new_policy: NewEvictionPolicy) -> None:
        policy = new_policy(4)
        policy.insert(pack([0, 1, 2]))
        victims = policy.victims(2)
        assert victims is not None
        again = policy.victims(2)
        assert again is not None
        assert victims.tolist() == again.tolist()
        policy.remove(victims)
        assert _victims(policy, 1) == {0, 1, 2} - set(victims.tolist())

    def test_never_names_a_shielded_entry(self, new_policy: NewEvictionPolicy) -> None:
        policy = new_policy(4)
        policy.insert(pack([0, 1, 2]))
        policy.set_evictable(pack([0, 2]), False)
        policy.touch(pack([1]))
        assert _victims(policy, 1) == {1}
        assert policy.victims(2) is None

    def test_names_in_the_end_what_it_named_and_then_saw_used(self, new_policy: NewEvictionPolicy) -> None:
        policy = new_policy(4)
        policy.insert(pack([0, 1, 2]))
        named = policy.victims(2)
        assert named is not None
        policy.touch(named)
        assert _victims(policy, 3) == {0, 1, 2}
        policy.touch(pack([0, 1, 2]), used=False)
        assert _victims(policy, 3) == {0, 1, 2}

    def test_a_prefix_held_since_one_batch_goes_from_its_tail(self, new_policy: NewEvictionPolicy) -> None:
        policy = new_policy(8)
        policy.insert(pack([3, 2, 1, 0]))
        policy.touch(pack([3, 2, 1, 0]))
        victims = policy.victims(4)
        assert victims is not None
        assert victims.tolist() == [3, 2, 1, 0]

    def test_shields_an_entry_once_however_often_it_is_told(self, new_policy: NewEvictionPolicy) -> None:
        policy = new_policy(4)
        policy.insert(pack([0, 1]))
        policy.set_evictable(pack([0]), False)
        policy.set_evictable(pack([0, 1]), False)
        policy.set_evictable(pack([0]), True)
        assert policy.num_evictable == 1
        assert _victims(policy, 1) == {0}

    def test_meets_long_shielded_entries_once(self, new_policy: NewEvictionPolicy) -> None:
        costs = []
        for num_shielded in (0, 4000):
            policy = new_policy(4096)
            policy.insert(pack(range(4096)))
            policy.set_evictable(pack(range(num_shielded)), False)
            assert policy.victims(1) is not None
            costs.append(_lines_run(partial(_evict, policy)))
        assert costs[1] < 2 * costs[0]

    def test_takes_a_removed_entry_again(self, new_policy: NewEvictionPolicy) -> None:
        policy = new_policy(4)
        policy.insert(pack([3]))
        policy.set_evictable(pack([3]), False)
        policy.remove(pack([3]))
        policy.insert(pack([3]))
        assert _victims(policy, 1) == {3}

    @given(batches)
    def test_offers_exactly_what_is_held_and_not_shielded(
        self, new_policy: NewEvictionPolicy, history: list[tuple[str, list[int]]]
    ) -> None:
        policy, model = new_policy(MODEL_CAPACITY), PolicyModel()
        for verb, entries in history:
            model.apply(policy, verb, entries)
            count = len(model.evictable)
            assert policy.num_evictable == count
            assert policy.victims(count + 1) is None
            victims = policy.victims(count)
            assert victims is not None
            assert victims.dtype == np.int64
            assert sorted(victims.tolist()) == sorted(model.evictable)


class AdmissionPolicyContract:
    """Every admission policy. Subclass it beside a module fixture ``new_admission``."""

    def test_keeps_the_protocol(self, new_admission: NewAdmissionPolicy) -> None:
        assert isinstance(new_admission(), AdmissionPolicy)

    @pytest.mark.parametrize("count", [0, 1, 5])
    def test_answers_for_each_entry(self, new_admission: NewAdmissionPolicy, count: int) -> None:
        answers = new_admission().admit(offer_of([3] * count))
        assert len(answers) == count
        assert all(isinstance(answer, bool) for answer in answers)


def _victims(policy: EvictionPolicy, count: int) -> set[int]:
    victims = policy.victims(count)
    assert victims is not None, f"{policy.num_evictable} are evictable, {count} were refused"
    assert len(set(victims.tolist())) == count
    return set(victims.tolist())
