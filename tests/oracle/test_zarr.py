"""Zarr readers see every sealed block as it was put: zarr-python, and TensorStore where the codec is its own."""

from __future__ import annotations

import numpy as np
import pytest
import zarr

from tests.zarr_folder import ATTENTION, CODECS, ZarrFolder, seen_by_tensorstore
from tierstore.codec.base import Codec, RawCodec
from tierstore.codec.lz4 import Lz4Codec
from tierstore.layout import KVLayout, MemoryOrder, PageKind, PageSpec
from tierstore.types import PAGE_NBYTES, Outcome

pytestmark = pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in the Zarr version 3 specification")

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


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: str(codec.name))
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=list(LAYOUTS))
def test_every_sealed_block_is_what_zarr_reads(folder: ZarrFolder, layout: KVLayout, codec: Codec) -> None:
    folder.world.codec = codec
    tier, user = folder.world.start(), folder.user(layout)
    list(tier.recover())
    names = range(60)
    for start in range(0, 60, 4):
        assert set(user.write(tier, names[start : start + 4]).outcomes.tolist()) == {Outcome.OK}
    array = folder.array(layout, codec)
    assert len(list(array.glob("c.*"))) >= 2
    assert len(list(array.glob("open-*"))) == 1, "an open file lies beside"
    assert 0 < len(folder.seen(array, user, names)) < 60


def test_tensorstore_refuses_codecs_of_numcodecs(folder: ZarrFolder) -> None:
    folder.world.codec = Lz4Codec()
    tier, user = folder.world.start(), folder.user(ATTENTION)
    list(tier.recover())
    user.write(tier, range(60))
    with pytest.raises(ValueError, match="numcodecs"):
        seen_by_tensorstore(folder.array(ATTENTION, folder.world.codec))


def test_a_block_has_its_shape_its_dtype_and_the_names_of_its_axes(folder: ZarrFolder) -> None:
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
def test_files_that_went_and_numbers_that_came_back_are_right(folder: ZarrFolder, codec: Codec) -> None:
    folder.world.codec = codec
    tier, user = folder.world.start(), folder.user(ATTENTION)
    list(tier.recover())
    for start in range(0, 80, 4):
        user.write(tier, range(start, start + 4))
    array = folder.array(ATTENTION, codec)
    before = set(array.glob("c.*"))
    tier.discard(user.where[20][0])
    (gone,) = before - set(array.glob("c.*"))
    folder.seen(array, user, range(80))
    for start in range(100, 180, 4):
        user.write(tier, range(start, start + 4))
    assert gone.exists(), "its number was given again"
    folder.seen(array, user, range(180))


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: str(codec.name))
def test_blocks_that_were_written_again_before_their_file_went_are_right(folder: ZarrFolder, codec: Codec) -> None:
    folder.world.codec = codec
    tier, user = folder.world.start(), folder.user(ATTENTION)
    list(tier.recover())
    for start in range(0, 80, 4):
        user.write(tier, range(start, start + 4))
    array = folder.array(ATTENTION, codec)
    leaving = user.where[0][0]
    hot = [name for name in range(80) if user.where[name][0] == leaving][::2]
    assert set(user.rewrite(tier, hot).outcomes.tolist()) == {Outcome.OK}
    tier.discard(leaving)
    for start in range(80, 120, 4):
        user.write(tier, range(start, start + 4))
    seen = folder.seen(array, user, range(120))
    assert {user.payload(name) for name in hot} <= set(seen.values())
    assert set(user.read(tier, [*hot, 119])) == {Outcome.OK}


def test_a_smaller_capacity_hides_no_file_that_is_left(folder: ZarrFolder) -> None:
    tier, user = folder.world.start(), folder.user(ATTENTION)
    list(tier.recover())
    for start in range(0, 120, 10):
        user.write(tier, range(start, start + 10))
    tier.close()
    array = folder.array(ATTENTION, RawCodec())
    rows = len(folder.seen(array, user, range(120)))
    folder.world.capacity_nbytes = 512 << 10
    tier = folder.world.start()
    kept = user.recover(tier.recover())
    assert 0 < len(kept) < 120
    assert 0 < len(folder.seen(array, user, range(120))) < rows
    user.write(tier, range(200, 205))
    tier.close()
    folder.world.capacity_nbytes = 2 << 20
    tier = folder.world.start()
    user.recover(tier.recover())
    for start in range(300, 360, 10):
        user.write(tier, range(start, start + 10))
    assert len(folder.seen(array, user, [*range(120), *range(200, 205), *range(300, 360)])) > 0


def test_deleted_blocks_stay_until_their_file_goes(folder: ZarrFolder) -> None:
    tier, user = folder.world.start(), folder.user(ATTENTION)
    list(tier.recover())
    user.write(tier, [0, 1])
    user.delete(tier, [0])
    user.write(tier, range(2, 30))
    array = folder.array(ATTENTION, RawCodec())
    seen = folder.seen(array, user, range(30))
    assert list(seen)[:3] == [0, 1, 2], "a tombstone takes no slot"


def test_a_record_that_was_lost_is_a_hole(folder: ZarrFolder) -> None:
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
    seen = folder.seen(array, user, range(30))
    assert 1 not in seen
    assert {0, 2, 3, 4} <= set(seen)


def test_a_larger_capacity_makes_room_in_the_array(folder: ZarrFolder) -> None:
    folder.world.capacity_nbytes = 256 << 10
    tier, user = folder.world.start(), folder.user(ATTENTION)
    list(tier.recover())
    user.write(tier, range(30))
    tier.close()
    array = folder.array(ATTENTION, RawCodec())
    rows = len(folder.seen(array, user, range(30)))
    folder.world.capacity_nbytes = 4 << 20
    tier = folder.world.start()
    user.recover(tier.recover())
    for start in range(30, 150, 10):
        user.write(tier, range(start, start + 10))
    assert len(folder.seen(array, user, range(150))) > 4 * rows


def test_arrays_of_both_codecs_lie_side_by_side(folder: ZarrFolder) -> None:
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
        assert folder.seen(array, user, range(30))
