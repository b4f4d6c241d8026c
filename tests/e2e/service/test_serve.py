"""`tierstore serve` as an operator meets it: its banner, its end, its crash and the next start."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import psutil
import pytest

from tests.e2e.service.world import patient
from tests.payload import SMALL, TIMEOUT_SECONDS, block_hash, namespace, rows
from tests.processes import open_files
from tierstore.store import Store
from tierstore.types import Outcome

ROOT = Path(__file__).parents[3]
BLOCKS = [block_hash(number) for number in range(6)]
BYTES = rows(range(6), 8192)
SETTINGS = [f"--{name.replace('_', '-')}={value}" for name, value in SMALL.items()]


class Served:
    """A serving process.

    Attributes:
        process: Itself.
        banner: What it has said until it served.
        address: For clients.
    """

    def __init__(self, process: subprocess.Popen[str], address: str) -> None:
        self.process = process
        self.address = address
        assert process.stderr is not None
        self.banner: list[str] = []
        while "serving" not in "".join(self.banner[-1:]):
            line = process.stderr.readline()
            assert line, f"it has ended: {self.banner}"
            self.banner.append(line)

    def end(self, number: int = signal.SIGTERM) -> tuple[int, str]:
        """Exit code and what it said behind the banner."""
        self.process.send_signal(number)
        _, said = self.process.communicate(timeout=TIMEOUT_SECONDS)
        return self.process.returncode, said


@contextmanager
def serve(folder: Path, *arguments: str) -> Iterator[Served]:
    """`tierstore serve` over a folder, on a socket there; killed at the end if it still lives."""
    address = f"unix:{folder / 'service.sock'}"
    command = [sys.executable, "-W", "error", "-m", "tierstore", "serve", f"--ssd.dir={folder / 'ssd'}"]
    with subprocess.Popen(
        [*command, f"--listen={address}", *SETTINGS, *arguments], stderr=subprocess.PIPE, text=True, cwd=ROOT
    ) as process:
        try:
            yield Served(process, address)
        finally:
            process.kill()


def test_the_banner_says_what_is_served_and_to_whom(tmp_path: Path) -> None:
    with serve(tmp_path) as served:
        banner = "".join(served.banner)
        for words in (
            "256 KiB (262144 B), shared",
            "1 MiB, codec raw (lossless)",
            f"{served.address}, for this user alone",
        ):
            assert words in banner
        for name in ("service.sock", "service.sock.pool"):
            assert stat.S_IMODE(os.stat(tmp_path / name).st_mode) == 0o600


def test_a_service_listens_on_the_addresses_that_were_given_and_on_no_others(tmp_path: Path) -> None:
    with serve(tmp_path, "--listen=127.0.0.1:0", "--insecure", "--monitor.address=127.0.0.1:0") as served:
        connections = psutil.Process(served.process.pid).net_connections("inet")
        listening = {connection.laddr for connection in connections if connection.status == psutil.CONN_LISTEN}
    assert [address.ip.removeprefix("::ffff:") for address in listening] == ["127.0.0.1"] * 2


def test_the_banner_says_that_a_folder_is_only_read(tmp_path: Path) -> None:
    with serve(tmp_path) as served:
        served.end()
    with serve(tmp_path, "--ssd-read-only") as served:
        assert "1 MiB, read only\n" in "".join(served.banner)


def test_the_banner_says_that_nothing_can_be_written(tmp_path: Path) -> None:
    with serve(tmp_path, "--ssd-free-floor=1000 TiB") as served:
        assert any("SSD OFF FOR WRITES" in line and "free_floor" in line for line in served.banner)


def test_with_a_json_log_every_line_is_an_object(tmp_path: Path) -> None:
    with serve(tmp_path, "--log.format=json", "--monitor.address=127.0.0.1:0") as served:
        code, said = served.end()
    records = [json.loads(line) for line in [*served.banner, *said.splitlines()]]
    assert code == 0
    assert {record["level"] for record in records} == {"info"}
    messages = [record["message"] for record in records]
    for words in ("256 KiB (262144 B), shared", "metrics and status at http://127.0.0.1:", "finished and synced"):
        assert any(words in message for message in messages), words
    assert len(set(messages)) == len(messages), "a record is written twice"
    assert sum("http://127.0.0.1:" in message for message in messages) == 1, "the monitor's address is said twice"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_in_good_order(tmp_path: Path, number: int) -> None:
    with serve(tmp_path) as served, patient(served.address) as client:
        assert client.namespace(namespace()).put(BLOCKS, BYTES).result(TIMEOUT_SECONDS).ok
        code, said = served.end(number)
        assert (code, "finished and synced" in said) == (0, True)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["ssd"]


def test_a_signal_ends_it_in_good_order_though_nobody_reads_what_it_says(tmp_path: Path) -> None:
    with serve(tmp_path) as served:
        assert served.process.stderr is not None
        served.process.stderr.close()
        served.process.send_signal(signal.SIGTERM)
        assert served.process.wait(TIMEOUT_SECONDS) == 0


def test_what_was_put_is_there_after_a_restart_in_good_order(tmp_path: Path) -> None:
    with serve(tmp_path) as served, patient(served.address) as client:
        assert client.namespace(namespace()).put(BLOCKS, BYTES, durable=True).result(TIMEOUT_SECONDS).ok
        served.end()
        with serve(tmp_path), patient(served.address) as other:
            found = np.zeros_like(BYTES)
            assert other.namespace(namespace()).get(BLOCKS, found).result(TIMEOUT_SECONDS).ok
            assert np.array_equal(found, BYTES)


def test_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    with serve(tmp_path, "--drain-seconds=3600") as served, patient(served.address, attach=False) as client:
        handle = client.namespace(namespace())
        assert handle.put(BLOCKS, BYTES, durable=True).result(TIMEOUT_SECONDS).ok
        served.process.send_signal(signal.SIGSTOP)  # both signals are there before it looks
        served.process.send_signal(signal.SIGTERM)
        served.process.send_signal(signal.SIGINT)
        code, _said = served.end(signal.SIGCONT)
        assert code in (130, 143)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["ssd"]


class SlowlyClosed(Store):
    """One whose last sync takes long."""

    def close(self) -> None:
        """Begins, and is then held up."""
        sys.stderr.write("closing\n")
        sys.stderr.flush()
        threading.Event().wait(TIMEOUT_SECONDS)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_it_at_once_also_in_its_last_sync(tmp_path: Path, number: int) -> None:
    program = f"""
