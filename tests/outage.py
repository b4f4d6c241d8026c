"""What tests of outages do to a simulated SSD, and how they look at it: lose writes, lose reads, probe.

Called by the tests of outages alone; asserts that what it did has had its effect.
"""

from __future__ import annotations

from tierstore.control.mind import Limits
from tierstore.health import Fault, Service
from tierstore.testing.engine_world import EngineWorld, chain
from tierstore.transfer.future import Transfer
from tierstore.types import PAGE_NBYTES, Outcome, ProbeJob

__all__ = [
    "BLOCKS",
    "BROKEN",
    "FULL",
    "STALL_SECONDS",
    "ended",
    "lose_reads",
    "lose_writes",
    "on_ssd",
    "probe",
    "service",
    "why",
]

OK, MISS, REJECTED, CORRUPT, IO_ERROR, CANCELLED = Outcome
BLOCKS = chain("a", 6)
BROKEN = Fault("write x: Input/output error (EIO)")
FULL = Fault("create x: No space left on device (ENOSPC)", full=True)
STALL_SECONDS = 10.0


def service(world: EngineWorld) -> Service:
    with world.engine.planning() as planner:
        return planner.health.service


def why(world: EngineWorld) -> str:
    with world.engine.planning() as planner:
        return planner.health.why


def lose_writes(world: EngineWorld, fault: Fault = BROKEN) -> None:
    """Let one write-back fail."""
    world.put(chain("lost", 1))
    world.store.end()
    world.write.end(outcomes=REJECTED if fault.full else IO_ERROR, fault=fault)
    assert service(world) is Service.WRITES_OFF


def on_ssd(*, read_batch: int = 1) -> EngineWorld:
    """A world whose blocks are on SSD alone, each to be read by a job of its own."""
    world = EngineWorld(limits=Limits(read_batch_nbytes=read_batch * PAGE_NBYTES))
    world.keep_on_ssd(BLOCKS)
    return world


def lose_reads(world: EngineWorld) -> None:
    """Let three reads fail in a row."""
    for number in range(3):
        get = world.get(BLOCKS[number : number + 1])
        world.read.end(outcomes=IO_ERROR, fault=Fault("read x: Input/output error (EIO)"))
        assert get.result(0).outcomes == [IO_ERROR]
    assert service(world) is Service.READS_OFF


def probe(world: EngineWorld, after: float, outcomes: list[Outcome] | None = None, seconds: float = 0.0) -> None:
    """Let the time come at which the next probe is due, and not a moment before, and end it."""
    world.expire_after(after * 0.99)
    assert not any(isinstance(job, ProbeJob) for job in world.write.jobs), "the probe came early"
    world.expire_after(after * 0.01 + 1e-6)
    (job,) = [job for job in world.write.jobs if isinstance(job, ProbeJob)]
    world.write.end(job, outcomes or [OK, OK], seconds=seconds)


def ended(*transfers: Transfer) -> list[list[Outcome]]:
    return [transfer.result(0).outcomes for transfer in transfers]
