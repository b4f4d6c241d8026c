"""What the folder says of itself to Zarr readers, and what a start takes back from it."""

from __future__ import annotations

import errno
import json
import logging
from collections.abc import Callable
from typing import cast

import pytest

from tierstore.codec.base import RawCodec
from tierstore.codec.lz4 import Lz4Codec
from tierstore.errors import DiskError
from tierstore.layout import KVLayout, MemoryOrder, PageKind, PageSpec
from tierstore.testing.sim_disk import SimDisk
from tierstore.tiers.chunkfile import slots_per_file
from tierstore.tiers.record import RecordShape
from tierstore.tiers.whole_file import replace_whole
from tierstore.tiers.zarr_metadata import ArraySpec, ZarrArrays

RAW, LZ4 = RawCodec(), Lz4Codec()
ATTENTION = KVLayout.attention(layers=3, kv_heads=2, head_size=8, block_tokens=4)
FILE_NBYTES = 1 << 16


def declare(disk: SimDisk, spec: ArraySpec, files: int = 4) -> dict[str, object]:
    """The metadata that an array gets."""
    ZarrArrays(disk).declare(spec, spec.geometry(FILE_NBYTES), files=files)
    return cast("dict[str, object]", json.loads(disk.contents(f"arrays/{spec.name}/zarr.json")))


@pytest.mark.parametrize(
    ("layout", "names", "shape", "data_type"),
    [
        (ATTENTION, ["page", "plane", "token", "head", "element"], [3, 2, 4, 2, 8], "uint16"),
        (
            KVLayout.attention(
                layers=1, kv_heads=2, head_size=8, block_tokens=4, dtype="float8_e4m3", order=MemoryOrder.HND
            ),
            ["page", "plane", "head", "token", "element"],
            [1, 2, 2, 4, 8],
            "uint8",
        ),
        (
            KVLayout.mla(layers=2, latent_size=16, block_tokens=4, dtype="float32"),
            ["page", "plane", "token", "head", "element"],
            [2, 1, 4, 1, 16],
            "uint32",
        ),
        (KVLayout.opaque(block_nbytes=77), ["byte"], [77], "uint8"),
        (
            KVLayout((PageSpec("a", PageKind.FULL, 1, 8, 2), PageSpec("b", PageKind.FULL, 2, 8, 2)), 4, "bfloat16"),
            ["byte"],
            [2 * 4 * 3 * 8 * 2],
            "uint8",
        ),
    ],
)
def test_a_block_has_the_axes_of_its_pages_or_is_flat(
    layout: KVLayout, names: list[str], shape: list[int], data_type: str
) -> None:
    spec = ArraySpec(layout, RAW)
    metadata = declare(SimDisk(), spec)
    slots = spec.geometry(FILE_NBYTES).slots
    assert metadata["dimension_names"] == ["block", *names]
    assert metadata["shape"] == [4 * slots, *shape]
    assert metadata["chunk_grid"] == {"name": "regular", "configuration": {"chunk_shape": [slots, *shape]}}
    assert metadata["data_type"] == data_type
    assert spec.geometry(FILE_NBYTES).axes == 1 + len(shape)


def test_the_attributes_hold_the_true_dtype_and_the_layout() -> None:
    attributes = cast("dict[str, dict[str, object]]", declare(SimDisk(), ArraySpec(ATTENTION, RAW))["attributes"])
    assert attributes["tierstore"]["layout"] == ATTENTION.as_fields()
    assert ATTENTION.as_fields()["dtype"] == "bfloat16"
    assert attributes["tierstore"]["file_nbytes"] == FILE_NBYTES


def test_groups_are_made_once_and_an_array_has_one_folder_by_layout_and_codec() -> None:
    disk = SimDisk()
    declare(disk, ArraySpec(ATTENTION, RAW))
    writes = disk.calls_of("write")
    declare(disk, ArraySpec(ATTENTION, LZ4))
    assert disk.calls_of("write") == writes + 1
    for path in ("zarr.json", "arrays/zarr.json"):
        assert json.loads(disk.contents(path)) == {"zarr_format": 3, "node_type": "group", "attributes": {}}
    fingerprint = ATTENTION.fingerprint.hex()
    assert [entry.name for entry in disk.look("arrays").entries] == [
        f"{fingerprint}-lz4",
        f"{fingerprint}-raw",
        "zarr.json",
    ]


def test_a_compressing_array_has_twice_the_slots() -> None:
    raw, lz4 = (ArraySpec(ATTENTION, codec).geometry(FILE_NBYTES).slots for codec in (RAW, LZ4))
    assert raw == slots_per_file(FILE_NBYTES, RecordShape(ATTENTION.block_nbytes))
    assert lz4 == 2 * raw


@pytest.mark.parametrize("codec", [RAW, LZ4])
def test_an_array_has_no_slots_where_its_files_cannot_hold_one_block(codec: RawCodec | Lz4Codec) -> None:
    spec = ArraySpec(KVLayout.opaque(block_nbytes=20_000), codec)
    pages = spec.longest.pitch_nbytes // 4096
    assert spec.geometry(pages * 4096).slots == 0
    assert spec.geometry((pages + 1) * 4096).slots >= 1


