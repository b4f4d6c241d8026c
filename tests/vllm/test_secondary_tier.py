"""The store behind vLLM's own CPU tier: its real tiering manager is driven through the tier, without engine or GPU."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.processes import ROOT
from tests.vllm.engines import EngineError, EngineProcess, Nursery, running_bare

SMALL = {"ssd_size": "64 MiB", "ssd_file_size": "4 MiB", "ssd_free_floor": "1 MiB", "host_size": "16 MiB"}
NAMES = list(range(12))
RIGHT, MISS = ["right"] * len(NAMES), ["miss"] * len(NAMES)


def options(folder: Path, **more: object) -> dict[str, object]:
    return {"ssd_dir": str(folder), "revision": "r1", **SMALL, **more}


@contextmanager
def tiering(home: EngineProcess, tier: dict[str, object], **more: object) -> Iterator[Callable[..., Any]]:
    """What a tiering manager answers in a process; see `tests.vllm.tier_process.Tiering`."""

    def ask(verb: str, **keywords: object) -> Any:
        return home.ask("tiering", verb=verb, **keywords)

    ask("start", tier=tier, **more)
    with ExitStack() as undo:
        undo.callback(ask, "close")
        yield ask
        undo.pop_all()
    assert ask("close") is True, "the CPU tier's memory is still held"


@pytest.fixture(scope="module")
def home(nursery: Nursery) -> Iterator[EngineProcess]:
    """The process in which these tests make their managers, one after another."""
    with running_bare(nursery) as process:
        yield process


@pytest.fixture(scope="module")
def kept(nursery: Nursery, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that a tier in another process has left with every chunk."""
    folder = tmp_path_factory.mktemp("kept") / "kv"
    with running_bare(nursery) as process, tiering(process, options(folder)) as ask:
        assert ask("save", names=NAMES) == NAMES
        assert ask("results") == [{"success": True, "nbytes": len(NAMES) << 14}]
    return folder


def test_the_tier_has_every_method_that_vllm_calls_with_its_parameters(home: EngineProcess) -> None:
    found = home.ask("tiering", verb="interface")
    assert isinstance(found, dict)
    base, own = found["base"], found["own"]
    assert set(found["abstract"]) <= own.keys()
    assert not {name for name in own if base[name] != own[name]}
    as_they_are = {"has_pending_work", "touch", "on_request_finished", "serve_external_requests", "on_schedule_end"}
    assert base.keys() - own.keys() <= as_they_are | {"block_size_bytes"}, "read the new"


def test_what_the_cpu_tier_evicts_comes_back(home: EngineProcess, tmp_path: Path) -> None:
    with tiering(home, options(tmp_path / "kv", host_size="512 KiB"), chunks=8) as ask:
        first, second = NAMES[:6], NAMES[6:]
        assert ask("save", names=first) == first
        ask("flush")
        assert ask("save", names=second) == second
        ask("flush")
        assert ask("in_cpu_tier", names=first) < 3
        assert ask("load", names=first) == RIGHT[:6]
        assert ask("load", names=[99]) == ["miss"]


def test_another_process_finds_every_chunk(kept: Path, home: EngineProcess, tmp_path: Path) -> None:
    shutil.copytree(kept, tmp_path / "kv")
    with tiering(home, options(tmp_path / "kv")) as ask:
        assert ask("in_cpu_tier", names=NAMES) == 0
        assert ask("load", names=NAMES) == RIGHT
        assert ask("in_cpu_tier", names=NAMES) == len(NAMES)
        ask("reset")
        assert ask("in_cpu_tier", names=NAMES) == 0
        assert ask("load", names=NAMES) == RIGHT


