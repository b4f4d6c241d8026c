"""What the benchmarks do with a GPU, on a simulated one: every engine, verified, beside a plain copy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tierstore.benchmark.gpu_copies import CacheShape, GpuCopies
from tierstore.benchmark.gpu_links import find_gpu, measure_gpu_links, num_gpu_links
from tierstore.benchmark.measure import Measurement, Probe, measure
from tierstore.benchmark.plan import BenchmarkPlan
from tierstore.device import auto
from tierstore.device.copy_engines import engine_names
from tierstore.device.cpu import CpuDevice
from tierstore.errors import DeviceError
from tierstore.layout import KVLayout
from tierstore.testing.sim_gpu import SimGpu

SHAPES = {
    "whole": CacheShape(layers=3, num_rows=4, row_nbytes=96),
    "rows apart": CacheShape(layers=2, num_rows=4, row_nbytes=1152, row_gap_nbytes=128),
    "odd": CacheShape(layers=2, num_rows=3, row_nbytes=7, row_gap_nbytes=1),
}


@pytest.fixture(params=SHAPES)
def copies(request: pytest.FixtureRequest) -> Iterator[GpuCopies]:
    gpu = SimGpu()
    with closing(GpuCopies(gpu, SHAPES[request.param], 6)) as copies:
        yield copies
    assert gpu.num_held == 0


@pytest.mark.parametrize("store", [True, False])
@pytest.mark.parametrize("engine", engine_names(SimGpu().facts))
def test_a_copy_by_every_engine_is_found_right(copies: GpuCopies, engine: str, store: bool) -> None:
    copies.prepare(store=store)
    assert copies.num_wrong(store=store) == 6
    copies.copy(engine, store=store)
    assert copies.num_wrong(store=store) == 0


@pytest.mark.parametrize("store", [True, False])
def test_a_plain_copy_is_not_taken_for_the_blocks(copies: GpuCopies, store: bool) -> None:
    copies.prepare(store=store)
    copies.copy_plain(store=store)
    assert copies.num_wrong(store=store) >= 5


def test_both_ways_at_once_leave_the_other_half_alone(copies: GpuCopies) -> None:
    copies.prepare(store=True)
    copies.copy_both_ways("batch")
    assert copies.num_wrong(store=True) == 3


def test_memory_that_cannot_be_pinned_is_not_measured() -> None:
    gpu = SimGpu(memlock_nbytes=0)
    with pytest.raises(DeviceError, match="ulimit"):
        GpuCopies(gpu, SHAPES["whole"], 6)


def test_every_engine_is_a_row_in_each_direction(tmp_path: Path) -> None:
    gpu = SimGpu()
    plan = BenchmarkPlan(
        layout=KVLayout.attention(layers=2, kv_heads=1, head_size=16, block_tokens=4),
        host_nbytes=4 << 20,
        folder=tmp_path,
        ssd_nbytes=512 << 20,
        codec="raw",
        read_threads=1,
        batch=4,
        seconds=0.01,
    )

    def take(probe: Probe) -> Measurement:
        return measure(probe, seconds=0.01)

    taken = list(measure_gpu_links(gpu, plan, take))
    assert len(taken) == num_gpu_links(gpu) == 2 * len(engine_names(gpu.facts))
    assert {each.probe.link.split()[0] for each in taken} == {"device.store", "device.load"}
    assert all(each.num_wrong == 0 and each.num_pairs >= 5 for each in taken)


@pytest.mark.skipif(not isinstance(auto.open_device(), CpuDevice), reason="this machine has a GPU")
def test_without_a_gpu_there_are_no_such_rows() -> None:
    assert find_gpu() is None
    assert num_gpu_links(None) == 0
