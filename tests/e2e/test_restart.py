"""What a store finds of an earlier run: all that was durable, with its own bytes, within the limits of today."""

from __future__ import annotations

from pathlib import Path
from random import Random

import numpy as np
import pytest

from tests.payload import TIMEOUT_SECONDS, block_hash, chunk_nbytes, get, namespace, quiet, rows, small_store
from tests.processes import in_child
from tierstore.arguments import as_hashes
from tierstore.store import NamespaceHandle, Store
from tierstore.testing.sim_disk import SimDisk
from tierstore.types import Outcome, Presence

FILE_BLOCKS, FILE_NBYTES = 7, 128 << 10
"""Blocks of 8 KiB in a chunk file of the small store, and its length."""


def hashes_of(numbers: range) -> list[bytes]:
    return [block_hash(number) for number in numbers]


def put(handle: NamespaceHandle, numbers: range, *, durable: bool = True) -> None:
    result = handle.put(hashes_of(numbers), rows(numbers, 8192), durable=durable).result(TIMEOUT_SECONDS)
    assert result.ok, result.outcomes


def known(handle: NamespaceHandle, numbers: range) -> list[int]:
    """The blocks that are there, each with its own bytes."""
    presence = handle.presence(hashes_of(numbers))
    found = [number for number, there in zip(numbers, presence, strict=True) if there is Presence.HIT]
    for number in found:
        assert get(handle, [block_hash(number)], rows([number], 8192)).ok
    return found


def read_blocks(store: Store) -> float:
    return store.metrics()['tierstore_link_blocks_total{link="ssd-read",outcome="ok"}']


def test_blocks_outlive_the_store_and_are_read_once_from_ssd(tmp_path: Path) -> None:
    with small_store(ssd_dir=tmp_path) as store:
        put(store.namespace(namespace()), range(20), durable=False)
    with small_store(ssd_dir=tmp_path) as store:
        handle = store.namespace(namespace())
        kept = len(known(handle, range(20)))
        assert kept >= FILE_BLOCKS
        assert read_blocks(store) == kept
        assert known(handle, range(20)) == list(range(kept))
        assert read_blocks(store) == kept


def test_the_metrics_say_what_chunk_files_take(tmp_path: Path) -> None:
    for first in (0, 20):
        with small_store(ssd_dir=tmp_path) as store:
            handle = store.namespace(namespace())
            assert store.metrics()["tierstore_ssd_used_bytes"] == chunk_nbytes(tmp_path)
            put(handle, range(first, first + 20))
            assert store.metrics()["tierstore_ssd_used_bytes"] == chunk_nbytes(tmp_path) >= 3 * FILE_NBYTES


def test_what_was_flushed_outlives_a_power_loss() -> None:
    disk = SimDisk()
    store = small_store(disk)
    put(store.namespace(namespace()), range(6), durable=False)
    assert store.flush().result(TIMEOUT_SECONDS).ok
    with quiet():
        disk.crash(Random(1), torn=False)
        store.close()
    with small_store(disk) as store:
        assert known(store.namespace(namespace()), range(6)) == list(range(6))


def test_what_was_put_before_a_clear_never_comes_back(tmp_path: Path) -> None:
    with small_store(ssd_dir=tmp_path) as store:
        handle = store.namespace(namespace())
        put(handle, range(6))
        handle.clear()
        put(handle, range(6, 9))
    for _ in range(2):
        with small_store(ssd_dir=tmp_path) as store:
            assert known(store.namespace(namespace()), range(9)) == [6, 7, 8]


def test_a_put_in_flight_during_a_clear_does_not_come_back(tmp_path: Path) -> None:
    with small_store(ssd_dir=tmp_path) as store:
        handle = store.namespace(namespace())
        transfer = handle.put(hashes_of(range(6)), rows(range(6), 8192), durable=True)
        handle.clear()
        assert known(handle, range(6)) == []
        transfer.result(TIMEOUT_SECONDS)
        assert known(handle, range(6)) == []
    with small_store(ssd_dir=tmp_path) as store:
        assert known(store.namespace(namespace()), range(6)) == []


def test_a_deleted_block_does_not_come_back(tmp_path: Path) -> None:
    with small_store(ssd_dir=tmp_path) as store:
        handle = store.namespace(namespace())
        put(handle, range(6))
        assert handle.delete(hashes_of(range(3))).result(TIMEOUT_SECONDS).num_ok == 3
        assert known(handle, range(6)) == [3, 4, 5]
    with small_store(ssd_dir=tmp_path) as store:
        assert known(store.namespace(namespace()), range(6)) == [3, 4, 5]


def test_a_namespace_that_a_run_does_not_open_keeps_its_blocks(tmp_path: Path) -> None:
    with small_store(ssd_dir=tmp_path) as store:
        put(store.namespace(namespace(model="a")), range(6))
        put(store.namespace(namespace(model="b")), range(6, 12))
    with small_store(ssd_dir=tmp_path) as store:
        assert known(store.namespace(namespace(model="a")), range(12)) == list(range(6))
    with small_store(ssd_dir=tmp_path) as store:
        assert known(store.namespace(namespace(model="b")), range(12)) == list(range(6, 12))


