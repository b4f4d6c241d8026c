"""Threads on one store of real bytes: who reads what another writes just now gets whole blocks, or fewer of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.payload import SENTINEL, TIMEOUT_SECONDS, block_hash, chunk_nbytes, get, namespace, rows, small_store
from tierstore.types import Outcome
from tierstore.worker import Worker


@contextmanager
def beside(*tasks: Callable[[], None]) -> Iterator[Callable[[], bool]]:
    """Run each task on a thread of its own; inside, whether all have ended. What one raises is raised here."""
    left = list(tasks)
    workers = [Worker(f"beside-{number}", capacity=1) for number in range(len(tasks))]

    def run(task: Callable[[], None]) -> None:
        try:
            task()
        finally:
            left.remove(task)

    for worker, task in zip(workers, tasks, strict=True):
        worker.submit(partial(run, task))
    try:
        yield lambda: not left
    finally:
        for worker in workers:
            worker.close()
    for worker in workers:
        if worker.failure is not None:
            raise worker.failure


def test_who_reads_blocks_from_the_first_byte_of_their_put_on_gets_them_whole_or_not_yet(tmp_path: Path) -> None:
    nbytes, count = 256 << 10, 64
    hashes, blocks = [block_hash(n) for n in range(count)], rows(range(count), nbytes)
    with small_store(
        ssd_dir=tmp_path, host_size="8 MiB", host_slab_size="2 MiB", ssd_size="64 MiB", ssd_file_size="8 MiB"
    ) as store:
        handle = store.namespace(namespace(nbytes))

        def write() -> None:
            for first in range(0, count, 8):
                put = handle.put(hashes[first : first + 8], blocks[first : first + 8], durable=True)
                assert put.result(TIMEOUT_SECONDS).ok

        seen = set()
        with beside(write) as ended:
            while not ended():
                for first in range(0, count, 16):
                    seen.add(get(handle, hashes[first : first + 16], blocks[first : first + 16]).leading)
        assert len(seen) > 1, "the reader came too late, or never got anything"
        assert get(handle, hashes[:16], blocks[:16]).ok
        store.check()


@pytest.mark.parametrize("nbytes", [8192, 1 << 20])
def test_of_two_writers_of_one_key_every_get_brings_one_ones_block_whole(tmp_path: Path, nbytes: int) -> None:
    name = [block_hash("contested")]
    owners = rows(["first", "second"], nbytes)
    with small_store(
        ssd_dir=tmp_path, host_size="32 MiB", host_slab_size="8 MiB", ssd_size="64 MiB", ssd_file_size="8 MiB"
    ) as store:
        handle = store.namespace(namespace(nbytes))

        def write(owner: int) -> None:
            for turn in range(40):
                put = handle.put(name, owners[owner : owner + 1], durable=turn % 4 == 0).result(TIMEOUT_SECONDS)
                assert put.outcomes[0] in (Outcome.OK, Outcome.CANCELLED, Outcome.REJECTED)  # or deleted meanwhile
                if turn % 3 == owner:
                    handle.delete(name).result(TIMEOUT_SECONDS)

        num_hits = 0
        with beside(partial(write, 0), partial(write, 1)) as ended:
            while not ended():
                buffer = np.full((1, nbytes), SENTINEL, np.uint8)
                if handle.get(name, buffer).result(TIMEOUT_SECONDS).ok:
                    num_hits += 1
                    assert (buffer == owners).all(axis=1).any(), "a block of nobody, or of both"
        assert num_hits
        store.check()


def test_the_folder_never_takes_more_than_its_size_whoever_fills_it(tmp_path: Path) -> None:
    with small_store(ssd_dir=tmp_path, ssd_size="1 MiB") as store:
        handle = store.namespace(namespace())

        def fill(caller: int) -> None:
            for first in range(0, 105, 7):
                numbers = [(caller, number) for number in range(first, first + 7)]
                handle.put([block_hash(n) for n in numbers], rows(numbers, 8192), durable=first % 2 == 0).result(
                    TIMEOUT_SECONDS
                )

        most = 0
        with beside(*(partial(fill, caller) for caller in range(4))) as ended:
            while not ended():
                most = max(most, chunk_nbytes(tmp_path))
        assert (1 << 20) // 2 < most <= 1 << 20
        assert store.metrics()["tierstore_reclaimed_files_total"] > 0
        store.check()


@pytest.mark.slow  # ten thousand blocks
def test_ten_thousand_blocks_are_all_there_when_the_store_is_opened_again(tmp_path: Path) -> None:
    hashes = [block_hash(n) for n in range(10_000)]
    sizes: dict[str, Any] = {
        "host_size": "64 MiB",
        "host_slab_size": "8 MiB",
        "ssd_size": "512 MiB",
        "ssd_file_size": "16 MiB",
    }
    with small_store(ssd_dir=tmp_path, **sizes) as store:
        handle = store.namespace(namespace(4096))
        for first in range(0, len(hashes), 1000):
            blocks = rows(range(first, first + 1000), 4096)
            assert handle.put(hashes[first : first + 1000], blocks, durable=True).result(TIMEOUT_SECONDS).ok
    with small_store(ssd_dir=tmp_path, **sizes) as store:
        handle = store.namespace(namespace(4096))
        assert handle.lookup(hashes) == len(hashes)
        for first in range(0, len(hashes), 2500):
            assert get(handle, hashes[first : first + 50], rows(range(first, first + 50), 4096)).ok
