"""Whole replays: what is kept, what is counted, and that time passes as the links and the engine say."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from tierstore.errors import ConfigError
from tierstore.policy.prefetching import PrefetchPolicy
from tierstore.replay.engine import ARRIVED, Queueing
from tierstore.replay.figures import Figures
from tierstore.replay.links import LinkModel
from tierstore.replay.reading import read_trace
from tierstore.replay.report import as_json
from tierstore.replay.run import ReplayPlan, replay, sweep_plans
from tierstore.replay.tiers import TierSize, parse_tiers
from tierstore.replay.trace import Asked, Trace
from tierstore.settings import DriveWrites
from tierstore.types import TierName

DATA = Path(__file__).parents[1] / "data"
BLOCK_NBYTES = 1 << 20


def trace_of(*requests: tuple[float, list[int]]) -> Trace:
    rows = [Asked(1, seconds, 10 * len(blocks), blocks) for seconds, blocks in requests]
    return Trace.of("test", rows, block_tokens=10)


def plan_of(trace: Trace, host_blocks: int = 64, ssd_blocks: int = 0, queueing: Queueing | None = None) -> ReplayPlan:
    tiers = {TierName.HOST: TierSize(nbytes=host_blocks * BLOCK_NBYTES)}
    if ssd_blocks:
        tiers[TierName.SSD] = TierSize(nbytes=ssd_blocks * BLOCK_NBYTES)
    return ReplayPlan(trace=trace, tiers=tiers, block_nbytes=BLOCK_NBYTES, queueing=queueing or Queueing())


def chain(name: int, count: int) -> list[int]:
    return list(range(1000 * name, 1000 * name + count))


def test_a_request_that_comes_again_is_a_hit_and_one_that_shares_its_head_is_half_of_one() -> None:
    trace = trace_of((0, chain(1, 8)), (1, chain(1, 8)), (2, [*chain(1, 4), *chain(2, 4)]))
    figures = replay(plan_of(trace))
    assert figures.token_hit_rate == pytest.approx((80 + 40) / 240)
    assert figures.by_tier == {"host": pytest.approx(0.5), "ssd": 0.0}
    assert figures.reachable_token_hit_rate == figures.belady_token_hit_rate == pytest.approx(0.5)
    assert figures.moved_nbytes["host.put"] == 12 * BLOCK_NBYTES
    assert figures.moved_nbytes["host.get"] == 12 * BLOCK_NBYTES
    assert figures.ttft_seconds is None


def test_what_the_host_has_let_go_comes_from_ssd() -> None:
    trace = trace_of((0, chain(1, 40)), (1, chain(2, 60)), (2, chain(1, 40)))
    figures = replay(plan_of(trace, host_blocks=64, ssd_blocks=640))
    assert figures.token_hit_rate == pytest.approx(40 / 140)
    assert figures.by_tier["ssd"] > figures.by_tier["host"] > 0
    assert figures.moved_nbytes["ssd.write"] == 100 * BLOCK_NBYTES
    assert 0 < figures.moved_nbytes["ssd.read"] < 40 * BLOCK_NBYTES
    assert figures.write_amplification == 1.0


def test_a_request_larger_than_the_host_pool_is_served_from_ssd_whole() -> None:
    trace = trace_of((0, chain(1, 200)), (1, chain(1, 200)))
    figures = replay(plan_of(trace, host_blocks=64, ssd_blocks=640))
    assert figures.token_hit_rate == pytest.approx(0.5)


def test_a_full_ssd_writes_again_what_was_used_before_its_file_goes() -> None:
    hot = [(float(turn), chain(1, 4)) for turn in range(40)]
    cold = [(turn + 0.5, chain(turn + 2, 40)) for turn in range(40)]
    figures = replay(plan_of(trace_of(*sorted(hot + cold)), host_blocks=32, ssd_blocks=320))
    assert figures.moved_nbytes["ssd.rewrite"] >= 4 * BLOCK_NBYTES
    assert figures.write_amplification is not None
    assert figures.write_amplification > 1
    assert figures.evicted_blocks["ssd"] > 0
    assert figures.token_hit_rate == pytest.approx(39 * 4 / (40 * 44))


def test_no_more_is_written_than_the_budget_of_a_day_allows() -> None:
    trace = trace_of(*((60.0 * turn, chain(turn, 10)) for turn in range(180)))
    figures = replay(replace(plan_of(trace, ssd_blocks=640), write_budget=DriveWrites(3.0)))
    hours = 180 / 60
    allowed = 3.0 * 640 / 24 * (hours + 1)  # an hour's worth may be saved up
    assert allowed - 90 <= figures.moved_nbytes["ssd.write"] / BLOCK_NBYTES <= allowed
    assert figures.not_stored_blocks["write_budget"] > 0


def test_time_to_first_token_is_waiting_loading_and_computing() -> None:
    trace = trace_of((0, chain(1, 10)), (0, chain(1, 10)), (100, chain(1, 10)))
    queueing = Queueing(tokens_per_second=100.0)
    links = {"host.get": LinkModel(20 * BLOCK_NBYTES / 1e9, 0.1)}
    figures = replay(replace(plan_of(trace, queueing=queueing), links=links))
    assert figures.ttft_seconds is not None
    # computed in 1 s; waits for that, then 10 blocks at twenty a second and 0.1 s; then without waiting
    assert figures.ttft_seconds["mean"] == pytest.approx((1.0 + 1.6 + 0.6) / 3)
    assert figures.ttft_without_store_seconds is not None
    assert figures.ttft_without_store_seconds["mean"] == pytest.approx((1.0 + 2.0 + 1.0) / 3)


def test_looking_ahead_keeps_what_waits() -> None:
    wanted = chain(1, 30)
    trace = trace_of((0, wanted), (1, chain(2, 34)), (2, chain(3, 34)), (3, wanted))
    blind, seeing = replay(plan_of(trace)), replay(plan_of(trace, queueing=Queueing(lookahead=3)))
    assert [blind.token_hit_rate, seeing.token_hit_rate] == pytest.approx([0.0, 30 / 128])


def test_an_engine_sees_only_what_has_arrived_while_it_was_busy() -> None:
    wanted = chain(1, 30)
    early = trace_of((0, wanted), (1, chain(2, 34)), (1.5, chain(3, 34)), (2, wanted))
    late = trace_of((0, wanted), (1, chain(2, 34)), (1.5, chain(3, 34)), (2000, wanted))
    queueing = Queueing(tokens_per_second=30.0, lookahead=ARRIVED)
    rates = [replay(plan_of(trace, queueing=queueing)).token_hit_rate for trace in (early, late)]
    assert rates == pytest.approx([30 / 128, 0.0])


def test_a_prefetch_for_what_waits_is_useful() -> None:
    wanted, other = chain(1, 30), chain(2, 40)
    trace = trace_of((0, wanted), (10, other), (100, chain(3, 8)), (101, wanted))
    queueing = Queueing(tokens_per_second=10.0, prefetch=PrefetchPolicy("best-effort"))
    plan = replace(plan_of(trace, ssd_blocks=640, queueing=queueing), links={"ssd.read": LinkModel(1.0)})
    figures = replay(plan)
    assert figures.token_hit_rate == pytest.approx(30 / 108)
    assert figures.prefetched_blocks["useful"] > 0
    assert figures.by_tier["host"] == pytest.approx(30 / 108)


def served_from_ssd(gbytes_per_second: float, prefetch: PrefetchPolicy | None = None) -> Figures:
    """Twenty rounds of four prompts, of which the host tier holds one; to compute a block takes 0.1 s."""
    trace = trace_of(*((100.0 * turn, chain(turn % 4, 40)) for turn in range(80)))
    plan = plan_of(trace, ssd_blocks=640, queueing=Queueing(tokens_per_second=100.0, prefetch=prefetch))
    return replay(replace(plan, links={"ssd.read": LinkModel(gbytes_per_second), "host.get": LinkModel(10.0)}))


@pytest.mark.parametrize("gbytes_per_second", [3.0, 0.03, 0.003, 1e-5])
def test_no_request_ends_later_than_without_a_store_but_the_one_that_learns_it(gbytes_per_second: float) -> None:
    figures = served_from_ssd(gbytes_per_second)
    assert figures.slower_requests is not None
    assert figures.slower_requests <= 1
    assert figures.ttft_seconds is not None
    assert figures.ttft_without_store_seconds is not None
    for name in ("p50", "p90"):
        assert figures.ttft_seconds[name] <= figures.ttft_without_store_seconds[name] + 1e-9
    assert figures.ttft_seconds["p99"] <= 2 * figures.ttft_without_store_seconds["p99"]


def test_a_disk_slower_than_computing_is_left_alone() -> None:
    fast, slow = served_from_ssd(3.0), served_from_ssd(0.003)
    assert fast.recomputed_token_rate == 0
    assert slow.recomputed_token_rate is not None
    assert slow.recomputed_token_rate > 0.4
    assert slow.moved_nbytes["ssd.read"] < fast.moved_nbytes["ssd.read"] / 4


def test_a_request_waits_for_its_prefetch_as_long_as_the_policy_says() -> None:
    policies = PrefetchPolicy("best-effort"), PrefetchPolicy("timeout", 0.5, 0.0), PrefetchPolicy("wait-complete")
    nothing, some, all_there_is_room_for = (served_from_ssd(0.02, policy) for policy in policies)
    assert nothing.by_tier["host"] == 0, "nothing computes meanwhile, and it does not wait"
    assert 0 < some.by_tier["host"] < all_there_is_room_for.by_tier["host"]
    assert some.prefetched_blocks["cancelled"] > 0
    assert all_there_is_room_for.prefetched_blocks["cancelled"] == 0
    assert nothing.token_hit_rate == some.token_hit_rate == all_there_is_room_for.token_hit_rate


def test_chunk_files_are_those_of_a_store_of_that_size() -> None:
    plan = plan_of(trace_of((0, [1])), ssd_blocks=1 << 20)
    assert plan.file_blocks == 4096, "4 GiB"
    assert replace(plan, file_nbytes=1 << 28).file_blocks == 256
    assert plan_of(trace_of((0, [1])), ssd_blocks=640).file_blocks == 64, "64 MiB"
    assert plan_of(trace_of((0, [1])), ssd_blocks=100).file_blocks == 25, "four files at least"
    for file_nbytes in (BLOCK_NBYTES - 1, 1 << 39):
        with pytest.raises(ConfigError, match="a quarter of the SSD"):
            replay(replace(plan, file_nbytes=file_nbytes))


def test_finer_files_forget_less_at_a_time() -> None:
    hot = [(float(turn), chain(turn % 3, 8)) for turn in range(60)]
    cold = [(turn + 0.5, chain(turn + 10, 40)) for turn in range(60)]
    plan = plan_of(trace_of(*sorted(hot + cold)), host_blocks=32, ssd_blocks=160)
    coarse, fine = (replay(replace(plan, file_nbytes=blocks * BLOCK_NBYTES)) for blocks in (40, 8))
    assert fine.token_hit_rate > coarse.token_hit_rate


def test_a_drive_lasts_as_long_as_its_rated_writes() -> None:
    figures = served_from_ssd(3.0)
    assert figures.drive_writes_per_day is not None
    assert figures.drive_lifetime_years == pytest.approx(5 / figures.drive_writes_per_day)


@pytest.mark.parametrize(
    ("name", "rates"),
    [("mooncake_synthetic", (16.0, 26.7)), ("agents_blk16", (67.0, 83.7))],
    ids=["synthetic", "agents"],
)
def test_lru_keeps_what_a_plain_list_would(name: str, rates: tuple[float, float]) -> None:
    trace = read_trace(DATA / f"{name}.jsonl.gz")
    for share, rate in zip((Fraction(1, 20), Fraction(1, 10)), rates, strict=True):
        figures = replay(
            ReplayPlan(trace=trace, tiers={TierName.HOST: TierSize(share=share)}, block_nbytes=1 << 21, policy="lru")
        )
        assert 100 * figures.token_hit_rate == pytest.approx(rate, abs=0.05)


@pytest.mark.slow  # a quarter of a million block references
def test_looking_ahead_over_64_requests_beats_lru_as_far_as_is_known() -> None:
    trace = read_trace(DATA / "mooncake_synthetic.jsonl.gz")
    tiers = {TierName.HOST: TierSize(share=Fraction(1, 20))}
    for lookahead, least in ((64, 22.8), (256, 32.0)):
        plan = ReplayPlan(trace=trace, tiers=tiers, block_nbytes=1 << 21, queueing=Queueing(lookahead=lookahead))
        assert 100 * replay(plan).token_hit_rate >= least


def test_equal_options_give_equal_bytes() -> None:
    trace = read_trace(DATA / "mooncake_synthetic.jsonl.gz")
    trace = replace(trace, seconds=trace.seconds[:400], num_tokens=trace.num_tokens[:400], starts=trace.starts[:401])
    trace = replace(trace, blocks=trace.blocks[: trace.starts[-1]])
    plan = replace(
        plan_of(trace, host_blocks=500, ssd_blocks=2000, queueing=Queueing(tokens_per_second=5e4, lookahead=ARRIVED)),
        links={"ssd.read": LinkModel(2.0, 1e-4), "host.get": LinkModel(20.0), "ssd.write": LinkModel(1.0)},
    )
    assert as_json(plan, replay(plan)) == as_json(plan, replay(plan))


def test_a_sweep_grows_with_the_size() -> None:
    requests = [(float(turn), chain(turn % 8, 30)) for turn in range(64)]
    plans = sweep_plans(plan_of(trace_of(*requests)), TierName.HOST)
    assert {percent: plan.blocks(TierName.HOST) for percent, plan in plans.items()} == {
        20: 48, 30: 72, 50: 120, 70: 168, 100: 240
    }  # fmt: skip
    found = [replay(plan) for plan in plans.values()]
    rates = [figures.token_hit_rate for figures in found]
    assert rates == sorted(rates)
    assert rates[-1] == found[-1].reachable_token_hit_rate == pytest.approx(7 / 8)


def test_sizes_are_bytes_or_shares_of_the_distinct_blocks() -> None:
    trace = trace_of((0, chain(1, 30)), (1, chain(2, 30)))
    sizes = parse_tiers("host=64 MiB, ssd=2.5%")
    assert sizes[TierName.HOST].blocks(trace, BLOCK_NBYTES) == 64
    assert sizes[TierName.SSD].blocks(trace, BLOCK_NBYTES) == 1


@pytest.mark.parametrize(
    "text", ["", "host", "ssd=10%", "host=5%,host=6%", "disk=5%", "host=5 %%", "host=-1%", "host=x"]
)
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--tiers"):
        parse_tiers(text)


def test_a_pool_that_is_too_small_is_refused() -> None:
    with pytest.raises(ConfigError, match="at least 32"):
        replay(plan_of(trace_of((0, [1])), host_blocks=31))


def test_the_engine_asks_for_no_block_of_a_request_it_finds_whole() -> None:
    trace = trace_of((0, chain(1, 8)), (1, chain(1, 8)))
    figures = replay(plan_of(trace))
    assert figures.moved_nbytes["host.put"] == 8 * BLOCK_NBYTES
    assert np.isclose(figures.token_hit_rate, 0.5)
