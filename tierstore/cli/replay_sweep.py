"""The replays of a sweep: the same command for each size, in a process of its own, one process a core at a time.

Called by `tierstore replay --sweep`. A single replay runs on one thread from its first request to its last; replays are
independent of one another, so they run in parallel.
"""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import fields
from pathlib import Path
from typing import IO

import click

from tierstore.benchmark.tied import tied
from tierstore.errors import ConfigError
from tierstore.replay.figures import Figures

__all__ = ["replay_all", "shared_file", "spelled"]


def shared_file(path: Path) -> Path:
    """The file behind a path such as /dev/stdin, by a path that other processes can open too.

    Raises:
        ConfigError: It is no file, so its bytes can be read only once.
    """
    if path.exists() and not path.is_file():
        raise ConfigError(f"a sweep reads {path} once for each size; give a file")
    return path.resolve()


def spelled(parameters: Iterable[click.Parameter], options: dict[str, object]) -> list[str]:
    """Options as a person writes them, those that are None left out."""
    words: list[str] = []
    for parameter in parameters:
        given = options.get(parameter.name or "")
        values = given if isinstance(given, tuple) else () if given is None else (given,)
        words += [f"{parameter.opts[0]}={value}" for value in values]
    return words


def replay_all(commands: Sequence[Sequence[str]], on_progress: Callable[[int], None]) -> list[Figures]:
    """Run ``tierstore replay`` with each of these arguments; returns the figures in order. Blocks.

    Args:
        commands: Arguments of each replay, without ``--json``.
        on_progress: Told how many replays have ended.

    Raises:
        ConfigError: A replay failed; carries the message of the first. The others are ended.
    """
    found: dict[int, Figures] = {}
    waiting = deque(enumerate(commands))
    with selectors.DefaultSelector() as running, ExitStack() as stack:
        while waiting or running.get_map():
            while waiting and len(running.get_map()) < len(os.sched_getaffinity(0)):
                place, arguments = waiting.popleft()
                words = [sys.executable, "-m", "tierstore", "replay", "--json=-", *arguments]
                said = stack.enter_context(tempfile.TemporaryFile())  # a pipe would be full where nobody listens
                process = stack.enter_context(tied(words, stdout=subprocess.PIPE, stderr=said))
                stack.callback(process.terminate)
                assert process.stdout is not None
                running.register(process.stdout, selectors.EVENT_READ, (place, process, said))
            for key, _events in running.select():
                running.unregister(key.fileobj)
                place, process, said = key.data
                found[place] = _figures(process, said)
                on_progress(len(found))
    return [found[place] for place in range(len(commands))]


def _figures(process: subprocess.Popen[bytes], said: IO[bytes]) -> Figures:
    """The figures that a replay prints at its end; it prints nothing before."""
    printed, _nothing = process.communicate()
    if process.returncode:
        said.seek(0)
        why = said.read().decode("utf-8", "replace").strip().rpartition("\n")[2].removeprefix("tierstore: ")
        raise ConfigError(why or f"a replay of the sweep ended with {process.returncode}, and said nothing")
    figures = json.loads(printed)
    return Figures(**{field.name: figures[field.name] for field in fields(Figures)})
