"""How look-ahead goes: who waits is kept and fetched, nearest first; of those who wait, the furthest go first."""

from __future__ import annotations

import numpy as np
import pytest

from tierstore.control import lookahead, planner
from tierstore.control.lookahead import hint_slices
from tierstore.errors import RankError
from tierstore.metrics import Metric
from tierstore.policy.admission import AdmitSecondHit
from tierstore.testing.engine_world import EngineWorld, chain
from tierstore.transfer import scheduling
from tierstore.types import Outcome

POOL_BLOCKS = 32
A, B, C = (chain(name, 8) for name in "abc")


def num_waiting_blocks(world: EngineWorld) -> int:
    """Blocks in the window."""
    with world.engine.planning() as mind:
        return mind.directory.window.num_blocks


def full_world() -> EngineWorld:
    """A pool full of three chains, A the oldest, and of others that are younger; no block is on the SSD behind it."""
    world = EngineWorld(admission=AdmitSecondHit())
    for blocks in (A, B, C, chain("d", POOL_BLOCKS - 24)):
        world.keep_in_host(blocks)
        world.clock.advance(1)
    return world


def test_what_waits_stays_when_all_else_goes() -> None:
    world = full_world()
    world.hint([(0, A)])
    world.keep_in_host(chain("new", POOL_BLOCKS - 8))
    assert [world.num_in_host(blocks) for blocks in (A, B, C)] == [8, 0, 0]


def test_of_what_waits_the_furthest_goes_first_and_from_its_tail() -> None:
    world = full_world()
    world.hint([(0, A), (1, B), (2, C)])
    world.keep_in_host(chain("new", 13))
    assert [world.num_in_host(blocks) for blocks in (A, B, C)] == [8, 8, 3]
    assert world.num_in_host(C[:3]) == 3
    world.keep_in_host(chain("newer", POOL_BLOCKS - 6))
    assert [world.num_in_host(blocks) for blocks in (A, B, C)] == [6, 0, 0]
    assert world.num_in_host(A[:6]) == 6


def test_a_request_that_has_left_the_queue_ages_like_any_other() -> None:
    world = full_world()
    world.hint([(0, A), (1, B)])
    world.hint(removed=[0])
    world.keep_in_host(chain("new", POOL_BLOCKS - 8))
    assert [world.num_in_host(blocks) for blocks in (A, B)] == [0, 8]


def test_a_block_of_two_requests_passes_to_the_second() -> None:
    world = full_world()
    world.hint([(0, A), (1, np.concatenate([A[:4], B[:4]]))])
    world.hint(removed=[0])
    world.keep_in_host(chain("new", POOL_BLOCKS - 8))
    assert [world.num_in_host(A), world.num_in_host(A[:4])] == [4, 4]
    world.hint(removed=[1])
    world.keep_in_host(chain("newer", POOL_BLOCKS))
    assert world.num_in_host(A) == 0


def test_a_session_that_ends_takes_its_queue_with_it() -> None:
    world = full_world()
    world.hint([(0, A)], session_id=1)
    world.hint([(0, B)], session_id=2)
    world.end_session(1)
    world.keep_in_host(chain("new", POOL_BLOCKS - 8))
    assert [world.num_in_host(blocks) for blocks in (A, B)] == [0, 8]


def test_blocks_that_come_later_are_kept_for_who_waits_already() -> None:
    world = EngineWorld(ssd=False)
    world.hint([(0, A)])
    world.keep_in_host(A)
    world.clock.advance(1)
    world.keep_in_host(chain("new", POOL_BLOCKS - 8))
    world.keep_in_host(chain("newer", POOL_BLOCKS - 8))
    assert world.num_in_host(A) == 8


def test_without_an_ssd_what_nobody_waits_for_takes_no_slot_of_what_is_waited_for() -> None:
    world, chains = EngineWorld(ssd=False), [A, B, C, chain("d", POOL_BLOCKS - 24)]
    for blocks in chains:
        world.keep_in_host(blocks)
    world.hint(enumerate(chains))
    assert world.put(chain("new", 8)).result(0).outcomes == [Outcome.REJECTED] * 8
    assert [world.num_in_host(blocks) for blocks in chains] == [8, 8, 8, 8]


def test_without_an_ssd_what_is_needed_sooner_takes_slots_of_what_is_needed_later() -> None:
    world, chains = EngineWorld(ssd=False), [A, B, C, chain("d", POOL_BLOCKS - 24)]
    for blocks in chains:
        world.keep_in_host(blocks)
    new = chain("new", 8)
    world.hint(enumerate([A, new[:3], B, C, chains[3]]))
    put = world.put(new)
    world.settle()
    assert put.result(0).outcomes == [Outcome.OK] * 3 + [Outcome.REJECTED] * 5
    assert [world.num_in_host(blocks) for blocks in chains] == [8, 8, 8, 5]


