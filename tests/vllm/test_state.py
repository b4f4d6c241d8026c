"""Models with layers that keep a state, beside others that see everything: a prefix needs the state after its end.

On a CPU, where steps end and which requests share one has a say in what vLLM computes of such a model, in the third
digit. So prompts are answered one by one, and answers are those of an engine whose steps have ended alike.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.vllm.engines import PATIENCE_SECONDS, Answer, EngineError, EngineProcess, Nursery, alike, prompt, running

BLOCK_TOKENS = 32
PROMPTS = [prompt(name, 300) for name in range(4)]
SSD = {"ssd_size": "64 MiB", "ssd_file_size": "4 MiB", "ssd_free_floor": "1 MiB"}


@pytest.fixture(scope="module")
def model(models: Path) -> dict[str, Any]:
    options = {"dtype": "float32", "max_model_len": 1024, "block_size": BLOCK_TOKENS, "enable_prefix_caching": True}
    return {"model": str(models / "state"), "shape": {"state_layers": [0, 2]}, **options}


@pytest.fixture(scope="module")
def plain(model: dict[str, Any], nursery: Nursery) -> Iterator[EngineProcess]:
    """An engine without a connector."""
    with running(nursery, connector=None, **model) as engine:
        yield engine


def ask(engine: EngineProcess, prompts: Sequence[list[int]]) -> list[Answer]:
    """What it answers when it is asked one by one."""
    return [answer for own in prompts for answer in engine.generate([own])]


@pytest.fixture(scope="module")
def expected(plain: EngineProcess) -> list[Answer]:
    return ask(plain, PROMPTS)


def test_a_prefix_comes_back_with_its_state(
    model: dict[str, Any], plain: EngineProcess, expected: list[Answer], nursery: Nursery
) -> None:
    with running(nursery, connector={"host_size": "64 MiB"}, **model) as engine:
        assert ask(engine, PROMPTS) == expected
        assert engine.hits() == (0, 0)
        engine.reset()
        assert ask(engine, PROMPTS) == expected
        assert engine.hits() == (0, 4 * 288), "where the last of its steps but one has ended"
        turn = [*PROMPTS[0], *expected[0].tokens, *prompt(9, 100)]
        engine.reset()
        plain.hits()
        assert engine.generate([turn]) == plain.generate([turn])
        assert (engine.hits(), plain.hits()) == ((0, 288), (288, 0))
        longer = [*turn, *prompt(10, 100)]
        assert engine.generate([longer]) == plain.generate([longer]), "behind what it holds itself"
        assert engine.ask("free_blocks") == engine.ask("blocks")


def test_a_prefix_ends_where_a_state_was_left(model: dict[str, Any], plain: EngineProcess, nursery: Nursery) -> None:
    """Blocks of the other layers are there up to the end of what two prompts share; a state is not."""
    first, second = ([*prompt(20, 200), *prompt(name, 100)] for name in (21, 22))
    plain.reset()
    expected = plain.generate([second])
    with running(nursery, connector={"host_size": "64 MiB"}, **model) as engine:
        engine.generate([first])
        engine.reset()
        assert engine.generate([second]) == expected
        assert engine.hits() == (0, 0), "the first prompt has left one state, behind the end of what they share"


def test_the_state_that_is_loaded_is_what_the_engine_computes_on(
    model: dict[str, Any], expected: list[Answer], nursery: Nursery
) -> None:
    with running(nursery, connector={"host_size": "64 MiB"}, **model) as engine:
        engine.generate(PROMPTS[:1])
        assert engine.ask("poison", prompt=PROMPTS[0]) == 9
        engine.reset()
        assert not alike(engine.generate(PROMPTS[:1]), expected[:1])
        assert engine.hits() == (0, 288)


def test_generated_tokens_leave_states_for_the_next_turn(model: dict[str, Any], nursery: Nursery) -> None:
    first = prompt(30, 40)
    with running(nursery, connector={"host_size": "64 MiB"}, **model) as engine:
        (answer,) = engine.generate([first], max_tokens=100)
        turn = [*first, *answer.tokens, *prompt(31, 20)]
        engine.reset()
        engine.hits()
        expected = engine.generate([turn])
        assert engine.hits() == (0, 128)
        assert engine.generate([turn]) == expected
        assert engine.hits() == (128, 0), "from its own cache now"


def test_requests_with_state_that_are_preempted_leave_no_block_held(model: dict[str, Any], nursery: Nursery) -> None:
    prompts = [prompt(40 + name, 150) for name in range(6)]
    few = model | {"num_gpu_blocks_override": 40, "max_model_len": 512}
    with running(nursery, connector={"host_size": "64 MiB"}, **few) as engine:
        for _round in range(2):
            engine.generate(prompts, max_tokens=60)
            engine.reset()
            assert engine.ask("free_blocks") == engine.ask("blocks")
        assert engine.ask("preemptions") != 0
        assert engine.hits()[1] > 0


def test_a_new_process_reads_the_states_that_it_needs(
    model: dict[str, Any], expected: list[Answer], nursery: Nursery, tmp_path: Path
) -> None:
    given = {"host_size": "64 MiB", "lookup_seconds": PATIENCE_SECONDS, "ssd_dir": str(tmp_path / "kv"), **SSD}
    with running(nursery, connector=given, **model) as engine:
        assert ask(engine, PROMPTS) == expected
    with running(nursery, connector=given, **model) as engine:
        assert ask(engine, PROMPTS) == expected
        assert engine.hits() == (0, 4 * 288)


def test_a_lost_state_is_computed(model: dict[str, Any], expected: list[Answer], nursery: Nursery) -> None:
    with running(nursery, connector={"host_size": "64 MiB"}, **model) as engine:
        assert ask(engine, PROMPTS) == expected
        engine.reset()
        engine.ask("lose", times=len(PROMPTS))
        assert ask(engine, PROMPTS) == expected
        counts = engine.ask("counts")
        assert isinstance(counts, dict)
        assert counts["lost_blocks"] == len(PROMPTS), "of each its state, which is one block"
        engine.reset()
        engine.hits()
        assert ask(engine, PROMPTS) == expected
        assert engine.hits() == (0, 4 * 288), "what was computed anew has been kept"


def test_another_order_of_a_states_axes_shares_nothing(model: dict[str, Any], nursery: Nursery, tmp_path: Path) -> None:
    """The bytes of a block are as many, and mean something else."""
    given = {"host_size": "64 MiB", "lookup_seconds": PATIENCE_SECONDS, "ssd_dir": str(tmp_path / "kv"), **SSD}
    for order, spared in (("SD", 0), ("DS", 0), ("SD", 288)):
        with running(nursery, connector=given, environment={"VLLM_SSM_CONV_STATE_LAYOUT": order}, **model) as engine:
            engine.generate(PROMPTS[:1])
            assert engine.hits() == (0, spared)


@pytest.mark.parametrize(
    ("connector", "option", "told"),
    [
        ({"load": "layerwise"}, {}, "state.*async"),
        ({"blocks_per_store_block": 2}, {}, "state.*1"),
        ({}, {"prefix_match_unit": 16}, "without --prefix-match-unit"),
    ],
)
def test_what_state_cannot_do_is_refused_by_name(
    connector: dict[str, object], option: dict[str, object], told: str, model: dict[str, Any], nursery: Nursery
) -> None:
    engine = EngineProcess(nursery)
    with pytest.raises(EngineError, match=told):
        engine.ask("start", connector={"host_size": "64 MiB", **connector}, **model, **option)
    engine.kill()
