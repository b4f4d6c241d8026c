"""A store that one process serves to the workers of its engine: they find it by the engine's id, nobody else does."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from tests.payload import SMALL, TIMEOUT_SECONDS, block_hash, namespace, rows
from tierstore.config import StoreConfig
from tierstore.connectors.vllm.hosting import Hosting, visit
from tierstore.device.cpu import CpuDevice
from tierstore.errors import ConfigError

HASHES = [block_hash(number) for number in range(4)]
BYTES = rows(range(4), 8192)


def config(folder: Path) -> StoreConfig:
    return StoreConfig.load(overrides=SMALL | {"ssd_dir": str(folder)})


def engine_id(name: str) -> str:
    """Of this run of the tests alone."""
    return f"{name}-{os.getpid()}"


def test_a_worker_that_was_there_first_finds_the_store(tmp_path: Path) -> None:
    with closing(visit(engine_id("a"), CpuDevice())) as worker:
        handle = worker.namespace(namespace())
        assert not handle.put(HASHES, BYTES).result(TIMEOUT_SECONDS).ok, "there is none yet"
        with closing(Hosting(config(tmp_path), engine_id("a"))) as host:
            assert worker.wait(TIMEOUT_SECONDS)
            assert handle.put(HASHES, BYTES).result(TIMEOUT_SECONDS).ok
            assert worker.attached, "it copies in place"
            assert host.namespace(namespace()).lookup(HASHES) == 4


def test_another_engine_has_another_store(tmp_path: Path) -> None:
    with (
        closing(Hosting(config(tmp_path / "a"), engine_id("a"))) as first,
        closing(Hosting(config(tmp_path / "b"), engine_id("b"))) as second,
        closing(visit(engine_id("b"), CpuDevice())) as worker,
    ):
        assert worker.wait(TIMEOUT_SECONDS)
        assert worker.namespace(namespace()).put(HASHES, BYTES).result(TIMEOUT_SECONDS).ok
        assert (first.namespace(namespace()).lookup(HASHES), second.namespace(namespace()).lookup(HASHES)) == (0, 4)


def test_what_workers_have_put_outlives_the_engine(tmp_path: Path) -> None:
    for expected in (0, 4):
        with (
            closing(Hosting(config(tmp_path), engine_id("a"))) as host,
            closing(visit(engine_id("a"), CpuDevice())) as worker,
        ):
            assert worker.wait(TIMEOUT_SECONDS)
            handle = worker.namespace(namespace())
            assert host.namespace(namespace()).lookup(HASHES) == expected
            assert handle.put(HASHES, BYTES).result(TIMEOUT_SECONDS).ok
            found = np.empty_like(BYTES)
            assert handle.get(HASHES, found).result(TIMEOUT_SECONDS).ok
            assert np.array_equal(found, BYTES)


def test_an_engine_whose_place_is_taken_is_told(tmp_path: Path) -> None:
    with (
        closing(Hosting(config(tmp_path / "a"), engine_id("a"))),
        pytest.raises(ConfigError, match="workers cannot be served"),
    ):
        Hosting(config(tmp_path / "b"), engine_id("a"))
