"""Whoever shares the pool, calls back badly or drops what it asked for: the store lives on and leaks nothing."""

from __future__ import annotations

import gc
import mmap
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from tests.payload import TIMEOUT_SECONDS, block_hash, get, namespace, num_pins, rows, small_store
from tests.processes import mappers, pools_of, program
from tierstore.store import Store, Transfer
from tierstore.types import Outcome
from tierstore.worker import Worker

NUMBERS = range(6)
HASHES = [block_hash(number) for number in NUMBERS]

CLIENT = """
import fcntl, mmap, os, random, sys
number = int(sys.argv[1])
nbytes = os.fstat(number).st_size
for attempt in (
    lambda: os.ftruncate(number, 0),
    lambda: os.ftruncate(number, 2 * nbytes),
    lambda: fcntl.fcntl(number, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE),
):
    try:
        attempt()
    except PermissionError:
        continue
    raise SystemExit("the pool's size or seals were changed")
pool = mmap.mmap(number, nbytes)
print("mapped", flush=True)
for line in sys.stdin:
    for _ in range(200):
        at = random.randrange(nbytes - 4096)
        pool[at : at + 4096] = random.randbytes(4096)
    print("scribbled", flush=True)
"""


@pytest.fixture(autouse=True)
def shared_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stores here and in the programs have pools that others may map: the ones that could outlive their owner."""
    monkeypatch.setenv("TIERSTORE_HOST_SHARED", "true")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with small_store(ssd_dir=tmp_path) as store:
        yield store


def pool_of(store: Store) -> int:
    number: int = store._house.pool.fd
    return number


def test_a_client_that_scribbles_over_the_pool_ends_nobody_and_harms_nothing_on_ssd(
    tmp_path: Path, store: Store
) -> None:
    handle = store.namespace(namespace())
    assert handle.put(HASHES, rows(NUMBERS, 8192), durable=True).result(TIMEOUT_SECONDS).ok
    number = pool_of(store)
    client = [sys.executable, "-c", CLIENT, str(number)]
    with subprocess.Popen(
        client, pass_fds=[number], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "mapped\n"
        for turn in range(20):
            process.stdin.write("go\n")
            process.stdin.flush()
            others = range(100 + 6 * turn, 106 + 6 * turn)
            hashes = [block_hash(other) for other in others]
            transfer = handle.put(hashes, rows(others, 8192), durable=turn % 4 == 0)
            assert set(transfer.result(TIMEOUT_SECONDS).outcomes) <= {Outcome.OK, Outcome.REJECTED}
            buffer = np.empty((6, 8192), np.uint8)
            assert handle.get(hashes, buffer).result(TIMEOUT_SECONDS).leading >= 0
            assert process.stdout.readline() == "scribbled\n"
        process.stdin.close()
        assert process.wait(TIMEOUT_SECONDS) == 0
    store.check()
    assert store.flush().result(TIMEOUT_SECONDS).ok


def test_what_was_on_ssd_before_a_client_scribbled_is_read_back_whole(tmp_path: Path) -> None:
    with small_store(ssd_dir=tmp_path) as store:
        assert store.namespace(namespace()).put(HASHES, rows(NUMBERS, 8192), durable=True).result(TIMEOUT_SECONDS).ok
        with mmap.mmap(pool_of(store), 256 << 10) as pool:
            pool[:] = os.urandom(256 << 10)
    with small_store(ssd_dir=tmp_path) as store:
        assert get(store.namespace(namespace()), HASHES, rows(NUMBERS, 8192)).ok


OWNER_WITH_A_CLIENT = """
import subprocess
store = small_store(ssd_dir=folder)
store.namespace(namespace()).put([block_hash(0)], rows([0], 8192), durable=True).result(30)
number = store._house.pool.fd
code = "import mmap, os, sys; pool = mmap.mmap(int(sys.argv[1]), 0); print('mapped', flush=True); sys.stdin.readline()"
client = subprocess.Popen([sys.executable, "-c", code, str(number)], pass_fds=[number], stdin=subprocess.PIPE)
print(client.pid, flush=True)
client.wait()
"""


def test_pool_memory_goes_with_the_last_process_that_maps_it(tmp_path: Path) -> None:
    with program(OWNER_WITH_A_CLIENT, tmp_path) as (process, output):
        client = {output.readline().strip(), output.readline().strip()} - {"mapped"}
        (pid,) = map(int, client)
        pools = pools_of(process.pid)
        process.kill()
        process.wait(TIMEOUT_SECONDS)
        # the client reads the end of its input, which the owner held open, and ends; until then the memory is its
        while mappers(pools):
            os.sched_yield()
        assert pools_of(pid) == set()
    opened = small_store(ssd_dir=tmp_path)
    assert get(opened.namespace(namespace()), HASHES[:1], rows([0], 8192)).ok
    opened.close()


def test_transfers_dropped_without_a_look_leave_nothing(store: Store) -> None:
    handle = store.namespace(namespace())
    for turn in range(200):
        handle.put(HASHES, rows(NUMBERS, 8192), durable=turn % 10 == 0)
        handle.get(HASHES, np.empty((6, 8192), np.uint8), deadline_seconds=3600.0)
        handle.prefetch([block_hash("absent")])
        handle.delete(HASHES[3:])
    assert store.flush().result(TIMEOUT_SECONDS).ok
    store.close()
    gc.collect()
    assert num_pins(store) == 0
    assert not [thing for thing in gc.get_objects() if type(thing) is Transfer and not thing.done()]


def test_requests_of_a_thread_that_is_gone_end_by_themselves(store: Store) -> None:
    handle = store.namespace(namespace())
    callers = Worker("caller", capacity=4, threads=4)

    def ask_and_go() -> None:
        for _ in range(20):
            handle.put(HASHES, rows(NUMBERS, 8192), durable=True)

    for _ in range(4):
        assert callers.submit(ask_and_go)
    callers.close()
    assert callers.failure is None
    assert store.flush().result(TIMEOUT_SECONDS).ok
    store.close()
    assert num_pins(store) == 0


@pytest.mark.parametrize("error", [RuntimeError, SystemExit])
def test_a_callback_that_raises_is_told_of_and_takes_nobody_with_it(
    store: Store, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    """Not even one that would end its thread: it was one of the store's, and what it had in hand never ended."""
    handle = store.namespace(namespace())
    told: list[threading.ExceptHookArgs] = []
    monkeypatch.setattr(threading, "excepthook", told.append)

    def fail(_transfer: Transfer) -> None:
        raise error("a caller's mistake")

    called: list[Transfer] = []
    caller = Worker(
        "caller", capacity=1
    )  # on the main thread it would end the test, where a transfer has ended already
    for turn in range(20):
        others = range(10 * turn, 10 * turn + 6)
        hashes, blocks = [block_hash(other) for other in others], rows(others, 8192)
        transfers = [handle.put(hashes, blocks, durable=True) for _ in range(3)]
        for transfer in transfers:
            caller.ask(partial(transfer.add_done_callback, fail))
            caller.ask(partial(transfer.add_done_callback, called.append))
        assert all(transfer.result(TIMEOUT_SECONDS).ok for transfer in transfers)
    assert handle.put(HASHES, rows(NUMBERS, 8192), durable=True).result(TIMEOUT_SECONDS).ok
    assert get(handle, HASHES, rows(NUMBERS, 8192)).ok
    store.check()
    store.close()
    caller.close()
    assert num_pins(store) == 0
    assert len(told) == len(called) == 60
    assert {type(args.exc_value) for args in told} == {error}
