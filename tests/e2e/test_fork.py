"""A fork of a process with an open store: it has none of it, says so, and neither harms nor outlives the parent's."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.payload import TIMEOUT_SECONDS, block_hash, get, namespace, rows, small_store
from tests.processes import in_child, mappers, open_files, pools_of, program
from tierstore.errors import ForkError
from tierstore.store import Store
from tierstore.types import Outcome
from tierstore.worker import Worker

NUMBERS = range(6)
HASHES = [block_hash(number) for number in NUMBERS]
VERBS: dict[str, Callable[[Store], object]] = {
    "put": lambda store: store.namespace(namespace()).put(HASHES, rows(NUMBERS, 8192)),
    "namespace": lambda store: store.namespace(namespace(model="other")),
    "flush": lambda store: store.flush(),
    "metrics": lambda store: store.metrics(),
    "health": lambda store: store.health(),
    "check": lambda store: store.check(),
}


@pytest.fixture(autouse=True)
def shared_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stores here and in the programs have pools that others may map: the ones that could outlive their owner."""
    monkeypatch.setenv("TIERSTORE_HOST_SHARED", "true")


def test_every_verb_in_a_forked_child_names_the_parent_as_the_owner(tmp_path: Path) -> None:
    with small_store(ssd_dir=tmp_path) as store:
        handle = store.namespace(namespace())
        unfinished = handle.prefetch([block_hash("absent")])
        verbs = dict(VERBS)
        verbs["get"] = lambda _store: handle.get(HASHES, np.empty((6, 8192), np.uint8))
        verbs["lookup"] = lambda _store: handle.lookup(HASHES)
        verbs["presence"] = lambda _store: handle.presence(HASHES)
        verbs["delete"] = lambda _store: handle.delete(HASHES)
        verbs["clear"] = lambda _store: handle.clear()

        def call_all() -> None:
            for verb in verbs.values():
                with pytest.raises(ForkError, match=f"belongs to process {os.getppid()}.*open a store"):
                    verb(store)
            store.close()
            unfinished.cancel()

        assert unfinished.result(TIMEOUT_SECONDS).outcomes == [Outcome.MISS]
        assert in_child(call_all) == 0
        assert handle.put(HASHES, rows(NUMBERS, 8192), durable=True).result(TIMEOUT_SECONDS).ok
        assert get(handle, HASHES, rows(NUMBERS, 8192)).ok
        store.check()


def test_a_transfer_under_way_ends_in_the_parent_alone(tmp_path: Path) -> None:
    with small_store(ssd_dir=tmp_path) as store:
        handle = store.namespace(namespace())
        transfer = handle.put(HASHES, rows(NUMBERS, 8192), durable=True)

        def wait() -> None:
            if not transfer.done():
                with pytest.raises(ForkError):
                    transfer.result(TIMEOUT_SECONDS)

        assert in_child(wait) == 0
        assert transfer.result(TIMEOUT_SECONDS).ok


def test_a_forked_child_has_no_file_and_no_memory_of_the_store(tmp_path: Path) -> None:
    with small_store(ssd_dir=tmp_path) as store:
        assert store.namespace(namespace()).put(HASHES, rows(NUMBERS, 8192), durable=True).result(TIMEOUT_SECONDS).ok
        ours = [path for path in open_files() if "tierstore" in path or str(tmp_path) in path]
        assert len(ours) >= 4, "LOCK, its folder, the pool and a chunk file"

        def look() -> None:
            assert not [path for path in open_files() if "tierstore" in path or str(tmp_path) in path]
            assert not pools_of(os.getpid())

        assert in_child(look) == 0


def test_a_forked_child_may_open_a_store_of_its_own(tmp_path: Path) -> None:
    with small_store(ssd_dir=tmp_path / "parent") as store:
        assert store.namespace(namespace()).put(HASHES, rows(NUMBERS, 8192), durable=True).result(TIMEOUT_SECONDS).ok

        def use_another() -> None:
            with small_store(ssd_dir=tmp_path / "child") as own:
                handle = own.namespace(namespace())
                assert handle.put(HASHES, rows(NUMBERS, 8192), durable=True).result(TIMEOUT_SECONDS).ok
                store.close()
                assert get(handle, HASHES, rows(NUMBERS, 8192)).ok

        assert in_child(use_another) == 0
        assert get(store.namespace(namespace()), HASHES, rows(NUMBERS, 8192)).ok


