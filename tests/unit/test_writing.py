"""Records of any length: encoded ahead, appended, and read back."""

from __future__ import annotations

import errno
import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest
from crc32c import crc32c

from tests.record_bench import BLOCK_NBYTES, Bench, header_of
from tierstore.codec.lz4 import Lz4Codec
from tierstore.tiers.batch import Batch
from tierstore.tiers.frame import run_records
from tierstore.tiers.record import RecordShape
from tierstore.tiers.writing import ENCODE_THREADS
from tierstore.types import PAGE_NBYTES, CopyResult, JobId, Outcome

OK, REJECTED, CORRUPT, IO_ERROR = Outcome.OK, Outcome.REJECTED, Outcome.CORRUPT, Outcome.IO_ERROR


@pytest.fixture
def packed() -> Iterator[Bench]:
    bench = Bench(Lz4Codec())
    yield bench
    bench.writer.close()


def encoded_by_codec(block: bytes) -> bytes:
    """What the codec makes of a block."""
    codec = Lz4Codec()
    scratch = bytearray(codec.max_encoded_nbytes(len(block)))
    return bytes(scratch[: codec.encode(memoryview(block), memoryview(scratch), item_nbytes=2)])


class TestEncodedRecords:
    def test_a_record_is_its_header_the_encoded_bytes_their_checksum_and_zeros(self, packed: Bench) -> None:
        packed.write(range(9))
        for name in range(9):
            encoded = encoded_by_codec(packed.user.payload(name))
            record, header = packed.record(name), header_of(packed.record(name))
            after = encoded + crc32c(encoded).to_bytes(4, "little")
            assert record[PAGE_NBYTES:] == after.ljust(len(record) - PAGE_NBYTES, b"\0")
            assert (header["codec_id"], header["raw_nbytes"]) == (1, BLOCK_NBYTES)
            assert header["encoded_nbytes"] == len(encoded) == packed.user.where[name][2]
            assert header["payload_checksum"] == crc32c(encoded) == packed.user.where[name][3]

    def test_blocks_that_compress_are_shorter_and_the_others_come_back_too(self, packed: Bench) -> None:
        packed.write(range(32))
        nbytes = [packed.user.where[name][2] for name in range(32)]
        assert max(nbytes[:7]) < BLOCK_NBYTES < nbytes[7] <= Lz4Codec().max_encoded_nbytes(BLOCK_NBYTES)
        assert packed.check([*range(9, 32), *range(9)]) == [OK] * 32

    def test_batches_of_many_runs_come_back(self) -> None:
        bench = Bench(Lz4Codec(), block_tokens=512, num_blocks=48)
        assert bench.write(range(48)) == [OK] * 48
        bench.writer.close()
        assert bench.check(range(48)) == [OK] * 48

    def test_neighbours_move_in_one_call(self, packed: Bench) -> None:
        packed.write(range(3))
        writes = packed.disk.calls_of("write")
        packed.write(range(3, 40))
        assert packed.disk.calls_of("write") - writes == 1
        reads = packed.disk.calls_of("read")
        assert packed.check([3, 1, 2, 0, 9, 10]) == [OK] * 6
        assert packed.disk.calls_of("read") - reads == 2

    def test_a_file_takes_as_many_as_it_has_bytes_for(self, packed: Bench) -> None:
        chunk = packed.files[0]
        outcomes = packed.write(range(40)) + packed.write(range(40, 80))
        fitting = outcomes.index(REJECTED)
        assert outcomes == [OK] * fitting + [REJECTED] * (80 - fitting)
        assert 40 < fitting < 60
        assert chunk.room_nbytes < 4 * PAGE_NBYTES
        assert packed.check(range(fitting - 5, fitting)) == [OK] * 5

    def test_a_file_takes_as_many_as_it_has_slots_for(self, packed: Bench) -> None:
        packed.files[0].slots = 5
        assert packed.write(range(7)) == [OK] * 5 + [REJECTED] * 2

    def test_a_record_of_another_codec_is_corrupt(self, packed: Bench) -> None:
        packed.write(range(2))
        packed.codec = _Other()
        assert packed.check(range(2)) == [CORRUPT] * 2

    def test_an_extent_of_impossible_length_is_corrupt_and_takes_no_memory(self, packed: Bench) -> None:
        packed.write(range(3))
        file, page, _nbytes, checksum = packed.user.where[1]
        packed.user.where[1] = (file, page, 0xFFFF_FFFF, checksum)
        assert packed.check(range(3)) == [OK, CORRUPT, OK]

    def test_a_sector_that_cannot_be_read_fails_one_block(self, packed: Bench) -> None:
        packed.write(range(6))
        packed.disk.fail_call(1, errno=errno.EIO, only="read")
        packed.disk.fail_call(4, errno=errno.EIO, only="read")
        assert packed.check(range(6)) == [OK, OK, IO_ERROR, OK, OK, OK]


