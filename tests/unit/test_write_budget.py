"""So many bytes a day: spent evenly, never overdrawn, not saved up beyond an hour."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tierstore.config import StoreConfig
from tierstore.control.write_budget import WriteBudget
from tierstore.errors import ConfigError

BLOCK_NBYTES = 1 << 20
HOUR_SECONDS = 3600.0
DAY_SECONDS = 24 * HOUR_SECONDS

demands = st.lists(
    st.tuples(st.floats(0, DAY_SECONDS), st.integers(0, 200), st.sampled_from([1, 5, BLOCK_NBYTES])), max_size=40
)
"""Seconds that pass, blocks that are wanted then, and their bytes."""


def budget_of(blocks_per_hour: float) -> WriteBudget:
    return WriteBudget(int(24 * blocks_per_hour * BLOCK_NBYTES))


def test_without_a_bound_everything_may_be_written() -> None:
    assert WriteBudget(None).take(10**9, BLOCK_NBYTES, 0.0) == 10**9


def test_a_budget_of_nothing_lets_nothing_be_written() -> None:
    budget = WriteBudget(0)
    assert [budget.take(5, BLOCK_NBYTES, hour * HOUR_SECONDS) for hour in range(3)] == [0, 0, 0]


def test_starts_with_an_hour_worth() -> None:
    budget = budget_of(10)
    assert budget.take(100, BLOCK_NBYTES, 1000.0) == 10
    assert budget.take(100, BLOCK_NBYTES, 1000.0) == 0


def test_takes_no_more_than_is_asked_for() -> None:
    budget = budget_of(10)
    assert budget.take(3, BLOCK_NBYTES, 0.0) == 3
    assert budget.take(100, BLOCK_NBYTES, 0.0) == 7


def test_fills_evenly() -> None:
    budget = budget_of(10)
    budget.take(10, BLOCK_NBYTES, 0.0)
    assert [budget.take(100, BLOCK_NBYTES, minutes * 60.0) for minutes in (3, 6, 12, 30)] == [0, 1, 1, 3]


@pytest.mark.parametrize("hours", [1, 8, 1000])
def test_what_is_not_used_does_not_pile_up_beyond_an_hour(hours: int) -> None:
    budget = budget_of(10)
    budget.take(10, BLOCK_NBYTES, 0.0)
    assert budget.take(10**6, BLOCK_NBYTES, hours * HOUR_SECONDS) == 10


def test_being_asked_for_nothing_changes_nothing() -> None:
    budget = budget_of(10)
    budget.take(10, BLOCK_NBYTES, 0.0)
    assert budget.take(0, BLOCK_NBYTES, 0.5 * HOUR_SECONDS) == 0
    assert budget.take(100, BLOCK_NBYTES, HOUR_SECONDS) == 10


def test_small_and_large_blocks_draw_on_one_budget() -> None:
    budget = budget_of(10)
    assert budget.take(4, 2 * BLOCK_NBYTES, 0.0) == 4
    assert budget.take(100, BLOCK_NBYTES, 0.0) == 2


def test_a_block_larger_than_an_hour_worth_is_saved_for() -> None:
    budget = budget_of(0.25)
    taken = [budget.take(1, BLOCK_NBYTES, hour * HOUR_SECONDS) for hour in range(12)]
    assert taken == [0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1]


def test_a_clock_that_stands_back_gives_nothing() -> None:
    budget = budget_of(10)
    budget.take(10, BLOCK_NBYTES, HOUR_SECONDS)
    assert budget.take(10, BLOCK_NBYTES, 0.0) == 0


@given(demands, st.integers(0, 50))
def test_no_history_writes_more_than_its_time_and_an_hour_allow(
    history: list[tuple[float, int, int]], blocks_per_hour: int
) -> None:
    budget = budget_of(blocks_per_hour)
    now, written_nbytes = 0.0, 0
    for seconds, num_blocks, block_nbytes in history:
        now += seconds
        taken = budget.take(num_blocks, block_nbytes, now)
        assert 0 <= taken <= num_blocks
        written_nbytes += taken * block_nbytes
    hours = now / HOUR_SECONDS - (history[0][0] / HOUR_SECONDS if history else 0.0)
    assert written_nbytes <= (hours + 1) * blocks_per_hour * BLOCK_NBYTES + 1


def test_drive_writes_a_day_are_of_the_size_of_the_tier() -> None:
    settings = {"ssd.size": "100 GB", "ssd.write_budget": "0.3 DWPD"}
    config = StoreConfig.load(env={}, overrides=settings)
    assert config.ssd.write_budget_nbytes == 30 * 10**9
    assert str(config.ssd.write_budget) == "0.3 DWPD"
    assert (
        StoreConfig.load(env={}, overrides=settings | {"ssd.write_budget": "2 GB"}).ssd.write_budget_nbytes == 2 * 10**9
    )
    assert StoreConfig.load(env={}).ssd.write_budget_nbytes is None


@pytest.mark.parametrize("given", ["0 DWPD", "-1 DWPD", "DWPD", "1 dwpd", "1e3 DWPD", "0 B"])
def test_what_is_no_budget_is_refused(given: str) -> None:
    with pytest.raises(ConfigError, match=r"write_budget.*drive writes a day"):
        StoreConfig.load(env={}, overrides={"ssd.write_budget": given})
