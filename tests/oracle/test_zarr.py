"""Zarr readers see every sealed block as it was put: zarr-python, and TensorStore where the codec is its own."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tensorstore
import zarr

from tierstore.codec.base import Codec, RawCodec
from tierstore.codec.lz4 import Lz4Codec
from tierstore.disk.posix import PosixDisk
from tierstore.keys import Namespace
from tierstore.layout import KVLayout, MemoryOrder, PageKind, PageSpec
from tierstore.testing.block_user import BlockUser
from tierstore.testing.ssd_world import SsdWorld
from tierstore.tiers.chunkfile import ChunkFile, ChunkName
from tierstore.tiers.frame import aligned_buffer
from tierstore.tiers.record import KIND_BLOCK
from tierstore.tiers.scan import Scanner
from tierstore.types import PAGE_NBYTES, Outcome

pytestmark = pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in the Zarr version 3 specification")

ATTENTION = KVLayout.attention(layers=2, kv_heads=2, head_size=16, block_tokens=8)
LAYOUTS = {
    "attention": ATTENTION,
    "heads first, one byte": KVLayout.attention(
        layers=3, kv_heads=2, head_size=16, block_tokens=8, dtype="float8_e5m2", order=MemoryOrder.HND
    ),
    "latent, four bytes": KVLayout.mla(layers=2, latent_size=48, block_tokens=8, dtype="float32"),
    "unequal pages": KVLayout(
        (PageSpec("a", PageKind.FULL, 2, 16, 2), PageSpec("b", PageKind.SLIDING, 1, 16, 2)), 8, "bfloat16"
    ),
    "a state": KVLayout((PageSpec("state", PageKind.STATE, 1, 501, 1),), 8, "float16"),
    "whole pages": KVLayout.attention(layers=4, kv_heads=2, head_size=16, block_tokens=16),
}
CODECS: list[Codec] = [RawCodec(), Lz4Codec()]


class HalfNoise(BlockUser):
    """A user whose blocks compress to about a half."""

    def payload(self, name: int) -> bytes:
        noise = super().payload(name)
        return (noise[: len(noise) // 2] + bytes([name % 256]) * len(noise))[: len(noise)]


class Folder:
    """A world in a real folder, and what is sealed in it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.world = SsdWorld(disk=PosixDisk(str(root)), capacity_nbytes=2 << 20)
        self.world.pool = aligned_buffer(2 << 20)

    def user(self, layout: KVLayout, tenant: str | None = None) -> HalfNoise:
        return HalfNoise(self.world.pool, self.world.register(Namespace("model", layout, tenant=tenant)))

    def array(self, layout: KVLayout, codec: Codec) -> Path:
        return self.root / "arrays" / f"{layout.fingerprint.hex()}-{codec.name}"

    def expected(self, array: Path, user: HalfNoise, names: range) -> dict[int, bytes]:
        """Payload by row of the array: of every block that a header in a sealed file names."""
        by_hash = {user.block_hash(name): user.payload(name) for name in names}
        rows: dict[int, bytes] = {}
        (slots, *_) = zarr.open_array(array, mode="r").shards or ()
        for path in array.glob("c.*"):
            name = ChunkName.parse(array.name, path.name)
            assert name is not None
            file = self.world.disk.open(f"arrays/{array.name}/{path.name}")
            keys, readable = Scanner().records(ChunkFile(0, name, file, nbytes=path.stat().st_size))
            file.close()
            assert readable
            for row in keys.rows[keys.rows["kind"] == KIND_BLOCK]:
                rows[name.number * slots + int(row["slot"])] = by_hash[row["block_hash"].tobytes()]
        return rows


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    folder = Folder(tmp_path / "root")
    yield folder
    folder.world.kill()


def seen_by_zarr(array: Path) -> dict[int, bytes]:
    """Bytes by row, of the rows that are not all zero."""
    content = np.asarray(zarr.open_array(array, mode="r")[:])
    flat = content.reshape(len(content), -1)
    return {row: flat[row].tobytes() for row in np.flatnonzero(flat.any(axis=1)).tolist()}


