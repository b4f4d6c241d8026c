"""Records of any length: encoded ahead, appended, read back, and written again as they are."""

from __future__ import annotations

import errno
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from typing import cast

import numpy as np
import pytest
from crc32c import crc32c
from numcodecs import LZ4, Shuffle

from tests.gaussian import GaussianUser, namespace
from tierstore.codec.base import Codec, RawCodec
from tierstore.codec.lz4 import Lz4Codec
from tierstore.testing.sim_disk import SimDisk
from tierstore.tiers.base import Tier
from tierstore.tiers.batch import Batch
from tierstore.tiers.chunkfile import ChunkFile, ChunkName
from tierstore.tiers.frame import Pool, aligned_buffer
from tierstore.tiers.reading import RecordReader
from tierstore.tiers.record import HEADER, valid_headers
from tierstore.tiers.writing import RecordWriter
from tierstore.types import PAGE_NBYTES, CopyJob, CopyResult, Extents, Generation, JobId, Outcome, TierName

OK, REJECTED, CORRUPT, IO_ERROR = Outcome.OK, Outcome.REJECTED, Outcome.CORRUPT, Outcome.IO_ERROR
BLOCK_NBYTES = 8192
CREATED_NS = 1_700_000_000_000_000_000


class Bench:
    """A writer and a reader over two chunk files, and a user of 8 KiB blocks or longer ones."""

    def __init__(self, codec: Codec, *, block_tokens: int = 16, num_blocks: int = 40) -> None:
        self.file_nbytes = 2 * num_blocks * block_tokens * 512
        self.disk = SimDisk()
        self.pool = aligned_buffer((num_blocks + 2) * block_tokens * 512)
        self.files = {number: self.file(number) for number in range(2)}
        self.clock_ns = CREATED_NS
        self.writer = RecordWriter(Pool(self.pool), codec, self.files, lambda: self.clock_ns)
        self.reader = RecordReader(Pool(self.pool), codec)
        self.space = namespace(block_tokens)
        self.user = GaussianUser(self.pool, Generation(0, self.space.fingerprint, 3, self.space.layout))

    def file(self, number: int) -> ChunkFile:
        name = ChunkName("array", number, bytes([1 + number]) * 16)
        file = self.disk.create(name.path, self.file_nbytes)
        chunk = ChunkFile(number, name, file, nbytes=self.file_nbytes, slots=60)
        chunk.begin()
        return chunk

    def append(self, job: CopyJob, to: int = 0) -> CopyResult:
        """Append a job to one file as the tier does; what does not fit is REJECTED."""
        batch = Batch([job])
        with closing(self.writer.runs(batch)) as runs:
            for run in runs:
                while len(run.left) and run.fitting(self.files[to]):
                    self.writer.append(run, self.files[to])
        batch.end(batch.open, REJECTED)
        ((_job, outcomes, extents),) = batch.results()
        return CopyResult(job.job_id, outcomes, extents)

    def write(self, names: Sequence[int], to: int = 0) -> list[Outcome]:
        """Write blocks and remember where they are."""
        result = self.append(self.user.write_job(names), to)
        self.user.remember(names, result)
        return [Outcome(outcome) for outcome in result.outcomes]

    def rewrite(self, names: Sequence[int]) -> list[Outcome]:
        """Write known blocks again, into the other file, and remember where they are then."""
        job = replace(self.user.read_job(names), dst=TierName.SSD, dst_locations=None, job_id=JobId(77))
        result = self.append(job, to=1)
        self.user.remember(names, result)
        return [Outcome(outcome) for outcome in result.outcomes]

    def read(self, job: CopyJob) -> CopyResult:
        """Read as the tier does."""
        return CopyResult(job.job_id, self.reader.read(job, self.files))

    def check(self, names: Sequence[int]) -> list[Outcome]:
        """Read known blocks; the user compares every byte."""
        return self.user.read(cast(Tier, self), names)

    def record(self, name: int) -> bytes:
        """A block's record on disk, from its header page to where the next one may begin."""
        file, page, nbytes, _ = self.user.where[name]
        num_pages = 1 - -(nbytes + 4) // PAGE_NBYTES
        return self.disk.contents(self.files[file].name.path)[page * PAGE_NBYTES :][: num_pages * PAGE_NBYTES]

    def flip(self, name: int, byte: int) -> None:
        """Flip a bit of a block's record."""
        file, page, *_ = self.user.where[name]
        self.disk.flip(self.files[file].name.path, 8 * (page * PAGE_NBYTES + byte))


@pytest.fixture(params=[RawCodec(), Lz4Codec()], ids=["raw", "lz4"])
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    bench = Bench(request.param)
    yield bench
    bench.writer.close()


@pytest.fixture
def packed() -> Iterator[Bench]:
    bench = Bench(Lz4Codec())
    yield bench
    bench.writer.close()


def header_of(record: bytes) -> np.void:
    """A record's header, which must be valid."""
    headers = np.frombuffer(record[:PAGE_NBYTES], dtype=HEADER)
    assert valid_headers(headers).all()
    header: np.void = headers[0]
    return header


