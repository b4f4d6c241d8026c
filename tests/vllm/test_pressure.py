"""Few blocks in the engine, a small store, blocks of several sizes: what is loaded is right whatever is short."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.vllm.engines import EngineProcess, Nursery, alike, prompt, running

OPTIONS: dict[str, Any] = {"dtype": "float32", "max_model_len": 1024, "block_size": 32, "shape": {}}
FEW_BLOCKS = 24


@pytest.fixture(scope="module")
def plain(nursery: Nursery, models: Path) -> Iterator[EngineProcess]:
    """An engine without a connector."""
    with running(nursery, model=str(models / "tiny"), connector=None, **OPTIONS) as engine:
        yield engine


def test_requests_that_are_preempted_answer_the_same(nursery: Nursery, models: Path, plain: EngineProcess) -> None:
    prompts = [prompt(name, 150) for name in range(6)]
    expected = [plain.generate([own], max_tokens=80)[0] for own in prompts]
    few = OPTIONS | {"num_gpu_blocks_override": FEW_BLOCKS, "max_model_len": 512}
    with running(nursery, model=str(models / "tiny"), connector={"host_size": "64 MiB"}, **few) as engine:
        assert engine.generate(prompts, max_tokens=80) == expected
        assert engine.ask("preemptions") != 0
        engine.reset()
        assert engine.ask("free_blocks") == FEW_BLOCKS - 1
        assert engine.generate(prompts, max_tokens=80) == expected


def test_blocks_that_go_after_they_were_promised_are_computed(
    nursery: Nursery, models: Path, plain: EngineProcess
) -> None:
    prompts = [prompt(name, 150) for name in range(4)]
    expected = plain.generate(prompts)
    with running(nursery, model=str(models / "tiny"), connector={"host_size": "64 MiB"}, **OPTIONS) as engine:
        assert engine.generate(prompts) == expected
        engine.reset()
        engine.ask("lose", times=len(prompts))
        assert engine.generate(prompts) == expected
        counts = engine.ask("counts")
        assert isinstance(counts, dict)
        assert counts["lost_blocks"] == 4 * 4
        engine.reset()
        assert engine.ask("free_blocks") == engine.ask("blocks")


@pytest.mark.parametrize("ratio", [2, 16])
def test_a_block_of_the_store_may_be_several_of_the_engine(
    ratio: int, nursery: Nursery, models: Path, plain: EngineProcess
) -> None:
    prompts = [prompt(name, 700) for name in range(2)]
    plain.reset()  # it has their heads from other tests, and would compute less at once
    expected = plain.generate(prompts)
    connector = {"host_size": "128 MiB", "blocks_per_store_block": ratio}
    with running(nursery, model=str(models / "tiny"), connector=connector, **OPTIONS) as engine:
        assert engine.generate(prompts) == expected
        engine.reset()
        assert alike(engine.generate(prompts), expected)
        assert engine.hits() == (0, 2 * (700 // (32 * ratio)) * 32 * ratio)


def test_blocks_may_be_loaded_layer_by_layer(nursery: Nursery, models: Path, plain: EngineProcess) -> None:
    prompts = [prompt(name, 4 * 32) for name in range(70, 73)]
    expected = plain.generate(prompts)
    connector = {"host_size": "64 MiB", "load": "layerwise"}
    with running(nursery, model=str(models / "tiny"), connector=connector, **OPTIONS) as engine:
        assert engine.generate(prompts) == expected
        engine.reset()
        assert engine.generate(prompts) == expected
        assert engine.hits() == (0, 3 * 3 * 32), "a token is left to compute, so the last block is"


def test_two_hundred_requests_that_share_prefixes_answer_the_same(
    nursery: Nursery, models: Path, plain: EngineProcess, tmp_path: Path
) -> None:
    """A pool of 32 blocks and an SSD of a few dozen, while the engine forgets its own blocks now and then."""
    chance = random.Random(7)
    heads = [prompt(name, 32 * chance.randint(1, 6)) for name in range(12)]
    prompts = [[*chance.choice(heads), *prompt(100 + name, chance.randint(1, 80))] for name in range(200)]
    expected = plain.generate(prompts, max_tokens=4)
    connector = {"host_size": "4 MiB", "ssd_dir": str(tmp_path / "kv"), "ssd_size": "8 MiB"}
    connector |= {"ssd_file_size": "1 MiB", "ssd_free_floor": "1 MiB"}
    few = OPTIONS | {"num_gpu_blocks_override": 64, "max_model_len": 512}
    with running(nursery, model=str(models / "tiny"), connector=connector, **few) as engine:
        for first in range(0, 200, 20):
            assert engine.generate(prompts[first : first + 20], max_tokens=4) == expected[first : first + 20]
            engine.reset()
        assert engine.hits()[1] > 0
