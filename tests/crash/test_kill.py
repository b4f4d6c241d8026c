"""Processes that end without warning: what was acknowledged as durable is there, and nothing else is left behind."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import IO

import pytest

from tests.crash.life import NAMESPACE, open_store
from tests.payload import block_hash, get, rows
from tierstore.errors import FolderBusyError

ROOT = Path(__file__).parents[2]
EXIT_SECONDS = 5.0
KEPT_BLOCKS = 100
"""The newest blocks, which no reclaim can have reached: these are in the newest eighth of the files, which stays."""


@contextmanager
def life(what: str, folder: Path, first: int = 0) -> Iterator[tuple[subprocess.Popen[str], IO[str]]]:
    """A store in a process of its own, and its output; killed at the end if it still lives."""
    command = [sys.executable, "-m", "tests.crash.life", what, str(folder), str(first)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process, process.stdout
        finally:
            process.kill()


def acknowledged(lines: list[str]) -> tuple[set[int], set[int]]:
    """Numbers said to be durable, and all that were said."""
    said = [line.split() for line in lines if line.endswith("\n")]
    durable = {int(number) for kind, *numbers in said if kind == "durable" for number in numbers}
    return durable, durable | {int(number) for kind, *numbers in said if kind == "plain" for number in numbers}


def verify(folder: Path, durable: set[int], newest: int) -> int:
    """Open what a killed process left: every block is exact or missing, and no durable one is. How many there are."""
    with open_store(str(folder)) as store:
        handle = store.namespace(NAMESPACE)
        presence = handle.presence([block_hash(number) for number in range(newest + 64)])
        known = [number for number, found in enumerate(presence) if found]
        exact = {number for number in known if get(handle, [block_hash(number)], rows([number], 8192)).ok}
        store.check()
    lost = {number for number in durable - exact if number > newest - KEPT_BLOCKS}
    assert not lost, "durable blocks are lost"
    return len(exact)


@pytest.mark.slow  # a dozen processes
def test_a_durable_block_outlives_every_kill(tmp_path: Path) -> None:
    rng = Random(20_24)
    durable: set[int] = set()
    newest = 0
    for _ in range(12):
        with life("write", tmp_path, newest + 1) as (process, output):
            lines = [output.readline() for _ in range(rng.randrange(2, 60))]
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(rng.random() / 100)
            process.kill()
            lines += output.readlines()
        durable_now, known = acknowledged(lines)
        durable |= durable_now
        newest = max(known | {newest}) + 8
        assert verify(tmp_path, durable, newest) >= min(len(durable), KEPT_BLOCKS // 2)
    assert newest > 2 * KEPT_BLOCKS


@pytest.mark.parametrize(("what", "code"), [("forget", 0), ("fail", 1)])
def test_a_program_that_forgets_to_close_ends_all_the_same(tmp_path: Path, what: str, code: int) -> None:
    with life(what, tmp_path) as (process, output):
        lines = []
        while (line := output.readline()) not in ("end\n", ""):
            lines.append(line)
        assert process.wait(EXIT_SECONDS) == code
        assert process.stderr is not None
        assert ("RuntimeError: as it happens" in process.stderr.read()) == bool(code)
    durable, _known = acknowledged(lines)
    assert durable == {64}
    assert verify(tmp_path, durable, 64) > 1


def test_a_second_opener_learns_who_holds_the_folder(tmp_path: Path) -> None:
    with life("write", tmp_path) as (process, output):
        assert output.readline() == "open\n"
        output.readline()
        with pytest.raises(FolderBusyError, match=rf"pid {process.pid} \(.*since.*stop that process") as caught:
            open_store(str(tmp_path))
        assert str(tmp_path) in str(caught.value)
        assert process.poll() is None
    assert verify(tmp_path, set(), 0) >= 0


def pools_of(pid: int) -> set[str]:
    """Inodes of the pools that a process has mapped; empty where it is gone or another's."""
    try:
        lines = Path(f"/proc/{pid}/maps").read_text("utf-8").splitlines()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return set()
    return {line.split()[4] for line in lines if "/memfd:tierstore" in line}


def test_a_killed_process_leaves_no_memory_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIERSTORE_HOST_SHARED", "true")  # the pool that could outlive its owner
    with life("write", tmp_path) as (process, output):
        assert output.readline() == "open\n"
        output.readline()
        pools = pools_of(process.pid)
        assert pools
        assert "/dev/shm/" not in Path(f"/proc/{process.pid}/maps").read_text("utf-8")
        process.kill()
        process.wait()
    pids = [int(name) for name in os.listdir("/proc") if re.fullmatch("[0-9]+", name)]
    assert not [pid for pid in pids if pools_of(pid) & pools]
