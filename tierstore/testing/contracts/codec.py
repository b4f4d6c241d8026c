"""What every codec must do; see `tierstore.codec.base`.

Subclassed by whoever writes a codec, run by pytest.
"""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tierstore.codec.base import Codec

__all__ = ["CodecContract"]

ITEM_NBYTES = (1, 2, 4)

blocks = st.one_of(
    st.integers(0, 4096).map(bytes),
    st.binary(max_size=4096),
    st.tuples(st.binary(min_size=1, max_size=16), st.integers(1, 256)).map(lambda part: part[0] * part[1]),
)
"""Blocks of nothing, of noise, and of something that repeats."""


class CodecContract:
    """Subclass it and give a module fixture ``codec``."""

    def test_keeps_the_protocol(self, codec: Codec) -> None:
        assert isinstance(codec, Codec)
        assert re.fullmatch("[a-z0-9]+", codec.name)
        assert 0 <= codec.codec_id < 256

    @given(block=blocks, item_nbytes=st.sampled_from(ITEM_NBYTES))
    def test_a_block_comes_back_within_the_bound(self, codec: Codec, block: bytes, item_nbytes: int) -> None:
        block = block[: len(block) // item_nbytes * item_nbytes]
        bound = codec.max_encoded_nbytes(len(block))
        encoded, decoded = bytearray(bound), bytearray(b"\xa5" * len(block))
        nbytes = codec.encode(memoryview(block), memoryview(encoded), item_nbytes=item_nbytes)
        assert 0 <= nbytes <= bound
        codec.decode(memoryview(encoded)[:nbytes], memoryview(decoded), item_nbytes=item_nbytes)
        assert decoded == block

    @pytest.mark.parametrize("item_nbytes", ITEM_NBYTES)
    @pytest.mark.parametrize("more_nbytes", [-64, -4, 4, 64])
    def test_a_block_of_another_length_is_refused(self, codec: Codec, item_nbytes: int, more_nbytes: int) -> None:
        block = bytes(range(256))
        encoded = bytearray(codec.max_encoded_nbytes(len(block)))
        nbytes = codec.encode(memoryview(block), memoryview(encoded), item_nbytes=item_nbytes)
        decoded = memoryview(bytearray(len(block) + more_nbytes))
        with pytest.raises(ValueError, match=r"."):
            codec.decode(memoryview(encoded)[:nbytes], decoded, item_nbytes=item_nbytes)

    def test_a_block_that_was_cut_short_is_refused(self, codec: Codec) -> None:
        block = bytes(range(256))
        encoded = bytearray(codec.max_encoded_nbytes(len(block)))
        nbytes = codec.encode(memoryview(block), memoryview(encoded), item_nbytes=1)
        with pytest.raises(ValueError, match=r"."):
            codec.decode(memoryview(encoded)[: nbytes // 2], memoryview(bytearray(len(block))), item_nbytes=1)
