"""Blocks on SSD: they outlive the engine, come back through a small host pool, and are never taken for others."""

from __future__ import annotations

import shutil
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.vllm.engines import PATIENCE_SECONDS, Answer, Nursery, prompt, running
from tests.vllm.inside import FAST, SLOW

PROMPTS = [prompt(name, 200) for name in range(7)]
OPTIONS: dict[str, Any] = {"dtype": "float32", "max_model_len": 512, "block_size": 32, "shape": {}}
SMALL_SSD = {"ssd_file_size": "4 MiB", "ssd_free_floor": "1 MiB"}
TINY_POOL = "4 MiB"
"""32 blocks; the prompts have 42."""


def connector(folder: Path, **more: object) -> dict[str, object]:
    given = {"host_size": "64 MiB", "lookup_seconds": PATIENCE_SECONDS, **SMALL_SSD}
    return {**given, "ssd_dir": str(folder), "ssd_size": "64 MiB", **more}


@pytest.fixture(scope="module")
def kept(nursery: Nursery, models: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Answer]]:
    """A folder that an engine has left, and what that engine answered when it had nothing to load."""
    folder = tmp_path_factory.mktemp("kept") / "kv"
    with running(nursery, model=str(models / "tiny"), connector=connector(folder), **OPTIONS) as engine:
        answers = engine.generate(PROMPTS)
        assert engine.hits() == (0, 0)
    return folder, answers


def test_another_process_finds_every_block(kept: tuple[Path, list[Answer]], nursery: Nursery, models: Path) -> None:
    folder, expected = kept
    with running(nursery, model=str(models / "tiny"), connector=connector(folder), **OPTIONS) as engine:
        assert engine.generate(PROMPTS) == expected
        assert engine.hits() == (0, 7 * 192)


def test_what_was_saved_after_an_update_of_the_weights_in_place_is_nothing_to_a_later_start(
    nursery: Nursery, models: Path, tmp_path: Path
) -> None:
    """The connector is told of a reset alone, and the digest is still of the files that a later start reads."""
    folder = tmp_path / "kv"
    with running(nursery, model=str(models / "tiny"), connector=connector(folder), **OPTIONS) as engine:
        engine.generate(PROMPTS[:1])
        engine.reset(connector=True)
        engine.generate(PROMPTS)
        engine.reset()
        engine.hits()
        engine.generate(PROMPTS)
        assert engine.hits() == (0, 7 * 192), "this engine has the same weights still"
    with running(nursery, model=str(models / "tiny"), connector=connector(folder), **OPTIONS) as engine:
        engine.generate(PROMPTS)
        assert engine.hits() == (0, 0)


def test_blocks_come_from_ssd_through_a_tiny_pool(
    kept: tuple[Path, list[Answer]], nursery: Nursery, models: Path, tmp_path: Path
) -> None:
    folder, expected = kept
    shutil.copytree(folder, tmp_path / "kv")
    tiny = connector(tmp_path / "kv", host_size=TINY_POOL)
    with running(nursery, model=str(models / "tiny"), connector=tiny, **OPTIONS) as engine:
        for own, answer in zip(PROMPTS, expected, strict=True):
            assert engine.generate([own]) == [answer]
        assert engine.hits() == (0, 7 * 192)


def test_what_is_computed_faster_than_it_is_read_is_computed(
    kept: tuple[Path, list[Answer]], nursery: Nursery, models: Path, tmp_path: Path
) -> None:
    folder, expected = kept
    shutil.copytree(folder, tmp_path / "kv")
    slow = connector(tmp_path / "kv", prefill_tokens_per_second=1)
    with running(nursery, model=str(models / "tiny"), connector=slow, **OPTIONS) as engine:

        def spared(number: int) -> tuple[int, int]:
            assert engine.generate([PROMPTS[number]]) == [expected[number]]
            return engine.hits()

        assert spared(0) == (0, 192), "as it was told"
        for number, slowness, hits in ((1, FAST, (0, 0)), (2, SLOW, (0, 192))):
            engine.ask("seem", slowness=slowness)
            engine.generate([prompt(50 + number, 200)])
            assert engine.hits() == (0, 0), "nobody has kept it, so that computing is measured"
            assert spared(number) == hits, "as it was measured since"


