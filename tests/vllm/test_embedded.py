"""The connector in a real engine: the same tokens and log-probabilities as without it, from blocks that were kept."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.vllm.engines import Answer, EngineProcess, Nursery, prompt, running

BLOCK_TOKENS = 32
PROMPTS = [prompt(name, 200) for name in range(4)]
OPTIONS: dict[str, Any] = {"dtype": "float32", "max_model_len": 1024, "block_size": BLOCK_TOKENS, "shape": {}}


@pytest.fixture(scope="module")
def plain(nursery: Nursery, models: Path) -> Iterator[EngineProcess]:
    """An engine without a connector."""
    with running(nursery, model=str(models / "tiny"), connector=None, **OPTIONS) as engine:
        yield engine


@pytest.fixture(scope="module")
def expected(plain: EngineProcess) -> list[Answer]:
    """What it answers."""
    return plain.generate(PROMPTS)


@pytest.fixture(scope="module")
def engine(nursery: Nursery, models: Path) -> Iterator[EngineProcess]:
    """An engine with a store in host memory alone."""
    with running(nursery, model=str(models / "tiny"), connector={"host_size": "64 MiB"}, **OPTIONS) as engine:
        yield engine


def test_blocks_come_back_after_the_engine_has_forgotten_its_own(engine: EngineProcess, expected: list[Answer]) -> None:
    assert engine.generate(PROMPTS) == expected
    assert engine.hits() == (0, 0)
    engine.reset()
    assert engine.generate(PROMPTS) == expected
    assert engine.hits() == (0, 4 * 192)


def test_what_the_engine_holds_itself_is_not_loaded(engine: EngineProcess, plain: EngineProcess) -> None:
    engine.reset()
    head = PROMPTS[0][:96]
    engine.generate([head], max_tokens=1)
    engine.hits()
    longer = PROMPTS[0] + prompt(9, 40)
    assert engine.generate([longer]) == plain.generate([longer])
    assert engine.hits() == (96, 96)


def test_generated_tokens_are_kept_for_the_next_turn(engine: EngineProcess, plain: EngineProcess) -> None:
    first = prompt(20, 40)
    (answer,) = engine.generate([first], max_tokens=100)
    turn = [*first, *answer.tokens, *prompt(21, 20)]
    engine.reset()
    engine.hits()
    assert engine.generate([turn]) == plain.generate([turn])
    assert engine.hits() == (0, 128), "139 tokens have been computed; the last one's KV never was"


def test_another_salt_shares_nothing(engine: EngineProcess) -> None:
    own = [prompt(30, 100)]
    engine.generate(own, salt="a")
    for salt, tokens in (("b", 0), ("a", 96), (None, 0)):
        engine.reset()
        engine.hits()
        engine.generate(own, salt=salt)
        assert engine.hits() == (0, tokens), f"with salt {salt}"


def test_a_whole_prompt_may_be_loaded(engine: EngineProcess, plain: EngineProcess) -> None:
    whole = [prompt(40, 4 * BLOCK_TOKENS)]
    engine.generate(whole)
    engine.reset()
    engine.hits()
    assert engine.generate(whole) == plain.generate(whole)
    assert engine.hits() == (0, 4 * BLOCK_TOKENS)


def test_what_is_loaded_is_what_the_engine_computes_on(engine: EngineProcess) -> None:
    own = [prompt(50, 200)]
    right = engine.generate(own)
    assert engine.ask("poison", prompt=own[0]) == 6
    engine.reset()
    engine.hits()
    assert engine.generate(own) != right
    assert engine.hits() == (0, 192)


def test_a_reset_of_the_connector_leaves_nothing_of_before(engine: EngineProcess) -> None:
    """As after an update of the weights in place, of which nobody tells the connector otherwise."""
    own = [prompt(70, 200)]
    engine.generate(own)
    engine.reset(connector=True)
    engine.hits()
    engine.generate(own)
    assert engine.hits() == (0, 0)
    engine.reset()
    engine.generate(own)
    assert engine.hits() == (0, 192), "what was computed since is kept"


@pytest.mark.parametrize("steps", range(1, 5))
def test_a_request_given_up_leaves_no_block_held(engine: EngineProcess, steps: int) -> None:
    engine.reset()
    assert engine.ask("abort", prompt=PROMPTS[1], steps=steps) == 0, "while its blocks are loaded, or computed"
    assert engine.ask("abort", prompt=prompt(60 + steps, 200), steps=steps) == 0, "while its blocks are saved"


def test_vllm_exports_what_the_connector_counts(engine: EngineProcess) -> None:
    counts = engine.ask("counts")
    assert isinstance(counts, dict)
    assert counts["loaded_bytes"] == counts["loaded_blocks"] * 4 * 2 * 2 * BLOCK_TOKENS * 64 * 4
    assert counts["saved_blocks"] >= 24
    assert counts["lost_blocks"] == 0


def test_the_scheduler_has_its_answer_at_once(nursery: Nursery, models: Path) -> None:
    """512 blocks beside 200 000 others, in a quarter of what vLLM takes to hash them, or all of it on a bad day.

    Blocks are small so that all of them are in memory.
    """
    shape = {"layers": 1, "heads": 1, "kv_heads": 1, "head_size": 32, "max_position_embeddings": 32768}
    options = OPTIONS | {"shape": shape, "max_model_len": 32 * 512 + 32}
    connector = {"host_size": "2 GiB"}
    with running(nursery, model=str(models / "thin"), connector=connector, **options) as engine:
        answering = engine.ask("match_seconds", tokens=32 * 512, indexed=200_000, rounds=300)
        hashing = engine.ask("hash_seconds", tokens=32 * 512, rounds=30)
        assert isinstance(answering, list)
        assert isinstance(hashing, list)
        assert statistics.median(answering) <= statistics.median(hashing)
