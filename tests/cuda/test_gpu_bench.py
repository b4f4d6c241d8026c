"""``python -m bench.gpu`` as far as it goes without a GPU: it finds what is wrong, and measures every cell."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from bench.gpu import __main__ as command
from bench.gpu import bandwidth
from bench.gpu.bandwidth import as_table, measure_matrix, num_cells
from bench.gpu.correctness import check_arrangements
from bench.gpu.kept import check_checksums, check_kept
from tierstore.benchmark.gpu_copies import CacheShape
from tierstore.device import calibration
from tierstore.device.copy_engines import engine_names
from tierstore.quantized import SCHEMES
from tierstore.testing.caches import ARRANGEMENTS
from tierstore.testing.sim_gpu import SimGpu

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from tierstore.types import Int64Array


class TornGpu(SimGpu):
    """Loses the last byte of each batch."""

    def copy_batch(self, dsts: Int64Array, srcs: Int64Array, nbytes: Int64Array, stream: int) -> None:
        kept = nbytes.copy()
        kept[-1] -= 1
        super().copy_batch(dsts, srcs, kept, stream)


def test_every_arrangement_is_right_by_every_engine() -> None:
    gpu = SimGpu()
    checked = dict(check_arrangements(gpu))
    assert len(checked) == 2 * len(ARRANGEMENTS) * len(engine_names(gpu.facts))
    assert {text: wrong for text, wrong in checked.items() if wrong} == {}
    assert gpu.num_held == 0


def test_quantized_blocks_and_those_of_the_device_pool_are_checked_and_right() -> None:
    gpu = SimGpu(seed=2)
    checked = dict(check_kept(gpu))
    assert len(checked) == len(ARRANGEMENTS) + 2 * len(SCHEMES) * (len(ARRANGEMENTS) - 1)
    assert {text: wrong for text, wrong in checked.items() if wrong} == {}
    assert gpu.num_held == 0


def test_checksums_are_checked_and_right_and_found_where_they_are_not() -> None:
    class BlindGpu(SimGpu):
        def launch(self, kernel: str, grid: int, parameter: NDArray[np.void], stream: int) -> None:
            if kernel != "crc32c":
                super().launch(kernel, grid, parameter, stream)

    gpu = SimGpu(seed=3)
    assert set(dict(check_checksums(gpu)).values()) == {""}
    assert gpu.num_held == 0
    assert set(dict(check_checksums(BlindGpu())).values()) == {"checksums"}


def test_a_device_pool_whose_kernels_lose_a_byte_is_found() -> None:
    class LossyGpu(SimGpu):
        def launch(self, kernel: str, grid: int, parameter: NDArray[np.void], stream: int) -> None:
            torn = parameter.copy()
            if kernel.startswith("scatter"):
                torn["segments"]["num_rows"][0, 0] = 0
            super().launch(kernel, grid, torn, stream)

    wrong = {text for text, found in check_kept(LossyGpu()) if found}
    assert wrong
    assert all(text.endswith("byte for byte, device pool") for text in wrong)


def test_a_copy_that_loses_a_byte_is_found() -> None:
    wrong = {text.rsplit(", ")[-1] for text, found in check_arrangements(TornGpu()) if found}
    assert wrong == {"batch", "staged"}


@pytest.mark.parametrize(("gpu", "num_bad"), [(SimGpu(), 0), (TornGpu(), 8)])
def test_every_cell_is_measured_and_verified(monkeypatch: pytest.MonkeyPatch, gpu: SimGpu, num_bad: int) -> None:
    monkeypatch.setattr(bandwidth, "SHAPES", {"small": CacheShape(2, 1, 64), "apart": CacheShape(2, 2, 64, 16)})
    monkeypatch.setattr(bandwidth, "BATCHES", (2,))
    cells = list(measure_matrix(gpu, 0.01))
    assert len(cells) == num_cells(gpu) == 2 * 3 * len(engine_names(gpu.facts))
    assert sum(cell.wrong > 0 for cell in cells) == num_bad
    assert all(cell.turns >= 3 and cell.share > 0 for cell in cells)
    assert as_table(cells).count("\n") == 6


@pytest.mark.parametrize(("gpu", "races", "code"), [(SimGpu(), 0, 0), (SimGpu(), 1, 1), (TornGpu(), 0, 1)])
def test_the_command_writes_what_it_found_and_ends_by_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, gpu: SimGpu, races: int, code: int
) -> None:
    """All of it but the races and the quantizing kernels, which need a real GPU."""
    monkeypatch.setattr(bandwidth, "SHAPES", {"small": CacheShape(2, 1, 64)})
    monkeypatch.setattr(bandwidth, "BATCHES", (2,))
    monkeypatch.setattr(calibration, "_CACHE_NBYTES", 16 << 20)
    monkeypatch.setattr(calibration, "_BLOCKS_MAX", 1)
    monkeypatch.setattr("tierstore.device.cuda.open_runtime", lambda: gpu)
    monkeypatch.setattr(command, "check_quantization", lambda _: iter([]))
    monkeypatch.setattr(command, "check_kept", lambda _: iter([]))
    monkeypatch.setattr(command, "count_races", lambda *_: races)
    monkeypatch.setattr("sys.argv", ["gpu", "--seconds", "0.1", "--json", str(tmp_path / "gpu.json")])
    with pytest.raises(SystemExit) if code else nullcontext() as ended:
        command.main()
    assert ended is None or ended.value.code == code
    found = json.loads((tmp_path / "gpu.json").read_text())
    assert found["gpu"]["name"] == "simulated"
    assert bool(found["wrong"]) == isinstance(gpu, TornGpu)
    assert len(found["cells"]) == 3 * len(engine_names(gpu.facts))
    assert found["calibration"]["store 1024 batch"] > 0


def test_from_a_checkout_without_a_gpu_it_ends_with_one_plain_line(tmp_path: Path) -> None:
    checkout = Path(__file__).parents[2]
    ended = subprocess.run(
        [sys.executable, "-m", "bench.gpu", "--json", str(tmp_path / "gpu.json")],
        cwd=checkout,
        env={**os.environ, "PYTHONPATH": ".", "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (1, "")
    assert re.fullmatch(r"bench\.gpu: (cupy cannot be imported|no GPU is visible|no NVIDIA driver).*\n", ended.stderr)
    assert not (tmp_path / "gpu.json").exists()


def test_what_was_found_before_a_failure_is_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tierstore.device.cuda.open_runtime", SimGpu)
    monkeypatch.setattr(command, "check_quantization", lambda _: iter([("a check", "wrong")]))
    monkeypatch.setattr(command, "check_kept", lambda _: iter([]))
    monkeypatch.setattr(command, "check_arrangements", lambda _: iter([]))
    monkeypatch.setattr(command, "count_races", lambda *_: 1 // 0)
    monkeypatch.setattr("sys.argv", ["gpu", "--json", str(tmp_path / "gpu.json")])
    with pytest.raises(ZeroDivisionError):
        command.main()
    assert json.loads((tmp_path / "gpu.json").read_text())["wrong"] == {"a check": "wrong"}
