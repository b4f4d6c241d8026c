"""Engines that share a store behind a service, and an engine of two workers: what one has saved the other loads."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.vllm.engines import EngineProcess, Nursery, prompt, running, serving

PROMPTS = [prompt(name, 200) for name in range(4)]
OPTIONS: dict[str, Any] = {"dtype": "float32", "max_model_len": 1024, "block_size": 32, "shape": {}}


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder whose path is short enough for a socket's."""
    path = Path(tempfile.mkdtemp(prefix="tierstore"))
    yield path
    shutil.rmtree(path)


def through(endpoint: str) -> dict[str, object]:
    return {"mode": "service", "endpoint": endpoint, "lookup_seconds": 10}


def connected(engine: EngineProcess) -> None:
    assert engine.ask("connected") is True


def test_two_engines_share_what_either_has_saved(nursery: Nursery, models: Path, folder: Path) -> None:
    model = str(models / "tiny")
    with (
        serving(folder, host_size="64 MiB") as endpoint,
        running(nursery, model=model, connector=through(endpoint), **OPTIONS) as first,
        running(nursery, model=model, connector=through(endpoint), **OPTIONS) as second,
    ):
        connected(first)
        connected(second)
        expected = first.generate(PROMPTS)
        assert first.hits() == (0, 0)
        first.reset()
        assert second.generate(PROMPTS) == expected
        assert second.hits() == (0, 4 * 192)
        assert first.generate(PROMPTS) == expected
        assert first.hits() == (0, 4 * 192)


def test_an_engine_outlives_its_service_and_finds_it_again(nursery: Nursery, models: Path, folder: Path) -> None:
    kept = {"host_size": "64 MiB", "ssd_dir": folder / "kv", "ssd_size": "1 GiB"}
    with serving(folder, **kept) as endpoint:
        engine = EngineProcess(nursery)
        engine.ask("start", model=str(models / "tiny"), connector=through(endpoint), **OPTIONS)
        connected(engine)
        expected = engine.generate(PROMPTS)
        engine.reset()
    assert engine.generate(PROMPTS) == expected, "without a service all is computed"
    assert engine.hits() == (0, 0)
    engine.reset()
    with serving(folder, **kept):
        connected(engine)
        assert engine.generate(PROMPTS) == expected
        assert engine.hits() == (0, 4 * 192), "from the SSD of the service's earlier life"
        engine.close()


def test_an_engine_that_finds_no_service_computes(nursery: Nursery, models: Path, folder: Path) -> None:
    connector = through(f"unix:{folder}/nobody.sock")
    with running(nursery, model=str(models / "tiny"), connector=connector, **OPTIONS) as engine:
        first = engine.generate(PROMPTS[:1])
        engine.reset()
        assert engine.generate(PROMPTS[:1]) == first
        assert engine.hits() == (0, 0)


def test_two_workers_each_keep_their_share_of_a_block(nursery: Nursery, models: Path, folder: Path) -> None:
    with serving(folder, host_size="64 MiB") as endpoint:
        options = OPTIONS | {"tensor_parallel_size": 2}
        with running(nursery, model=str(models / "tiny"), connector=through(endpoint), **options) as engine:
            connected(engine)
            expected = engine.generate(PROMPTS)
            engine.ask("settle")
            engine.reset()
            assert engine.generate(PROMPTS) == expected
            assert engine.hits() == (0, 4 * 192)
        with running(nursery, model=str(models / "tiny"), connector=through(endpoint), **OPTIONS) as alone:
            connected(alone)
            alone.generate(PROMPTS)
            assert alone.hits() == (0, 0), "one worker's blocks are not two's"
