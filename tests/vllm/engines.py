"""Engines in processes of their own, as tests drive them; and the interpreter that has vLLM, where there is one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO, Any

__all__ = ["Answer", "EngineError", "EngineProcess", "interpreter", "prompt", "running"]

ROOT = Path(__file__).parents[2]
VARIABLE = "PYTHON_WITH_VLLM"
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_NO_USAGE_STATS": "1",
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


class EngineProcess:
    """One engine. Every call blocks until it is answered."""

    def __init__(self, python: str, **variables: str) -> None:
        asked, own_end = os.pipe()
        answer_end, answers = os.pipe()
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
        self._process = subprocess.Popen(
            [python, "-m", "tests.vllm.engine_process", str(asked), str(answers)],
            pass_fds=(asked, answers),
            cwd=ROOT,
            env=environment | ENVIRONMENT | variables,
        )
        os.close(asked)
        os.close(answers)
        self._asking: IO[str] = os.fdopen(own_end, "w")
        self._answers: IO[str] = os.fdopen(answer_end)
        self._hits = {"local": 0, "external": 0}

    def ask(self, do: str, **keywords: object) -> object:
        """Have the engine do something; EngineError where it raises or ends."""
        try:
            print(json.dumps({"do": do, **keywords}), file=self._asking, flush=True)
        except BrokenPipeError as error:
            raise EngineError("the engine's process has ended") from error
        line = self._answers.readline()
        if not line:
            raise EngineError(f"the engine's process has ended with {self._process.wait()}")
        answer: dict[str, object] = json.loads(line)
        if "error" in answer:
            raise EngineError(answer["error"])
        return answer["result"]

    def generate(self, prompts: Sequence[Sequence[int]], **keywords: object) -> list[Answer]:
        """What it answers; see `hits` for what that was spared."""
        rows = self.ask("generate", prompts=[list(prompt) for prompt in prompts], **keywords)
        assert isinstance(rows, list)
        return [Answer(tuple(row["tokens"]), tuple(row["logprobs"])) for row in rows]

    def hits(self) -> tuple[int, int]:
        """Tokens spared since the last call: by the engine's own cache, and by the connector."""
        now = self.ask("hits")
        assert isinstance(now, dict)
        before, self._hits = self._hits, now
        return now["local"] - before["local"], now["external"] - before["external"]

    def reset(self) -> None:
        """Forget the engine's own cache."""
        assert self.ask("reset") is True, "blocks of the engine are still held"

    def kill(self) -> None:
        """End it as a crash would."""
        self._process.kill()
        self.close()

    def close(self) -> int:
        """Let it end, and return its exit code."""
        for end in (self._asking, self._answers):
            if not end.closed:
                end.close()
        return self._process.wait(timeout=120)


@contextmanager
def running(python: str, *, variables: dict[str, str] | None = None, **options: Any) -> Iterator[EngineProcess]:
    """An engine that has started, and ends with the block."""
    engine = EngineProcess(python, **(variables or {}))
    with ExitStack() as undo:
        undo.callback(engine.kill)
        engine.ask("start", **options)
        yield engine
        undo.pop_all()
        engine.close()


def prompt(name: int, num_tokens: int) -> list[int]:
    """Tokens that no prompt of another name begins with."""
    return [3 + (name * 7919 + position * (position + 31)) % 500 for position in range(num_tokens)]
