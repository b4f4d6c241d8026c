"""Engines that share a store behind a service, and an engine of two workers: what one has saved the other loads."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.vllm.engines import (
    PATIENCE_SECONDS,
    EngineProcess,
    Nursery,
    Service,
    alike,
    answers,
    attempts,
    prompt,
    running,
    serving,
)
from tierstore.client import Client

PROMPTS = [prompt(name, 200) for name in range(4)]
OPTIONS: dict[str, Any] = {"dtype": "float32", "max_model_len": 1024, "block_size": 32, "shape": {}}


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder whose path is short enough for a socket's."""
    path = Path(tempfile.mkdtemp(prefix="tierstore"))
    yield path
    shutil.rmtree(path)


def through(endpoint: str) -> dict[str, object]:
    return {"mode": "service", "endpoint": endpoint, "lookup_seconds": PATIENCE_SECONDS}


def connected(engine: EngineProcess) -> None:
    assert engine.ask("connected") is True


def attached(endpoint: str, *, sessions: int) -> None:
    """Wait until so many processes map the service's pool: each worker, and the scheduler's where it has none."""
    with Client(endpoint, attach=False) as client:
        assert client.wait(PATIENCE_SECONDS)
        for _attempt in attempts("some are missing"):
            if client.metrics()['tierstore_service_sessions{pool="attached"}'] >= sessions:
                break


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


def test_a_service_that_is_killed_and_started_anew_in_the_middle_of_a_run_costs_hits_alone(
    nursery: Nursery, models: Path, folder: Path
) -> None:
    prompts = [prompt(100 + name, 300) for name in range(40)]
    kept = {"host_size": "64 MiB", "ssd_dir": folder / "kv", "ssd_size": "1 GiB"}
    with running(nursery, model=str(models / "tiny"), connector=None, **OPTIONS) as plain:
        expected = plain.generate(prompts)
    service = Service(folder, **kept)
    with ExitStack() as undo:
        undo.callback(lambda: service.close())
        engine = undo.enter_context(
            running(nursery, model=str(models / "tiny"), connector=through(service.endpoint), **OPTIONS)
        )
        connected(engine)
        engine.begin("generate", prompts=prompts)
        with Client(service.endpoint, attach=False) as client:
            assert client.wait(PATIENCE_SECONDS)
            while client.metrics()['tierstore_request_blocks_total{verb="put",outcome="ok"}'] < 40:
                pass
        service.kill()
        service = Service(folder, **kept)
        assert alike(answers(engine.end()), expected)
        for _attempt in attempts("nothing is loaded any more"):  # for a while after a failure nobody is asked
            engine.reset()
            connected(engine)
            engine.hits()
            assert alike(engine.generate(prompts[:8]), expected[:8])
            if engine.hits()[1] > 0:
                break


def test_an_engine_that_finds_no_service_computes(nursery: Nursery, models: Path, folder: Path) -> None:
    connector = through(f"unix:{folder}/nobody.sock")
    with running(nursery, model=str(models / "tiny"), connector=connector, **OPTIONS) as engine:
        first = engine.generate(PROMPTS[:1])
        engine.reset()
        assert engine.generate(PROMPTS[:1]) == first
        assert engine.hits() == (0, 0)


def test_two_workers_answer_the_same_where_requests_are_preempted(nursery: Nursery, models: Path, folder: Path) -> None:
    prompts = [prompt(200 + name, 150) for name in range(6)]
    options = OPTIONS | {"tensor_parallel_size": 2, "max_model_len": 512}
    with running(nursery, model=str(models / "tiny"), connector=None, **options) as plain:
        expected = [plain.generate([own], max_tokens=56)[0] for own in prompts]
    few = options | {"num_gpu_blocks_override": 24}
    with (
        serving(folder, host_size="64 MiB") as endpoint,
        running(nursery, model=str(models / "tiny"), connector=through(endpoint), **few) as engine,
    ):
        attached(endpoint, sessions=3)
        assert alike(engine.generate(prompts, max_tokens=56), expected)
        assert engine.ask("preemptions") != 0
        engine.ask("settle")
        engine.reset()
        engine.hits()
        assert alike(engine.generate(prompts, max_tokens=56), expected)
        assert engine.hits()[1] > 0
        engine.ask("settle")
        engine.reset()
        assert engine.ask("free_blocks") == engine.ask("blocks")


def test_workers_of_one_engine_share_a_store_that_it_holds_itself(
    nursery: Nursery, models: Path, tmp_path: Path
) -> None:
    ssd = {"ssd_dir": str(tmp_path / "kv"), "ssd_size": "64 MiB", "ssd_file_size": "4 MiB", "ssd_free_floor": "1 MiB"}
    given = {"host_size": "64 MiB", "lookup_seconds": PATIENCE_SECONDS, **ssd}
    options = OPTIONS | {"tensor_parallel_size": 2}
    with running(nursery, model=str(models / "tiny"), connector=given, **options) as engine:
        engine.ask("workers_connected", number=2)
        expected = engine.generate(PROMPTS)
        for _attempt in attempts("not all is loaded"):  # workers that came before the store ask it again after a while
            engine.ask("settle")
            engine.reset()
            engine.hits()
            assert alike(engine.generate(PROMPTS), expected)
            if engine.hits() == (0, 4 * 192):
                break
    with running(nursery, model=str(models / "tiny"), connector=given, **options) as engine:
        engine.ask("workers_connected", number=2)
        assert alike(engine.generate(PROMPTS), expected)
        assert engine.hits() == (0, 4 * 192), "from SSD"


def test_two_workers_keep_once_what_both_hold(nursery: Nursery, models: Path, folder: Path) -> None:
    """MLA, whose latents are not split. vLLM does not compute it behind a prefix on a CPU, so nothing is loaded."""
    same = {"attention_backend": "CPU_MLA"}  # on every machine: those with AMX have another, which takes no float32
    options = OPTIONS | same | {"tensor_parallel_size": 2, "shape": {"latent": True, "layers": 2}}
    with serving(folder, host_size="64 MiB") as endpoint:
        saving = {
            "kv_connector": "TierStoreConnector",
            "kv_connector_module_path": "tierstore.connectors.vllm",
            "kv_role": "kv_producer",
            "kv_load_failure_policy": "recompute",
            "kv_connector_extra_config": through(endpoint),
        }
        model = str(models / "latent")
        with running(nursery, model=model, connector=None, transfer=saving, **options) as engine:
            attached(endpoint, sessions=3)
            engine.generate(PROMPTS)
            engine.ask("settle")
            with Client(endpoint, attach=False) as client:
                assert client.wait(PATIENCE_SECONDS)
                assert client.metrics()["tierstore_host_used_blocks"] == 4 * 12, "of 16 tokens, as vLLM has it there"


def test_two_workers_each_keep_their_share_of_a_block(nursery: Nursery, models: Path, folder: Path) -> None:
    with serving(folder, host_size="64 MiB") as endpoint:
        options = OPTIONS | {"tensor_parallel_size": 2}
        with running(nursery, model=str(models / "tiny"), connector=through(endpoint), **options) as engine:
            attached(endpoint, sessions=3)
            expected = engine.generate(PROMPTS)
            engine.ask("settle")
            engine.reset()
            assert engine.generate(PROMPTS) == expected
            assert engine.hits() == (0, 4 * 192)
        with running(nursery, model=str(models / "tiny"), connector=through(endpoint), **OPTIONS) as alone:
            connected(alone)
            alone.generate(PROMPTS)
            assert alone.hits() == (0, 0), "one worker's blocks are not two's"
