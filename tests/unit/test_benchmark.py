"""The benchmark's own arithmetic: bytes that name their owner, pairs of calls, limits, sizes, the report."""

from __future__ import annotations

import json
import mmap
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tierstore.benchmark.limits import LimitFile, copy_ways, fastest_copy
from tierstore.benchmark.machine import describe_machine, file_system
from tierstore.benchmark.measure import Clocks, Measurement, Probe, measure
from tierstore.benchmark.payload import Payload
from tierstore.benchmark.plan import BenchmarkPlan
from tierstore.benchmark.report import Report, Row, as_table, save_plot
from tierstore.errors import ConfigError, FolderError
from tierstore.layout import KVLayout
from tierstore.settings import parse_size

if TYPE_CHECKING:
    from tierstore.types import UInt8Array

BLOCK_NBYTES = 4096


class FakeTime:
    """A wall clock and a processor clock that only move when told to."""

    def __init__(self) -> None:
        self.wall_seconds = 0.0
        self.cpu_seconds = 0.0

    def spend(self, seconds: float) -> Callable[[int], None]:
        def call(_: int) -> None:
            self.wall_seconds += seconds
            self.cpu_seconds += seconds / 2

        return call

    @property
    def clocks(self) -> Clocks:
        return Clocks(wall=lambda: self.wall_seconds, cpu=lambda: self.cpu_seconds)


def make_probe(time: FakeTime, *, limit: float = 1.0, product: float = 2.0, pairs_max: int = 100) -> Probe:
    return Probe(
        link="host.put",
        threads=1,
        pages="buffer to pool",
        limit_name="copy",
        call_nbytes=4_000_000_000,
        num_pairs_min=3,
        num_pairs_max=pairs_max,
        prepare=time.spend(10.0),
        limit=time.spend(limit),
        product=time.spend(product),
        num_wrong=lambda _: 0,
    )


def make_plan(folder: Path, **changes: object) -> BenchmarkPlan:
    values: dict[str, object] = {
        "layout": KVLayout.opaque(block_nbytes=BLOCK_NBYTES),
        "host_nbytes": 4 << 20,
        "folder": folder,
        "ssd_nbytes": 512 << 20,
        "codec": "raw",
        "read_threads": 2,
        "batch": 16,
        "seconds": 1.0,
    }
    return BenchmarkPlan(**{**values, **changes})  # type: ignore[arg-type]


@pytest.fixture
def payload() -> Payload:
    return Payload(BLOCK_NBYTES)


@pytest.fixture
def rows() -> UInt8Array:
    return np.zeros((4, BLOCK_NBYTES), np.uint8)


def test_filled_rows_are_those_of_their_keys(payload: Payload, rows: UInt8Array) -> None:
    payload.fill(rows, range(7, 11))
    assert payload.num_wrong(rows, range(7, 11)) == 0


def test_rows_of_other_keys_are_wrong(payload: Payload, rows: UInt8Array) -> None:
    payload.fill(rows, [1, 2, 3, 4])
    assert payload.num_wrong(rows, [1, 3, 2, 4]) == 2


@pytest.mark.parametrize("position", [0, 1000, BLOCK_NBYTES - 1])
def test_one_flipped_bit_makes_a_row_wrong(payload: Payload, rows: UInt8Array, position: int) -> None:
    payload.fill(rows, range(4))
    rows[2, position] ^= 1
    assert payload.num_wrong(rows, range(4)) == 1


def test_a_row_shifted_by_64_bytes_is_wrong(payload: Payload, rows: UInt8Array) -> None:
    payload.fill(rows, range(4))
    rows[0] = np.roll(rows[0], 64)
    assert payload.num_wrong(rows, range(4)) == 1


def test_poisoned_rows_belong_to_nobody(payload: Payload, rows: UInt8Array) -> None:
    payload.poison(rows)
    assert payload.num_wrong(rows, range(4)) == 4


def test_a_block_size_off_the_word_is_refused_with_the_value() -> None:
    with pytest.raises(ConfigError, match="4097 bytes"):
        Payload(4097)


def test_rates_count_the_timed_parts_alone() -> None:
    time = FakeTime()
    taken = measure(make_probe(time), seconds=100.0, clocks=time.clocks)
    assert taken.limit_gbytes_per_second == pytest.approx(4.0)
    assert taken.gbytes_per_second == pytest.approx(2.0)
    assert taken.limit_cpu_seconds / taken.num_gbytes == pytest.approx(0.125)
    assert taken.product_cpu_seconds / taken.num_gbytes == pytest.approx(0.25)
    assert taken.share_spread() == pytest.approx((0.5, 0.5))
    assert taken.product_ms(99) == pytest.approx(2000.0)


def test_pairs_end_with_their_time_and_the_first_is_not_counted() -> None:
    time = FakeTime()
    taken = measure(make_probe(time), seconds=100.0, clocks=time.clocks)
    assert taken.num_pairs == 4  # 23 s a pair: five of them pass 100 s


def test_the_least_number_of_pairs_is_taken_however_slow_they_are() -> None:
    time = FakeTime()
    assert measure(make_probe(time), seconds=0.1, clocks=time.clocks).num_pairs == 2


def test_pairs_end_where_there_is_no_more_room() -> None:
    time = FakeTime()
    assert measure(make_probe(time, pairs_max=3), seconds=1e9, clocks=time.clocks).num_pairs == 2