class _Other(Lz4Codec):
    codec_id = 9


class _Refusing(Lz4Codec):
    """Cannot encode noise."""

    def encode(self, src: memoryview, dst: memoryview, *, item_nbytes: int) -> int:
        nbytes = super().encode(src, dst, item_nbytes=item_nbytes)
        if nbytes > len(src):
            raise ValueError("too much noise")
        return nbytes


class _Lying(Lz4Codec):
    """Encodes noise as something that cannot be decoded, or that is of another length."""

    def encode(self, src: memoryview, dst: memoryview, *, item_nbytes: int) -> int:
        nbytes = super().encode(src, dst, item_nbytes=item_nbytes)
        if nbytes > len(src):
            return super().encode(src[: len(src) // 2], dst, item_nbytes=item_nbytes)
        return nbytes


class _Meeting(Lz4Codec):
    """Lets no thread pass its first block before three threads have begun one."""

    def __init__(self) -> None:
        self.meeting = threading.Barrier(3)
        self.own = threading.local()

    def encode(self, src: memoryview, dst: memoryview, *, item_nbytes: int) -> int:
        if not hasattr(self.own, "met"):
            self.own.met = True
            self.meeting.wait(30)
        return super().encode(src, dst, item_nbytes=item_nbytes)


class TestEncoding:
    def test_two_threads_encode_the_next_run_while_the_first_is_encoded_here(self) -> None:
        bench = Bench(_Meeting(), block_tokens=512, num_blocks=24)
        assert bench.write(range(24)) == [OK] * 24
        bench.writer.close()
        assert bench.check(range(24)) == [OK] * 24

    def test_a_block_that_cannot_be_encoded_is_rejected_alone(self) -> None:
        bench = Bench(_Refusing())
        assert bench.write(range(6, 18)) == [OK, REJECTED, *[OK] * 7, REJECTED, OK, OK]
        bench.writer.close()
        assert bench.check([6, 8, 14, 16, 17]) == [OK] * 5

    def test_a_record_that_is_intact_but_cannot_be_decoded_is_corrupt(self) -> None:
        bench = Bench(_Lying())
        bench.write(range(6, 9))
        bench.writer.close()
        assert bench.check(range(6, 9)) == [OK, CORRUPT, OK]

    def test_closing_the_runs_early_waits_for_what_has_begun_and_begins_no_more(self) -> None:
        longest = RecordShape(Lz4Codec().max_encoded_nbytes(256 << 10))
        run = run_records(longest) // ENCODE_THREADS * ENCODE_THREADS
        bench = Bench(Lz4Codec(), block_tokens=512, num_blocks=2 * run)
        batch = Batch([bench.user.write_job(range(2 * run))], bench.codec)
        runs = bench.writer.runs(batch)
        first = next(runs)
        runs.close()
        begun = 3 * first.rows.stop  # the second run is twice the first
        assert batch.ready.tolist() == [True] * begun + [False] * (2 * run - begun)
        bench.writer.close()


class TestSequences:
    def test_a_records_sequence_tells_its_job_and_its_place_in_it(self, packed: Bench) -> None:
        packed.writer.sequence_base = 5 << 16
        jobs = [
            replace(packed.user.write_job([number], first_page=2 * number), job_id=JobId(9 - number))
            for number in (0, 1)
        ]
        batch = Batch(jobs, packed.codec)
        for run in packed.writer.runs(batch):
            packed.writer.append(run, packed.files[0])
        packed.writer.drain()
        for number, (_job, outcomes, extents) in enumerate(batch.results()):
            packed.user.remember([number], CopyResult(JobId(0), outcomes, extents))
        assert [header_of(packed.record(name))["sequence"] for name in (0, 1)] == [(5 + 9) << 16, (5 + 8) << 16]
        packed.write([2, 3])
        assert header_of(packed.record(3))["sequence"] & 0xFFFF == 1
