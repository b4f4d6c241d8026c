"""Makes blocks whose bytes identify their key, so that a benchmark can verify every byte that it counts.

Called by the measurements, always outside their timed part. A block's bytes are a fixed random template
combined with its key: each 8 bytes depend on the key and on their offset, so a block that was swapped,
shifted, torn or left unwritten shows in the 64 bytes where it happened. They do not compress.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from tierstore.errors import ConfigError

if TYPE_CHECKING:
    from tierstore.types import UInt8Array

__all__ = ["Payload"]

_WORD_NBYTES = 8
_SENTINEL = 0xA5


class Payload:
    """Makes and checks the bytes of blocks of one size.

    Args:
        block_nbytes: A positive multiple of 8.

    Raises:
        ConfigError: Any other size.
    """

    def __init__(self, block_nbytes: int) -> None:
        if block_nbytes < _WORD_NBYTES or block_nbytes % _WORD_NBYTES:
            raise ConfigError(f"block size is {block_nbytes} bytes; use a positive multiple of {_WORD_NBYTES}")
        self.block_nbytes = block_nbytes
        generator = np.random.default_rng(0)
        self._template = generator.integers(0, 1 << 64, block_nbytes // _WORD_NBYTES, dtype=np.uint64)
        self._scratch = np.empty_like(self._template)

    def hashes(self, keys: Sequence[int]) -> list[bytes]:
        """The 32-byte block hashes of keys."""
        return [_digest(key) for key in keys]

    def fill(self, rows: UInt8Array, keys: Sequence[int]) -> None:
        """Write each key's bytes into its row of `rows`, uint8[len(keys), block_nbytes]."""
        for row, key in zip(rows, keys, strict=True):
            np.bitwise_xor(self._template, _owner(key), out=row.view(np.uint64))

    def poison(self, rows: UInt8Array) -> None:
        """Overwrite `rows` with bytes that belong to no key."""
        rows.fill(_SENTINEL)

    def num_wrong(self, rows: UInt8Array, keys: Sequence[int]) -> int:
        """How many rows of uint8[len(keys), block_nbytes] differ from their key's bytes anywhere."""
        wrong = 0
        for row, key in zip(rows, keys, strict=True):
            np.bitwise_xor(row.view(np.uint64), self._template, out=self._scratch)
            wrong += bool(np.any(self._scratch != _owner(key)))
        return wrong


def _digest(key: int) -> bytes:
    return hashlib.sha256(b"tierstore benchmark\0" + key.to_bytes(8, "little")).digest()


def _owner(key: int) -> np.uint64:
    return np.uint64(int.from_bytes(_digest(key)[:_WORD_NBYTES], "little"))
