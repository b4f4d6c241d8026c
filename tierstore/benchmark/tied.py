"""Processes that end with the one that started them, however that one ends, kill -9 among its ways.

The kernel tells: such a process has the reading end of a pipe as its stdin, its parent the only writing one, and by
fcntl(2) (F_SETOWN, F_SETSIG, O_ASYNC) the process gets a signal when that one is closed. It need not know of it.
"""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

__all__ = ["tied"]


@contextmanager
def tied(
    command: Sequence[str],
    *,
    ends_by: signal.Signals = signal.SIGTERM,
    stdout: int | IO[bytes] | None = None,
    stderr: int | IO[bytes] | None = None,
    cwd: Path | None = None,
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command beside this process. Waits, afterwards, until it has ended: who entered tells it to.

    Args:
        command: What to run.
        ends_by: What it gets once this process is no more.
        stdout: As of Popen.
        stderr: As of Popen.
        cwd: As of Popen.
    """
    with ExitStack() as stack:
        theirs, ours = os.pipe()
        stack.callback(os.close, ours)
        try:
            process = subprocess.Popen(command, stdin=theirs, stdout=stdout, stderr=stderr, cwd=cwd)
            stack.enter_context(process)
            fcntl.fcntl(theirs, fcntl.F_SETOWN, process.pid)
            fcntl.fcntl(theirs, fcntl.F_SETSIG, ends_by)
            fcntl.fcntl(theirs, fcntl.F_SETFL, fcntl.fcntl(theirs, fcntl.F_GETFL) | os.O_ASYNC)
        finally:
            os.close(theirs)
        yield process
