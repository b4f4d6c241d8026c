"""Models whose layers look back only so far, beside others that see everything: each group keeps its own blocks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.vllm.engines import PATIENCE_SECONDS, Answer, EngineError, EngineProcess, Nursery, alike, prompt, running

BLOCK_TOKENS = 32
WINDOW = 80
"""Three blocks before the next token."""

MIXED = {"sliding_window": WINDOW, "layer_types": ["sliding_attention", "full_attention"] * 2}
WINDOWED = {"sliding_window": WINDOW, "layer_types": ["sliding_attention"] * 4}
PROMPTS = [prompt(name, 300) for name in range(4)]
OPTIONS: dict[str, Any] = {"dtype": "float32", "max_model_len": 1024, "block_size": BLOCK_TOKENS}


@pytest.fixture(scope="module", params=["mixed", "windowed"])
def model(request: pytest.FixtureRequest, models: Path) -> dict[str, Any]:
    shape = {"mixed": MIXED, "windowed": WINDOWED}[request.param]
    return {"model": str(models / request.param), "shape": shape, **OPTIONS}


@pytest.fixture(scope="module")
def plain(model: dict[str, Any], nursery: Nursery) -> Iterator[EngineProcess]:
    """An engine without a connector."""
    with running(nursery, connector=None, **model) as engine:
        yield engine


@pytest.fixture(scope="module")
def expected(plain: EngineProcess) -> list[Answer]:
    return plain.generate(PROMPTS)


def test_a_prefix_comes_back_to_layers_of_both_kinds(
    model: dict[str, Any], plain: EngineProcess, expected: list[Answer], nursery: Nursery
) -> None:
    with running(nursery, connector={"host_size": "64 MiB"}, **model) as engine:
        assert engine.generate(PROMPTS) == expected
        engine.reset()
        assert engine.generate(PROMPTS) == expected
        assert engine.hits() == (0, 4 * 288)
        engine.reset()
        turn = [*PROMPTS[0][:200], *prompt(9, 100)]
        assert alike(engine.generate([turn]), plain.generate([turn]))
        assert engine.hits() == (0, 192), "a window may end within a prompt that was longer"
        engine.reset()
        whole = [PROMPTS[1][:256]]
        assert alike(engine.generate(whole), plain.generate(whole))
        assert engine.hits() == (0, 224), "a token is left to compute"
        longer = [*PROMPTS[1][:256], *prompt(11, 70)]
        assert alike(engine.generate([longer]), plain.generate([longer])), "behind what it holds itself"
        assert engine.ask("free_blocks") == engine.ask("blocks")


def test_requests_with_windows_that_are_preempted_answer_the_same(
    model: dict[str, Any], plain: EngineProcess, nursery: Nursery
) -> None:
    prompts = [prompt(20 + name, 150) for name in range(6)]
    expected = [plain.generate([own], max_tokens=60)[0] for own in prompts]
    few = model | {"num_gpu_blocks_override": 40, "max_model_len": 512}
    with running(nursery, connector={"host_size": "64 MiB"}, **few) as engine:
        assert engine.generate(prompts, max_tokens=60) == expected
        engine.reset()
        assert engine.generate(prompts, max_tokens=60) == expected
        assert engine.hits()[1] > 0


def test_a_new_process_reads_the_windows_that_it_needs(
    model: dict[str, Any], expected: list[Answer], nursery: Nursery, tmp_path: Path
) -> None:
    ssd = {"ssd_dir": str(tmp_path / "kv"), "ssd_size": "64 MiB", "ssd_file_size": "4 MiB", "ssd_free_floor": "1 MiB"}
    given = {"host_size": "64 MiB", "lookup_seconds": PATIENCE_SECONDS, **ssd}
    with running(nursery, connector=given, **model) as engine:
        assert engine.generate(PROMPTS) == expected
    with running(nursery, connector=given, **model) as engine:
        assert engine.generate(PROMPTS) == expected
        assert engine.hits() == (0, 4 * 288)


def test_what_is_lost_of_one_group_is_computed_for_all(
    model: dict[str, Any], expected: list[Answer], nursery: Nursery
) -> None:
    with running(nursery, connector={"host_size": "64 MiB"}, **model) as engine:
        assert engine.generate(PROMPTS) == expected
        engine.reset()
        engine.ask("lose", times=len(PROMPTS))
        assert engine.generate(PROMPTS) == expected
        counts = engine.ask("counts")
        assert isinstance(counts, dict)
        assert counts["lost_blocks"] > 0
        engine.reset()
        engine.hits()
        assert engine.generate(PROMPTS) == expected
        assert engine.hits() == (0, 4 * 288), "what was computed anew has been kept"


@pytest.mark.parametrize(
    ("option", "value", "told"), [("load", "layerwise", "async"), ("blocks_per_store_block", 2, "1")]
)
def test_what_windows_cannot_do_is_refused_by_name(
    option: str, value: object, told: str, model: dict[str, Any], nursery: Nursery
) -> None:
    engine = EngineProcess(nursery)
    with pytest.raises(EngineError, match=f"sliding windows.*{told}"):
        engine.ask("start", connector={"host_size": "64 MiB", option: value}, **model)
    engine.kill()