ORPHAN = """
store = small_store(ssd_dir=folder)
store.namespace(namespace()).put([block_hash(0)], rows([0], 8192), durable=True).result(30)
ours, other = os.pipe()
child = os.fork()
if child == 0:
    os.write(other, b"forked")
    sys.stdin.read()
    os._exit(0)
os.read(ours, 6)
print(child, flush=True)
sys.stdin.read()
"""


def test_a_child_that_outlives_a_killed_owner_keeps_neither_folder_nor_memory(tmp_path: Path) -> None:
    with program(ORPHAN, tmp_path) as (process, output):
        child = int(output.readline())
        pools = pools_of(process.pid)
        assert pools
        process.kill()
        process.wait(TIMEOUT_SECONDS)
        os.kill(child, 0)  # it lives
        assert not mappers(pools)
        with small_store(ssd_dir=tmp_path) as store:
            assert get(store.namespace(namespace()), HASHES[:1], rows([0], 8192)).ok
        os.kill(child, signal.SIGKILL)


EXIT_LIKE_A_PROGRAM = """
import threading
store = small_store(ssd_dir=folder)
handle = store.namespace(namespace())
handle.prefetch([block_hash(0)], deadline_seconds=3600)
child = os.fork()
if child == 0:
    sys.exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
assert handle.put([block_hash(0)], rows([0], 8192), durable=True).result(30).ok
"""


def test_a_child_that_ends_as_a_program_does_ends_and_the_parent_goes_on(tmp_path: Path) -> None:
    with program(EXIT_LIKE_A_PROGRAM, tmp_path) as (process, output):
        assert output.readline() == "7\n"
        assert process.wait(TIMEOUT_SECONDS) == 0


@pytest.mark.slow  # hundreds of processes
def test_a_process_that_forks_while_verbs_run_never_hangs(tmp_path: Path) -> None:
    with small_store(ssd_dir=tmp_path) as store:
        handle = store.namespace(namespace())
        ending: list[bool] = []
        busy = Worker("busy", capacity=1)

        def use() -> None:
            while not ending:
                handle.put(HASHES, rows(NUMBERS, 8192), deadline_seconds=60.0).result(TIMEOUT_SECONDS)
                handle.get(HASHES, np.empty((6, 8192), np.uint8)).result(TIMEOUT_SECONDS)
                handle.delete(HASHES[:1]).result(TIMEOUT_SECONDS)

        def call() -> None:
            for verb in (lambda: handle.lookup(HASHES), store.metrics, store.flush, lambda: handle.delete(HASHES)):
                with pytest.raises(ForkError):
                    verb()
            store.close()

        busy.submit(use)
        codes = {in_child(call) for _ in range(200)}
        done = {subprocess.run([sys.executable, "-S", "-c", ""], check=False).returncode for _ in range(10)}
        ending.append(True)
        busy.close()
        assert (codes, done, busy.failure) == ({0}, {0}, None)
        store.check()


def test_a_started_program_inherits_nothing_of_the_store(tmp_path: Path) -> None:
    store = small_store(ssd_dir=tmp_path)
    assert store.namespace(namespace()).put(HASHES, rows(NUMBERS, 8192), durable=True).result(TIMEOUT_SECONDS).ok
    with subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE, close_fds=False) as other:
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while "python" not in os.readlink(f"/proc/{other.pid}/exe"):
            assert time.monotonic() < deadline
        inherited = [path for path in open_files(other.pid) if "tierstore" in path or str(tmp_path) in path]
        store.close()
        small_store(ssd_dir=tmp_path).close()
        other.communicate(b"\n", TIMEOUT_SECONDS)
    assert inherited == []
