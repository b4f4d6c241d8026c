"""One folder, one owner: whoever comes second is told who holds it, and an owner that lost its claim stops writing."""

from __future__ import annotations

import json
import logging
import os
import shutil
from pathlib import Path

import pytest

from tests.payload import TIMEOUT_SECONDS, block_hash, get, namespace, rows, small_store
from tests.processes import program
from tierstore.errors import DiskError, FolderBusyError
from tierstore.health import Service
from tierstore.store import NamespaceHandle
from tierstore.types import Outcome, TierName

NUMBERS = range(6)
HASHES = [block_hash(number) for number in NUMBERS]


def put(handle: NamespaceHandle, numbers: range = NUMBERS, *, durable: bool = True) -> list[Outcome]:
    hashes = [block_hash(number) for number in numbers]
    return handle.put(hashes, rows(numbers, 8192), durable=durable).result(TIMEOUT_SECONDS).outcomes


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_second_store_in_the_same_process_is_told_so(tmp_path: Path) -> None:
    with small_store(ssd_dir=tmp_path) as store:
        put(store.namespace(namespace()))
        with pytest.raises(FolderBusyError, match=f"pid {os.getpid()}: this very process.*use another folder"):
            small_store(ssd_dir=tmp_path)
        assert get(store.namespace(namespace()), HASHES, rows(NUMBERS, 8192)).ok
    small_store(ssd_dir=tmp_path).close()


def test_a_second_store_in_another_process_learns_the_name_of_the_holder(tmp_path: Path) -> None:
    script = "store = small_store(ssd_dir=folder)\nprint('open', flush=True)\ninput()\nstore.close()"
    with program(script, tmp_path) as (process, output):
        assert output.readline() == "open\n"
        name = Path(f"/proc/{process.pid}/comm").read_text("utf-8").strip()
        with pytest.raises(
            FolderBusyError, match=rf"pid {process.pid} \({name}\), on host {os.uname().nodename}, since"
        ):
            small_store(ssd_dir=tmp_path)
        process.communicate("\n", TIMEOUT_SECONDS)
    small_store(ssd_dir=tmp_path).close()


def test_a_lock_removed_under_its_holder_lets_no_second_store_in(tmp_path: Path) -> None:
    script = "store = small_store(ssd_dir=folder)\nprint('open', flush=True)\ninput()\nstore.close()"
    with program(script, tmp_path) as (process, output):
        assert output.readline() == "open\n"
        (tmp_path / "LOCK").unlink()
        for _ in range(2):
            with pytest.raises(FolderBusyError, match="did not say who it is"):
                small_store(ssd_dir=tmp_path)
        process.communicate("\n", TIMEOUT_SECONDS)
    small_store(ssd_dir=tmp_path).close()


@pytest.mark.parametrize("pid", [1, os.getppid()])
def test_a_pid_that_lives_again_after_a_reboot_keeps_nobody_out(tmp_path: Path, pid: int) -> None:
    small_store(ssd_dir=tmp_path).close()
    left = json.loads((tmp_path / "LOCK").read_text("utf-8"))
    (tmp_path / "LOCK").write_text(json.dumps({**left, "pid": pid, "boot": "of long ago"}), "utf-8")
    with small_store(ssd_dir=tmp_path):
        told = json.loads((tmp_path / "LOCK").read_text("utf-8"))
    assert (told["pid"], told["store"], told["boot"]) == (os.getpid(), left["store"], left["boot"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "it did not say who it is"),
        ("not JSON", "not JSON"),
        ('{"pid": 7}', r'\{"pid": 7\}'),
        ('{"pid": 7, "host": "h", "boot": "other", "since": 0}', "pid 7 of another boot.*host h, since 1970-01-01"),
    ],
)
def test_whatever_a_lock_says_its_holder_is_named_as_far_as_it_goes(tmp_path: Path, text: str, message: str) -> None:
    with small_store(ssd_dir=tmp_path):
        (tmp_path / "LOCK").write_text(text, "utf-8")
        with pytest.raises(FolderBusyError, match=message):
            small_store(ssd_dir=tmp_path)


