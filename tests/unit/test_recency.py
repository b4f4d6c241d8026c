"""The recency file: what was written comes back, or nothing does."""

from __future__ import annotations

import errno
import logging
from random import Random

import numpy as np
import pytest

from tierstore.errors import DiskError
from tierstore.testing.sim_disk import SimDisk
from tierstore.tiers.recency import RECENCY, read_recency, recency_keys, write_recency


def rows_of(count: int) -> np.ndarray[tuple[int], np.dtype[np.void]]:
    rows = np.zeros(count, dtype=RECENCY)
    rows["key"] = np.arange(count, dtype=np.uint64) * np.uint64(0x9E37_79B9_7F4A_7C15)
    rows["last_use"] = np.arange(count)[::-1]
    rows["hits"] = np.arange(count) % 65_536
    return rows


@pytest.mark.parametrize("count", [0, 1, 290, 291, 292, 10_000])
def test_rows_come_back_after_a_power_loss(count: int) -> None:
    disk = SimDisk()
    write_recency(disk, rows_of(7))
    write_recency(disk, rows_of(count))
    disk.crash(Random(0), torn=False)
    found = read_recency(disk)
    assert found is not None
    assert found.tobytes() == rows_of(count).tobytes()


def test_a_missing_file_is_none_and_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert read_recency(SimDisk()) is None
    assert not caplog.messages


def test_any_flipped_bit_that_means_something_makes_it_none_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    disk = SimDisk()
    write_recency(disk, rows_of(20))
    used_bits = 8 * (24 + 20 * RECENCY.itemsize)
    for bit in range(used_bits):
        disk.flip("recency", bit)
        caplog.clear()
        assert read_recency(disk) is None, f"bit {bit}"
        assert len(caplog.messages) == 1
        disk.flip("recency", bit)
    assert read_recency(disk) is not None


@pytest.mark.parametrize("nbytes", [0, 1, 4096, 5000])
def test_a_file_that_was_cut_is_none(nbytes: int) -> None:
    disk = SimDisk()
    write_recency(disk, rows_of(1000))
    disk.truncate("recency", nbytes)
    assert read_recency(disk) is None


def test_an_unreadable_file_is_none() -> None:
    disk = SimDisk()
    write_recency(disk, rows_of(3))
    disk.fail_call(1, errno=errno.EIO, only="read")
    assert read_recency(disk) is None


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC, 0])
def test_a_failed_write_leaves_the_rows_before_or_after(code: int) -> None:
    for call in range(1, 10):
        disk = SimDisk()
        write_recency(disk, rows_of(5))
        disk.fail_call(call, errno=code)
        try:
            write_recency(disk, rows_of(6))
            finished = True
        except DiskError:
            finished = False
        disk.heal()
        found = read_recency(disk)
        assert found is not None
        assert len(found) in ((6,) if finished else (5, 6))
        write_recency(disk, rows_of(7))
        if finished and disk.calls_of("write") == 3:
            return
    pytest.fail("a write takes more than 9 calls")


def test_a_block_has_another_key_in_another_namespace_and_under_another_hash() -> None:
    hashes = np.arange(64, dtype=np.uint8).reshape(2, 32)
    first, second = recency_keys(bytes(range(32)), hashes), recency_keys(bytes(range(1, 33)), hashes)
    assert first.dtype == np.uint64
    assert len({*first.tolist(), *second.tolist()}) == 4
    assert recency_keys(bytes(range(32)), hashes[1:]).tolist() == first[1:].tolist()
