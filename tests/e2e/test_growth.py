"""Nothing grows with use: descriptors, memory, threads and requests are flat over tens of thousands of calls."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from bench.growth import Series
from bench.soak import BOUNDS
from tests.payload import TIMEOUT_SECONDS, block_hash, namespace, num_pins, rows, small_store
from tests.processes import ROOT, open_files
from tierstore.store import Store

NUM_ABSENT = 100_000
NUM_CANCELLED = 10_000
HEAP_MIB_MAX = 8.0


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with small_store(ssd_dir=tmp_path) as store:
        yield store


def heap_mib() -> float:
    """Anonymous memory of this process, once what is garbage has gone."""
    gc.collect()
    status = Path("/proc/self/status").read_text("ascii").splitlines()
    return next(int(line.split()[1]) for line in status if line.startswith("RssAnon")) / 1024


def absent_keys(first: int, count: int) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    keys = np.zeros((count, 32), np.uint8)
    keys[:, :8] = np.arange(first, first + count, dtype="<u8")[:, None].view(np.uint8)
    return keys


@pytest.mark.slow  # a hundred thousand gets
def test_gets_of_absent_keys_leave_no_descriptor_and_no_memory(store: Store) -> None:
    handle = store.namespace(namespace())
    buffer = np.empty((1, 8192), np.uint8)

    def get(first: int, count: int) -> None:
        for key in absent_keys(first, count):
            assert handle.get(key[None], buffer, deadline_seconds=3600.0).result(TIMEOUT_SECONDS).leading == 0

    get(0, 2000)
    descriptors, heap, threads = len(open_files()), heap_mib(), threading.active_count()
    for first in range(2000, NUM_ABSENT, 7000):
        get(first, 7000)
    assert len(open_files()) <= descriptors
    assert threading.active_count() == threads
    assert heap_mib() - heap < HEAP_MIB_MAX
    store.check()


@pytest.mark.slow  # ten thousand requests
def test_cancelled_requests_leave_nothing(store: Store) -> None:
    handle = store.namespace(namespace())
    hashes, blocks = [block_hash(number) for number in range(20)], rows(range(20), 8192)
    assert handle.put(hashes, blocks, durable=True).result(TIMEOUT_SECONDS).ok
    buffer = np.empty_like(blocks)
    heap = 0.0
    for turn in range(NUM_CANCELLED // 4):
        if turn == 200:
            heap = heap_mib()
        transfers = [
            handle.prefetch(hashes),
            handle.get(hashes, buffer, deadline_seconds=3600.0),
            handle.put([block_hash(turn)], blocks[:1]),
            handle.put([block_hash(-turn)], blocks[:1], durable=True),
        ]
        for transfer in transfers:
            transfer.cancel()
        for transfer in transfers[:3]:
            transfer.result(TIMEOUT_SECONDS)
    assert heap_mib() - heap < HEAP_MIB_MAX
    assert store.flush().result(TIMEOUT_SECONDS).ok
    store.check()
    store.close()
    assert num_pins(store) == 0


@pytest.mark.slow  # tens of thousands of blocks
def test_descriptors_stay_few_over_puts_gets_and_evictions(store: Store) -> None:
    handle = store.namespace(namespace())
    buffer = np.empty((8, 8192), np.uint8)
    most = 0
    for first in range(0, 16_000, 8):
        hashes = [block_hash(number) for number in range(first, first + 8)]
        handle.put(hashes, rows([0] * 8, 8192)).result(TIMEOUT_SECONDS)
        handle.get(hashes, buffer).result(TIMEOUT_SECONDS)
        if first % 800 == 0:
            most = max(most, len(open_files()))
        if first == 1600:
            early = most
    assert store.metrics()["tierstore_reclaimed_files_total"] > 50
    assert most <= early + 10


def test_handles_and_stores_opened_again_and_again_leave_nothing(tmp_path: Path) -> None:
    small_store(ssd_dir=tmp_path).close()
    descriptors, threads = len(open_files()), threading.active_count()
    for _ in range(10):
        with small_store(ssd_dir=tmp_path) as store:
            handles = {store.namespace(namespace()) for _ in range(1000)}
            assert len(handles) == 1
    assert (len(open_files()), threading.active_count()) == (descriptors, threads)


def test_a_value_that_grows_is_found() -> None:
    seconds = list(range(100))
    for name, bound in BOUNDS.items():
        assert Series(name, bound, seconds, [5.0] * 100).is_flat
        assert not Series(name, bound, seconds, [5.0 + (bound + 1) * second / 50 for second in seconds]).is_flat
        assert Series(name, bound, seconds, [float(min(second, 20)) for second in seconds]).is_flat, "the warm-up"


@pytest.mark.slow  # half a minute
def test_a_short_soak_is_flat() -> None:
    command = [sys.executable, "-m", "bench.soak", "--minutes", "0.4", "--json", "-"]
    ended = subprocess.run(command, cwd=ROOT, env=dict(os.environ), capture_output=True, text=True, check=False)
    result = json.loads(ended.stdout)
    assert (ended.returncode, result["flat"], result["counts"]["wrong_blocks"]) == (0, True, 0), result["rows"]
    assert {row["name"] for row in result["rows"]} == set(BOUNDS)
    assert result["counts"]["gets"] > 20


@pytest.mark.slow  # half a minute
def test_a_service_is_flat_under_clients_that_are_killed() -> None:
    command = [sys.executable, "-m", "bench.churn", "--seconds", "12", "--json", "-"]
    ended = subprocess.run(command, cwd=ROOT, env=dict(os.environ), capture_output=True, text=True, check=False)
    result = json.loads(ended.stdout)
    assert (result["counts"]["killed"] >= 16, result["counts"]["wrong"]) == (True, 0)
    held = {row["name"]: row["max"] for row in result["rows"]}
    assert (held["sessions"], held["lent_bytes"], held["pinned_blocks"]) == (1, 0, 0), "the one that looks"
