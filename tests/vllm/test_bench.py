"""The benchmark of times to the first token runs on small work, and every way answers the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from bench.vllm_ttft import MODES
from tests.processes import ROOT
from tests.vllm.engines import VARIABLE, Nursery, interpreter


def test_every_mode_is_measured_and_answers_the_same(nursery: Nursery, tmp_path: Path) -> None:
    arguments = ["--small", "--tokens", "200", "--prompts", "1", "--json", str(tmp_path / "figures.json")]
    environment = {**os.environ, VARIABLE: str(interpreter())}
    command = [sys.executable, "-m", "bench.vllm_ttft", *arguments, "--plot", str(tmp_path / "plot.png")]
    subprocess.run(command, cwd=ROOT, env=environment, check=True)
    told = json.loads((tmp_path / "figures.json").read_text("utf-8"))
    rows = told["rows"]
    hits = {"none": 0, "local": 192, "cold": 0, "warm": 192, "restart": 192, "service": 192}
    hits |= {"native": 192} if "native" not in told["left_out"] else {}
    assert {row["mode"]: row["hit_tokens"] for row in rows} == hits
    assert {*hits, *told["left_out"]} == set(MODES)
    assert 0 < told["match"]["ms_p50"] <= told["match"]["ms_p99"]
    assert all(row["tokens_equal"] and row["ttft_ms_p50"] > 0 for row in rows)
    assert (tmp_path / "plot.png").stat().st_size > 0
