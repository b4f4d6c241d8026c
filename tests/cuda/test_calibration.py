"""Which engine is chosen, and that measuring leaves nothing behind."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tierstore.device import calibration
from tierstore.device.calibration import ROWS_NBYTES, Choices, calibrate
from tierstore.device.copy_engines import engine_names
from tierstore.errors import DeviceError
from tierstore.testing.sim_gpu import SimGpu

FACTS = SimGpu().facts


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "_CACHE_NBYTES", 16 << 20)
    monkeypatch.setattr(calibration, "_BLOCKS_MAX", 2)


def test_every_engine_is_measured_both_ways_at_every_size() -> None:
    gpu = SimGpu()
    choices = calibrate(gpu)
    assert set(choices.rates) == {
        (store, size, name) for store in (True, False) for size in ROWS_NBYTES for name in engine_names(FACTS)
    }
    assert all(rate > 0 for rate in choices.rates.values())
    assert gpu.num_held == 0


@pytest.mark.parametrize("gpu", [SimGpu(memory_nbytes=1 << 20), SimGpu(memlock_nbytes=1 << 20)])
def test_where_memory_is_short_defaults_are_used_and_said(gpu: SimGpu, caplog: pytest.LogCaptureFixture) -> None:
    choices = calibrate(gpu)
    assert not choices.rates
    assert "not measured" in caplog.text
    assert gpu.num_held == 0


def test_a_gpu_with_no_memory_left_to_stage_in_is_measured_without() -> None:
    choices = calibrate(SimGpu(memory_nbytes=17 << 20))
    assert {name for _, _, name in choices.rates} == set(engine_names(FACTS)) - {"staged"}


def test_a_gpu_that_fails_while_it_is_measured_is_an_error() -> None:
    with pytest.raises(DeviceError, match="refused"):
        calibrate(SimGpu(fail_at=7))


def test_of_engines_that_are_about_as_fast_the_one_that_takes_least_from_others_is_chosen() -> None:
    rates = {(True, 4096, "batch"): 10.0, (True, 4096, "kernel-8"): 19.1, (True, 4096, "kernel-32"): 20.0}
    assert Choices(FACTS, rates).choose(store=True, row_nbytes=4096) == "kernel-8"
    assert Choices(FACTS, rates | {(True, 4096, "batch"): 19.5}).choose(store=True, row_nbytes=2048) == "batch"


@pytest.mark.parametrize(("row_nbytes", "size"), [(1, 1024), (1024, 1024), (1025, 4096), (1 << 30, 256 << 10)])
def test_a_row_counts_as_the_next_larger_size(row_nbytes: int, size: int) -> None:
    rates = {(False, each, "pieces" if each == size else "batch"): 1.0 for each in ROWS_NBYTES}
    assert Choices(FACTS, rates).choose(store=False, row_nbytes=row_nbytes) == "pieces"


def test_unmeasured_rows_go_by_kernel_where_short_and_in_batches_where_long() -> None:
    unmeasured = Choices(FACTS, {})
    assert unmeasured.choose(store=True, row_nbytes=1152) == "kernel-16"
    assert unmeasured.choose(store=True, row_nbytes=64 << 10) == "batch"
    assert Choices(replace(FACTS, has_batches=False), {}).choose(store=True, row_nbytes=64 << 10) == "staged"
    assert Choices(replace(FACTS, reaches_host=False), {}).choose(store=True, row_nbytes=1152) == "staged"
