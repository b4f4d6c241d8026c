"""Every command of bench/ still runs: each on small work, as a process of its own, with figures at the end."""

from __future__ import annotations

import ast
import json
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench import versus_lmcache_server as served
from bench.peers.turns import Asked
from bench.versus_lmcache import STEPS, as_markdown, as_row
from tests.processes import ROOT
from tierstore.benchmark.machine import describe_machine, num_cpus

SMALL = {
    "bench.codec": ("", 2),
    "bench.mind": ("--blocks 65536", 1),
    "bench.pages": ("--cache-mib 4 --batch-mib 1 --turns 1", 42),
    "bench.reopen": ("--folder FOLDER --blocks 5000", 1),
    "bench.sealing": ("--folder FOLDER --rounds 1 --nbytes 67108864", 5),
    "bench.ssd": ("--folder FOLDER --seconds 0 --rounds 1 --nbytes 4194304 --plot FOLDER/plot.png", 18),
}
"""The least work that each command does, and how many rows of figures it then tells."""

ELSEWHERE = {
    "bench.churn": "tests/e2e/test_growth.py runs it",
    "bench.churn_client": "bench.churn starts it",
    "bench.gpu": "needs a GPU; tests/cuda runs it on a simulated one, tests/gpu its parts on a real one",
    "bench.peers.lmcache.server_worker": "needs LMCache, which has an environment of its own",
    "bench.peers.lmcache.worker": "needs LMCache, which has an environment of its own",
    "bench.peers.tierstore_service_worker": "asked for its steps, below",
    "bench.peers.tierstore_worker": "asked for its steps, below",
    "bench.replay": "takes minutes, and times nothing; tests/replay replays the same traces",
    "bench.soak": "tests/e2e/test_growth.py runs it",
    "bench.torture": "tests/crash runs it",
    "bench.vllm_ttft": "needs vLLM, which may have an environment of its own; tests/vllm runs it there",
    "bench.versus_lmcache": "installs LMCache; its worker and its page are tested below",
    "bench.versus_lmcache_server": "needs LMCache; its worker and its page are tested below",
}
"""Commands that are not in `SMALL`, and why."""


def commands() -> Iterator[str]:
    """Modules of bench/ that do something when they are run."""
    for path in sorted((ROOT / "bench").rglob("*.py")):
        statements = ast.parse(path.read_text("utf-8")).body
        if any(isinstance(one, ast.If) and "__main__" in ast.unparse(one.test) for one in statements):
            yield ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__main__")


def figures(value: object) -> Iterator[float]:
    """Every number that was measured; counts are whole numbers."""
    if isinstance(value, float):
        yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from figures(each)
    elif isinstance(value, list):
        for each in value:
            yield from figures(each)


def test_every_command_is_run_or_has_a_reason() -> None:
    assert set(commands()) == {*SMALL, *ELSEWHERE}


@pytest.mark.parametrize("module", SMALL)
def test_a_command_runs_on_small_work_and_tells_its_figures(module: str, tmp_path: Path) -> None:
    if module == "bench.pages" and shutil.which("cc") is None:
        pytest.skip("needs a C compiler for the loop; there is none")
    arguments, num_rows = SMALL[module]
    given = [argument.replace("FOLDER", str(tmp_path)) for argument in arguments.split()]
    command = [sys.executable, "-m", module, *given, "--json", str(tmp_path / "figures.json")]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stderr
    result = json.loads((tmp_path / "figures.json").read_text("utf-8"))
    assert result.pop("machine")["num_cpus"] == num_cpus()
    rows = result.get("rows", result.get("codecs", [result]))
    assert len(rows) == num_rows
    for row in rows:
        measured = list(figures(row))
        assert measured, row
        assert all(math.isfinite(figure) and figure > 0 for figure in measured), row


def test_the_worker_beside_lmcache_does_every_step(tmp_path: Path) -> None:
    sizes = ["--object-nbytes", str(256 << 10), "--count", "128", "--rounds", "3"]
    folder, log = tmp_path / "worker", tmp_path / "worker.log"
    folder.mkdir()
    command = [sys.executable, "-m", "bench.peers.tierstore_worker", *sizes, "--folder", str(folder)]
    worker = Asked(command, env={**os.environ, "PYTHONPATH": str(ROOT)}, log=str(log))
    try:
        seconds = {step: worker.ask(step) for step in STEPS}
    finally:
        worker.close()
    assert log.read_text("utf-8") == ""
    assert all(taken > 0 for taken in seconds.values())


def test_the_worker_beside_lmcaches_server_does_every_step(tmp_path: Path) -> None:
    sizes = ["--object-nbytes", str(256 << 10), "--chunk-tokens", "64", "--count", "128"]
    log = tmp_path / "worker.log"
    command = [sys.executable, "-m", "bench.peers.tierstore_service_worker", *sizes, "--folder", str(tmp_path)]
    worker = Asked(command, env={**os.environ, "PYTHONPATH": str(ROOT)}, log=str(log))
    try:
        seconds = {step: worker.ask(step) for step in served.STEPS}
    finally:
        worker.close()
    assert all(taken > 0 for taken in seconds.values())


def test_a_worker_that_ends_before_it_answers_leaves_no_process(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    script = f"import os, sys; open({str(pid)!r}, 'w').write(str(os.getpid())); sys.exit('no such step')"
    with pytest.raises(RuntimeError, match="no such step"):
        Asked([sys.executable, "-c", script], env=os.environ, log=str(tmp_path / "log"))
    assert not Path("/proc", pid.read_text("ascii")).exists()


def test_the_page_beside_lmcache_tells_the_ratio_to_the_faster_of_its_two_ways(tmp_path: Path) -> None:
    seconds = {"tierstore": [1.0, 2.0], "lmcache": [4.0, 4.0], "lmcache O_DIRECT": [2.0, 3.0]}
    rows = [as_row(step, seconds, object_nbytes=1 << 20, count=1000) for step in STEPS]
    assert [row["best_of_peer"] for row in rows] == ["lmcache O_DIRECT"] * len(STEPS)
    page = as_markdown("the command", describe_machine(tmp_path), rows)
    for step in STEPS:
        assert f"| 1 MiB | {step} | 0.79 [0.52 … 1.05] |" in page
    assert page.count("| 1.75x [1.50 … 2.00] |") == len(STEPS)


def test_the_page_beside_lmcaches_server_tells_the_ratio_to_the_faster_of_its_two_ways(tmp_path: Path) -> None:
    seconds = {"tierstore": [0.1, 0.2], "lmcache paged": [0.6, 0.6], "lmcache rows": [0.3, 0.4]}
    rows = [served.as_row(step, seconds, object_nbytes=1 << 20, count=256) for step in served.STEPS]
    assert [row["best_of_peer"] for row in rows] == ["lmcache rows"] * len(served.STEPS)
    page = served.as_markdown("the command", describe_machine(tmp_path), rows)
    for step in served.STEPS:
        assert f"| 256 × 1 MiB | {step} | 150 [100 … 200] | 600 [600 … 600] | 350 [300 … 400] |" in page
    assert page.count("| 2.50x [2.00 … 3.00] |") == len(served.STEPS)
