"""The bound: what no cache can pass, however it chooses."""

from __future__ import annotations

from functools import cache
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tierstore.replay.belady import belady_leading, reachable_leading
from tierstore.replay.reading import read_trace
from tierstore.replay.trace import Asked, Trace

DATA = Path(__file__).parents[1] / "data"

prefixes = st.lists(st.sampled_from([(1,), (1, 2), (1, 2, 3), (1, 4), (5,), (5, 6)]), min_size=1, max_size=6)


def trace_of(requests: list[tuple[int, ...]]) -> Trace:
    return Trace.of("test", [Asked(1, 0.0, len(blocks), blocks) for blocks in requests], 1)


def best(requests: list[tuple[int, ...]], capacity: int) -> int:
    """Hits of the best cache, found by trying every set that it might keep."""

    @cache
    def hits(turn: int, held: frozenset[int]) -> int:
        if turn == len(requests):
            return 0
        blocks = requests[turn]
        leading = next((count for count, block in enumerate(blocks) if block not in held), len(blocks))
        offered = held | set(blocks)
        size = min(capacity, len(offered))
        return leading + max(hits(turn + 1, frozenset(kept)) for kept in combinations(sorted(offered), size))

    return hits(0, frozenset())


@settings(deadline=None)
@given(prefixes, st.integers(0, 4))
def test_no_choice_of_what_to_keep_beats_it_and_one_reaches_it(requests: list[tuple[int, ...]], capacity: int) -> None:
    assert int(belady_leading(trace_of(requests), capacity).sum()) == best(requests, capacity)


@given(prefixes)
def test_without_a_limit_it_is_what_is_reachable(requests: list[tuple[int, ...]]) -> None:
    trace = trace_of(requests)
    assert belady_leading(trace, 100).tolist() == reachable_leading(trace).tolist()


@pytest.mark.parametrize(
    ("name", "reachable", "at_5", "at_10"),
    [
        ("mooncake_conversation", 37.36, 37.4, 37.4),
        ("mooncake_synthetic", 65.12, 40.3, 51.6),
        ("agents_blk16", 89.89, 76.5, 88.6),
    ],
)
def test_over_the_public_traces_it_is_what_is_known(name: str, reachable: float, at_5: float, at_10: float) -> None:
    trace = read_trace(DATA / f"{name}.jsonl.gz")

    def percent(leading: np.typing.NDArray[np.int64]) -> float:
        return float(100 * trace.tokens_of(leading).sum() / trace.num_tokens.sum())

    assert percent(reachable_leading(trace)) == pytest.approx(reachable, abs=0.005)
    assert percent(belady_leading(trace, trace.num_unique // 20)) == pytest.approx(at_5, abs=0.05)
    assert percent(belady_leading(trace, trace.num_unique // 10)) == pytest.approx(at_10, abs=0.05)
