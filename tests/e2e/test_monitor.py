"""The monitor of a store in use: what it serves, that it harms nobody, and that nothing of it is left behind."""

from __future__ import annotations

import errno
import gc
import http.client
import os
import socket
import threading
from pathlib import Path

import pytest

from tests.payload import TIMEOUT_SECONDS, block_hash, get, namespace, rows, small_store
from tests.processes import program
from tierstore.errors import AddressError, ConfigError
from tierstore.metrics import Metric
from tierstore.monitor.status import FORMAT, Status, read_status
from tierstore.monitor.watching import Monitor
from tierstore.store import Store
from tierstore.testing.sim_disk import SimDisk
from tierstore.types import Outcome

NUMBERS = range(4)
HASHES = [block_hash(number) for number in NUMBERS]
BLOCKS = rows(NUMBERS, 8192)


def watched(folder: Path) -> Store:
    """A small store with a monitor at any free port."""
    return small_store(ssd_dir=folder, monitor_address="127.0.0.1:0")


def address(store: Store) -> str:
    assert store.monitor_address is not None
    return store.monitor_address


def ask(store: Store, path: str) -> tuple[http.client.HTTPResponse, str]:
    connection = http.client.HTTPConnection(address(store), timeout=TIMEOUT_SECONDS)
    connection.request("GET", path)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer, text


def status(store: Store) -> Status:
    return read_status(address(store))


def test_a_store_has_no_monitor_unless_it_is_asked_for(tmp_path: Path) -> None:
    with small_store(ssd_dir=tmp_path) as store:
        assert store.monitor_address is None
        assert "monitor" not in [thread.name for thread in threading.enumerate()]


def test_prometheus_reads_what_the_store_has_done(tmp_path: Path) -> None:
    parser = pytest.importorskip("prometheus_client.parser")
    with watched(tmp_path) as store:
        handle = store.namespace(namespace())
        assert handle.put(HASHES, BLOCKS, durable=True).result(TIMEOUT_SECONDS).ok
        assert get(handle, HASHES, BLOCKS).ok
        answer, text = ask(store, "/metrics")
    assert answer.status == 200
    assert answer.getheader("Content-Type") == "text/plain; version=0.0.4; charset=utf-8"
    samples = {
        (sample.name, *sample.labels.values()): sample.value
        for family in parser.text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert {name for name, *_labels in samples} >= {m.full_name for m in Metric if m.kind != "histogram"}
    assert samples["tierstore_request_blocks_total", "get", "ok"] == 4
    assert samples["tierstore_hit_tokens_total", "host"] == samples["tierstore_get_tokens_total",] > 0
    assert samples["tierstore_request_seconds_count", "put"] == 1
    assert samples["tierstore_ssd_used_blocks",] == 4
    assert samples["tierstore_link_bytes_total", "ssd-write"] == 4 * 8192


def test_status_says_how_full_and_how_well_the_tiers_are(tmp_path: Path) -> None:
    with watched(tmp_path) as store:
        handle = store.namespace(namespace())
        assert handle.put(HASHES, BLOCKS, durable=True).result(TIMEOUT_SECONDS).ok
        assert handle.lookup([*HASHES, block_hash("absent")]) == 4
        assert get(handle, HASHES, BLOCKS).ok
        found = status(store)
        assert (found["format"], found["pid"]) == (FORMAT, os.getpid())
        assert found["opened_at"] <= found["now"]
        assert found["settings"]["ssd.dir"] == str(tmp_path)
        host, ssd = found["tiers"]["host"], found["tiers"]["ssd"]
        assert (host["service"], host["capacity_nbytes"], host["used_nbytes"]) == ("serving", 256 << 10, 4 * 8192)
        assert (ssd["capacity_nbytes"], ssd["used_nbytes"], ssd["used_blocks"]) == (1 << 20, 128 << 10, 4)
        assert found["links"]["load"]["nbytes"] == 4 * 8192
        assert found["verbs"]["get"]["outcomes"]["ok"] == 4
        assert sum(found["verbs"]["get"]["outcomes"].values()) == 4


def test_status_says_that_the_ssd_is_off_and_why() -> None:
    disk = SimDisk()
    with small_store(disk, monitor_address="127.0.0.1:0") as store:
        handle = store.namespace(namespace())
        disk.fail_from(1, errno=errno.EIO, only="write")
        assert not handle.put(HASHES, BLOCKS, durable=True).result(TIMEOUT_SECONDS).ok
        ssd = status(store)["tiers"]["ssd"]
        assert ssd["service"] == "writes_off"
        assert "EIO" in ssd["why"]
        disk.heal()


def test_the_page_is_one_file_that_asks_nobody_else(tmp_path: Path) -> None:
    with watched(tmp_path) as store:
        answer, text = ask(store, "/")
    assert answer.getheader("Content-Type") == "text/html; charset=utf-8"
    assert text.startswith("<!doctype html>")
    assert "src=" not in text
    assert "<link" not in text
    assert "innerHTML" not in text
    policy = answer.getheader("Content-Security-Policy", "")
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in policy


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]", "10.1.2.3", "store.internal"])
def test_an_address_that_others_reach_is_refused_unless_they_may(tmp_path: Path, host: str) -> None:
    before = threading.active_count()
    with pytest.raises(ConfigError, match=r"monitor\.public = true where they may, or use 127\.0\.0\.1:9"):
        small_store(ssd_dir=tmp_path, monitor_address=f"{host}:9")
    assert threading.active_count() == before


