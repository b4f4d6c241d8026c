"""Importing tierstore and asking for help stay cheap: nothing heavy is loaded, and little time is spent."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest

HEAVY = {
    "cupy",
    "google",
    "grpc",
    "lz4",
    "matplotlib",
    "numcodecs",
    "numpy",
    "opentelemetry",
    "rich",
    "torch",
    "vllm",
    "zarr",
}
CPU_SECONDS_MAX = 0.3
PROGRAMS = {
    "import": "import tierstore",
    "help": "import sys; sys.argv[1:] = ['--help']\nfrom tierstore.cli.main import main\n"
    "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code",
}


def run(program: str) -> str:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout


def cpu_seconds(program: str) -> float:
    """Processor time of one run in a process of its own; unlike wall time it does not show what else runs."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    run(program)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


@pytest.mark.parametrize("program", PROGRAMS)
def test_nothing_heavy_is_loaded_by(program: str) -> None:
    printed = run(PROGRAMS[program] + "\nimport sys; print('\\n' + ' '.join(sys.modules))")
    loaded = {name.partition(".")[0] for name in printed.splitlines()[-1].split()}
    assert "tierstore" in loaded
    assert not loaded & HEAVY


@pytest.mark.parametrize("program", PROGRAMS)
def test_little_time_is_spent_by(program: str) -> None:
    """Or little more than click takes by itself, where the machine is slow."""
    own, bare = zip(*((cpu_seconds(PROGRAMS[program]), cpu_seconds("import click")) for _ in range(5)), strict=True)
    assert min(own) <= max(CPU_SECONDS_MAX, 1.5 * min(bare))


def test_nothing_is_imported_under_the_lock() -> None:
    """What numpy loads when `unique` is first called took 13 ms of the first hint."""
    run(
        "import sys, numpy, tierstore.control.planner\nbefore = set(sys.modules)\nnumpy.unique(numpy.arange(2))\n"
        "assert set(sys.modules) == before"
    )