@pytest.mark.parametrize(
    ("tier", "shape"),
    [
        ({"revision": "r2"}, {}),
        ({"tenant": "b"}, {}),
        ({}, {"dtype": "float16"}),
        ({}, {"model": "n"}),
        ({}, {"tp_size": 2}),
        ({}, {"group": [16, ["layers.0"], 0]}),
        ({}, {"group": [32, ["layers.0", "layers.1"], 0]}),
        ({}, {"blocks_per_chunk": 2, "block_nbytes": 1 << 13}),
        ({}, {"kv_cache_layout": "LBHNC"}),
        ({}, {"canonical_layout": True}),
    ],
)
def test_nothing_is_shared_with_another(
    tier: dict[str, object], shape: dict[str, object], kept: Path, home: EngineProcess, tmp_path: Path
) -> None:
    shutil.copytree(kept, tmp_path / "kv")
    with tiering(home, options(tmp_path / "kv", **tier), shape=shape) as ask:
        assert ask("load", names=NAMES) == MISS
        ask("save", names=NAMES[:2])
        ask("reset")
        assert ask("load", names=NAMES[:2]) == RIGHT[:2], "its own chunks come back to it"


def test_a_load_says_which_chunks_came_before_a_damaged_one(kept: Path, home: EngineProcess, tmp_path: Path) -> None:
    shutil.copytree(kept, tmp_path / "kv")
    (file,) = (tmp_path / "kv" / "arrays").glob("*/open-*")
    data = bytearray(file.read_bytes())
    with tiering(home, options(tmp_path / "kv")) as ask:
        at = data.find(bytes.fromhex(ask("row", name=NAMES[3])))
        assert at > 0
        with file.open("r+b") as held:  # while it is open: a start would have found it
            held.seek(at + 1000)
            held.write(bytes([data[at + 1000] ^ 1]))
        (result,) = ask("job", names=NAMES, load=True)
        assert (result["success"], result["names"]) == (False, NAMES[:3])
        assert result["right"][:3] == [True] * 3
        assert result["after"] == ["HIT"] * 3 + ["MISS"] * 9, "this request asks for no more of them"
        assert ask("known", names=NAMES) == ["HIT"] * 3 + ["MISS"] + ["HIT"] * 8
        assert ask("counts") == {"vllm:tierstore_tier_lost_chunks": 9}
        assert ask("load", names=NAMES) == [*RIGHT[:3], "miss", *RIGHT[4:]]


def test_a_job_that_is_drained_is_reported_once(home: EngineProcess, tmp_path: Path) -> None:
    with tiering(home, options(tmp_path / "kv")) as ask:
        (stored,) = ask("job", names=NAMES, load=False)
        assert (stored["job_id"], stored["success"], stored["names"]) == (7, True, None)
        (loaded,) = ask("job", names=NAMES, load=True)
        assert (loaded["success"], loaded["right"]) == (True, [True] * len(NAMES))
        (missed,) = ask("job", names=[50, 51], load=True)
        assert (missed["success"], missed["names"]) == (False, None)


def test_a_look_up_answers_from_memory_and_asks_again_for_what_is_under_way(kept: Path, home: EngineProcess) -> None:
    with tiering(home, options(kept)) as ask:
        assert ask("known", names=[*NAMES, 99]) == ["HIT"] * len(NAMES) + ["MISS"]
        assert ask("promised", name=99) == "RETRY"
        assert ask("known", names=[99]) == ["MISS"]


def test_a_job_larger_than_the_pool_passes_through_it_piece_by_piece(home: EngineProcess, tmp_path: Path) -> None:
    with tiering(home, options(tmp_path / "kv", host_size="512 KiB"), chunks=100) as ask:
        many = list(range(100))
        (stored,) = ask("job", names=many, load=False)
        assert stored["success"] is True
        assert ask("known", names=many) == ["HIT"] * len(many)
        (loaded,) = ask("job", names=many, load=True)
        assert (loaded["success"], loaded["right"]) == (True, [True] * len(many))
        assert ask("counts") == {}