def test_an_owner_whose_lock_is_gone_writes_nothing_more_and_reads_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with small_store(ssd_dir=tmp_path) as store, caplog.at_level(logging.ERROR):
        handle = store.namespace(namespace())
        assert put(handle) == [Outcome.OK] * 6
        (tmp_path / "LOCK").unlink()
        before = contents(tmp_path)
        for first in range(10, 60, 10):
            assert set(put(handle, range(first, first + 10))) <= {Outcome.IO_ERROR, Outcome.REJECTED}
        assert put(handle, range(60, 66), durable=False) == [Outcome.OK] * 6
        store.flush().result(TIMEOUT_SECONDS)
        health = store.health()[TierName.SSD]
        assert (health.service, "LOCK" in health.why) == (Service.WRITES_OFF, True)
        assert not handle.delete(HASHES[5:]).result(TIMEOUT_SECONDS).ok
        with pytest.raises(DiskError, match="another one may own the folder"):
            handle.clear()
        with pytest.raises(DiskError, match="another one may own the folder"):
            store.namespace(namespace(model="new"))
        assert get(handle, HASHES[:5], rows(NUMBERS, 8192)[:5]).ok
        store.check()
    assert contents(tmp_path) == before
    assert [record.message for record in caplog.records if "LOCK" in record.message]
    with small_store(ssd_dir=tmp_path) as store:
        assert get(store.namespace(namespace()), HASHES, rows(NUMBERS, 8192)).ok


def test_an_owner_whose_folder_was_replaced_leaves_the_new_one_alone(tmp_path: Path) -> None:
    folder, moved = tmp_path / "folder", tmp_path / "moved"
    with small_store(ssd_dir=folder) as store:
        handle = store.namespace(namespace())
        assert put(handle) == [Outcome.OK] * 6
        shutil.move(folder, moved)
        with small_store(ssd_dir=folder) as other:
            assert put(other.namespace(namespace()), range(70, 76)) == [Outcome.OK] * 6
        before = contents(folder)
        assert set(put(handle, range(10, 16))) <= {Outcome.IO_ERROR, Outcome.REJECTED}
    assert contents(folder) == before
    with small_store(ssd_dir=moved) as store:
        assert get(store.namespace(namespace()), HASHES, rows(NUMBERS, 8192)).ok


RIVAL = """
from tierstore.errors import FolderBusyError
rounds = refused = 0
for line in sys.stdin:
    try:
        with small_store(ssd_dir=folder) as store:
            handle = store.namespace(namespace())
            numbers = range(32)
            assert handle.put([block_hash(n) for n in numbers], rows(numbers, 8192), durable=True).result(30).num_ok
            assert get(handle, [block_hash(0)], rows([0], 8192)).leading <= 1
        rounds += 1
    except FolderBusyError:
        refused += 1
    print(rounds, refused, flush=True)
"""


@pytest.mark.slow  # two processes, many openings
def test_two_engines_on_one_folder_take_turns_or_are_refused_and_break_nothing(tmp_path: Path) -> None:
    with program(RIVAL, tmp_path) as (one, ones), program(RIVAL, tmp_path) as (other, others):
        assert one.stdin is not None
        assert other.stdin is not None
        for _ in range(50):
            for process in (one, other):
                assert process.stdin is not None
                process.stdin.write("go\n")
                process.stdin.flush()
            counts = [line.split() for line in (ones.readline(), others.readline())]
        one.stdin.close()
        other.stdin.close()
        assert [one.wait(TIMEOUT_SECONDS), other.wait(TIMEOUT_SECONDS)] == [0, 0]
    assert all(sum(map(int, count)) == 50 for count in counts)
    assert sum(int(rounds) for rounds, _refused in counts) >= 50
    assert not [path for path in contents(tmp_path) if path.endswith(".new")]
    with small_store(ssd_dir=tmp_path) as store:
        assert get(store.namespace(namespace()), HASHES, rows(NUMBERS, 8192)).leading >= 0
        store.check()
