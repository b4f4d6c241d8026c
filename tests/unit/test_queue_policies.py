"""The orders of the policies that count uses, beyond what every policy must do."""

from __future__ import annotations

from tierstore.policy.arc import Arc
from tierstore.policy.base import EvictionPolicy
from tierstore.policy.gdsf import Gdsf
from tierstore.policy.lfu import Lfu, aged_lfu
from tierstore.policy.queues import Ghosts, Holding
from tierstore.policy.s3fifo import S3Fifo
from tierstore.policy.scores import Scores
from tierstore.policy.sieve import Sieve
from tierstore.testing.contracts.policy import facts_of, pack


def victims(policy: EvictionPolicy, count: int) -> list[int]:
    found = policy.victims(count)
    assert found is not None
    return list(found.tolist())


def evict(policy: EvictionPolicy, count: int) -> list[int]:
    gone = victims(policy, count)
    policy.remove(pack(gone))
    return gone


class TestS3Fifo:
    def policy(self, *entries: int) -> S3Fifo:
        policy = S3Fifo(64, facts_of(64))
        policy.insert(pack(entries))
        return policy

    def test_lets_a_block_that_came_once_go_and_keeps_one_used_again(self) -> None:
        policy = self.policy(0, 1, 2)
        policy.touch(pack([1]))
        assert evict(policy, 2) == [0, 2]
        assert victims(policy, 1) == [1]

    def test_a_block_that_a_ghost_knows_goes_to_the_main_queue(self) -> None:
        policy = self.policy(*range(20))
        for entry in range(10):
            policy.touch(pack([entry, entry]))
        assert evict(policy, 1) == [10]
        policy.insert(pack([30]))
        policy.insert(pack([10]))
        assert evict(policy, 8) == list(range(11, 19))
        assert victims(policy, 12)[-1] == 10

    def test_the_main_queue_gives_second_chances(self) -> None:
        policy = self.policy(0, 1, 2, 3)
        policy.touch(pack([0, 0, 1, 1]))
        assert evict(policy, 2) == [2, 3]
        policy.touch(pack([0]))
        assert victims(policy, 2) == [1, 0]


class TestSieve:
    def test_the_hand_goes_on_from_where_it_stopped(self) -> None:
        policy = Sieve(8)
        policy.insert(pack([0, 1, 2, 3]))
        policy.touch(pack([0, 2]))
        assert evict(policy, 1) == [1]
        policy.insert(pack([4]))
        assert evict(policy, 3) == [3, 4, 0]
        assert victims(policy, 1) == [2]

    def test_survives_that_the_block_under_the_hand_is_discarded(self) -> None:
        policy = Sieve(8)
        policy.insert(pack([0, 1, 2, 3]))
        policy.touch(pack([0]))
        assert evict(policy, 1) == [1]
        policy.remove(pack([2]))
        assert victims(policy, 2) == [3, 0]


class TestArc:
    def test_blocks_used_again_outlive_a_scan(self) -> None:
        policy = Arc(64, facts_of(64))
        policy.insert(pack([0, 1, 2, 3]))
        policy.touch(pack([0, 1]))
        for entry in range(10, 30):
            evict(policy, 1)
            policy.insert(pack([entry]))
        assert set(victims(policy, 4)[2:]) == {0, 1}

    def test_a_ghost_of_a_block_used_once_makes_room_for_such(self) -> None:
        policy = Arc(64, facts_of(64))
        policy.insert(pack([0, 1, 2, 3]))
        policy.touch(pack([0, 1]))
        assert evict(policy, 1) == [2]
        policy.insert(pack([2]))
        assert victims(policy, 1) == [0]

    def test_exposed_blocks_have_kept_their_age(self) -> None:
        policy = Arc(16, facts_of(16))
        policy.insert(pack(range(8)))
        policy.touch(pack([1, 0]))
        policy.set_evictable(pack([0, 1, 2, 3]), False)
        assert victims(policy, 2) == [4, 5]
        policy.set_evictable(pack([3, 1, 1]), True)
        assert victims(policy, 6) == [3, 4, 5, 6, 7, 1]
        policy.set_evictable(pack([0, 2]), True)
        assert victims(policy, 3) == [2, 3, 4]

    def test_without_a_use_a_block_stays_in_its_queue(self) -> None:
        policy = Arc(8, facts_of(8))
        policy.insert(pack([0, 1, 2]))
        policy.touch(pack([0]), used=False)
        assert victims(policy, 3) == [1, 2, 0]
        policy.touch(pack([1]))
        assert victims(policy, 3) == [2, 0, 1]


class TestLfu:
    def test_the_fewest_uses_go_first_and_the_oldest_among_equals(self) -> None:
        policy = Lfu(8)
        policy.insert(pack([0, 1, 2, 3]))
        policy.touch(pack([0, 2, 0]))
        assert victims(policy, 4) == [1, 3, 2, 0]

    def test_exposed_blocks_have_kept_their_score(self) -> None:
        policy = Lfu(8)
        policy.insert(pack([0, 1, 2, 3]))
        policy.set_evictable(pack([0, 1]), False)
        assert victims(policy, 1) == [2]
        policy.touch(pack([1]))
        policy.set_evictable(pack([0, 0, 1]), True)
        assert victims(policy, 4) == [0, 2, 3, 1]

    def test_ageing_lets_go_what_was_popular_once(self) -> None:
        plain, aged = Lfu(8), aged_lfu(8)
        for policy in (plain, aged):
            policy.insert(pack([0, 1]))
            policy.touch(pack([0, 0]))
            for turn in range(6):
                entry = evict(policy, 1)[0]
                policy.insert(pack([entry if turn < 3 else turn]))
        assert 0 in victims(plain, 2)
        assert 0 not in victims(aged, 2)


class TestGdsf:
    def test_a_deeper_block_of_equal_use_stays_longer(self) -> None:
        policy = Gdsf(8, facts_of(8))
        policy.insert(pack([1]))
        policy.insert(pack([6]))
        policy.insert(pack([3]))
        assert victims(policy, 3) == [1, 3, 6]

    def test_a_parent_is_worth_what_its_child_is(self) -> None:
        policy = Gdsf(8, facts_of(8))
        policy.insert(pack([3, 2, 1, 0]))
        policy.insert(pack([5]))
        policy.touch(pack([5]))
        assert victims(policy, 5) == [3, 2, 1, 0, 5]


def test_scores_forget_their_stale_items() -> None:
    holding = Holding(4)
    holding.add(pack(range(4)))
    scores = Scores(holding)
    for turn in range(10_000):
        scores.put(turn % 4, float(turn))
    assert len(scores._heap) < 100
    scores.set_evictable(pack([2]), False)
    assert scores.lowest(3) == [0, 1, 3]


def test_ghosts_forget_the_oldest_first() -> None:
    ghosts = Ghosts()
    ghosts.add([5, 6, 7, 5])
    ghosts.trim(2)
    assert [tag in ghosts for tag in (5, 6, 7)] == [True, False, True]
    assert len(ghosts) == 2