def seen_by_tensorstore(array: Path) -> dict[int, bytes]:
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{array}/"}}
    content = np.asarray(tensorstore.open(spec, read=True).result().read().result())
    flat = content.reshape(len(content), -1)
    return {row: flat[row].tobytes() for row in np.flatnonzero(flat.any(axis=1)).tolist()}


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: str(codec.name))
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=list(LAYOUTS))
def test_every_sealed_block_is_what_zarr_reads(folder: Folder, layout: KVLayout, codec: Codec) -> None:
    folder.world.codec = codec
    tier, user = folder.world.start(), folder.user(layout)
    list(tier.recover())
    names = range(60)
    for start in range(0, 60, 4):
        assert set(user.write(tier, names[start : start + 4]).outcomes.tolist()) == {Outcome.OK}
    array = folder.array(layout, codec)
    expected = folder.expected(array, user, names)
    assert len(list(array.glob("c.*"))) >= 2
    assert len(list(array.glob("open-*"))) == 1, "an open file lies beside"
    assert len(expected) < 60
    assert seen_by_zarr(array) == expected
    if isinstance(codec, RawCodec):
        assert seen_by_tensorstore(array) == expected


def test_tensorstore_refuses_codecs_of_numcodecs(folder: Folder) -> None:
    folder.world.codec = Lz4Codec()
    tier, user = folder.world.start(), folder.user(ATTENTION)
    list(tier.recover())
    user.write(tier, range(60))
    with pytest.raises(ValueError, match="numcodecs"):
        seen_by_tensorstore(folder.array(ATTENTION, folder.world.codec))


def test_a_block_has_its_shape_its_dtype_and_the_names_of_its_axes(folder: Folder) -> None:
    tier, user = folder.world.start(), folder.user(ATTENTION)
    list(tier.recover())
    user.write(tier, range(60))
    array = zarr.open_group(folder.root, mode="r")[f"arrays/{folder.array(ATTENTION, RawCodec()).name}"]
    assert isinstance(array, zarr.Array)
    assert (array.shape[1:], array.dtype) == ((2, 2, 8, 2, 16), np.dtype(np.uint16))
    assert array.metadata.dimension_names == ("block", "page", "plane", "token", "head", "element")  # type: ignore[union-attr]
    block = np.frombuffer(user.payload(0), np.uint16).reshape(array.shape[1:])
    assert np.array_equal(array[0], block)
    attributes = array.attrs["tierstore"]
    assert isinstance(attributes, dict)
    assert attributes["layout"] == ATTENTION.as_fields()


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: str(codec.name))
def test_files_that_went_and_numbers_that_came_back_are_right(folder: Folder, codec: Codec) -> None:
    folder.world.codec = codec
    tier, user = folder.world.start(), folder.user(ATTENTION)
    list(tier.recover())
    for start in range(0, 80, 4):
        user.write(tier, range(start, start + 4))
    array = folder.array(ATTENTION, codec)
    before = set(array.glob("c.*"))
    tier.discard(user.where[20][0])
    (gone,) = before - set(array.glob("c.*"))
    assert seen_by_zarr(array) == folder.expected(array, user, range(80))
    for start in range(100, 180, 4):
        user.write(tier, range(start, start + 4))
    assert gone.exists(), "its number was given again"
    assert seen_by_zarr(array) == folder.expected(array, user, range(180))


def test_deleted_blocks_stay_until_their_file_goes(folder: Folder) -> None:
    tier, user = folder.world.start(), folder.user(ATTENTION)
    list(tier.recover())
    user.write(tier, [0, 1])
    user.delete(tier, [0])
    user.write(tier, range(2, 30))
    array = folder.array(ATTENTION, RawCodec())
    seen = seen_by_zarr(array)
    assert seen == folder.expected(array, user, range(30))
    assert list(seen)[:3] == [0, 1, 2], "a tombstone takes no slot"


