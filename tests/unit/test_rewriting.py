"""Records that are written again before their file goes: verified as a read does, and appended as they are."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from tests.record_bench import CREATED_NS, Bench, header_of
from tierstore.codec.base import RawCodec
from tierstore.codec.lz4 import Lz4Codec
from tierstore.tiers.batch import Batch
from tierstore.tiers.record import HEADER
from tierstore.types import PAGE_NBYTES, Extents, Outcome

OK, REJECTED, CORRUPT, IO_ERROR = Outcome.OK, Outcome.REJECTED, Outcome.CORRUPT, Outcome.IO_ERROR


@pytest.fixture(params=[RawCodec(), Lz4Codec()], ids=["raw", "lz4"])
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    bench = Bench(request.param)
    yield bench
    bench.writer.close()


def test_a_rewritten_record_differs_in_its_place_alone(bench: Bench) -> None:
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


def test_a_record_that_does_not_verify_is_not_rewritten(bench: Bench) -> None:
    bench.write(range(5))
    places = [bench.user.where[name] for name in range(5)]
    bench.flip(1, 45)
    bench.flip(3, PAGE_NBYTES + 100)
    assert bench.rewrite(range(5)) == [OK, CORRUPT, OK, CORRUPT, OK]
    assert [bench.user.where[name] == places[name] for name in range(5)] == [False, True, False, True, False]
    assert bench.check([0, 2, 4]) == [OK] * 3
    assert bench.files[1].next_slot == 3


def test_a_record_under_another_identity_is_not_rewritten(bench: Bench) -> None:
    bench.write(range(2))
    bench.user.where[0], bench.user.where[1] = bench.user.where[1], bench.user.where[0]
    assert bench.rewrite(range(2)) == [CORRUPT] * 2
    assert bench.files[1].next_slot == 0


def test_what_cannot_be_read_is_not_rewritten(bench: Bench) -> None:
    bench.write(range(4))
    file, page, nbytes, checksum = bench.user.where[0]
    bench.user.where[0] = (file + 7, page, nbytes, checksum)
    bench.disk.fail_call(1, errno=errno.EIO, only="read")
    bench.disk.fail_call(3, errno=errno.EIO, only="read")
    assert bench.rewrite(range(4)) == [IO_ERROR, OK, IO_ERROR, OK]


def test_what_finds_no_room_is_rejected(bench: Bench) -> None:
    bench.write(range(4))
    bench.files[1].slots = 3
    assert bench.rewrite(range(4)) == [OK, OK, OK, REJECTED]
    assert bench.check(range(4)) == [OK] * 4


def test_neighbours_are_read_and_written_in_one_call(bench: Bench) -> None:
    bench.write(range(20))
    calls = bench.disk.calls_of("read"), bench.disk.calls_of("write")
    assert bench.rewrite(range(20)) == [OK] * 20
    assert (bench.disk.calls_of("read") - calls[0], bench.disk.calls_of("write") - calls[1]) == (1, 1)


def test_jobs_of_different_tiers_are_no_batch(bench: Bench) -> None:
    bench.write(range(2))
    with pytest.raises(AssertionError, match="same tier"):
        Batch([bench.user.write_job([5]), bench.user.read_job([0, 1])], bench.codec)


def test_a_batch_from_ssd_keeps_its_extents_in_order(bench: Bench) -> None:
    bench.write(range(6))
    jobs = [bench.user.read_job([5, 0]), bench.user.read_job([3])]
    batch = Batch(jobs, bench.codec)
    assert isinstance(batch.src, Extents)
    assert batch.src.page.tolist() == [bench.user.where[name][1] for name in (5, 0, 3)]
    assert [row.tobytes() for row in batch.hashes] == [bench.user.block_hash(name) for name in (5, 0, 3)]