def test_a_geometry_comes_back_and_its_shape_grows_but_never_shrinks() -> None:
    disk, spec = SimDisk(), ArraySpec(ATTENTION, RAW)
    declare(disk, spec, files=4)
    expected = spec.geometry(FILE_NBYTES)
    for files, covered in ((3, 4), (4, 4), (9, 9), (2, 9)):
        assert ZarrArrays(disk).adopt(spec.name, lambda _nbytes, files=files: files) == expected  # type: ignore[misc]
        metadata = json.loads(disk.contents(f"arrays/{spec.name}/zarr.json"))
        assert metadata["shape"][0] == covered * expected.slots


def test_a_shape_that_cannot_be_rewritten_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    disk, spec = SimDisk(), ArraySpec(ATTENTION, RAW)
    declare(disk, spec, files=4)
    disk.fail_from(1, errno=errno.ENOSPC, only="create")
    with caplog.at_level(logging.WARNING):
        assert ZarrArrays(disk).adopt(spec.name, lambda _nbytes: 9) == spec.geometry(FILE_NBYTES)
    assert "Zarr readers will miss the newest files" in caplog.text


def _no_attributes(metadata: dict[str, object]) -> None:
    metadata["attributes"] = {}


def _other_format(metadata: dict[str, object]) -> None:
    cast("dict[str, dict[str, object]]", metadata["attributes"])["tierstore"]["format"] = 2


def _uneven(metadata: dict[str, object]) -> None:
    cast("list[int]", metadata["shape"])[0] += 1


def _no_slots(metadata: dict[str, object]) -> None:
    cast("dict[str, dict[str, object]]", metadata["attributes"])["tierstore"]["slots_per_file"] = 0


def _too_many_slots(metadata: dict[str, object]) -> None:
    cast("dict[str, dict[str, object]]", metadata["attributes"])["tierstore"]["slots_per_file"] = 1 << 40
    metadata["shape"] = [1 << 42, 2]


def _short_files(metadata: dict[str, object]) -> None:
    cast("dict[str, dict[str, object]]", metadata["attributes"])["tierstore"]["file_nbytes"] = 4096


def _no_list(metadata: dict[str, object]) -> None:
    metadata["shape"] = 5


@pytest.mark.parametrize(
    "spoil", [_no_attributes, _other_format, _uneven, _no_slots, _too_many_slots, _short_files, _no_list]
)
def test_metadata_that_is_not_ours_gives_no_geometry_and_says_so(
    spoil: Callable[[dict[str, object]], None], caplog: pytest.LogCaptureFixture
) -> None:
    disk, spec = SimDisk(), ArraySpec(ATTENTION, RAW)
    metadata = declare(disk, spec)
    spoil(metadata)
    path = f"arrays/{spec.name}/zarr.json"
    replace_whole(disk, path, json.dumps(metadata).encode(), padding=b" ")
    before = disk.contents(path)
    with caplog.at_level(logging.WARNING):
        assert ZarrArrays(disk).adopt(spec.name, lambda _nbytes: 9) is None
    assert f"{path} does not describe an array of this store" in caplog.text
    assert disk.contents(path) == before


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"null", b"7", b"\xff" * 4096])
def test_what_is_no_metadata_at_all_gives_no_geometry(text: bytes) -> None:
    disk, spec = SimDisk(), ArraySpec(ATTENTION, RAW)
    declare(disk, spec)
    disk.replace(f"arrays/{spec.name}/zarr.json", text)
    assert ZarrArrays(disk).adopt(spec.name, lambda _nbytes: 9) is None


def test_metadata_that_the_disk_does_not_give_may_be_there() -> None:
    disk, spec = SimDisk(), ArraySpec(ATTENTION, RAW)
    declare(disk, spec)
    disk.fail_call(1, errno=errno.EIO, only="read")
    arrays = ZarrArrays(disk)
    assert arrays.adopt(spec.name, lambda _nbytes: 4) is None
    assert arrays.unread == {spec.name}
    assert arrays.adopt(spec.name, lambda _nbytes: 4) == spec.geometry(FILE_NBYTES)
    assert ZarrArrays(disk).adopt("other", lambda _nbytes: 4) is None


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC, 0])
def test_a_failed_declaration_leaves_an_array_unknown_or_whole(code: int) -> None:
    spec = ArraySpec(ATTENTION, RAW)
    for call in range(1, 40):
        disk = SimDisk()
        arrays = ZarrArrays(disk)
        disk.fail_call(call, errno=code)
        try:
            arrays.declare(spec, spec.geometry(FILE_NBYTES), files=4)
        except DiskError:
            assert arrays.get(spec.name) is None
        else:
            assert arrays.get(spec.name) == spec.geometry(FILE_NBYTES)
            return
        disk.heal()
        arrays.declare(spec, spec.geometry(FILE_NBYTES), files=4)
        assert ZarrArrays(disk).adopt(spec.name, lambda _nbytes: 4) == spec.geometry(FILE_NBYTES)
    pytest.fail("a declaration takes more than 39 calls")
