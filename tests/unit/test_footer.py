"""The footer of a sealed file: its keys come back or nothing does, and Zarr's index points at every block."""

from __future__ import annotations

import errno

import numpy as np
import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from tierstore.disk.base import File
from tierstore.errors import DiskError
from tierstore.testing.sim_disk import SimDisk
from tierstore.tiers.footer import Keys, footer_nbytes, pack_footer, read_footer
from tierstore.tiers.frame import Scratch, aligned_buffer
from tierstore.tiers.record import KEY, KIND_BLOCK, KIND_TOMBSTONE
from tierstore.types import PAGE_NBYTES

UUID = bytes(range(16))
MISSING = 2**64 - 1


def keys_of(count: int, *, tombstones: tuple[int, ...] = ()) -> Keys:
    rows = np.zeros(count, dtype=KEY)
    rows["kind"] = [KIND_TOMBSTONE if row in tombstones else KIND_BLOCK for row in range(count)]
    rows["slot"] = np.arange(count)
    rows["sequence"] = np.arange(count) + 7
    rows["encoded_nbytes"] = np.arange(count) * 100 + 1
    return Keys(rows, np.arange(count, dtype=np.uint32) * 3, UUID)


def sealed(disk: SimDisk, keys: Keys, *, slots: int, file_pages: int = 16) -> tuple[File, int]:
    """A file that ends in a footer, and its length."""
    footer, nbytes = pack_footer(keys, slots=slots, scratch=Scratch()), file_pages * PAGE_NBYTES
    file = disk.create("file", nbytes)
    file.write_from([footer.data], nbytes - len(footer))
    return file, nbytes


@given(slots=st.integers(1, 70), tombstones=st.integers(0, 5), unused=st.integers(0, 70))
def test_what_was_packed_is_read(slots: int, tombstones: int, unused: int) -> None:
    count = max(0, slots - unused) + tombstones
    keys = keys_of(count, tombstones=tuple(range(tombstones)))
    file, nbytes = sealed(SimDisk(), keys, slots=slots)
    found = read_footer(file, nbytes=nbytes, slots=slots)
    assert found is not None
    assert found.rows.tobytes() == keys.rows.tobytes()
    assert found.pages.tolist() == keys.pages.tolist()
    assert found.file_uuid == UUID


def test_the_index_lies_where_zarr_looks_and_knows_every_block_by_its_slot() -> None:
    slots = 9
    disk = SimDisk()
    sealed(disk, keys_of(5, tombstones=(1,)), slots=slots)
    end = disk.contents("file")[-16 * slots - 4 :]
    index = np.frombuffer(end[:-4], "<u8").reshape(slots, 2)
    assert int.from_bytes(end[-4:], "little") == crc32c(end[:-4])
    for slot, row in enumerate(index.tolist()):
        if slot in (0, 2, 3, 4):
            assert row == [(3 * slot + 1) * PAGE_NBYTES, slot * 100 + 1 + 4]
        else:
            assert row == [MISSING, MISSING]


def test_a_block_of_a_slot_that_the_file_has_not_is_left_out_of_the_index() -> None:
    disk = SimDisk()
    keys = keys_of(4)
    keys.rows["slot"][3] = 4_000_000_000
    file, nbytes = sealed(disk, keys, slots=4)
    index = np.frombuffer(disk.contents("file")[-16 * 4 - 4 : -4], "<u8").reshape(4, 2)
    assert index[3].tolist() == [MISSING, MISSING]
    assert read_footer(file, nbytes=nbytes, slots=4) is not None


def test_what_a_longer_footer_left_in_the_scratch_is_wiped() -> None:
    scratch = Scratch()
    scratch.take(1 << 20)[:] = 0xA5
    used = pack_footer(keys_of(3), slots=5, scratch=scratch).tobytes()
    assert used == pack_footer(keys_of(3), slots=5, scratch=Scratch()).tobytes()


def test_any_flipped_bit_in_the_table_or_the_trailer_makes_it_unread() -> None:
    disk, slots, count = SimDisk(), 4, 3
    file, nbytes = sealed(disk, keys_of(count), slots=slots, file_pages=2)
    start = 8 * (nbytes - footer_nbytes(slots, count))
    trailer = 8 * (nbytes - 4 - 16 * slots - 64)
    for bit in [*range(start, start + 8 * 260 * count), *range(trailer, trailer + 8 * 64)]:
        disk.flip("file", bit)
        assert read_footer(file, nbytes=nbytes, slots=slots) is None, f"bit {bit}"
        disk.flip("file", bit)
    assert read_footer(file, nbytes=nbytes, slots=slots) is not None


@pytest.mark.parametrize("slots", [1, 3, 5, 200, 1 << 20])
def test_a_footer_for_another_number_of_slots_is_not_read(slots: int) -> None:
    file, nbytes = sealed(SimDisk(), keys_of(3), slots=4)
    assert read_footer(file, nbytes=nbytes, slots=slots) is None


def test_a_file_of_zeros_and_one_of_odd_length_have_no_footer() -> None:
    file = SimDisk().create("file", 4 * PAGE_NBYTES)
    assert read_footer(file, nbytes=4 * PAGE_NBYTES, slots=4) is None
    assert read_footer(file, nbytes=4 * PAGE_NBYTES - 1, slots=4) is None


def test_more_records_than_a_file_can_hold_are_not_believed() -> None:
    disk = SimDisk()
    file, nbytes = sealed(disk, keys_of(3), slots=4, file_pages=2)
    page = aligned_buffer(PAGE_NBYTES)
    page[:] = np.frombuffer(disk.contents("file")[-PAGE_NBYTES:], np.uint8)
    trailer = page[-4 - 16 * 4 - 64 :][:64]
    trailer[16:20] = 255
    trailer[60:] = np.array([crc32c(trailer[:60].tobytes())], "<u4").view(np.uint8)
    file.write_from([page.data], nbytes - PAGE_NBYTES)
    assert read_footer(file, nbytes=nbytes, slots=4) is None


def test_a_disk_that_fails_is_an_error() -> None:
    disk = SimDisk()
    file, nbytes = sealed(disk, keys_of(3), slots=4)
    disk.fail_from(1, errno=errno.EIO, only="read")
    with pytest.raises(DiskError):
        read_footer(file, nbytes=nbytes, slots=4)