class TestEncodedRecords:
    def test_a_record_is_its_header_the_encoded_bytes_their_checksum_and_zeros(self, packed: Bench) -> None:
        packed.write(range(9))
        for name in range(9):
            encoded = bytes(LZ4().encode(Shuffle(2).encode(packed.user.payload(name))))
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
        packed.reader = RecordReader(Pool(packed.pool), _Other())
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
        bench = Bench(Lz4Codec(), block_tokens=512, num_blocks=72)
        batch = Batch([bench.user.write_job(range(72))])
        runs = bench.writer.runs(batch)
        first = next(runs)
        runs.close()
        begun = first.rows.stop + 31
        assert batch.ready.tolist() == [True] * begun + [False] * (72 - begun)
        bench.writer.close()


class TestSequences:
    def test_a_records_sequence_tells_its_job_and_its_place_in_it(self, bench: Bench) -> None:
        bench.writer.sequence_base = 5 << 16
        jobs = [
            replace(bench.user.write_job([number], first_page=2 * number), job_id=JobId(9 - number))
            for number in (0, 1)
        ]
        batch = Batch(jobs)
        for run in bench.writer.runs(batch):
            bench.writer.append(run, bench.files[0])
        for number, (_job, outcomes, extents) in enumerate(batch.results()):
            bench.user.remember([number], CopyResult(JobId(0), outcomes, extents))
        assert [header_of(bench.record(name))["sequence"] for name in (0, 1)] == [(5 + 9) << 16, (5 + 8) << 16]
        bench.write([2, 3])
        assert header_of(bench.record(3))["sequence"] & 0xFFFF == 1


class TestRewriting:
    def test_a_rewritten_record_differs_in_its_place_alone(self, bench: Bench) -> None:
        parents = np.arange(32 * 10, dtype=np.uint32).astype(np.uint8).reshape(10, 32)
        bench.user.remember(range(10), bench.append(replace(bench.user.write_job(range(10)), parents=parents)))
        old = [bench.record(name) for name in range(10)]
        bench.write([50, 51, 52, 53, 54], to=1)
        bench.clock_ns += 1
        assert bench.rewrite([9, 2, 3, 4]) == [OK] * 4
        for place, name in enumerate([9, 2, 3, 4], 5):
            record = bench.record(name)
            header, header_before = header_of(record), header_of(old[name])
            assert record[PAGE_NBYTES:] == old[name][PAGE_NBYTES:]
            assert {field for field in HEADER.names or () if np.any(header[field] != header_before[field])} == {
                "slot", "sequence", "file_uuid", "header_checksum",
            }  # fmt: skip
            assert (header["slot"], header["sequence"]) == (place, (77 << 16) + place - 5)
            assert header["parent_hash"].tobytes() == parents[name].tobytes()
            assert header["created_ns"] == CREATED_NS
        assert bench.check([2, 3, 4, 9, 0, 50]) == [OK] * 6

    def test_a_record_that_does_not_verify_is_not_rewritten(self, bench: Bench) -> None:
        bench.write(range(5))
        places = [bench.user.where[name] for name in range(5)]
        bench.flip(1, 45)
        bench.flip(3, PAGE_NBYTES + 100)
        assert bench.rewrite(range(5)) == [OK, CORRUPT, OK, CORRUPT, OK]
        assert [bench.user.where[name] == places[name] for name in range(5)] == [False, True, False, True, False]
        assert bench.check([0, 2, 4]) == [OK] * 3
        assert bench.files[1].next_slot == 3

    def test_a_record_under_another_identity_is_not_rewritten(self, bench: Bench) -> None:
        bench.write(range(2))
        bench.user.where[0], bench.user.where[1] = bench.user.where[1], bench.user.where[0]
        assert bench.rewrite(range(2)) == [CORRUPT] * 2
        assert bench.files[1].next_slot == 0

    def test_what_cannot_be_read_is_not_rewritten(self, bench: Bench) -> None:
        bench.write(range(4))
        file, page, nbytes, checksum = bench.user.where[0]
        bench.user.where[0] = (file + 7, page, nbytes, checksum)
        bench.disk.fail_call(1, errno=errno.EIO, only="read")
        bench.disk.fail_call(3, errno=errno.EIO, only="read")
        assert bench.rewrite(range(4)) == [IO_ERROR, OK, IO_ERROR, OK]

    def test_what_finds_no_room_is_rejected(self, bench: Bench) -> None:
        bench.write(range(4))
        bench.files[1].slots = 3
        assert bench.rewrite(range(4)) == [OK, OK, OK, REJECTED]
        assert bench.check(range(4)) == [OK] * 4

    def test_neighbours_are_read_and_written_in_one_call(self, bench: Bench) -> None:
        bench.write(range(20))
        calls = bench.disk.calls_of("read"), bench.disk.calls_of("write")
        assert bench.rewrite(range(20)) == [OK] * 20
        assert (bench.disk.calls_of("read") - calls[0], bench.disk.calls_of("write") - calls[1]) == (1, 1)


def test_jobs_of_different_tiers_are_no_batch(bench: Bench) -> None:
    bench.write(range(2))
    with pytest.raises(AssertionError, match="same tier"):
        Batch([bench.user.write_job([5]), bench.user.read_job([0, 1])])


def test_a_batch_from_ssd_keeps_its_extents_in_order(bench: Bench) -> None:
    bench.write(range(6))
    jobs = [bench.user.read_job([5, 0]), bench.user.read_job([3])]
    batch = Batch(jobs)
    assert isinstance(batch.src, Extents)
    assert batch.src.page.tolist() == [bench.user.where[name][1] for name in (5, 0, 3)]
    assert [row.tobytes() for row in batch.hashes] == [bench.user.block_hash(name) for name in (5, 0, 3)]