def test_who_follows_the_events_knows_which_chunks_are_kept(home: EngineProcess, tmp_path: Path) -> None:
    """An SSD of 8 MiB for 16 MiB of chunks, so that files go."""
    tier = options(tmp_path / "kv", host_size="512 KiB", ssd_size="8 MiB", ssd_file_size="1 MiB")
    with tiering(home, tier, chunks=64, shape={"publishes": True}) as ask:
        known: set[int] = set()
        told = 0
        for step in range(120):
            if step < 20:
                ask("save", names=list(range(50 * step, 50 * step + 50)))
                ask("flush")
            for name, removed in ask("events"):
                told += 1
                (known.remove if removed else known.add)(name)
        kept = ask("known_of", names=list(range(1000)))
        assert known == set(kept)
        assert 0 < len(kept) < told


def test_hashes_that_no_other_process_would_find_are_not_kept(home: EngineProcess, tmp_path: Path) -> None:
    with tiering(home, options(tmp_path / "kv")) as ask:
        ask("save", names=NAMES, hash_nbytes=16)
        assert ask("results") == [{"success": False, "nbytes": None}]
        assert ask("counts") == {"vllm:tierstore_tier_refused_chunks": len(NAMES)}
        ask("reset")
        assert ask("load", names=NAMES, hash_nbytes=16) == MISS


@pytest.mark.parametrize(
    ("tier", "shape", "told"),
    [
        ({"ssd_dri": "kv"}, {}, "did you mean ssd_dir"),
        ({"revison": "r"}, {}, "did you mean revision"),
        ({"mode": "embedded"}, {}, "mode is not an option"),
        ({"host_size": "much"}, {}, "host.size"),
        ({"locality": "here"}, {}, "LOCAL or REMOTE"),
        ({"ssd_dir": None}, {}, "ssd_dir is not set"),
        ({"revision": None}, {}, "set revision"),
        ({}, {"dp_size": 2}, "dp_rank"),
    ],
)
def test_a_tier_that_cannot_be_is_told_why(
    tier: dict[str, object], shape: dict[str, object], told: str, home: EngineProcess, tmp_path: Path
) -> None:
    given = {name: value for name, value in options(tmp_path / "kv", **tier).items() if value is not None}
    with pytest.raises(EngineError, match=told):
        home.ask("tiering", verb="start", tier=given, shape=shape)


def test_the_page_shows_a_tier_that_works(home: EngineProcess, tmp_path: Path) -> None:
    section = (ROOT / "docs" / "vllm.md").read_text("utf-8").partition("## Behind vLLM's own CPU tier")[2]
    (tier,) = json.loads(section.partition("```json")[2].partition("```")[0])["secondary_tiers"]
    assert (tier["type"], tier["module_path"]) == ("TierStoreTier", "tierstore.connectors.vllm.secondary_tier")
    with tiering(home, tier | {"ssd_dir": str(tmp_path / "kv"), "ssd_size": "1 GiB", "revision": "r1"}) as ask:
        assert ask("save", names=NAMES) == NAMES


def test_data_parallel_engines_have_folders_of_their_own(home: EngineProcess, tmp_path: Path) -> None:
    given = options(tmp_path / "kv-{dp_rank}", locality="LOCAL")
    with tiering(home, given, shape={"dp_size": 2, "dp_index": 1}) as ask:
        assert ask("save", names=NAMES) == NAMES
    assert [path.name for path in tmp_path.iterdir()] == ["kv-1"]


def test_weights_are_digested_where_no_revision_is_given(home: EngineProcess, tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    (model / "weights.bin").write_bytes(bytes(10000))
    given = {name: value for name, value in options(tmp_path / "kv").items() if name != "revision"}
    start = partial(tiering, home, given, shape={"model": str(model)})
    with start() as ask:
        ask("save", names=NAMES)
    with start() as ask:
        assert ask("load", names=NAMES) == RIGHT
    (model / "config.json").write_text('{"rope_theta": 1}')
    with start() as ask:
        assert ask("load", names=NAMES) == MISS
    (model / "config.json").write_text("{}")
    (model / "weights.bin").write_bytes(bytes(9999) + b"\1")
    with start() as ask:
        assert ask("load", names=NAMES) == MISS
