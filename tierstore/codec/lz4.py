"""Byte shuffle, then an LZ4 block behind its length: lossless, and worth a sixth of a bf16 KV block.

Called by tier workers, from several threads at once; LZ4 itself runs without the interpreter's lock. The
format is that of numcodecs' `Shuffle(item_nbytes)` and `LZ4()`, which Zarr readers know. Whatever is to be
decoded may be damaged: a ValueError is the worst that comes of it.
"""

from __future__ import annotations

import lz4.block
import numpy as np

from tierstore.codec.base import ZarrCodec

__all__ = ["Lz4Codec"]

_PREFIX_NBYTES = 4
"""The raw length, little-endian, in front of the LZ4 block."""

_RAW_NBYTES_MAX = 0x7E000000
"""What one LZ4 block can hold, by its format."""


class Lz4Codec:
    """Shuffle and LZ4 at its fastest level."""

    name = "lz4"
    codec_id = 1

    def max_encoded_nbytes(self, raw_nbytes: int) -> int:
        """The bound of the LZ4 block format, and the length in front: what does not compress grows by 0.4 %."""
        return _PREFIX_NBYTES + raw_nbytes + raw_nbytes // 255 + 16

    def encode(self, src: memoryview, dst: memoryview, *, item_nbytes: int) -> int:
        """Encode; `dst` is scratch too, so bytes behind the result change.

        Raises:
            ValueError: More bytes than an LZ4 block can hold, or no whole number of items.
        """
        if len(src) > _RAW_NBYTES_MAX:
            raise ValueError(f"a block of {len(src)} bytes is more than LZ4 takes ({_RAW_NBYTES_MAX}); use codec raw")
        _check_items(src, item_nbytes)
        if item_nbytes > 1:
            shuffled = dst[: len(src)]
            _shuffle(src, shuffled, item_nbytes)
            src = shuffled
            if literals := _literals(src, len(src) // item_nbytes):
                rest = lz4.block.compress(src[literals:], store_size=False)
                if nbytes := _join(literals, rest, dst, raw_nbytes=len(src)):
                    return nbytes
        encoded = lz4.block.compress(src, store_size=True)
        dst[: len(encoded)] = encoded
        return len(encoded)

    def decode(self, src: memoryview, dst: memoryview, *, item_nbytes: int) -> None:
        """Decode; where it raises, `dst` may hold anything.

        Raises:
            ValueError: Damaged bytes, or a block of another length than `dst`.
        """
        _check_items(dst, item_nbytes)
        # Compared before anything else: LZ4 takes as much memory as the length in front says.
        if len(src) <= _PREFIX_NBYTES or int.from_bytes(src[:_PREFIX_NBYTES], "little") != len(dst):
            raise ValueError(f"{len(src)} bytes are no LZ4 block of {len(dst)}")
        if not len(dst):
            return
        try:
            decoded = lz4.block.decompress(src)
        except lz4.block.LZ4BlockError as error:
            raise ValueError(f"{len(src)} bytes are a damaged LZ4 block: {error}") from error
        if len(decoded) != len(dst):
            raise ValueError(f"an LZ4 block of {len(decoded)} bytes cannot fill {len(dst)}")
        if item_nbytes > 1:
            _unshuffle(decoded, dst, item_nbytes)
        else:
            dst[:] = decoded

    def zarr_codecs(self, item_nbytes: int) -> list[ZarrCodec]:
        """Those of numcodecs."""
        return [
            {"name": "numcodecs.shuffle", "configuration": {"elementsize": item_nbytes}},
            {"name": "numcodecs.lz4", "configuration": {"acceleration": 1}},
        ]


def _check_items(block: memoryview, item_nbytes: int) -> None:
    if len(block) % item_nbytes:
        raise ValueError(f"a block of {len(block)} bytes is no whole number of items of {item_nbytes}")


# The low bytes of floating-point numbers are noise. LZ4 takes ever longer steps through noise, and misses what is
# worth finding directly behind it: 0.5 % of a block of 256 KiB, 0.2 % of one of 2 MiB.


def _literals(shuffled: memoryview, plane_nbytes: int) -> int:
    """How many bytes in front, whole planes but never the last one, do not compress."""
    literals = 0
    while literals + plane_nbytes < len(shuffled):
        plane = shuffled[literals : literals + plane_nbytes]
        if len(lz4.block.compress(plane, store_size=False)) < plane_nbytes:
            break
        literals += plane_nbytes
    return literals


def _join(literals: int, rest: bytes, dst: memoryview, *, raw_nbytes: int) -> int:
    """Make one LZ4 block of so many literals, which `dst` begins with, and of the LZ4 block of what follows them.

    They become the first literals of its first sequence: all that changes in it is how many it has there.

    Returns:
        The bytes written, the length in front among them; 0 where they do not fit, and `dst` is as before.
    """
    own, first = rest[0] >> 4, 1
    if own == 15:
        while rest[first] == 255:
            own, first = own + 255, first + 1
        own, first = own + rest[first], first + 1
    full, last = divmod(literals + own - 15, 255)
    token = bytes([0xF0 | rest[0] & 15])
    front = raw_nbytes.to_bytes(_PREFIX_NBYTES, "little") + token + b"\xff" * full + bytes([last])
    start, end = len(front), len(front) + literals
    nbytes = end + len(rest) - first
    if full < 0 or nbytes > len(dst):
        return 0
    dst[start:end] = dst[:literals]
    dst[:start] = front
    dst[end:nbytes] = memoryview(rest)[first:]
    return nbytes


# By arithmetic on whole items, at 13 and 11 GB/s for items of 2 bytes, where strides of bytes make 3.6.


def _shuffle(src: memoryview, dst: memoryview, item_nbytes: int) -> None:
    """Gather the first bytes of all items, then the second ones, and so on."""
    items = np.frombuffer(src, dtype=f"<u{item_nbytes}")
    for place, plane in enumerate(np.frombuffer(dst, dtype=np.uint8).reshape(item_nbytes, -1)):
        np.right_shift(items, 8 * place, out=plane, casting="unsafe")


def _unshuffle(src: bytes, dst: memoryview, item_nbytes: int) -> None:
    """Undo `_shuffle`."""
    items = np.frombuffer(dst, dtype=f"<u{item_nbytes}")
    *lower, highest = np.frombuffer(src, dtype=np.uint8).reshape(item_nbytes, -1)
    items[:] = highest
    for plane in reversed(lower):
        np.left_shift(items, 8, out=items)
        np.bitwise_or(items, plane, out=items)