def test_an_address_that_others_reach_is_served_where_they_may(tmp_path: Path) -> None:
    with small_store(ssd_dir=tmp_path, monitor_address="0.0.0.0:0", monitor_public=True) as store:
        port = address(store).rpartition(":")[2]
        assert read_status(f"127.0.0.1:{port}")["pid"] == os.getpid()


def test_a_port_that_is_taken_is_refused_and_leaves_nothing_behind(tmp_path: Path) -> None:
    with watched(tmp_path / "first") as first:
        before = threading.active_count()
        with pytest.raises(AddressError, match="in use; use another port"):
            small_store(ssd_dir=tmp_path / "second", monitor_address=address(first))
        assert threading.active_count() == before
    with small_store(ssd_dir=tmp_path / "second", monitor_address=address(first)) as second:
        assert status(second)["pid"] == os.getpid()


def test_a_closed_store_answers_nobody(tmp_path: Path) -> None:
    store = watched(tmp_path)
    idle = socket.create_connection(("127.0.0.1", int(address(store).rpartition(":")[2])))
    assert status(store)["format"] == FORMAT
    store.close()
    assert "monitor" not in [thread.name for thread in threading.enumerate()]
    with pytest.raises(AddressError, match="no store answers"):
        status(store)
    idle.close()


def test_clients_that_come_while_it_closes_leave_nothing_open(tmp_path: Path) -> None:
    with small_store(ssd_dir=tmp_path) as store:
        for _ in range(30):
            monitor = Monitor(store, "127.0.0.1:0")
            port = int(monitor.address.rpartition(":")[2])
            clients = [socket.create_connection(("127.0.0.1", port)) for _ in range(3)]
            monitor.close()
            for client in clients:
                client.close()
        gc.collect()  # an error where a socket or a task was left


def test_clients_that_stand_still_hold_no_verb_up(tmp_path: Path) -> None:
    with watched(tmp_path) as store:
        port = int(address(store).rpartition(":")[2])
        idle = [socket.create_connection(("127.0.0.1", port)) for _ in range(40)]
        for client in idle:
            client.sendall(b"GET /metrics HTTP/1.1\r\n")
        handle = store.namespace(namespace())
        assert handle.put(HASHES, BLOCKS).result(TIMEOUT_SECONDS).ok
        assert get(handle, HASHES, BLOCKS).outcomes == [Outcome.OK] * 4
        for client in idle:
            client.close()


def test_metrics_may_be_read_while_blocks_move(tmp_path: Path) -> None:
    with watched(tmp_path) as store:
        handle = store.namespace(namespace())
        for turn in range(20):
            put = handle.put([block_hash((turn, number)) for number in NUMBERS], BLOCKS)
            assert ask(store, "/metrics")[0].status == 200
            put.result(TIMEOUT_SECONDS)
        store.check()


def test_what_answers_but_is_no_store_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        place = f"127.0.0.1:{other.getsockname()[1]}"
        other.settimeout(TIMEOUT_SECONDS)
        asking = threading.Event()
        with program(f"from tierstore.monitor.status import read_status\nread_status({place!r})", tmp_path) as (
            asker,
            _,
        ):
            client, _ = other.accept()
            with client:
                client.recv(4096)
                client.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
                asking.set()
                assert asker.wait(TIMEOUT_SECONDS) == 1


ORPHAN = """
store = small_store(ssd_dir=folder, monitor_address="127.0.0.1:0")
ours, other = os.pipe()
child = os.fork()
if child == 0:
    os.write(other, b"forked")
    sys.stdin.read()
    os._exit(0)
os.read(ours, 6)
print(child, store.monitor_address, flush=True)
sys.stdin.read()
"""


def test_a_child_that_outlives_a_killed_owner_keeps_no_address(tmp_path: Path) -> None:
    with program(ORPHAN, tmp_path) as (process, output):
        child, place = output.readline().split()
        assert read_status(place)["pid"] == process.pid
        process.kill()
        process.wait(TIMEOUT_SECONDS)
        os.kill(int(child), 0)  # it lives
        with small_store(ssd_dir=tmp_path, monitor_address=place) as store:
            assert status(store)["pid"] == os.getpid()
        os.kill(int(child), 9)


EXIT = """
store = small_store(ssd_dir=folder, monitor_address="127.0.0.1:0")
child = os.fork()
if child == 0:
    sys.exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
from tierstore.monitor.status import read_status
print(read_status(store.monitor_address)["format"], flush=True)
"""


def test_programs_and_their_children_end_without_a_close(tmp_path: Path) -> None:
    with program(EXIT, tmp_path) as (process, output):
        assert output.readline() == f"{FORMAT}\n"
        assert process.wait(TIMEOUT_SECONDS) == 0
