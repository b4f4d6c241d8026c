"""The checksum kernel on the CPU, against the crc32c package."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

import numpy as np
import pytest
from crc32c import crc32c

from tests.kernels.conftest import Compile, Guarded
from tierstore.device import checksums
from tierstore.device.checksums import PIECE_NBYTES, checksum_tables

if TYPE_CHECKING:
    from tierstore.types import UInt8Array, UInt32Array

SIZES = (1, 3, 4, 15, 16, 17, 100, 511, 512, 513, 1152, 4096, 4097, PIECE_NBYTES - 1, PIECE_NBYTES, PIECE_NBYTES + 5)


def by_kernel(library: ctypes.CDLL, blocks: list[UInt8Array], nbytes: int, *, grid: int = 2) -> UInt32Array:
    sums = np.full((len(blocks), -(-nbytes // checksums.PIECE_NBYTES)), 0xDBDBDBDB, np.uint32)
    addresses = np.array([block.ctypes.data for block in blocks], np.int64)
    for table in checksum_tables(addresses, nbytes, sums.ctypes.data):
        library.run_crc32c(grid, 64, ctypes.c_void_p(table.ctypes.data))
    found: UInt32Array = np.bitwise_xor.reduce(sums, axis=1)
    return found


@pytest.mark.parametrize("nbytes", SIZES)
def test_the_kernel_finds_the_checksum_of_any_size(compile_kernels: Compile, guarded: Guarded, nbytes: int) -> None:
    random = np.random.default_rng(nbytes)
    blocks = [guarded(-(-nbytes // 16) * 16, at_start=False) for _ in range(3)]
    for block in blocks:
        block[:] = random.integers(0, 256, block.shape, np.uint8)
    found = by_kernel(compile_kernels("crc32c"), blocks, nbytes)
    assert found.tolist() == [crc32c(block[:nbytes].data) for block in blocks]


@pytest.mark.parametrize("piece_nbytes", [512, 1024, 1536])
def test_pieces_of_any_length_join_to_one_checksum(
    compile_kernels: Compile, monkeypatch: pytest.MonkeyPatch, piece_nbytes: int
) -> None:
    monkeypatch.setattr(checksums, "PIECE_NBYTES", piece_nbytes)
    blocks = [np.random.default_rng(seed).integers(0, 256, 5008, np.uint8) for seed in range(2)]
    found = by_kernel(compile_kernels("crc32c"), blocks, 5000, grid=3)
    assert found.tolist() == [crc32c(block[:5000].data) for block in blocks]


def test_more_blocks_than_a_table_holds_are_all_summed(compile_kernels: Compile) -> None:
    blocks = list(np.random.default_rng(1).integers(0, 256, (200, 64), np.uint8))
    found = by_kernel(compile_kernels("crc32c"), blocks, 64)
    assert found.tolist() == [crc32c(block.data) for block in blocks]


def test_every_flipped_bit_changes_the_checksum(compile_kernels: Compile) -> None:
    block = np.random.default_rng(2).integers(0, 256, 48, np.uint8)
    library, expected = compile_kernels("crc32c"), crc32c(block[:41].data)
    for bit in range(41 * 8):
        flipped = block.copy()
        flipped[bit // 8] ^= 1 << bit % 8
        assert by_kernel(library, [flipped], 41)[0] != expected
    block[41:] ^= 0xFF  # behind the block
    assert by_kernel(library, [block], 41)[0] == expected
