"""The connector in a real engine: the same tokens and log-probabilities as without it, from blocks that were kept."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.vllm.engines import Answer, EngineProcess, prompt, running

BLOCK_TOKENS = 32
PROMPTS = [prompt(name, 200) for name in range(4)]
OPTIONS: dict[str, Any] = {"dtype": "float32", "max_model_len": 1024, "block_size": BLOCK_TOKENS, "shape": {}}


@pytest.fixture(scope="module")
def expected(python: str, models: Path) -> list[Answer]:
    """What an engine without a connector answers."""
    with running(python, model=str(models / "tiny"), connector=None, **OPTIONS) as engine:
        return engine.generate(PROMPTS)


@pytest.fixture(scope="module")
def engine(python: str, models: Path) -> Iterator[EngineProcess]:
    """An engine with a store in host memory alone."""
    with running(python, model=str(models / "tiny"), connector={"host_size": "64 MiB"}, **OPTIONS) as engine:
        yield engine


def test_blocks_come_back_after_the_engine_has_forgotten_its_own(engine: EngineProcess, expected: list[Answer]) -> None:
    assert engine.generate(PROMPTS) == expected
    assert engine.hits() == (0, 0)
    engine.reset()
    assert engine.generate(PROMPTS) == expected
    assert engine.hits() == (0, 4 * 192)