def test_limit_and_product_are_called_by_turns_with_one_number() -> None:
    time, calls = FakeTime(), []
    probe = make_probe(time, pairs_max=3)
    for name in ("limit", "product"):
        object.__setattr__(probe, name, lambda call, name=name: calls.append((name, call)))
    measure(probe, seconds=1e9, clocks=time.clocks)
    assert calls == [(name, call) for call in range(3) for name in ("limit", "product")]


def test_the_fastest_copy_is_one_of_the_ways() -> None:
    src = np.ones((2, 4096), np.uint8)
    calls = {"slow": lambda dst, src: np.copyto(np.repeat(dst, 1000), 0), "fast": lambda dst, src: None}
    assert fastest_copy(calls, dst=np.zeros_like(src), src=src)[0] == "fast"


@pytest.mark.parametrize("name", copy_ways())
def test_every_way_copies_every_byte_and_nothing_beside(name: str) -> None:
    src = np.random.default_rng(0).integers(0, 256, (3, 5000), dtype=np.uint8)
    area = np.zeros((3, 8192), np.uint8)
    copy_ways()[name](area[:, :5000], src)
    assert np.array_equal(area[:, :5000], src)
    assert not area[:, 5000:].any()


def test_the_limit_file_gives_back_what_was_written(tmp_path: Path) -> None:
    pages = np.frombuffer(mmap.mmap(-1, 8 * 4096), np.uint8).reshape(8, 4096)
    pages[:] = np.arange(8, dtype=np.uint8)[:, None]
    with closing(LimitFile(tmp_path, nbytes=16 * 4096, threads=3)) as file:
        file.write([pages], 8 * 4096)
        pages[:] = 0xFF
        file.read([pages], 8 * 4096)
        assert pages[:, 0].tolist() == list(range(8))
    assert list(tmp_path.iterdir()) == []


def test_a_limit_file_beyond_the_disk_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(FolderError, match="use another --ssd-dir"):
        LimitFile(tmp_path, nbytes=1 << 60, threads=1)
    assert list(tmp_path.iterdir()) == []


def test_the_tier_of_a_plan_outgrows_its_pool(tmp_path: Path) -> None:
    plan = make_plan(tmp_path)
    assert plan.num_ssd_calls_min * plan.call_nbytes >= 2 * plan.ssd_host_nbytes


def test_a_pool_too_small_for_a_call_is_refused_with_the_size_it_needs(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--host-size of at least 16 MiB"):
        make_plan(tmp_path, batch=1024)


def test_a_tier_too_small_to_outgrow_its_pool_is_refused_with_a_size_that_will_do(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--ssd-size of at least") as caught:
        make_plan(tmp_path, ssd_nbytes=1 << 20)
    needed = parse_size(str(caught.value).split("at least ")[1], key="needed")
    assert make_plan(tmp_path, ssd_nbytes=needed).num_ssd_calls_max >= 8


def make_report(*, num_wrong: int = 0, failures: list[str] | None = None) -> Report:
    taken = Measurement(make_probe(FakeTime()), [1.0, 1.0], [2.0, 4.0], 4.0, 8.0, num_wrong)
    return Report({"cpu": "some"}, [Row.of(taken, batch=1000, codec="raw")], failures or [])


def test_a_report_is_one_json_object_with_the_promised_fields() -> None:
    report = json.loads(make_report().as_json())
    row = report["rows"][0]
    assert (report["version"], report["machine"]) == (1, {"cpu": "some"})
    assert row["link"] == "host.put"
    assert row["block_nbytes"] == 4_000_000
    assert row["share"] == pytest.approx(row["gbytes_per_second"] / row["limit_gbytes_per_second"])
    assert row["limit_cpu_seconds_per_gbyte"] == pytest.approx(0.5)
    assert row["cpu_seconds_per_gbyte"] == pytest.approx(1.0)
    assert row["verified"] is True


@pytest.mark.parametrize("report", [make_report(num_wrong=1), make_report(failures=["ssd links: no room"])])
def test_a_report_with_a_wrong_byte_or_a_missing_link_is_not_complete(report: Report) -> None:
    assert make_report().complete
    assert not report.complete


@pytest.mark.parametrize(("load", "warned"), [(0.9, False), (1.1, True)])
def test_a_table_says_when_the_machine_was_busy(load: float, warned: bool) -> None:
    report = Report({"cpu": "some", "num_cpus": 2, "load_average": load}, make_report().rows, [])
    assert ("busy" in str(as_table(report).caption)) == warned


@pytest.mark.parametrize(("uncached", "warned"), [(None, False), (1 << 20, False), (114 << 20, True)])
def test_a_table_says_when_blocks_are_copied_through_the_caches(uncached: int | None, warned: bool) -> None:
    report = Report({"cpu": "some", "uncached_copy_nbytes": uncached}, make_report().rows, [])
    assert ("caches" in str(as_table(report).caption)) == warned


def test_a_plot_is_written_as_a_picture(tmp_path: Path) -> None:
    save_plot(make_report(), tmp_path / "out.png")
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")


def test_the_machine_is_described_in_plain_values(tmp_path: Path) -> None:
    machine = describe_machine(tmp_path)
    assert json.loads(json.dumps(machine)) == machine
    assert machine["file_system"] == file_system(tmp_path) != "unknown"
