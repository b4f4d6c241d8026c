"""The command line as a user meets it: real processes, exit codes, one line for an error."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.payload import TIMEOUT_SECONDS, block_hash, namespace, rows, small_store
from tierstore.benchmark.machine import uncached_copy_nbytes

SMALL_BENCH: tuple[str, ...] = (
    "bench",
    "--bandwidth",
    "--block-size",
    "64 KiB",
    "--batch",
    "32",
    "--host-size",
    "16 MiB",
)
SMALL_BENCH += ("--ssd-size", "512 MiB", "--seconds", "0.3", "--threads", "2")


def run(*arguments: str | Path, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("TIERSTORE_", "TMPDIR"))}
    return subprocess.run(
        [sys.executable, "-m", "tierstore", *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**clean, "PYTHONPATH": str(Path(__file__).parents[2]), **variables},
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize("command", ["bench", "config", "doctor", "top"])
def test_help_names_every_command(command: str, tmp_path: Path) -> None:
    assert f"\n  {command} " in run("--help", cwd=tmp_path).stdout


def test_config_shows_each_value_with_its_source(tmp_path: Path) -> None:
    shown = run("config", cwd=tmp_path, TIERSTORE_HOST_SIZE="3 GiB").stdout
    lines = {line.split()[0]: line.split() for line in shown.splitlines()}
    assert lines["host.size"][1:] == ["3", "GiB", "variable", "TIERSTORE_HOST_SIZE"]
    assert lines["ssd.read_threads"][1:] == ["4", "default"]


@pytest.mark.parametrize(
    ("arguments", "value"),
    [
        (("doctor", "--host-size", "100G"), "100G"),
        (("config", "--config", "missing.toml"), "missing.toml"),
        (("bench", "--bandwidth", "--model", "llama-9"), "llama-9"),
        (("bench", "--bandwidth", "--block-size", "x"), '"x"'),
        (("bench", "--bandwidth", "--layers", "3"), "--kv-heads"),
        (("bench", "--bandwidth", "--ssd-dir", "missing"), "missing"),
        (("bench", "--bandwidth", "--host-size", "1 MiB"), "--host-size"),
    ],
)
def test_a_mistake_is_one_line_that_names_the_value(arguments: tuple[str, ...], value: str, tmp_path: Path) -> None:
    ended = run(*arguments, cwd=tmp_path)
    assert ended.returncode == 2
    assert ended.stdout == ""
    assert ended.stderr.startswith("tierstore: ")
    assert ended.stderr.count("\n") == 1
    assert value in ended.stderr


def test_bench_without_a_measurement_asks_for_one(tmp_path: Path) -> None:
    ended = run("bench", cwd=tmp_path)
    assert ended.returncode == 2
    assert "--bandwidth" in ended.stderr


@pytest.mark.parametrize(
    ("command", "target", "words"),
    [
        (("bench", "--bandwidth"), ("--plot", "curve.foo"), "no picture is a .foo"),
        (("replay", "trace", "--sweep"), ("--plot", "curve.foo"), "no picture is a .foo"),
        (("bench", "--bandwidth"), ("--json", "."), "it is a folder"),
        (("replay", "trace"), ("--json", "missing/figures.json"), "missing is no folder"),
        (("replay", "trace"), ("--json", 300 * "x"), "File name too long"),
    ],
)
def test_what_cannot_be_written_is_refused_before_anything_is_measured(
    command: tuple[str, ...], target: tuple[str, str], words: str, tmp_path: Path
) -> None:
    ended = run(*command, *target, cwd=tmp_path)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert words in ended.stderr


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
@pytest.mark.parametrize("target", ["figures.json", "new.json"])
def test_what_this_user_may_not_write_is_refused_before_anything_is_measured(target: str, tmp_path: Path) -> None:
    (tmp_path / "figures.json").touch(0o400)
    tmp_path.chmod(0o500)
    assert (
        f"{target} cannot be written: this user may not"
        in run("replay", "trace", "--json", target, cwd=tmp_path).stderr
    )


def test_doctor_passes_where_a_store_can_run(tmp_path: Path) -> None:
    ended = run("doctor", "--ssd-dir", tmp_path, "--host-size", "16 MiB", cwd=tmp_path)
    assert ended.returncode == 0
    assert f"ssd {tmp_path}" in ended.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(uncached_copy_nbytes() is None, reason="this C library does not say from when on it passes caches")
@pytest.mark.parametrize(("threshold", "mark"), [("0x100000", "ok"), ("0x7200000", "slow")])
def test_doctor_says_whether_blocks_are_copied_past_the_caches(threshold: str, mark: str, tmp_path: Path) -> None:
    tunables = f"glibc.cpu.x86_non_temporal_threshold={threshold}"
    ended = run("doctor", "--ssd-dir", tmp_path, cwd=tmp_path, GLIBC_TUNABLES=tunables)
    told = re.search(r"^(\w+) +copies +past the caches from ([0-9.]+) MiB on$", ended.stdout, re.MULTILINE)
    assert told is not None
    assert told.groups() == (mark, f"{int(threshold, 16) / (1 << 20):.1f}")


@pytest.mark.parametrize(
    ("shared", "kinds"), [("auto", ["private", "shared"]), ("false", ["private"]), ("true", ["shared"])]
)
def test_doctor_judges_huge_pages_of_every_kind_that_the_pool_may_be(
    shared: str, kinds: list[str], tmp_path: Path
) -> None:
    ended = run("doctor", "--ssd-dir", tmp_path, "--host-size", "16 MiB", cwd=tmp_path, TIERSTORE_HOST_SHARED=shared)
    assert re.findall(r"huge pages +\w+, for (\w+) memory", ended.stdout) == kinds


@pytest.mark.parametrize("folder", [".", "to be made"])
def test_doctor_warns_where_less_is_free_than_the_floor_keeps(folder: str, tmp_path: Path) -> None:
    arguments = ("doctor", "--ssd-dir", folder, "--host-size", "16 MiB")
    ended = run(*arguments, cwd=tmp_path, TIERSTORE_SSD_FREE_FLOOR="1000 TiB")
    assert ended.returncode == 0
    assert "less than the 1000 TiB that [ssd] free_floor keeps" in ended.stdout
    assert "free_floor" not in run(*arguments, cwd=tmp_path, TIERSTORE_SSD_FREE_FLOOR="4 KiB").stdout


@pytest.mark.parametrize(
    ("text", "words"),
    [('{"format": 2}', "is of format 2"), ("no manifest of ours", "cannot be read")],
    ids=["another format", "damaged"],
)
def test_doctor_fails_on_a_folder_that_no_store_opens(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "store.json").write_text(text.ljust(4096))
    ended = run("doctor", "--ssd-dir", tmp_path, "--host-size", "16 MiB", cwd=tmp_path)
    assert (ended.returncode, words in ended.stdout) == (1, True)


def test_doctor_warns_where_two_chunk_files_do_not_fit_until_one_is_there(tmp_path: Path) -> None:
    arguments = ("doctor", "--ssd-dir", tmp_path, "--host-size", "16 MiB")
    variables = {"TIERSTORE_SSD_FREE_FLOOR": "4 KiB", "TIERSTORE_SSD_FILE_SIZE": "1000 TiB"}
    words = "too little for two chunk files of 1000 TiB"
    for size, warned in (("1000 TiB", True), ("64 MiB", False)):
        ended = run(*arguments, cwd=tmp_path, **(variables | {"TIERSTORE_SSD_FILE_SIZE": size}))
        assert (ended.returncode, words in ended.stdout) == (0, warned)
    with small_store(ssd_dir=tmp_path, ssd_size="8 MiB") as store:
        put = store.namespace(namespace()).put([block_hash(0)], rows([0], 8192), durable=True)
        assert put.result(TIMEOUT_SECONDS).ok
    assert words not in run(*arguments, cwd=tmp_path, **variables).stdout


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        (("--ssd-dir", "missing/deeper"), "no folder"),
        (("--host-size", "1000 TiB"), "a host pool of 1000 TiB does not fit"),
    ],
)
def test_doctor_fails_where_a_store_cannot_run(arguments: tuple[str, ...], found: str, tmp_path: Path) -> None:
    ended = run("doctor", *arguments, cwd=tmp_path)
    assert ended.returncode == 1
    assert "FAIL" in ended.stdout
    assert found in ended.stdout
    assert ended.stderr.count("\n") == 1


def test_bench_prints_one_json_object_of_verified_rows_and_cleans_up(tmp_path: Path) -> None:
    ended = run(*SMALL_BENCH, "--json", "-", cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    report = json.loads(ended.stdout)
    assert [row["link"] for row in report["rows"]] == [
        "host.put",
        "host.get",
        "ssd.write",
        "ssd.read",
        "ssd.put",
        "ssd.get",
    ]
    for row in report["rows"]:
        assert row["verified"] is True
        assert row["block_nbytes"] == 64 << 10
        assert row["share"] == pytest.approx(row["gbytes_per_second"] / row["limit_gbytes_per_second"])
        assert 0 < row["p50_ms"] <= row["p99_ms"]
    assert list(tmp_path.iterdir()) == []


def test_bench_prints_a_table_and_writes_json_and_picture(tmp_path: Path) -> None:
    ended = run(*SMALL_BENCH, "--json", "out.json", "--plot", "out.png", cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert "ssd.read" in ended.stdout
    assert len(json.loads((tmp_path / "out.json").read_text("utf-8"))["rows"]) == 6
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")


def test_bench_that_cannot_write_its_folder_says_so_and_fails(tmp_path: Path) -> None:
    ended = run(*SMALL_BENCH, "--ssd-dir", "/proc", cwd=tmp_path)
    assert ended.returncode == 2
    assert ended.stderr.startswith("tierstore: ")
