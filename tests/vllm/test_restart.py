"""Blocks on SSD: they outlive the engine, come back through a small host pool, and are never taken for others."""

from __future__ import annotations

import shutil
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.vllm.engines import Answer, Nursery, prompt, running

PROMPTS = [prompt(name, 200) for name in range(7)]
OPTIONS: dict[str, Any] = {"dtype": "float32", "max_model_len": 512, "block_size": 32, "shape": {}}
SMALL_SSD = {"ssd_file_size": "4 MiB", "ssd_free_floor": "1 MiB"}
TINY_POOL = "4 MiB"
"""32 blocks; the prompts have 42."""


def connector(folder: Path, **more: object) -> dict[str, object]:
    return {"host_size": "64 MiB", "ssd_dir": str(folder), "ssd_size": "64 MiB", **SMALL_SSD, **more}


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
    patient = connector(folder, lookup_seconds=10)
    with running(nursery, model=str(models / "tiny"), connector=patient, **OPTIONS) as engine:
        assert engine.generate(PROMPTS) == expected
        assert engine.hits() == (0, 7 * 192)


def test_blocks_come_from_ssd_through_a_tiny_pool(
    kept: tuple[Path, list[Answer]], nursery: Nursery, models: Path, tmp_path: Path
) -> None:
    folder, expected = kept
    shutil.copytree(folder, tmp_path / "kv")
    tiny = connector(tmp_path / "kv", host_size=TINY_POOL, lookup_seconds=10)
    with running(nursery, model=str(models / "tiny"), connector=tiny, **OPTIONS) as engine:
        for own, answer in zip(PROMPTS, expected, strict=True):
            assert engine.generate([own]) == [answer]
        assert engine.hits() == (0, 7 * 192)


def test_what_is_computed_faster_than_it_is_read_is_computed(
    kept: tuple[Path, list[Answer]], nursery: Nursery, models: Path, tmp_path: Path
) -> None:
    folder, expected = kept
    shutil.copytree(folder, tmp_path / "kv")
    fast = connector(tmp_path / "kv", lookup_seconds=10, prefill_tokens_per_second=1 << 30)
    with running(nursery, model=str(models / "tiny"), connector=fast, **OPTIONS) as engine:
        assert engine.generate(PROMPTS[:1]) == expected[:1]
        assert engine.hits() == (0, 0)
        assert engine.generate(PROMPTS[1:2]) == expected[1:2]
        assert engine.hits() == (0, 192), "by then it has been measured what computing takes"


def test_a_store_that_is_slower_than_computing_costs_next_to_nothing(
    kept: tuple[Path, list[Answer]], nursery: Nursery, models: Path, tmp_path: Path
) -> None:
    """Compared in seconds of processors, of which the engine has one: by the clock others would have a say."""
    shutil.copytree(kept[0], tmp_path / "kv")
    slow = connector(tmp_path / "kv", prefill_tokens_per_second=1 << 30)
    long = OPTIONS | {"max_model_len": 2048}
    own = [[*tokens, *prompt(300 + name, 1000)] for name, tokens in enumerate(PROMPTS)]
    ratios = []
    with (
        running(nursery, model=str(models / "tiny"), connector=None, **long) as plain,
        running(nursery, model=str(models / "tiny"), connector=slow, **long) as engine,
    ):
        for given in own:
            without, with_store = (one.ask("first_token", prompt=given) for one in (plain, engine))
            assert isinstance(without, dict)
            assert isinstance(with_store, dict)
            assert with_store["tokens"] == without["tokens"]
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
    patient = connector(tmp_path / "kv", lookup_seconds=1)
    with running(nursery, model=str(models / "tiny"), connector=patient, **OPTIONS) as engine:
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
    given = connector(tmp_path / "kv", lookup_seconds=1) | other.pop("connector", {})
    options = OPTIONS | {"model": str(models / other.pop("model", "tiny"))} | other
    with running(nursery, connector=given, **options) as engine:
        first = engine.generate(PROMPTS[:2])
        assert engine.hits() == (0, 0)
        engine.reset()
        assert engine.generate(PROMPTS[:2]) == first
        assert engine.hits()[1] == 2 * 192, "its own blocks come back to it"
