"""The record's bytes: arithmetic of its parts, headers packed and checked, golden files."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from tierstore.codec.base import RawCodec
from tierstore.layout import KVLayout
from tierstore.testing.block_user import BlockUser
from tierstore.testing.sim_disk import SimDisk
from tierstore.tiers.batch import Batch
from tierstore.tiers.chunkfile import ChunkFile, ChunkName, slots_per_file
from tierstore.tiers.footer import footer_nbytes
from tierstore.tiers.frame import FRAME_RECORDS, Frame, Pool, aligned_buffer, run_records
from tierstore.tiers.record import HEADER, HEADER_NBYTES, KIND_BLOCK, RecordShape, finish_headers, valid_headers
from tierstore.tiers.writing import RecordWriter
from tierstore.types import PAGE_NBYTES, Generation, JobId

GOLDEN = Path(__file__).parents[1] / "data" / "format1"
FINGERPRINT = bytes(range(32))


def golden_record(block_nbytes: int) -> bytes:
    """One record of fixed identity, place and time, as the writer makes it."""
    generation = Generation(0, FINGERPRINT, 7, KVLayout.opaque(block_nbytes=block_nbytes))
    pool = aligned_buffer(16 * PAGE_NBYTES)
    user = BlockUser(pool, generation)
    disk, shape = SimDisk(), RecordShape(block_nbytes)
    chunk = ChunkFile(
        3, ChunkName("array", 0, bytes(range(0x60, 0x70))), disk.create("file", 1 << 20), nbytes=1 << 20, slots=9
    )
    chunk.begin(end_nbytes=2 * shape.pitch_nbytes, next_slot=2)
    writer = RecordWriter(Pool(pool), {}, clock=lambda: 1_700_000_000_000_000_000)
    writer.sequence_base = 1000
    for run in writer.runs(Batch([replace(user.write_job([5]), job_id=JobId(0))], RawCodec())):
        writer.append(run, chunk)
    writer.drain()
    writer.close()
    return disk.contents("file")[2 * shape.pitch_nbytes : 3 * shape.pitch_nbytes]


@pytest.mark.parametrize("block_nbytes", [100, 4096])
def test_a_record_is_what_format_1_says(block_nbytes: int) -> None:
    assert golden_record(block_nbytes) == (GOLDEN / f"block-{block_nbytes}.bin").read_bytes()


@pytest.mark.parametrize("block_nbytes", [100, 4096])
def test_a_golden_record_is_read_with_its_fields(block_nbytes: int) -> None:
    record = (GOLDEN / f"block-{block_nbytes}.bin").read_bytes()
    headers = np.frombuffer(record[:PAGE_NBYTES], dtype=HEADER)
    assert valid_headers(headers).tolist() == [True]
    (header,) = headers
    payload, after = record[PAGE_NBYTES : PAGE_NBYTES + block_nbytes], PAGE_NBYTES + block_nbytes
    assert header["kind"] == KIND_BLOCK
    assert header["raw_nbytes"] == header["encoded_nbytes"] == block_nbytes
    assert (header["slot"], header["sequence"], header["epoch"], header["codec_id"]) == (2, 1000, 7, 0)
    assert header["created_ns"] == 1_700_000_000_000_000_000
    assert header["fingerprint"].tobytes() == FINGERPRINT
    assert header["file_uuid"].tobytes() == bytes(range(0x60, 0x70))
    assert header["parent_hash"].tobytes() == bytes(32)
    assert header["payload_checksum"] == crc32c(payload)
    assert record[after : after + 4] == crc32c(payload).to_bytes(4, "little")
    assert record[after + 4 :] == bytes(len(record) - after - 4)


def test_the_worked_example_shows_the_golden_record() -> None:
    record = (GOLDEN / "block-100.bin").read_bytes()
    text = (Path(__file__).parents[2] / "docs" / "format.md").read_text("utf-8")
    lines = re.findall(r"^([0-9a-f]{4})((?:  [0-9a-f]{2}(?: [0-9a-f]{2}){7}){2})(?:  |$)", text, re.MULTILINE)
    assert len(lines) == 12
    for offset, row in lines:
        assert record[int(offset, 16) :][:16] == bytes.fromhex(row), offset


@given(nbytes=st.integers(1, 1 << 24))
def test_the_parts_of_a_record_fill_it(nbytes: int) -> None:
    shape = RecordShape(nbytes)
    assert shape.slot_nbytes % PAGE_NBYTES == 0
    assert 0 <= shape.slot_nbytes - nbytes < PAGE_NBYTES
    assert shape.pitch_nbytes == PAGE_NBYTES + shape.slot_nbytes + PAGE_NBYTES * shape.has_tail
    assert shape.pitch_nbytes - PAGE_NBYTES >= nbytes + 4
    assert shape.has_tail == (nbytes + 4 > shape.slot_nbytes)
    assert 1 <= run_records(shape) <= FRAME_RECORDS


@given(nbytes=st.integers(1, 1 << 22), file_pages=st.integers(1, 1 << 14))
def test_a_file_has_room_for_its_slots_and_its_footer_and_no_more(nbytes: int, file_pages: int) -> None:
    file_nbytes, shape = file_pages * PAGE_NBYTES, RecordShape(nbytes)
    slots = slots_per_file(file_nbytes, shape)
    assert slots == 0 or slots * shape.pitch_nbytes + footer_nbytes(slots, slots) <= file_nbytes
    assert (slots + 1) * shape.pitch_nbytes + footer_nbytes(slots + 1, slots + 1) > file_nbytes


def test_any_flipped_bit_in_the_used_part_spoils_a_header() -> None:
    page = bytearray((GOLDEN / "block-100.bin").read_bytes()[:PAGE_NBYTES])
    flipped = np.frombuffer(bytes(page) * (HEADER_NBYTES * 8), dtype=np.uint8).reshape(-1, PAGE_NBYTES).copy()
    for bit in range(HEADER_NBYTES * 8):
        flipped[bit, bit // 8] ^= 1 << bit % 8
    assert not valid_headers(flipped.reshape(-1).view(HEADER)).any()


def test_headers_of_another_format_version_are_not_valid() -> None:
    headers = np.zeros(2, dtype=HEADER)
    finish_headers(headers)
    assert valid_headers(headers).all()
    covered = headers.view(np.uint8).reshape(2, PAGE_NBYTES)
    headers["version"][1] = 2
    headers["header_checksum"][1] = crc32c(covered[1, : HEADER_NBYTES - 4].data)
    assert valid_headers(headers).tolist() == [True, False]


@given(nbytes=st.integers(1, 3 * PAGE_NBYTES), checksums=st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=5))
def test_checksums_are_collected_where_they_were_placed(nbytes: int, checksums: list[int]) -> None:
    shape = RecordShape(nbytes)
    memory = aligned_buffer(8 * shape.slot_nbytes)
    memory[:] = 0xA5
    pool, frame = Pool(memory), Frame()
    slots = (np.arange(len(checksums))[::-1] * (shape.slot_nbytes // PAGE_NBYTES)).astype(np.int32)
    expected = np.array(checksums, dtype=np.uint32)
    frame.place_checksums(pool, slots, expected, shape)
    assert frame.collect_checksums(pool, slots, shape).tolist() == checksums
    for row, slot in enumerate(slots.tolist()):
        assert bytes(pool.payload(slot, nbytes)) == b"\xa5" * nbytes
        record = b"".join(frame.buffers(pool, [slot], shape, first=row))[PAGE_NBYTES:]
        assert record[nbytes : nbytes + 4] == checksums[row].to_bytes(4, "little")
        assert not any(record[nbytes + 4 :])


def test_a_file_name_comes_back_from_its_path() -> None:
    name = ChunkName.new("array", 65_535)
    assert ChunkName.parse("array", name.path.rpartition("/")[2]) == name
    sealed = name.sealed(axes=6)
    assert sealed.path == "arrays/array/c.65535.0.0.0.0.0"
    assert ChunkName.parse("array", "c.65535.0.0.0.0.0") == replace(sealed, file_uuid=bytes(16))


@pytest.mark.parametrize(
    "name",
    [
        "open-01-" + "0" * 32,
        "open-1-" + "0" * 31,
        "open-1-" + "G" * 32,
        "c.0",
        "c.01.0",
        "c.0.1",
        "c.0.0.new",
        "zarr.json",
    ],
)
def test_any_other_name_is_no_chunk_file(name: str) -> None:
    assert ChunkName.parse("array", name) is None
