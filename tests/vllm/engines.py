"""Engines in processes of their own, as tests drive them; and the interpreter that has vLLM, where there is one."""

from __future__ import annotations

import json
import math
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO, Any

__all__ = [
    "PATIENCE_SECONDS",
    "Answer",
    "EngineError",
    "EngineProcess",
    "Nursery",
    "Service",
    "alike",
    "answers",
    "attempts",
    "interpreter",
    "prompt",
    "running",
    "running_bare",
    "serving",
]

ROOT = Path(__file__).parents[2]
VARIABLE = "PYTHON_WITH_VLLM"
PATIENCE_SECONDS = 120
"""Longer than anything takes that comes about in the end: it bounds what is waited for and decides nothing."""

ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "TORCHDYNAMO_DISABLE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    "PYTHONPATH": str(ROOT),
}


@cache
def interpreter() -> str | None:
    """The interpreter that ``PYTHON_WITH_VLLM`` names, or this one; None where it has no vLLM."""
    python = os.environ.get(VARIABLE, sys.executable)
    find = "import importlib.util, sys; sys.exit(importlib.util.find_spec('vllm') is None)"
    return None if subprocess.run([python, "-c", find], check=False).returncode else python


class EngineError(Exception):
    """The engine's process raised this, or ended."""


@dataclass(frozen=True)
class Answer:
    """What an engine answered one prompt.

    Attributes:
        tokens: Greedy.
        logprobs: Of each, every bit of it.
    """

    tokens: tuple[int, ...]
    logprobs: tuple[str, ...]


def alike(found: Sequence[Answer], expected: Sequence[Answer]) -> bool:
    """Whether answers agree in every token, and in log-probabilities but for how many tokens are computed at once."""

    def values(answers: Sequence[Answer]) -> list[float]:
        return [float.fromhex(value) for answer in answers for value in answer.logprobs]

    same = [answer.tokens for answer in found] == [answer.tokens for answer in expected]
    return same and all(
        math.isclose(one, other, rel_tol=1e-4) for one, other in zip(values(found), values(expected), strict=True)
    )


class Nursery:
    """The process that has imported vLLM, whose forks become engines."""

    def __init__(self, python: str) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._path = f"{self._folder.name}/engines"
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(self._path)
            listener.listen()
            self._process = subprocess.Popen(
                [python, "-m", "tests.vllm.engine_process", str(listener.fileno())],
                pass_fds=(listener.fileno(),),
                cwd=ROOT,
                env=environment | ENVIRONMENT,
            )

    def connect(self) -> socket.socket:
        """The line to a new engine."""
        line = socket.socket(socket.AF_UNIX)
        line.connect(self._path)
        return line

    def close(self) -> None:
        """End it; its forks go on."""
        self._process.terminate()
        self._process.wait()
        self._folder.cleanup()


class EngineProcess:
    """One engine. Every call blocks until it is answered."""

    def __init__(self, nursery: Nursery) -> None:
        self._line = nursery.connect()
        self._asking: IO[str] = self._line.makefile("w")
        self._answers: IO[str] = self._line.makefile("r")
        self.pid = int(self._answers.readline())
        self._hits = {"local": 0, "external": 0}

    def ask(self, do: str, **keywords: object) -> object:
        """Have the engine do something; EngineError where it raises or ends."""
        self.begin(do, **keywords)
        return self.end()

    def begin(self, do: str, **keywords: object) -> None:
        """Have the engine do something, and do not wait for it; `end` is what must follow."""
        try:
            print(json.dumps({"do": do, **keywords}), file=self._asking, flush=True)
        except BrokenPipeError as error:
            raise EngineError("the engine's process has ended") from error

    def end(self) -> object:
        """What came of what was begun."""
        line = self._answers.readline()
        if not line:
            raise EngineError("the engine's process has ended")
        answer: dict[str, object] = json.loads(line)
        if "error" in answer:
            raise EngineError(answer["error"])
        return answer["result"]

    def generate(self, prompts: Sequence[Sequence[int]], **keywords: object) -> list[Answer]:
        """What it answers; see `hits` for what that was spared."""
        return answers(self.ask("generate", prompts=[list(prompt) for prompt in prompts], **keywords))

    def hits(self) -> tuple[int, int]:
        """Tokens spared since the last call: by the engine's own cache, and by the connector."""
        now = self.ask("hits")
        assert isinstance(now, dict)
        before, self._hits = self._hits, now
        return now["local"] - before["local"], now["external"] - before["external"]

    def reset(self, *, connector: bool = False) -> None:
        """Forget the engine's own cache, and what the connector keeps."""
        assert self.ask("reset", connector=connector) is True, "blocks of the engine are still held"

    def kill(self) -> None:
        """End it as a crash would."""
        os.kill(self.pid, signal.SIGKILL)
        self._hang_up()

    def close(self) -> None:
        """Let it end, and wait for that."""
        self._line.shutdown(socket.SHUT_WR)
        self._answers.read()
        self._hang_up()

    def _hang_up(self) -> None:
        with suppress(BrokenPipeError):
            self._asking.close()
        self._answers.close()
        self._line.close()


@contextmanager
def running_bare(nursery: Nursery) -> Iterator[EngineProcess]:
    """A process without an engine yet, which ends with the block."""
    engine = EngineProcess(nursery)
    with ExitStack() as undo:
        undo.callback(engine.kill)
        yield engine
        undo.pop_all()
        engine.close()


@contextmanager
def running(nursery: Nursery, **options: Any) -> Iterator[EngineProcess]:
    """An engine that has started, and ends with the block."""
    with running_bare(nursery) as engine:
        engine.ask("start", **options)
        yield engine


def attempts(failing: str) -> Iterator[None]:
    """Turns at what comes about by itself, for as long as it may take; AssertionError once it never will."""
    until = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < until:
        yield
    raise AssertionError(f"for {PATIENCE_SECONDS} s {failing}")


def answers(rows: object) -> list[Answer]:
    """What an engine's `generate` came to."""
    assert isinstance(rows, list)
    return [Answer(tuple(row["tokens"]), tuple(row["logprobs"])) for row in rows]


class Service:
    """`tierstore serve` in a process of its own.

    Attributes:
        endpoint: Its address.
    """

    def __init__(self, folder: Path, **settings: object) -> None:
        self.endpoint = f"unix:{folder}/service.sock"
        given = [word for name, value in settings.items() for word in (f"--{name.replace('_', '-')}", str(value))]
        command = [sys.executable, "-m", "tierstore", "serve", "--listen", self.endpoint, *given]
        self._process = subprocess.Popen(command, cwd=folder)

    def kill(self) -> None:
        """End it as a crash would."""
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """Let it end, and wait for that."""
        self._process.terminate()
        self._process.wait()


@contextmanager
def serving(folder: Path, **settings: object) -> Iterator[str]:
    """A service that ends with the block; its endpoint."""
    service = Service(folder, **settings)
    try:
        yield service.endpoint
    finally:
        service.close()


def prompt(name: int, num_tokens: int) -> list[int]:
    """Tokens that no prompt of another name begins with."""
    return [3 + (name * 7919 + position * (position + 31)) % 500 for position in range(num_tokens)]
