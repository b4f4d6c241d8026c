"""Processes that tests start and look into: programs with a store, and who maps a pool of host memory."""

from __future__ import annotations

import faulthandler
import gc
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

__all__ = ["in_child", "mappers", "open_files", "pools_of", "program"]

ROOT = Path(__file__).parents[1]

HANGS_SECONDS = 60.0
"""When a forked child says where it stands, and ends."""


def in_child(task: Callable[[], None]) -> int:
    """Run a task in a fork, and return its exit code: 0 where it came to its end.

    What earlier tests have left as garbage stays: a gRPC server that is destroyed in a fork waits for ever for threads
    that only the parent has.
    """
    child = os.fork()
    if child == 0:
        code = 1
        gc.freeze()
        faulthandler.dump_traceback_later(HANGS_SECONDS, exit=True)
        try:
            task()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@contextmanager
def program(script: str, folder: Path) -> Iterator[tuple[subprocess.Popen[str], IO[str]]]:
    """A Python program that knows `tests.payload` and a folder, and its output; killed at the end if it still lives."""
    head = f"import os, sys\nfrom tests.payload import *\nfolder = {str(folder)!r}\n"
    command = [sys.executable, "-c", head + script]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process, process.stdout
        finally:
            process.kill()


def open_files(pid: int | str = "self") -> list[str]:
    """What the descriptors of a process lead to."""
    folder = f"/proc/{pid}/fd"
    found = []
    for name in os.listdir(folder):
        try:
            found.append(os.readlink(f"{folder}/{name}"))
        except FileNotFoundError:
            continue
    return found


def pools_of(pid: int) -> set[str]:
    """Inodes of the pools that a process maps or has open; empty where it is gone or another's."""
    try:
        lines = Path(f"/proc/{pid}/maps").read_text("utf-8").splitlines()
        mapped = {line.split()[4] for line in lines if "/memfd:tierstore" in line}
        for number in os.listdir(f"/proc/{pid}/fd"):
            if "/memfd:tierstore" in os.readlink(f"/proc/{pid}/fd/{number}"):
                mapped.add(str(os.stat(f"/proc/{pid}/fd/{number}").st_ino))
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return set()
    return mapped


def mappers(pools: set[str]) -> list[int]:
    """Processes that keep any of these pools alive."""
    pids = [int(name) for name in os.listdir("/proc") if re.fullmatch("[0-9]+", name)]
    return [pid for pid in pids if pools_of(pid) & pools]
