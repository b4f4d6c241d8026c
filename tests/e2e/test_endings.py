"""However a process with a store ends, it leaves no memory, no file of passage and a folder that opens."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.e2e.test_cli import SMALL_BENCH
from tests.payload import TIMEOUT_SECONDS, block_hash, get, namespace, rows, small_store
from tests.processes import ROOT, mappers, pools_of, program

USE = """
import tempfile
tempfile.tempdir = folder + "/temporary"
store = small_store(ssd_dir=folder + "/kv")
assert store.namespace(namespace()).put([block_hash(1)], rows([1], 8192), durable=True).result(30).ok
print("used", flush=True)
sys.stdin.readline()
store.close()
"""


@pytest.fixture(autouse=True)
def shared_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stores here and in the programs have pools that others may map: the ones that could outlive their owner."""
    monkeypatch.setenv("TIERSTORE_HOST_SHARED", "true")


def shared_memory() -> list[str]:
    return sorted(name for name in os.listdir("/dev/shm") if "tierstore" in name)


def opens_whole(folder: Path) -> None:
    with small_store(ssd_dir=folder) as store:
        assert get(store.namespace(namespace()), [block_hash(1)], rows([1], 8192)).ok
    assert not list(folder.rglob("*.new"))


@pytest.mark.parametrize("ending", ["close", "SIGINT", "SIGTERM", "SIGKILL"])
def test_an_embedded_store_leaves_no_region_and_no_file_of_passage(tmp_path: Path, ending: str) -> None:
    (tmp_path / "temporary").mkdir()
    with program(USE, tmp_path) as (process, output):
        assert output.readline() == "used\n"
        pools = pools_of(process.pid)
        assert pools
        if ending == "close":
            process.communicate("\n", TIMEOUT_SECONDS)
        else:
            process.send_signal(signal.Signals[ending])
            process.wait(TIMEOUT_SECONDS)
    assert not mappers(pools)
    assert shared_memory() == []
    assert list((tmp_path / "temporary").iterdir()) == []
    opens_whole(tmp_path / "kv")


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
def test_a_command_that_is_stopped_leaves_no_region_and_no_file(tmp_path: Path, ending: signal.Signals) -> None:
    command = [sys.executable, "-m", "tierstore", *SMALL_BENCH, "--ssd-dir", str(tmp_path), "--seconds", "60"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while not (pools := pools_of(process.pid)):
            assert process.poll() is None
            assert time.monotonic() < deadline
        process.send_signal(ending)
        _out, said = process.communicate(timeout=TIMEOUT_SECONDS)
    assert process.returncode == (128 + signal.SIGTERM if ending == signal.SIGTERM else 1), said
    assert b"Traceback" not in said
    assert not mappers(pools)
    assert shared_memory() == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow  # five processes
def test_five_kills_in_a_row_leave_one_region_of_the_living_store(tmp_path: Path) -> None:
    (tmp_path / "temporary").mkdir()
    killed: set[str] = set()
    for _ in range(5):
        with program(USE, tmp_path) as (process, output):
            assert output.readline() == "used\n"
            killed |= pools_of(process.pid)
            process.kill()
            process.wait(TIMEOUT_SECONDS)
    with program(USE, tmp_path) as (process, output):
        assert output.readline() == "used\n"
        (living,) = pools_of(process.pid)
        assert len(killed) == 5
        assert not mappers(killed - {living})
        assert shared_memory() == []
    opens_whole(tmp_path / "kv")


LONELY = """
import os
assert os.geteuid() == 65534
for place in ("/", os.environ["HOME"], "/tmp"):
    assert not os.access(place, os.W_OK), place
from tests.payload import *
folder = os.environ["DATA"]
with small_store(ssd_dir=folder) as store:
    handle = store.namespace(namespace())
    assert handle.put([block_hash(1)], rows([1], 8192), durable=True).result(30).ok
    assert get(handle, [block_hash(1)], rows([1], 8192)).ok
print("started and stored")
"""
READ_ONLY_WORLD = """
mount --bind "$DATA" "$DATA" && mount -o remount,bind,ro / && exec unshare --user --map-user=65534 --map-group=65534 \\
    env -i HOME=/nonexistent DATA="$DATA" PYTHONDONTWRITEBYTECODE=1 PYTHONPATH="$ROOT" "$PYTHON" -c "$LONELY"
"""


def test_a_user_without_a_home_on_a_read_only_root_needs_the_data_folder_alone(tmp_path: Path) -> None:
    if shutil.which("unshare") is None or subprocess.run(["unshare", "-m", "true"], check=False).returncode:
        pytest.skip("needs the right to make a mount namespace")
    variables = {"DATA": str(tmp_path), "ROOT": str(ROOT), "PYTHON": sys.executable, "LONELY": LONELY}
    ended = subprocess.run(
        ["unshare", "-m", "sh", "-c", READ_ONLY_WORLD],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=2 * TIMEOUT_SECONDS,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (0, "started and stored\n"), ended.stderr
    opens_whole(tmp_path)
