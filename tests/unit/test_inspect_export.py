"""What lives in a folder is listed, and gets out of it: as a Zarr store or as one safetensors file."""

from __future__ import annotations

import importlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.damaged import BLOCKS, MODELS, block, expected, files, make, payload_in, space
from tests.payload import block_hash
from tierstore.disk.posix import PosixDisk
from tierstore.inspect.contents import read_contents
from tierstore.inspect.exporting import choose
from tierstore.inspect.folder import StoreFolder
from tierstore.inspect.listing import list_folder, listing_lines
from tierstore.inspect.safetensors import write_safetensors
from tierstore.inspect.zarr_writing import write_zarr


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that is only read."""
    root = tmp_path_factory.mktemp("whole")
    make(root)
    return root


@pytest.fixture
def root(whole: Path, tmp_path: Path) -> Path:
    """A copy to be damaged."""
    return Path(shutil.copytree(whole, tmp_path / "store"))


def test_the_list_counts_what_lives_and_what_is_dead(whole: Path) -> None:
    folder = StoreFolder.read(PosixDisk(str(whole), read_only=True))
    listing = list_folder(folder, read_contents(folder), folder.namespaces, with_blocks=True)
    assert [(space["identity"]["model"], space["epoch"], space["blocks"]) for space in listing["namespaces"]] == [
        (model, 1, len(expected())) for model in MODELS
    ]
    listed = [file for array in listing["arrays"] for file in array["files"]]
    assert sum(file["alive"] for file in listed) == 2 * len(expected()) == len(listing["blocks"])
    assert sum(file["dead"] for file in listed) == 2 * (BLOCKS - len(expected()) + 3)
    assert sum(file["tombstones"] for file in listed) == 4 * 2, "each deletion is written twice"
    assert {row["hash"] for row in listing["blocks"]} == {block_hash(number).hex() for number in expected()}
    parents = {row["hash"]: row["parent"] for row in listing["blocks"]}
    assert parents[block_hash(2).hex()] == block_hash(1).hex()
    text = "\n".join(listing_lines(listing))
    for number in expected():
        assert block_hash(number).hex() in text


def export(root: Path, text: str, names: list[bytes], write: Callable[..., int], out: Path) -> list[str]:
    folder = StoreFolder.read(PosixDisk(str(root), read_only=True))
    chosen = [space for space in folder.namespaces if space.matches(text)]
    exports, missing = choose(folder, read_contents(folder), chosen, names)
    write(out, exports)
    return [*missing, *(line for export in exports for line in export.bad)]


def test_zarr_reads_the_exported_blocks_beside_their_hashes(whole: Path, tmp_path: Path) -> None:
    zarr = importlib.import_module("zarr")
    assert export(whole, "", [], write_zarr, tmp_path / "out") == []
    for model in MODELS:
        group = zarr.open_group(tmp_path / "out", mode="r")[space(model).fingerprint.hex()]
        hashes = [row.tobytes() for row in group["hashes"][:]]
        assert sorted(hashes) == sorted(block_hash(number) for number in expected())
        assert group["blocks"].shape == (len(expected()), 2, 2, 16, 2, 32)
        assert group["blocks"].attrs["dtype"] == "bfloat16"
        assert group.attrs["identity"]["model"] == model
        for number in expected():
            assert group["blocks"][hashes.index(block_hash(number))].tobytes() == block(model, number).tobytes()
            parent = group["parents"][hashes.index(block_hash(number))].tobytes()
            assert parent in (bytes(32), block_hash(number - 1))


def read_safetensors(path: Path) -> tuple[dict[str, str], dict[str, tuple[str, list[int], bytes]]]:
    """Metadata; dtype, shape and bytes of each tensor. Every byte belongs to exactly one tensor."""
    content = path.read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    assert start % 8 == 0
    header = json.loads(content[8:start])
    texts = header.pop("__metadata__")
    spans = sorted(tensor["data_offsets"] for tensor in header.values())
    assert [0, *(end for _, end in spans)] == [*(begin for begin, _ in spans), len(content) - start]
    tensors = {}
    for name, tensor in header.items():
        begin, end = tensor["data_offsets"]
        tensors[name] = tensor["dtype"], tensor["shape"], content[start + begin : start + end]
    return texts, tensors


def test_a_safetensors_file_holds_the_blocks_in_their_dtype(whole: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.safetensors"
    assert export(whole, "", [], write_safetensors, out) == []
    texts, tensors = read_safetensors(out)
    for model in MODELS:
        name = space(model).fingerprint.hex()
        assert json.loads(texts[name])["identity"]["model"] == model
        dtype, shape, content = tensors[f"{name}.blocks"]
        assert (dtype, shape) == ("BF16", [len(expected()), 2, 2, 16, 2, 32])
        hashes = tensors[f"{name}.hashes"][2]
        for number in expected():
            row = hashes.index(block_hash(number)) // 32
            assert content[row * 8192 : (row + 1) * 8192] == block(model, number).tobytes()


@pytest.mark.parametrize("write", [write_zarr, write_safetensors])
def test_an_export_of_some_hashes_of_one_namespace_names_those_that_are_missing(
    write: Callable[..., int], whole: Path, tmp_path: Path
) -> None:
    names = [block_hash(1), block_hash(5), block_hash(17)]
    missing = export(whole, MODELS[1], names, write, tmp_path / "out")
    assert missing == [f"block {block_hash(5).hex()}: no such block"]
    if write is write_safetensors:
        _, tensors = read_safetensors(tmp_path / "out")
        assert tensors[f"{space(MODELS[1]).fingerprint.hex()}.blocks"][1][0] == 2
        assert len(tensors) == 3


@pytest.mark.parametrize("write", [write_zarr, write_safetensors])
def test_an_export_leaves_out_what_is_not_whole_and_says_so(
    write: Callable[..., int], root: Path, tmp_path: Path
) -> None:
    ((model, number),) = payload_in(files(root, "sealed", "raw")[2], 3)
    (line,) = export(root, "", [], write, tmp_path / "out")
    assert block_hash(number).hex() in line
    if write is write_safetensors:
        _, tensors = read_safetensors(tmp_path / "out")
        assert tensors[f"{space(model).fingerprint.hex()}.blocks"][1][0] == len(expected()) - 1


@pytest.mark.parametrize("write", [write_zarr, write_safetensors])
def test_an_export_never_takes_the_place_of_anything(write: Callable[..., int], whole: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.write_text("mine")
    with pytest.raises(FileExistsError):
        export(whole, "", [], write, out)
    assert out.read_text() == "mine"
