"""The LZ4 codec: numcodecs' bytes, a bound that holds, and nothing but ValueError from damaged bytes."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from numcodecs import LZ4, Shuffle

from tests.gaussian import gaussian
from tierstore.codec.lz4 import Lz4Codec

CODEC = Lz4Codec()
ITEM_NBYTES = (1, 2, 4)

blocks = st.one_of(
    st.binary(max_size=4096),
    st.integers(0, 4096).map(bytes),
    st.tuples(st.binary(min_size=1, max_size=9), st.integers(1, 400)).map(lambda part: part[0] * part[1]),
)


def encoded(block: bytes, item_nbytes: int) -> bytes:
    buffer = bytearray(CODEC.max_encoded_nbytes(len(block)))
    nbytes = CODEC.encode(memoryview(block), memoryview(buffer), item_nbytes=item_nbytes)
    return bytes(buffer[:nbytes])


def by_numcodecs(block: bytes, item_nbytes: int) -> bytes:
    return bytes(LZ4().encode(Shuffle(item_nbytes).encode(block)))


@given(block=blocks, item_nbytes=st.sampled_from(ITEM_NBYTES))
@example(block=gaussian(1 << 18), item_nbytes=2)
@example(block=bytes(4096), item_nbytes=4)
def test_numcodecs_decodes_what_is_encoded(block: bytes, item_nbytes: int) -> None:
    block = block[: len(block) // item_nbytes * item_nbytes]
    assume(block)  # numcodecs writes an empty block and refuses to read it
    decoded = Shuffle(item_nbytes).decode(LZ4().decode(encoded(block, item_nbytes)))
    assert bytes(decoded) == block


@pytest.mark.parametrize(("block_nbytes", "most"), [(4 << 10, 1.01), (64 << 10, 1.0), (256 << 10, 1.0), (2 << 20, 1.0)])
def test_blocks_compress_as_well_as_by_numcodecs_and_long_ones_better(block_nbytes: int, most: float) -> None:
    block = gaussian(block_nbytes)
    assert len(encoded(block, 2)) < most * len(by_numcodecs(block, 2))


@pytest.mark.parametrize("planes", ["noise, zeros", "zeros, noise", "zeros, zeros", "noise, text", "noise, more"])
@pytest.mark.parametrize("plane_nbytes", [1, 2, 14, 15, 16, 269, 270, 271, 4096, 70_000])
def test_noise_in_front_is_taken_as_it_is(planes: str, plane_nbytes: int) -> None:
    random = Random(plane_nbytes)
    made = {name: random.randbytes(plane_nbytes) for name in ("noise", "more")}
    made |= {"zeros": bytes(plane_nbytes), "text": (b"KV " * plane_nbytes)[:plane_nbytes]}
    low, high = (made[name] for name in planes.split(", "))
    block = bytes(byte for pair in zip(low, high, strict=True) for byte in pair)
    result = encoded(block, 2)
    assert bytes(Shuffle(2).decode(LZ4().decode(result))) == block
    assert len(result) <= len(by_numcodecs(block, 2)) + 2
    back = bytearray(len(block))
    CODEC.decode(memoryview(result), memoryview(back), item_nbytes=2)
    assert back == block


@given(block=blocks, item_nbytes=st.sampled_from(ITEM_NBYTES))
def test_what_numcodecs_encoded_is_decoded(block: bytes, item_nbytes: int) -> None:
    block = block[: len(block) // item_nbytes * item_nbytes]
    decoded = bytearray(len(block))
    CODEC.decode(memoryview(by_numcodecs(block, item_nbytes)), memoryview(decoded), item_nbytes=item_nbytes)
    assert decoded == block


def test_bytes_that_do_not_compress_stay_within_the_bound() -> None:
    block = Random(0).randbytes(1 << 18)
    assert len(block) < len(encoded(block, 1)) <= CODEC.max_encoded_nbytes(len(block))


@pytest.mark.parametrize(("block_nbytes", "ratio"), [(64 << 10, 1.178), (256 << 10, 1.19), (2 << 20, 1.195)])
def test_gaussian_bfloat16_blocks_shrink_by_a_sixth(block_nbytes: int, ratio: float) -> None:
    encoded_nbytes = [len(encoded(gaussian(block_nbytes, seed), 2)) for seed in range(4)]
    assert 4 * block_nbytes / sum(encoded_nbytes) >= ratio


def test_bytes_written_by_an_earlier_version_are_decoded() -> None:
    written = bytes.fromhex("30000000 8c 0001020304050607 0800 1e 3f 0100 50 3f3f3f3f3f")
    decoded = bytearray(48)
    CODEC.decode(memoryview(written), memoryview(decoded), item_nbytes=2)
    assert decoded == bytes(byte for turn in range(24) for byte in (turn % 8, 0x3F))


def test_a_buffer_at_any_address_will_do() -> None:
    block = gaussian(1 << 12)
    src, dst, back = bytearray(b"?" + block), bytearray(CODEC.max_encoded_nbytes(len(block)) + 1), bytearray(1 << 13)
    nbytes = CODEC.encode(memoryview(src)[1:], memoryview(dst)[1:], item_nbytes=2)
    assert dst[1 : 1 + nbytes] == encoded(block, 2)
    CODEC.decode(memoryview(dst)[1 : 1 + nbytes], memoryview(back)[1 : 1 + len(block)], item_nbytes=2)
    assert back[1 : 1 + len(block)] == block
    assert not any(back[1 + len(block) :])


@pytest.mark.parametrize("item_nbytes", [2, 4])
def test_a_block_of_broken_items_is_refused(item_nbytes: int) -> None:
    with pytest.raises(ValueError, match=f"7 bytes is no whole number of items of {item_nbytes}"):
        CODEC.encode(memoryview(bytes(7)), memoryview(bytearray(64)), item_nbytes=item_nbytes)
    with pytest.raises(ValueError, match=f"7 bytes is no whole number of items of {item_nbytes}"):
        CODEC.decode(memoryview(encoded(bytes(7), 1)), memoryview(bytearray(7)), item_nbytes=item_nbytes)


def decode_or_refuse(damaged: bytes, nbytes: int) -> bytes | None:
    """Decode into guarded memory: the bytes, or None where the codec refuses."""
    guarded = bytearray(b"\xa5" * (nbytes + 128))
    try:
        CODEC.decode(memoryview(damaged), memoryview(guarded)[64 : 64 + nbytes], item_nbytes=2)
    except ValueError:
        return None
    finally:
        assert guarded[:64] == guarded[-64:] == b"\xa5" * 64, "the codec wrote beside its destination"
    return bytes(guarded[64 : 64 + nbytes])


def test_every_flipped_bit_decodes_to_the_right_length_or_is_refused() -> None:
    block = gaussian(512) + bytes(256) + b"ab" * 128
    whole = bytearray(encoded(block, 2))
    refused = 0
    for bit in range(8 * len(whole)):
        whole[bit // 8] ^= 1 << bit % 8
        refused += decode_or_refuse(bytes(whole), len(block)) is None
        whole[bit // 8] ^= 1 << bit % 8
    assert refused >= 32, "the length in front, at least"
    assert decode_or_refuse(bytes(whole), len(block)) == block


@given(damaged=st.binary(max_size=300), nbytes=st.integers(0, 64).map(lambda count: 2 * count))
def test_noise_behind_a_right_length_is_refused_or_fills_exactly(damaged: bytes, nbytes: int) -> None:
    decode_or_refuse(damaged, nbytes)
    decode_or_refuse(nbytes.to_bytes(4, "little") + damaged, nbytes)


@pytest.mark.parametrize("claimed", [0, 62, 66, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF])
def test_a_length_in_front_that_lies_takes_no_memory(claimed: int) -> None:
    lying = claimed.to_bytes(4, "little") + encoded(bytes(64), 2)[4:]
    with pytest.raises(ValueError, match="no LZ4 block of 64"):
        CODEC.decode(memoryview(lying), memoryview(bytearray(64)), item_nbytes=2)


def test_a_cut_block_is_refused_wherever_it_is_cut() -> None:
    whole = encoded(gaussian(256), 2)
    assert [decode_or_refuse(whole[:end], 256) for end in range(len(whole))] == [None] * len(whole)
