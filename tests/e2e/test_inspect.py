"""The offline tools as a user meets them: real processes, and a folder whose owner keeps writing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from tests.damaged import LAYOUT, MODELS, block, expected, files, living, make, payload_in, repair, space
from tests.payload import TIMEOUT_SECONDS, block_hash, small_store
from tierstore.disk.posix import PosixDisk
from tierstore.errors import DiskError, FolderBusyError
from tierstore.inspect.checkup import check_folder
from tierstore.inspect.contents import read_contents
from tierstore.inspect.exporting import choose
from tierstore.inspect.folder import StoreFolder
from tierstore.inspect.safetensors import write_safetensors
from tierstore.inspect.zarr_reading import ZarrReader
from tierstore.worker import Worker


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that is only read."""
    root = tmp_path_factory.mktemp("whole")
    make(root)
    return root


def inspect(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tierstore", "inspect", *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
        env={name: value for name, value in os.environ.items() if not name.startswith("TIERSTORE_")},
        timeout=120,
        check=False,
    )


def test_a_folder_without_a_verb_is_answered_with_the_verb_for_a_first_look(tmp_path: Path) -> None:
    ended = inspect(tmp_path)
    assert (ended.returncode, f"tierstore inspect ls {tmp_path}" in ended.stderr) == (2, True)
    assert "No such command 'lss'" in inspect("lss").stderr


def test_ls_prints_one_json_object_or_lines(whole: Path) -> None:
    ended = inspect("ls", whole, "--namespace", MODELS[1], "--blocks", "--json", "-")
    assert ended.returncode == 0, ended.stderr
    listing = json.loads(ended.stdout)
    assert [listed["fingerprint"] for listed in listing["namespaces"]] == [space(MODELS[1]).fingerprint.hex()]
    assert {row["hash"] for row in listing["blocks"]} == {block_hash(number).hex() for number in expected()}
    ended = inspect("ls", whole)
    assert ended.returncode == 0
    for model in MODELS:
        assert f"model={model}" in ended.stdout
    assert ended.stderr == ""


def test_verify_repair_and_export_say_by_their_exit_code_how_it_went(tmp_path: Path) -> None:
    root, out = tmp_path / "store", tmp_path / "out.safetensors"
    make(root)
    assert inspect("verify", root, "--zarr", "all").returncode == 0
    assert inspect("repair", root).stdout == "nothing is bad\n"
    ((model, number),) = payload_in(files(root, "sealed", "lz4")[2], 3)
    for command in (
        ("verify", root, "--json", "-"),
        ("export", root, out, "--format", "safetensors"),
        ("repair", root),
    ):
        ended = inspect(*command)
        assert ended.returncode == 1, ended.stderr
        assert block_hash(number).hex() in ended.stdout
    assert inspect("verify", root).returncode == 1
    assert inspect("repair", root, "--yes").returncode == 0
    assert inspect("verify", root, "--zarr", "all").returncode == 0
    assert living(root, model) == expected() - {number}


def test_a_mistake_is_one_line_and_changes_nothing(whole: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "store.json").write_text(json.dumps({"format": 9}).ljust(4096))
    (tmp_path / "empty").mkdir()
    taken = tmp_path / "taken"
    taken.write_text("mine")
    before = sorted(tmp_path.rglob("*"))
    for arguments, text in (
        (("ls", tmp_path / "missing"), "no folder"),
        (("verify", tmp_path / "empty"), "not a store's folder"),
        (("repair", tmp_path / "empty", "--yes"), "not a store's folder"),
        (("repair", tmp_path / "missing", "--yes"), "no folder"),
        (("ls", other), "format 9"),
        (("repair", other, "--yes"), "format 9"),
        (("ls", whole, "--namespace", "nobody"), "'nobody'"),
        (("export", whole, tmp_path / "out", "--format", "zarr", "--hash", "12"), "'12'"),
        (("export", whole, taken, "--format", "zarr"), "taken"),
        (("export", whole, taken, "--format", "safetensors"), "taken"),
    ):
        ended = inspect(*arguments)
        assert ended.returncode == 2, ended.stdout
        assert ended.stdout == ""
        assert ended.stderr.count("\n") == 1
        assert text in ended.stderr
    assert sorted(tmp_path.rglob("*")) == before


def test_repair_names_the_owner_of_a_folder_in_use(tmp_path: Path) -> None:
    with small_store(ssd_dir=tmp_path):
        ended = inspect("repair", tmp_path, "--yes")
        assert ended.returncode == 2
        assert f"pid {os.getpid()} (" in ended.stderr
        assert inspect("ls", tmp_path).returncode == inspect("verify", tmp_path).returncode == 0


def snapshot(root: Path) -> dict[str, tuple[int, bytes]]:
    paths = [path for path in root.rglob("*") if path.is_file()]
    return {str(path): (path.stat().st_mtime_ns, path.read_bytes()) for path in paths}


def test_reading_changes_nothing(whole: Path, tmp_path: Path) -> None:
    before = snapshot(whole)
    disk = PosixDisk(str(whole), read_only=True)
    folder = StoreFolder.read(disk)
    contents = read_contents(folder)
    check_folder(folder, zarr=ZarrReader(str(whole)))
    exports, _ = choose(folder, contents, folder.namespaces, [])
    write_safetensors(tmp_path / "out.safetensors", exports)
    assert snapshot(whole) == before
    for write in (
        lambda: disk.create("x", 4096),
        lambda: disk.rename("LOCK", "x"),
        lambda: disk.remove("LOCK"),
        lambda: disk.lock("LOCK", b""),
        lambda: disk.open("store.json").write_from([memoryview(bytes(4096))], 0),
    ):
        with pytest.raises(DiskError):
            write()
    assert snapshot(whole) == before


def test_beside_an_owner_that_keeps_writing_nothing_looks_bad(tmp_path: Path) -> None:
    stop = threading.Event()
    with small_store(ssd_dir=tmp_path, codec_name="lz4") as store:
        handle = store.namespace(space("busy"))
        writer = Worker("writer", capacity=1)

        def write() -> None:
            number = 0
            while not stop.is_set():
                names = range(number, number + 8)
                blocks = np.stack([block("busy", name) for name in names])
                handle.put([block_hash(name) for name in names], blocks, durable=True).result(TIMEOUT_SECONDS)
                handle.delete([block_hash(names[0])]).result(TIMEOUT_SECONDS)
                number += 8

        writer.submit(write, failed=lambda _error: stop.set())
        num_blocks = 0
        try:
            for turn in range(30):
                folder = StoreFolder.read(PosixDisk(str(tmp_path), read_only=True))
                assert folder.uuid
                checkup = check_folder(folder, zarr=ZarrReader(str(tmp_path)) if turn % 5 == 0 else None)
                assert checkup.findings == []
                num_blocks += checkup.num_blocks
                exports, _ = choose(folder, read_contents(folder), folder.namespaces, [])
                for export in exports:
                    for found in export.blocks():
                        assert len(found.raw) == LAYOUT.block_nbytes
        finally:
            stop.set()
            writer.close()
        assert writer.failure is None
        assert num_blocks
        with pytest.raises(FolderBusyError, match=rf"pid {os.getpid()}: this very process"):
            repair(tmp_path)