from tests.e2e.service import test_serve
from tierstore.config import StoreConfig
from tierstore.service import serving
serving.Store = test_serve.SlowlyClosed
config = StoreConfig.load(overrides={{"host.size": "1 MiB", "service.listen": "unix:{tmp_path}/service.sock"}})
serving.serve(config, lambda line: print(line, file=sys.stderr, flush=True))
"""
    command = [sys.executable, "-c", f"import sys\n{program}"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=ROOT) as process:
        try:
            served = Served(process, "")
            process.send_signal(number)
            assert process.stderr is not None
            assert any(line == "closing\n" for line in process.stderr)
            code, said = served.end(number)
        finally:
            process.kill()
    assert (code, said) == (128 + number, "tierstore: ended at once; what was not durable is lost\n")


def test_it_claims_no_sync_to_a_folder_that_was_taken_away(tmp_path: Path) -> None:
    with serve(tmp_path) as served, patient(served.address) as client:
        handle = client.namespace(namespace())
        shutil.rmtree(tmp_path / "ssd")
        assert not handle.put(BLOCKS, BYTES, durable=True).result(TIMEOUT_SECONDS).ok
        code, said = served.end()
    assert code == 0
    assert "synced" not in said
    assert "the SSD was off: LOCK of the SSD folder was removed" in said


def test_a_killed_service_is_found_again_by_its_clients(tmp_path: Path) -> None:
    with serve(tmp_path) as served, patient(served.address) as client:
        handle = client.namespace(namespace())
        assert handle.put(BLOCKS, BYTES, durable=True).result(TIMEOUT_SECONDS).ok
        served.end(signal.SIGKILL)
        assert handle.get(BLOCKS, np.zeros_like(BYTES)).result(TIMEOUT_SECONDS).outcomes == [Outcome.MISS] * 6
        assert handle.put(BLOCKS, BYTES).result(TIMEOUT_SECONDS).outcomes == [Outcome.REJECTED] * 6
        assert handle.lookup(BLOCKS) == 0
        with serve(tmp_path):
            assert client.wait(TIMEOUT_SECONDS)
            found = np.zeros_like(BYTES)
            assert handle.get(BLOCKS, found).result(TIMEOUT_SECONDS).ok
            assert np.array_equal(found, BYTES)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("attach", [True, False])
def test_every_put_that_was_acknowledged_before_the_end_is_there_after_it(
    tmp_path: Path, number: int, *, attach: bool
) -> None:
    names = [range(first, first + 4) for first in range(0, 80, 4)]
    with serve(tmp_path) as served, patient(served.address, attach=attach) as client:
        assert client.wait(TIMEOUT_SECONDS)
        handle = client.namespace(namespace())
        puts = [handle.put([block_hash(name) for name in few], rows(few, 8192), durable=True) for few in names]
        assert any(put.result(TIMEOUT_SECONDS).ok for put in puts), (
            "one of them is waited for, the others are under way"
        )
        served.end(number)
        acknowledged = [put.result(TIMEOUT_SECONDS).ok for put in puts]
    with serve(tmp_path) as served, patient(served.address) as client:
        assert client.wait(TIMEOUT_SECONDS)
        handle = client.namespace(namespace())
        for few, ok in zip(names, acknowledged, strict=True):
            found = np.zeros((4, 8192), np.uint8)
            leading = handle.get([block_hash(name) for name in few], found).result(TIMEOUT_SECONDS).leading
            assert leading == 4 or not ok
            assert np.array_equal(found[:leading], rows(few, 8192)[:leading])


def test_the_pool_is_handed_out_again_once_there_are_descriptors_to_spare(tmp_path: Path) -> None:
    with (
        serve(tmp_path) as served,
        patient(served.address, attach=False) as client,
        socket.socket(socket.AF_UNIX) as one,
    ):
        assert client.wait(TIMEOUT_SECONDS)
        pid = served.process.pid
        before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (len(open_files(pid)), before[1]))
        one.connect(f"{tmp_path / 'service.sock'}.pool")
        assert client.metrics(), "its loop has seen the connection, and found no descriptor for it"
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
        with patient(served.address) as other:
            assert other.wait(TIMEOUT_SECONDS)
            assert other.attached


def test_a_live_services_socket_is_not_taken_from_it(tmp_path: Path) -> None:
    with serve(tmp_path) as served:
        command = [sys.executable, "-m", "tierstore", "serve", "--listen", served.address, "--host-size=1 MiB"]
        other = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=120)
        assert (other.returncode, "a live server listens" in other.stderr) == (2, True)
        with patient(served.address) as client:
            assert client.connected