def test_a_store_that_is_slower_than_computing_costs_next_to_nothing(
    kept: tuple[Path, list[Answer]], nursery: Nursery, models: Path, tmp_path: Path
) -> None:
    """Compared in seconds of processors, of which the engine has one: by the clock others would have a say."""
    shutil.copytree(kept[0], tmp_path / "kv")
    slow = connector(tmp_path / "kv", prefill_tokens_per_second=1 << 30)
    long = OPTIONS | {"max_model_len": 2048}
    own = [[*tokens, *prompt(300 + name, 1000)] for name, tokens in enumerate(3 * PROMPTS)]
    ratios = []
    with (
        running(nursery, model=str(models / "tiny"), connector=None, **long) as plain,
        running(nursery, model=str(models / "tiny"), connector=slow, slowness=FAST, **long) as engine,
    ):
        for given in own:
            without, with_store = (one.ask("first_token", prompt=given) for one in (plain, engine))
            assert isinstance(without, dict)
            assert isinstance(with_store, dict)
            assert with_store["tokens"] == without["tokens"]
            assert engine.hits()[1] == 0, "not even the kept head is worth it"
            ratios.append(with_store["cpu_seconds"] / without["cpu_seconds"])
    assert statistics.median(ratios) <= 1.10, ratios


def flip(path: Path) -> None:
    """Change a byte of every 64 KiB."""
    data = bytearray(path.read_bytes())
    data[5000 :: 1 << 16] = bytes(value ^ 1 for value in data[5000 :: 1 << 16])
    path.write_bytes(data)


def cut(path: Path) -> None:
    """Keep the first third."""
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size // 3)


@pytest.mark.parametrize("damage", [flip, cut, Path.unlink])
def test_damaged_blocks_are_computed_again(
    damage: Callable[[Path], None],
    kept: tuple[Path, list[Answer]],
    nursery: Nursery,
    models: Path,
    tmp_path: Path,
) -> None:
    folder, expected = kept
    shutil.copytree(folder, tmp_path / "kv")
    files = [path for path in (tmp_path / "kv" / "arrays").rglob("*") if path.is_file() and path.suffix != ".json"]
    assert files
    for path in files:
        damage(path)
    with running(nursery, model=str(models / "tiny"), connector=connector(tmp_path / "kv"), **OPTIONS) as engine:
        assert engine.generate(PROMPTS) == expected
        assert engine.hits()[1] < 7 * 192
        engine.reset()
        assert engine.generate(PROMPTS) == expected
        assert engine.hits() == (0, 7 * 192), "what was computed anew has been kept again"


OTHERS: dict[str, dict[str, Any]] = {
    "dtype": {"dtype": "bfloat16"},
    "block size": {"block_size": 64},
    "weights": {"model": "other", "shape": {"seed": 1}},
    "rope": {"model": "rope", "shape": {"rope_theta": 5000.0}},
    "revision": {"connector": {"revision": "r2"}},
    "tenant": {"connector": {"tenant": "b"}},
}


@pytest.mark.parametrize("name", OTHERS)
def test_nothing_is_shared_with_another(
    name: str, kept: tuple[Path, list[Answer]], nursery: Nursery, models: Path, tmp_path: Path
) -> None:
    shutil.copytree(kept[0], tmp_path / "kv")
    other = dict(OTHERS[name])
    given = connector(tmp_path / "kv") | other.pop("connector", {})
    options = OPTIONS | {"model": str(models / other.pop("model", "tiny"))} | other
    with running(nursery, connector=given, **options) as engine:
        first = engine.generate(PROMPTS[:2])
        assert engine.hits() == (0, 0)
        engine.reset()
        assert engine.generate(PROMPTS[:2]) == first
        assert engine.hits()[1] == 2 * 192, "its own blocks come back to it"
