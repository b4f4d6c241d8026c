"""What was measured once is not measured again, unless it is old, damaged, or of another GPU."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tierstore.device import calibration
from tierstore.device.calibration_cache import calibrated
from tierstore.testing.sim_gpu import SimGpu


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "_CACHE_NBYTES", 16 << 20)
    monkeypatch.setattr(calibration, "_BLOCKS_MAX", 1)


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """The one file after a first process."""
    calibrated(SimGpu(), tmp_path / "cache")
    (path,) = (tmp_path / "cache").iterdir()
    return path


def measures(gpu: SimGpu, folder: Path) -> bool:
    """Whether a process measures; whichever way, it knows the same engines."""
    found = calibrated(gpu, folder)
    assert found.facts == gpu.facts
    assert len(found.rates) == 2 * 5 * 6
    return bool(gpu.calls)


def test_a_second_process_measures_nothing_and_chooses_the_same(kept: Path) -> None:
    assert not measures(SimGpu(), kept.parent)
    again, once_more = calibrated(SimGpu(), kept.parent), calibrated(SimGpu(), kept.parent)
    assert again.rates == once_more.rates


def age(path: Path) -> None:
    then = time.time() - 31 * 86400
    os.utime(path, (then, then))


def postdate(path: Path) -> None:
    then = time.time() + 86400
    os.utime(path, (then, then))


def halve(path: Path) -> None:
    path.write_text(path.read_text("utf-8")[:100], "utf-8")


def edit(path: Path, change: Callable[[dict[str, list[list[float]]]], None]) -> None:
    report = json.loads(path.read_text("utf-8"))
    change(report)
    path.write_text(json.dumps(report), "utf-8")


def forget_one(path: Path) -> None:
    edit(path, lambda report: report["rates"].__delitem__(-1))


def stop_one(path: Path) -> None:
    edit(path, lambda report: report["rates"][0].__setitem__(3, 0.0))


def flatten(path: Path) -> None:
    path.write_text("[]", "utf-8")


def renew(path: Path) -> None:
    edit(path, lambda report: report.update(version=[]))


@pytest.mark.parametrize("spoil", [age, postdate, halve, forget_one, stop_one, flatten, renew])
def test_a_file_that_is_old_or_damaged_is_measured_anew_and_replaced(kept: Path, spoil: Callable[[Path], None]) -> None:
    spoil(kept)
    assert measures(SimGpu(), kept.parent)
    assert not measures(SimGpu(), kept.parent)
    assert list(kept.parent.iterdir()) == [kept]


def test_another_gpu_or_driver_has_a_file_of_its_own(kept: Path) -> None:
    other, newer, slower = SimGpu(), SimGpu(), SimGpu()
    other.facts = replace(other.facts, name="another GPU")
    newer.facts = replace(newer.facts, driver=newer.facts.driver + 10)
    slower.facts = replace(slower.facts, processors=slower.facts.processors // 2)
    assert [measures(gpu, kept.parent) for gpu in (other, newer, slower)] == [True] * 3
    assert len(list(kept.parent.iterdir())) == 3


@pytest.mark.parametrize("gpu", [SimGpu(memory_nbytes=1 << 20), SimGpu(memory_nbytes=17 << 20)])
def test_what_could_not_be_measured_whole_is_not_kept(tmp_path: Path, gpu: SimGpu) -> None:
    calibrated(gpu, tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


def test_where_no_file_can_be_written_every_process_measures(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file, not a folder", "utf-8")
    assert measures(SimGpu(), tmp_path / "cache" / "inner")
    assert measures(SimGpu(), tmp_path / "cache" / "inner")
