"""What a sync has left in doubt on SSD is read from there, and written anew for whoever puts it again."""

from __future__ import annotations

import pytest

from tests.outage import BLOCKS, ended, probe, service
from tierstore.health import Service
from tierstore.metrics import Metric
from tierstore.testing.engine_world import EngineWorld, chain
from tierstore.types import CopyJob, Outcome, Presence, SyncJob

OK, MISS, REJECTED, CORRUPT, IO_ERROR, CANCELLED = Outcome


@pytest.fixture
def world() -> EngineWorld:
    """Blocks in host memory and in file 0 on SSD, which a sync could not make durable; the disk is well again."""
    world = EngineWorld(file_blocks=len(BLOCKS))
    world.put(BLOCKS)
    world.store.end()
    world.write.end()
    fail_sync(world, file=0)
    return world


def fail_sync(world: EngineWorld, *, file: int) -> None:
    flush = world.flush()
    world.write.end(outcomes=IO_ERROR, in_doubt=(file,))
    assert ended(flush) == [[IO_ERROR]]
    probe(world, 0.5)
    assert service(world) is Service.SERVING


def written(world: EngineWorld) -> int:
    """Blocks that the one job in the link writes."""
    (job,) = world.write.jobs
    assert isinstance(job, CopyJob)
    return len(job)


def leave_host(world: EngineWorld) -> None:
    """Push every block out of the host pool."""
    world.keep_in_host(chain("others", 32))
    assert world.num_in_host(BLOCKS) == 0


def test_a_durable_put_writes_anew_what_is_in_doubt(world: EngineWorld) -> None:
    put = world.put(BLOCKS, durable=True)
    assert written(world) == len(BLOCKS)
    world.write.end()
    assert not put.done()
    world.write.end(in_doubt=(0,))
    assert ended(put) == [[OK] * 6]
    world.check_idle()


def test_a_plain_put_offers_anew_what_is_in_doubt(world: EngineWorld) -> None:
    assert world.put(BLOCKS).result(0).ok
    assert written(world) == len(BLOCKS)
    assert world.metrics.value(Metric.SSD_WRITTEN_BLOCKS, "wasted") == len(BLOCKS)
    world.settle()
    world.check_idle()


def test_what_is_in_doubt_is_found_and_read(world: EngineWorld) -> None:
    leave_host(world)
    assert world.presence(BLOCKS) == [Presence.HIT] * 6
    get = world.get(BLOCKS)
    world.settle()
    assert get.result(0).ok


def test_what_was_written_anew_is_in_doubt_no_more(world: EngineWorld) -> None:
    world.put(BLOCKS)
    world.write.end()
    put = world.put(BLOCKS, durable=True)
    (sync,) = world.write.jobs
    assert isinstance(sync, SyncJob)
    world.write.end()
    assert put.result(0).ok


def test_a_durable_put_of_what_is_in_doubt_and_read_just_now_is_refused(world: EngineWorld) -> None:
    leave_host(world)
    get, put = world.get(BLOCKS[:2]), world.put(BLOCKS[:2], durable=True)
    world.settle()
    assert ended(get, put) == [[OK] * 2, [REJECTED] * 2]
    again = world.put(BLOCKS[:2], durable=True)
    assert written(world) == 2
    world.settle()
    assert again.result(0).ok
    world.check_idle()


def test_of_a_write_anew_that_fails_the_host_still_has_the_blocks(world: EngineWorld) -> None:
    put = world.put(BLOCKS, durable=True)
    world.write.end(outcomes=IO_ERROR)
    assert ended(put) == [[IO_ERROR] * 6]
    get = world.get(BLOCKS)
    world.settle()
    assert get.result(0).ok
    world.check_idle()
