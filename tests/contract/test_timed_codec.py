"""A codec that is timed keeps the contract of its seam, and tells its seconds."""

from __future__ import annotations

import pytest

from tierstore.codec.base import Codec
from tierstore.codec.lz4 import Lz4Codec
from tierstore.codec.timed import TimedCodec
from tierstore.testing.contracts.codec import CodecContract


@pytest.fixture(scope="module")
def codec() -> Codec:
    return TimedCodec(Lz4Codec())


class TestTimedCodec(CodecContract): ...


def test_a_timed_codec_tells_its_seconds_once_and_failures_among_them() -> None:
    codec = TimedCodec(Lz4Codec())
    encoded = memoryview(bytearray(codec.max_encoded_nbytes(1 << 16)))
    nbytes = codec.encode(memoryview(bytes(1 << 16)), encoded, item_nbytes=2)
    first, second = codec.take_seconds(), codec.take_seconds()
    assert first["encode"] > 0 == first["decode"]
    assert second == {"encode": 0, "decode": 0}
    with pytest.raises(ValueError, match="no LZ4 block"):
        codec.decode(encoded[:nbytes], memoryview(bytearray(4)), item_nbytes=2)
    assert codec.take_seconds()["decode"] > 0
