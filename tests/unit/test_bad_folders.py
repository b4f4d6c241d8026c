"""Folders that a store cannot use: refused by what is wrong with them, and left as they are."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.payload import TIMEOUT_SECONDS, namespace, small_store
from tests.unit.test_bad_input import BLOCKS, BYTES, refused, works
from tierstore.errors import FolderBusyError, FolderError, FolderFormatError


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("a file", "is not a folder"),
        ("a file/below", "is not a folder"),
        ("missing/folder", "its parent folder does not exist"),
    ],
)
def test_a_path_that_is_no_folder_is_refused(tmp_path: Path, name: str, said: str) -> None:
    (tmp_path / "a file").write_bytes(b"precious")
    text = refused(FolderError, lambda: small_store(ssd_dir=tmp_path / name), tmp_path)
    assert said in text
    assert repr(str(tmp_path / name)) in text
    works(tmp_path / "kv")


@pytest.mark.parametrize("path", ["/proc", "/proc/kv"])
def test_a_file_system_that_holds_no_files_is_refused(tmp_path: Path, path: str) -> None:
    text = refused(FolderError, lambda: small_store(ssd_dir=path), tmp_path)
    assert repr(path) in text
    assert "use a folder on a disk" in text


def test_a_folder_that_may_not_be_written_to_is_refused(tmp_path: Path) -> None:
    # The kernel's own folder refuses files to everyone, even to root, whom modes do not hold back.
    text = refused(FolderError, lambda: small_store(ssd_dir="/sys/kernel"), tmp_path)
    assert "'/sys/kernel'" in text
    assert "may not write there" in text


def test_a_folder_of_a_live_store_is_refused(tmp_path: Path) -> None:
    with small_store(ssd_dir=tmp_path / "kv") as owner:
        handle = owner.namespace(namespace())
        text = refused(FolderBusyError, lambda: small_store(ssd_dir=tmp_path / "kv"), tmp_path)
        assert f"pid {os.getpid()}: this very process" in text
        assert "another folder" in text
        assert handle.put(BLOCKS, BYTES, durable=True).result(TIMEOUT_SECONDS).ok
    works(tmp_path / "kv")


def test_a_folder_of_another_format_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    works(tmp_path)
    manifest = tmp_path / "store.json"
    original = manifest.read_text("utf-8")
    manifest.write_text(original.replace('"format": 1', '"format": 9'), "utf-8")
    text = refused(FolderFormatError, lambda: small_store(ssd_dir=tmp_path), tmp_path)
    assert "format 9" in text
    assert "another folder" in text
    manifest.write_text(original, "utf-8")
    works(tmp_path)


def test_chunk_files_without_a_manifest_are_refused(tmp_path: Path) -> None:
    works(tmp_path)
    (tmp_path / "store.json").rename(tmp_path / "elsewhere")
    text = refused(FolderFormatError, lambda: small_store(ssd_dir=tmp_path), tmp_path)
    assert "restore store.json" in text
    (tmp_path / "elsewhere").rename(tmp_path / "store.json")
    works(tmp_path)
