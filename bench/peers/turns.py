"""Taking turns: a worker process does one measured step each time it is asked, and the driver asks by turns.

Standard library only, for a worker may run in a peer's environment. Answers go to the real stdout; what
libraries print goes to stderr.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

__all__ = ["Asked", "running", "serve"]


def serve(steps: Mapping[str, Callable[[], float]]) -> None:
    """Answer every line on stdin that names a step with the seconds it took, until stdin ends."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    print(json.dumps("ready"), file=answers)
    for line in sys.stdin:
        print(json.dumps(steps[line.strip()]()), file=answers)


@contextmanager
def running(command: Sequence[str], *, log: str) -> Iterator[None]:
    """A server that a worker measures: its child, told to end afterwards. What it says goes into a file."""
    with (
        open(log, "wb") as said,
        subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=said, stderr=said) as process,
    ):
        try:
            yield
        finally:
            process.terminate()


class Asked:
    """A worker process and the driver's end of it."""

    def __init__(self, command: Sequence[str], *, env: Mapping[str, str], log: str) -> None:
        with open(log, "w", encoding="utf-8") as errors:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, env=dict(env)
            )
        self._log = log
        try:
            self._answer()
        except RuntimeError:
            self.close()
            raise

    def ask(self, step: str) -> float:
        """Let the worker do one step; the seconds that it took by its own clock."""
        assert self._process.stdin is not None
        self._process.stdin.write(step + "\n")
        self._process.stdin.flush()
        return float(self._answer())

    def close(self) -> None:
        """End the worker."""
        self._process.communicate()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            with open(self._log, encoding="utf-8") as log:
                last = log.read().rstrip().rpartition("\n")[2]
            raise RuntimeError(f"a worker ended before it answered; {self._log} ends in: {last}")
        return str(json.loads(line))
