"""Starts processes that end with their parent, however it ends, even by kill -9.

The kernel does this: the child has the read end of a pipe as its stdin, and the parent the only write end. By fcntl(2)
(F_SETOWN, F_SETSIG, O_ASYNC) the child gets a signal when the write end is closed. The child needs no code for it.
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
