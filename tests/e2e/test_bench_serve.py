"""`tierstore bench --serve` on small work: a service, a bare server and clients, all real, and every figure there."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.processes import ROOT
from tierstore.benchmark.serve_load import Prompts
from tierstore.benchmark.serve_plan import ServePlan
from tierstore.errors import ConfigError
from tierstore.layout import KVLayout

SMALL = [
    "--block-size",
    "8 KiB",
    "--batch",
    "8",
    "--host-size",
    "256 MiB",
    "--seconds",
    "0.1",
    "--index-blocks",
    "8192",
]
LINKS = ["local.put", "local.get", "stream.put", "stream.get"]
CALLS = ["control.acquire", "control.acquire_release", "control.lookup"]


def run(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tierstore", "bench", *options]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)


def test_every_way_into_a_service_is_measured_beside_its_limit() -> None:
    ran = run("--serve", *SMALL, "--clients", "2", "--json", "-")
    assert ran.returncode == 0, ran.stderr
    report = json.loads(ran.stdout)
    assert [row["link"] for row in report["rows"]] == LINKS + CALLS
    for row in report["rows"]:
        assert row["verified"]
        assert row["gbytes_per_second"] > 0
        assert row["limit_gbytes_per_second"] > 0
        assert row["p50_ms"] <= row["p99_ms"] <= row["p999_ms"]
    assert [(load["way"], load["clients"]) for load in report["loads"]] == [("local", 2), ("stream", 2)]
    for load in report["loads"]:
        assert load["calls"] > 0
        assert (load["errors"], load["wrong"]) == (0, 0)


def test_it_measures_one_thing_at_a_time() -> None:
    for options in ([], ["--serve", "--bandwidth"]):
        ran = run(*options)
        assert ran.returncode == 2
        assert "--bandwidth or --serve" in ran.stderr


def test_a_pool_that_the_calls_do_not_fit_is_refused() -> None:
    with pytest.raises(ConfigError, match="too small for 4 clients"):
        ServePlan(
            layout=KVLayout.opaque(block_nbytes=2 << 20),
            host_nbytes=1 << 30,
            folder=Path(),
            clients=4,
            batch=64,
            seconds=1.0,
        )


def test_the_first_prompts_are_the_most_wanted() -> None:
    prompts = Prompts(100, 1.0, seed=1)
    drawn = Counter(next(prompts) for _ in range(20_000))
    assert drawn[0] == pytest.approx(2 * drawn[1], rel=0.2)
    assert drawn[0] == pytest.approx(10 * drawn[9], rel=0.3)


def test_prompts_of_a_trace_come_in_its_order() -> None:
    prompts = Prompts(10, 1.0, seed=1, recorded=[3, 1, 2])
    assert [next(prompts) for _ in range(6)] == [3, 1, 2, 3, 1, 2]


MIDDLEMAN = """
import signal, sys
from tierstore.benchmark.tied import tied
command = [sys.executable, "-c", "import signal; signal.pause()"]
with tied(command, ends_by=signal.{name}) as process:
    print(process.pid, flush=True)
    signal.pause()
"""


@pytest.mark.parametrize("name", ["SIGTERM", "SIGKILL"])
def test_what_a_killed_benchmark_started_ends_with_it(name: str) -> None:
    command = [sys.executable, "-c", MIDDLEMAN.format(name=name)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        started = os.pidfd_open(int(process.stdout.readline()))
        if name == "SIGKILL":
            signal.pidfd_send_signal(started, signal.SIGSTOP)  # a stopped one would not hear of SIGTERM
        assert not select.select([started], [], [], 0.2)[0]
        process.kill()
        assert select.select([started], [], [], 60.0)[0], "it lives on"
        os.close(started)
