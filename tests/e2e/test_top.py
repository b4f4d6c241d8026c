"""`tierstore top`: frames of a status, once and live, over a running store and over one that goes away."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console

from tests.made_up_status import made_up
from tests.payload import TIMEOUT_SECONDS, block_hash, namespace, rows, small_store
from tierstore.cli.top_frame import frame, sparkline

COMMAND = (sys.executable, "-m", "tierstore", "top")
ENTER_SCREEN, LEAVE_SCREEN = b"\x1b[?1049h", b"\x1b[?1049l"


def shown(*, width: int = 140, host_name: str = "node7", why: str = "No space left on device", lost: str = "") -> str:
    console = Console(width=width, highlight=False, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    with console.file:
        console.print(frame(made_up(host_name, why), width, lost))
    return console.export_text()


def test_a_frame_shows_every_figure() -> None:
    lines = [" ".join(line.split()) for line in shown().splitlines()]
    assert lines[0] == "tierstore 1.2.3 on node7, process 42, up 2 h 1 min"
    text = "\n".join(lines)
    for words in (
        *("48.0 GiB 64.0 GiB 75% 24,576 17 serving", "512 GiB 1.00 TiB 50%"),
        *(
            "writes off for 5 min: No space left on device",
            "look-ups 81.2%",
            "gets, device pool 1.0%",
            "gets, host 90.0%",
            "gets, ssd 7.0%",
        ),
        *("load 1.50 GB/s", "5.00 TiB 1.5 ms 3 2", "get 12.5 3 2.3 ms 1.25 s 1,234,567 3"),
        *("evicted from host 77 from ssd 78 prefetched and used 79 wasted 80 corrupt 5", "amplification 1.50"),
        *("waiting 9 in 2 sessions", "not stored pool full 3"),
    ):
        assert words in text, words


def test_text_of_a_store_commands_no_terminal_and_is_no_markup() -> None:
    text = shown(host_name="\x1b]0;owned\x07[red]x[/red]\r\n", why="\x1b[2J[bold]y")
    assert "\x1b" not in text
    assert "\x07" not in text
    assert "[red]x[/red]" in text
    assert "[bold]y" in text


@pytest.mark.parametrize("width", [80, 100])
def test_a_narrow_terminal_cuts_off_no_figure(width: int) -> None:
    text = shown(width=width)
    assert "…" not in text
    lines = [" ".join(line.split()) for line in text.splitlines()]
    for words in ("load 1.50 GB/s", "5.00 TiB 1.5 ms 3 2"):
        assert any(words in line for line in lines), words


def test_a_frame_that_is_not_of_now_says_so() -> None:
    assert "not of now: no store answers" in shown(lost="no store answers at 127.0.0.1:9")


@pytest.mark.parametrize(
    ("values", "expected"),
    [([], ""), ([0.0, None, 1.0], "▁ █"), ([0.0, 0.5, 0.999], "▁▅█"), ([1.0] * 100, "█" * 30)],
)
def test_a_sparkline_is_one_character_a_value(values: list[float | None], expected: str) -> None:
    assert sparkline(values, 1.0, 30) == expected.rjust(30)


def test_nothing_that_moved_is_a_flat_line() -> None:
    assert sparkline([0.0, 0.0], 0.0, 30).strip() == "▁▁"


def test_once_prints_one_frame_and_ends(tmp_path: Path) -> None:
    with small_store(ssd_dir=tmp_path, monitor_address="127.0.0.1:0") as store:
        put = store.namespace(namespace()).put([block_hash(0)], rows([0], 8192), durable=True)
        assert put.result(TIMEOUT_SECONDS).ok
        ran = subprocess.run(
            [*COMMAND, "--once", "--address", str(store.monitor_address)], capture_output=True, text=True, check=True
        )
    assert f"process {os.getpid()}, up" in ran.stdout
    assert "8.00 KiB" in ran.stdout
    assert "\x1b" not in ran.stdout


def test_the_address_is_the_settings_where_none_is_given(tmp_path: Path) -> None:
    path = tmp_path / "tierstore.toml"
    with small_store(ssd_dir=tmp_path / "kv", monitor_address="127.0.0.1:0") as store:
        path.write_text(f'[monitor]\naddress = "{store.monitor_address}"\n', "utf-8")
        ran = subprocess.run([*COMMAND, "--config", path], capture_output=True, text=True, check=True)
    assert f"process {os.getpid()}" in ran.stdout


@pytest.mark.parametrize(
    ("address", "words"), [("127.0.0.1:1", "no store answers at 127.0.0.1:1"), ("nowhere", "an address such as")]
)
def test_an_address_without_a_store_is_one_line(address: str, words: str) -> None:
    ran = subprocess.run([*COMMAND, "--once", "--address", address], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout, ran.stderr.count("\n")) == (2, "", 1)
    assert words in ran.stderr


def read_until(terminal: int, words: bytes, seen: bytes = b"") -> bytes:
    """Read from a terminal until it has shown these words."""
    until = time.monotonic() + TIMEOUT_SECONDS
    while words not in seen:
        ready, _, _ = select.select([terminal], [], [], max(0.0, until - time.monotonic()))
        assert ready, f"never shown: {words!r} in {seen!r}"
        seen += os.read(terminal, 1 << 16)
    return seen


def test_it_is_live_outlasts_its_store_and_leaves_the_terminal_as_it_was(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    store = small_store(ssd_dir=tmp_path, monitor_address="127.0.0.1:0")
    command = [*COMMAND, "--seconds", "0.1", "--address", str(store.monitor_address)]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120", "LINES": "50"}
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment) as watching:
        os.close(theirs)
        seen = read_until(ours, b"look-ups")
        assert ENTER_SCREEN in seen
        store.close()
        seen = read_until(ours, b"not of now", seen)
        assert LEAVE_SCREEN not in seen
        watching.send_signal(signal.SIGINT)
        read_until(ours, LEAVE_SCREEN, seen)
        assert watching.wait(TIMEOUT_SECONDS) == 0
    os.close(ours)