def test_a_pinned_block_of_the_window_is_passed_over_and_offered_afterwards() -> None:
    world = full_world()
    world.hint([(0, A), (1, B)])
    get = world.get(B)
    world.put(chain("new", POOL_BLOCKS - 8))
    world.store.end()
    assert [world.num_in_host(blocks) for blocks in (A, B)] == [0, 8]
    world.load.end()
    assert get.result(0).ok
    world.keep_in_host(chain("newer", POOL_BLOCKS - 4))
    assert world.num_in_host(B[:4]) == 4


def test_deleted_and_cleared_blocks_leave_the_window() -> None:
    world = EngineWorld()
    world.keep_in_host(A)
    world.keep_in_host(B)
    world.hint([(0, A), (1, B)])
    assert world.delete(A) == 8
    world.clear()
    world.hint(removed=[0, 1])
    world.settle()
    world.check_idle()
    assert num_waiting_blocks(world) == 0


def test_hints_of_a_cleared_namespace_are_passed_over() -> None:
    world = EngineWorld()
    old = world.generations[0]
    world.clear()
    scheduling.hint(world.engine, 0, old.number, [(0, A)], [])
    world.check()
    assert num_waiting_blocks(world) == 0


def test_sessions_take_turns_however_long_their_queues_are() -> None:
    world = EngineWorld(admission=AdmitSecondHit())
    world.hint(enumerate(chain(f"long {rank}", 4) for rank in range(5)), session_id=1)
    world.hint([(7, A)], session_id=2)
    for blocks in (*(chain(f"long {rank}", 4) for rank in range(5)), A):
        world.keep_in_host(blocks)
    world.keep_in_host(chain("new", 20))
    assert world.num_in_host(A) == 8
    assert world.num_in_host(chain("long 0", 4)) == 4
    assert world.num_in_host(chain("long 4", 4)) == 0


def test_a_rank_goes_on_where_it_ended_and_is_never_named_out_of_order() -> None:
    world = full_world()
    world.hint([(3, A[:4])])
    world.hint([(3, A[4:]), (5, B)])
    assert num_waiting_blocks(world) == 16
    with pytest.raises(RankError, match="rank 4 of session 0 comes after rank 5"):
        world.hint([(4, C)])
    world.hint([(4, C)], session_id=1)
    world.hint(removed=[5])
    world.hint([(5, B)])
    assert num_waiting_blocks(world) == 16


def test_a_rank_is_of_one_namespace() -> None:
    world = EngineWorld(slot_pages=(1, 1))
    world.hint([(0, A)])
    with pytest.raises(RankError, match="blocks of one are of one namespace"):
        world.hint([(0, B)], layout=1)
    world.hint([(1, B)], layout=1)
    world.hint(removed=[0, 1])
    assert num_waiting_blocks(world) == 0


def test_long_hints_are_taken_in_and_leave_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in ((planner, "SLICE_BLOCKS"), (scheduling, "SLICE_BLOCKS"), (lookahead, "_LEAVE_BLOCKS")):
        monkeypatch.setattr(module, name, 5)
    world = full_world()
    world.hint([(0, A), (1, B[:1]), (2, C)])
    assert num_waiting_blocks(world) == 17
    with world.engine.planning() as mind:
        plan = mind.hint(0, world.generations[0].number, removed=[0, 1, 2], now=0.0)
        assert plan.due
        assert mind.directory.window.num_blocks > 0
    world.hint()
    world.end_session(0)
    assert num_waiting_blocks(world) == 0


def test_what_finds_no_room_in_the_window_is_counted() -> None:
    world = EngineWorld(ssd=False)
    with world.engine.planning() as mind:
        room = mind.directory.window.room
    blocks = np.zeros((room + 3, 32), np.uint8)
    blocks[:, :4] = np.arange(len(blocks), dtype=np.uint32)[:, None].view(np.uint8)
    world.hint([(0, blocks)])
    assert world.metrics.value(Metric.UNHINTED_BLOCKS) == 3
    world.hint(removed=[0])
    world.hint([(1, blocks[:9])])
    assert num_waiting_blocks(world) == 9


def test_a_cut_of_hints_keeps_ranks_and_order() -> None:
    pieces = list(hint_slices([(0, A[:3]), (1, B), (2, C[:2])], 4))
    assert [[(rank, len(hashes)) for rank, hashes in piece] for piece in pieces] == [
        [(0, 3)],
        [(1, 4)],
        [(1, 4)],
        [(2, 2)],
    ]
    assert list(hint_slices([], 4)) == [[]]
