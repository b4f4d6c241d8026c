"""Prompts under a LoRA adapter: their blocks come back to that adapter, and to nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.vllm.engines import PATIENCE_SECONDS, Answer, EngineProcess, Nursery, alike, prompt, running

PROMPTS = [prompt(name, 200) for name in range(3)]
OPTIONS: dict[str, Any] = {
    "dtype": "float32",
    "max_model_len": 512,
    "block_size": 32,
    "shape": {},
    "enable_lora": True,
    "max_lora_rank": 8,
}


@pytest.fixture(scope="module")
def engine(nursery: Nursery, models: Path) -> Iterator[EngineProcess]:
    with running(nursery, model=str(models / "tiny"), connector={"host_size": "64 MiB"}, **OPTIONS) as engine:
        for seed, name in enumerate(["adapter-one", "adapter-other"]):
            engine.ask("adapter", folder=str(models / name), seed=seed)
            assert engine.ask("digested", folder=str(models / name)) is True
        yield engine


def answered(engine: EngineProcess, adapter: tuple[str, int, Path] | None) -> tuple[list[Answer], int]:
    """What it answers when it has forgotten its own blocks, and how many tokens the store has spared."""
    engine.ask("settle")
    engine.reset()
    engine.hits()
    given = None if adapter is None else (*adapter[:2], str(adapter[2]))
    found = engine.generate(PROMPTS, adapter=given)
    local, external = engine.hits()
    assert local == 0
    return found, external


def test_blocks_of_an_adapter_are_its_own(engine: EngineProcess, models: Path) -> None:
    base, _ = answered(engine, None)
    one = ("one", 1, models / "adapter-one")
    expected, spared = answered(engine, one)
    assert spared == 0
    assert not alike(expected, base), "the adapter has a say"
    found, spared = answered(engine, one)
    assert (alike(found, expected), spared) == (True, 3 * 192)
    for other in (("renamed", 2, models / "adapter-one"), ("other", 3, models / "adapter-other")):
        assert answered(engine, other)[1] == 0, "of another name"
    again, spared = answered(engine, None)
    assert (alike(again, base), spared) == (True, 3 * 192)


def test_an_adapter_whose_weights_have_changed_finds_nothing_of_the_old_ones(
    nursery: Nursery, models: Path, tmp_path: Path
) -> None:
    ssd = {"ssd_dir": str(tmp_path / "kv"), "ssd_size": "64 MiB", "ssd_file_size": "4 MiB", "ssd_free_floor": "1 MiB"}
    connector = {"host_size": "64 MiB", "lookup_seconds": PATIENCE_SECONDS, **ssd}
    adapter = ("mine", 1, tmp_path / "mine")
    for seed, spared_tokens in ((0, 0), (1, 0), (1, 3 * 192)):
        with running(nursery, model=str(models / "tiny"), connector=connector, **OPTIONS) as engine:
            engine.ask("adapter", folder=str(adapter[2]), seed=seed)
            assert engine.ask("digested", folder=str(adapter[2])) is True
            assert answered(engine, adapter)[1] == spared_tokens