def test_a_record_that_was_lost_is_a_hole(folder: Folder) -> None:
    tier, user = folder.world.start(), folder.user(ATTENTION)
    list(tier.recover())
    user.write(tier, range(4))
    tier.close()
    folder.world.kill()
    array = folder.array(ATTENTION, RawCodec())
    (path,) = array.glob("open-*")
    data = bytearray(path.read_bytes())
    data[2 * PAGE_NBYTES] ^= 1
    path.write_bytes(data)
    tier = folder.world.start()
    assert user.recover(tier.recover()) == [0, 2, 3]
    user.write(tier, range(4, 30))
    seen = seen_by_zarr(array)
    assert seen == folder.expected(array, user, range(30))
    assert 1 not in seen
    assert {0, 2, 3, 4} <= set(seen)


def test_a_larger_capacity_makes_room_in_the_array(folder: Folder) -> None:
    folder.world.capacity_nbytes = 256 << 10
    tier, user = folder.world.start(), folder.user(ATTENTION)
    list(tier.recover())
    user.write(tier, range(30))
    tier.close()
    array = folder.array(ATTENTION, RawCodec())
    rows = len(seen_by_zarr(array))
    folder.world.capacity_nbytes = 4 << 20
    tier = folder.world.start()
    user.recover(tier.recover())
    for start in range(30, 150, 10):
        user.write(tier, range(start, start + 10))
    seen = seen_by_zarr(array)
    assert len(seen) > 4 * rows
    assert seen == folder.expected(array, user, range(150))


def test_arrays_of_both_codecs_lie_side_by_side(folder: Folder) -> None:
    users = []
    for codec in CODECS:
        folder.world.codec = codec
        tier, user = folder.world.start(), folder.user(ATTENTION)
        list(tier.recover())
        for start in range(0, 30, 10):
            user.write(tier, range(start, start + 10))
        tier.close()
        users.append(user)
    for codec, user in zip(CODECS, users, strict=True):
        array = folder.array(ATTENTION, codec)
        assert seen_by_zarr(array) == folder.expected(array, user, range(30)) != {}


class TestStrangers:
    """Shards that another program wrote, with the same codecs and without our headers."""

    @pytest.fixture
    def stranger(self, tmp_path: Path, folder: Folder) -> Path:
        """A shard of the array's own shape and codecs, and the user's array that it belongs to."""
        tier, user = folder.world.start(), folder.user(ATTENTION)
        list(tier.recover())
        user.write(tier, range(10))
        tier.close()
        folder.world.kill()
        shutil.copytree(folder.array(ATTENTION, RawCodec()), tmp_path / "copy")
        for path in (tmp_path / "copy").glob("[co][.p]*"):
            path.unlink()
        array = zarr.open_array(tmp_path / "copy", mode="r+")
        array[:] = 7
        return tmp_path / "copy"

    def test_a_shard_of_another_program_is_never_served_and_left_alone(
        self, folder: Folder, stranger: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        array = folder.array(ATTENTION, RawCodec())
        foreign = array / "c.3.0.0.0.0.0"
        content = (stranger / foreign.name).read_bytes()
        foreign.write_bytes(content)
        user = folder.user(ATTENTION)
        tier = folder.world.start()
        with caplog.at_level(logging.WARNING):
            assert user.recover(tier.recover()) == list(range(10))
        assert f"{foreign.name} holds no record of this store" in caplog.text
        for start in range(10, 60, 5):
            user.write(tier, range(start, start + 5))
        assert foreign.read_bytes() == content
        assert len(list(array.glob("c.*"))) > 3
        assert tier.sync() is Outcome.OK
        assert user.recover(folder.world.start().recover()) == list(range(60))

    def test_a_folder_of_another_program_is_no_array_of_ours(
        self, folder: Folder, stranger: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        shutil.copytree(stranger, folder.root / "arrays" / "elsewhere")
        user = folder.user(ATTENTION)
        with caplog.at_level(logging.WARNING):
            assert user.recover(folder.world.start().recover()) == list(range(10))
        assert "1 names under arrays/ are no chunk files" in caplog.text
        assert (folder.root / "arrays" / "elsewhere" / "c.0.0.0.0.0.0").exists()
