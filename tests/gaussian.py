"""Blocks of normal numbers in bfloat16, which compress as KV does, and one who writes and reads them.

Called by the tests of what encodes. A block's bytes follow from its identity alone, so that every block that
comes back is compared.
"""

from __future__ import annotations

import hashlib

import numpy as np

from tierstore.keys import Namespace
from tierstore.layout import KVLayout
from tierstore.testing.block_user import BlockUser

__all__ = ["GaussianUser", "gaussian", "namespace"]


def gaussian(nbytes: int, seed: int = 0) -> bytes:
    """`nbytes` of them, two bytes each."""
    numbers = np.random.default_rng(seed).standard_normal(nbytes // 2, dtype=np.float32)
    return (numbers.view("<u4") >> 16).astype("<u2").tobytes()


def namespace(block_tokens: int = 16) -> Namespace:
    """A namespace of small bfloat16 blocks: 512 bytes a token."""
    return Namespace("model", KVLayout.attention(layers=2, kv_heads=2, head_size=32, block_tokens=block_tokens))


class GaussianUser(BlockUser):
    """A user whose blocks compress, but for every eighth, which is noise."""

    def payload(self, name: int) -> bytes:
        """The bytes of a block."""
        if name % 8 == 7:
            return super().payload(name)
        seed = hashlib.sha256(self.generation.fingerprint + self.block_hash(name)).digest()
        return gaussian(self.generation.layout.block_nbytes, int.from_bytes(seed, "little"))
