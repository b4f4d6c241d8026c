"""Runs that are staged while others are written: their order, and what is lost behind a write that failed."""

from __future__ import annotations

import errno

import pytest

from tests.record_bench import Bench
from tierstore.codec.base import RawCodec
from tierstore.errors import DiskError
from tierstore.tiers.batch import Batch
from tierstore.types import Outcome

NUM_BLOCKS = 40


@pytest.mark.parametrize("nth", [1, 2, 3])
def test_nothing_staged_behind_a_failed_write_counts_as_written(nth: int) -> None:
    bench = Bench(RawCodec(), block_tokens=512, num_blocks=NUM_BLOCKS)
    chunk = bench.files[0]
    batch = Batch([bench.user.write_job(range(NUM_BLOCKS))], bench.codec)
    ends = []
    bench.disk.fail_call(nth, errno=errno.EIO, only="write")

    def write() -> None:
        for run in bench.writer.runs(batch):
            ends.append(run.rows.stop)
            bench.writer.append(run, chunk)
        bench.writer.drain()

    with pytest.raises(DiskError):
        write()
    bench.writer.close()
    kept = 0 if nth == 1 else ends[nth - 2]
    assert batch.open.tolist() == [False] * kept + [True] * (NUM_BLOCKS - kept)
    assert chunk.end_nbytes == kept * batch.shape.pitch_nbytes
    assert not chunk.room_slots
    batch.end(batch.open, Outcome.IO_ERROR)
    assert {extents.file[kept:].max() for _job, _outcomes, extents in batch.results()} == {-1}
