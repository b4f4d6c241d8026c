"""What other programs wrote in the format's own terms: read where it carries our headers, else left alone."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

import numpy as np
import pytest
import zarr
from crc32c import crc32c

from tests.zarr_folder import ATTENTION, CODECS, HalfNoise, ZarrFolder
from tierstore.codec.base import Codec, RawCodec
from tierstore.codec.lz4 import Lz4Codec
from tierstore.types import Outcome

pytestmark = pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in the Zarr version 3 specification")


class WrittenByZarr(Lz4Codec):
    """Encodes blocks as zarr-python did, into the very bytes that lie in its shard.

    Args:
        encoded: By the block's own bytes.
    """

    def __init__(self, encoded: dict[bytes, bytes]) -> None:
        self._encoded = encoded

    def encode(self, src: memoryview, dst: memoryview, *, item_nbytes: int) -> int:
        found = self._encoded[bytes(src)]
        dst[: len(found)] = found
        return len(found)


def inner_chunks(shard: Path, slots: int) -> list[bytes]:
    """The bytes of each inner chunk, whose checksum is right, without that."""
    content = shard.read_bytes()
    index = np.frombuffer(content[-4 - 16 * slots : -4], "<u8").reshape(slots, 2).tolist()
    chunks = [content[offset : offset + nbytes] for offset, nbytes in index if offset != 2**64 - 1]
    assert all(crc32c(chunk[:-4]) == int.from_bytes(chunk[-4:], "little") for chunk in chunks)
    return [chunk[:-4] for chunk in chunks]


def written_by_zarr(folder: ZarrFolder, codec: Codec, copy: Path, user: HalfNoise, names: range) -> list[bytes]:
    """Have zarr-python write blocks into an empty array of the store's own metadata: what lies in its shard."""
    shutil.copytree(folder.array(ATTENTION, codec), copy)
    for path in copy.glob("[co][.p]*"):
        path.unlink()
    array = zarr.open_array(copy, mode="r+")
    (slots, *_), (_, *block_shape) = array.shards or (0,), array.shape
    assert len(names) <= slots
    blocks = [np.frombuffer(user.payload(name), array.dtype).reshape(block_shape) for name in names]
    array[: len(names)] = np.stack(blocks)
    (shard,) = copy.glob("c.0*")
    return inner_chunks(shard, slots)


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: str(codec.name))
def test_blocks_that_zarr_encoded_are_read_where_they_carry_our_headers(
    folder: ZarrFolder, tmp_path: Path, codec: Codec
) -> None:
    names = range(4)
    folder.world.codec = codec
    tier, user = folder.world.start(), folder.user(ATTENTION)
    list(tier.recover())
    user.write(tier, [100])
    tier.close()
    folder.world.kill()
    encoded = written_by_zarr(folder, codec, tmp_path / "copy", user, names)
    blocks = [user.payload(name) for name in names]
    if isinstance(codec, RawCodec):
        assert encoded == blocks
    else:
        folder.world.codec = WrittenByZarr(dict(zip(blocks, encoded, strict=True)))
    tier = folder.world.start()
    user.recover(tier.recover())
    assert user.write(tier, names).outcomes.tolist() == [Outcome.OK] * len(names)
    lengths = [user.where[name][2] for name in names]
    assert lengths == [len(chunk) for chunk in encoded]
    tier.close()
    folder.world.codec = codec
    tier = folder.world.start()
    assert user.recover(tier.recover()) == [100, *names]
    assert user.read(tier, names) == [Outcome.OK] * len(names)


@pytest.fixture
def stranger(tmp_path: Path, folder: ZarrFolder) -> Path:
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
    folder: ZarrFolder, stranger: Path, caplog: pytest.LogCaptureFixture
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
    assert tier.sync().outcome is Outcome.OK
    assert user.recover(folder.world.start().recover()) == list(range(60))


def test_a_folder_of_another_program_is_no_array_of_ours(
    folder: ZarrFolder, stranger: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.copytree(stranger, folder.root / "arrays" / "elsewhere")
    user = folder.user(ATTENTION)
    with caplog.at_level(logging.WARNING):
        assert user.recover(folder.world.start().recover()) == list(range(10))
    assert "1 names under arrays/ are no chunk files" in caplog.text
    assert (folder.root / "arrays" / "elsewhere" / "c.0.0.0.0.0.0").exists()