def test_a_namespace_opened_late_finds_what_has_not_been_reclaimed_meanwhile(tmp_path: Path) -> None:
    with small_store(ssd_dir=tmp_path) as store:
        for first in range(0, 28, FILE_BLOCKS):
            put(store.namespace(namespace(model="late")), range(first, first + FILE_BLOCKS))
    with small_store(ssd_dir=tmp_path) as store:
        for first in range(100, 128, FILE_BLOCKS):
            put(store.namespace(namespace(model="early")), range(first, first + FILE_BLOCKS))
        store.flush().result(TIMEOUT_SECONDS)
        late = known(store.namespace(namespace(model="late")), range(28))
        assert late == list(range(late[0], 28))
        assert late[0] > 0, "the first file was reclaimed"
        store.check()


def test_the_folder_keeps_its_limit_across_restarts(tmp_path: Path) -> None:
    for first in range(0, 200, 40):
        with small_store(ssd_dir=tmp_path) as store:
            for start in range(first, first + 40, 8):
                put(store.namespace(namespace()), range(start, start + 8))
                assert store.flush().result(TIMEOUT_SECONDS).ok
        assert FILE_NBYTES < chunk_nbytes(tmp_path) <= 1 << 20
    with small_store(ssd_dir=tmp_path) as store:
        kept = known(store.namespace(namespace()), range(200))
    assert len(kept) >= 4 * FILE_BLOCKS
    assert kept[-1] == 199
    assert kept[0] > 100, "the oldest go first"


def test_a_smaller_limit_holds_from_the_start_and_the_newest_stay(tmp_path: Path) -> None:
    with small_store(ssd_dir=tmp_path, ssd_size="4 MiB") as store:
        for first in range(0, 96, 8):
            put(store.namespace(namespace()), range(first, first + 8))
    assert chunk_nbytes(tmp_path) > 1 << 20
    with small_store(ssd_dir=tmp_path) as store:
        assert chunk_nbytes(tmp_path) <= 1 << 20
        kept = known(store.namespace(namespace()), range(96))
        assert kept == list(range(kept[0], 96))
        assert len(kept) >= 4 * FILE_BLOCKS
        full = store.namespace(namespace()).put(hashes_of(range(96, 99)), rows(range(96, 99), 8192), durable=True)
        assert set(full.result(TIMEOUT_SECONDS).outcomes) <= {Outcome.OK, Outcome.REJECTED}
        assert store.flush().result(TIMEOUT_SECONDS).ok
        put(store.namespace(namespace()), range(96, 99))


def test_a_store_without_ssd_forgets_and_says_so(tmp_path: Path) -> None:
    with small_store(ssd_dir=tmp_path, ssd_size=0) as store:
        handle = store.namespace(namespace())
        put(handle, range(6), durable=False)
        assert known(handle, range(6)) == list(range(6))
        refused = handle.put(hashes_of(range(6, 9)), rows(range(6, 9), 8192), durable=True)
        assert refused.result(TIMEOUT_SECONDS).outcomes == [Outcome.REJECTED] * 3
        assert store.flush().result(TIMEOUT_SECONDS).ok
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("seed", range(4))
def test_a_damaged_block_is_a_miss_and_a_put_mends_it(tmp_path: Path, seed: int) -> None:
    with small_store(ssd_dir=tmp_path) as store:
        put(store.namespace(namespace()), range(20))
    rng = np.random.default_rng(seed)
    for path in tmp_path.glob("arrays/*/[co]*"):
        data = np.fromfile(path, np.uint8)
        data[rng.integers(0, len(data), 8)] ^= 1
        data.tofile(path)
    for _ in range(2):
        with small_store(ssd_dir=tmp_path) as store:
            handle = store.namespace(namespace())
            for number in range(20):
                if not get(handle, [block_hash(number)], rows([number], 8192)).ok:
                    put(handle, range(number, number + 1))
                assert get(handle, [block_hash(number)], rows([number], 8192)).ok
            store.check()


def test_deletes_of_unknown_blocks_never_jam_the_folder(tmp_path: Path) -> None:
    with small_store(ssd_dir=tmp_path) as store:
        handle = store.namespace(namespace())
        for number in range(150):
            assert handle.delete([block_hash(number)]).result(TIMEOUT_SECONDS).outcomes == [Outcome.MISS]
        put(handle, range(200, 206))
        assert chunk_nbytes(tmp_path) <= 1 << 20
    with small_store(ssd_dir=tmp_path) as store:
        put(store.namespace(namespace()), range(206, 212))


def test_a_forked_child_leaves_its_parents_store_alone(tmp_path: Path) -> None:
    with small_store(ssd_dir=tmp_path) as store:
        handle = store.namespace(namespace())
        put(handle, range(6))
        assert in_child(store.close) == 0
        assert known(handle, range(6)) == list(range(6))


def test_a_put_into_a_namespace_that_is_cleared_meanwhile_keeps_nothing(tmp_path: Path) -> None:
    with small_store(ssd_dir=tmp_path) as store:
        handle = store.namespace(namespace())
        old = handle.generation.number
        handle.clear()
        with store.engine.planning() as planner:
            request = planner.get(old, as_hashes(hashes_of(range(3))))
            assert request is not None
            plan = planner.step(request, 0.0)
        assert plan.finished[0].outcomes.tolist() == [Outcome.CANCELLED] * 3
