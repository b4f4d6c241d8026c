"""How fast the planner thinks: every verb at a million blocks, with links that answer at once.

Run as ``python -m bench.mind --json -``. Nothing moves: jobs are completed as soon as they are planned,
so what is timed is the planner alone, each call of it being one hold of the engine's lock. Puts are
written back to an SSD that never fails, so a block's put counts its store and its write.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from tierstore.benchmark.machine import describe_machine
from tierstore.control.mind import Limits
from tierstore.control.planner import SLICE_BLOCKS, Planner
from tierstore.control.slabs import SLABS_MIN, SlotAllocator
from tierstore.keys import Namespace
from tierstore.layout import KVLayout
from tierstore.metrics import Metrics
from tierstore.policy.admission import AdmitAlways
from tierstore.policy.lru import Lru
from tierstore.types import PAGE_NBYTES, CopyJob, CopyResult, Extents, Generation, Job, Outcome, Plan, TierName

if TYPE_CHECKING:
    from tierstore.control.requests import Request
    from tierstore.types import UInt8Array

T = TypeVar("T")

BATCH = 256
"""Blocks a request: a prompt of 4,096 tokens."""

LOOKUP_BLOCKS = 8192
FILE_BLOCKS = SLAB_BLOCKS = 16384
LIFE = 1


class World:
    """A planner, links that answer at once, and how long each call of the planner took."""

    def __init__(self, num_blocks: int) -> None:
        self.planner = Planner(
            capacity=num_blocks,
            slots=SlotAllocator(pool_nbytes=num_blocks * PAGE_NBYTES, slab_nbytes=SLAB_BLOCKS * PAGE_NBYTES),
            new_policy=Lru,
            admission=AdmitAlways(),
            limits=Limits(),
            metrics=Metrics(),
            reclaim_below_nbytes=0,
        )
        layout = KVLayout.opaque(block_nbytes=PAGE_NBYTES)
        fingerprint = Namespace(model="bench", layout=layout).fingerprint
        self.planner.open_life(Generation(LIFE, fingerprint, 0, layout), PAGE_NBYTES)
        self.holds: list[float] = []
        self._written = 0

    def hold(self, call: Callable[[], T]) -> T:
        """One timed call of the planner."""
        started = time.perf_counter()
        result = call()
        self.holds.append(time.perf_counter() - started)
        return result

    def run(self, open_request: Callable[[], Request | None]) -> None:
        """Open a request and see it and every job of it to the end."""
        request = self.hold(open_request)
        assert request is not None, "too many requests are open"
        while True:
            self._finish(self.hold(lambda: self.planner.step(request, time.monotonic())))
            if request.planned:
                break
        assert request.done, "the request waits for a job that nobody planned"
        assert request.leading() == len(request), f"{request.leading()} of {len(request)} blocks"

    def _finish(self, plan: Plan) -> None:
        jobs = deque(plan.jobs)
        while jobs:
            result = self._result(jobs.popleft())
            jobs.extend(self.hold(partial(self.planner.complete, result, time.monotonic())).jobs)

    def _result(self, job: Job) -> CopyResult:
        assert isinstance(job, CopyJob)
        outcomes = np.full(len(job), Outcome.OK, np.uint8)
        if job.dst is not TierName.SSD:
            return CopyResult(job.job_id, outcomes)
        places = np.arange(self._written, self._written + len(job))
        self._written += len(job)
        columns = ((places % FILE_BLOCKS) * 2, np.full(len(job), PAGE_NBYTES), places)
        extents = Extents((places // FILE_BLOCKS).astype(np.int32), *(column.astype(np.uint32) for column in columns))
        return CopyResult(job.job_id, outcomes, extents, dst_free_nbytes=1 << 50)


def measure(num_blocks: int, seed: int) -> dict[str, object]:
    """Fill a planner with `num_blocks` blocks, or as many as whole slabs hold, then get and look them up.

    Takes about 20 s a million.
    """
    num_blocks = max(SLABS_MIN, -(-num_blocks // SLAB_BLOCKS)) * SLAB_BLOCKS
    generator = np.random.default_rng(seed)
    hashes = generator.integers(0, 256, (num_blocks, 32), dtype=np.uint8)
    nothing = np.zeros((BATCH, 32), np.uint8)
    before_nbytes = resident_nbytes()
    world = World(num_blocks)
    planner = world.planner
    batches = [hashes[first : first + BATCH] for first in range(0, num_blocks - BATCH + 1, BATCH)]

    def seconds(calls: Callable[[], object]) -> float:
        first = len(world.holds)
        calls()
        return sum(world.holds[first:])

    def put_all() -> None:
        for batch in batches:
            world.run(partial(planner.put, LIFE, batch, nothing))

    def get_some() -> None:
        for index in generator.permutation(len(batches))[:1000]:
            world.run(partial(planner.get, LIFE, batches[index]))

    def look_up(keys: UInt8Array) -> None:
        for first in range(0, len(keys), SLICE_BLOCKS):
            piece = keys[first : first + SLICE_BLOCKS]
            leading = world.hold(partial(planner.catalogue.leading, LIFE, piece))
            assert leading == len(piece), "a block is missing"

    def queue(indices: range) -> None:
        for rank in indices:
            world.hold(partial(planner.hint, 0, LIFE, time.monotonic(), added=[(rank, batches[rank])]))

    def serve(indices: range) -> None:
        for rank in indices:
            world.hold(partial(planner.hint, 0, LIFE, time.monotonic(), removed=[rank]))

    put_seconds = seconds(put_all)
    index_nbytes = resident_nbytes() - before_nbytes
    get_seconds = seconds(get_some)
    starts = generator.integers(0, num_blocks - LOOKUP_BLOCKS + 1, 20)
    chained = [seconds(partial(look_up, hashes[start : start + LOOKUP_BLOCKS])) for start in starts]
    random = [seconds(lambda: look_up(hashes[generator.integers(0, num_blocks, LOOKUP_BLOCKS)])) for _ in starts]
    plan_ms = [1e3 * plan_seconds(world, batch) for batch in batches[:: len(batches) // 100]]
    waiting = range(min(256, len(batches)))
    hint_seconds = seconds(lambda: queue(waiting)) + seconds(lambda: serve(waiting))
    planner.check()
    return {
        "num_blocks": num_blocks,
        "put_us_per_block": 1e6 * put_seconds / (len(batches) * BATCH),
        "get_us_per_block": 1e6 * get_seconds / (min(1000, len(batches)) * BATCH),
        "lookup_keys_per_second_chained": LOOKUP_BLOCKS / float(np.median(chained)),
        "lookup_keys_per_second_random": LOOKUP_BLOCKS / float(np.median(random)),
        "hint_us_per_block": 1e6 * hint_seconds / (len(waiting) * BATCH),
        "plan_256_ms": float(np.median(plan_ms)),
        "lock_hold_p99_ms": 1e3 * float(np.percentile(world.holds, 99)),
        "longest_call_ms": 1e3 * max(world.holds),
        "index_nbytes_per_block": index_nbytes / num_blocks,
    }


def plan_seconds(world: World, batch: UInt8Array) -> float:
    """How long the plan of one get takes, from the verb to the jobs."""
    first = len(world.holds)
    world.run(lambda: world.planner.get(LIFE, batch))
    return sum(world.holds[first : first + 2])


def resident_nbytes() -> int:
    """Memory that this process holds."""
    return int(Path("/proc/self/statm").read_text("ascii").split()[1]) * PAGE_NBYTES


def main() -> None:
    """Measure and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=1 << 20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", default="-", help='file to write; "-" is stdout')
    options = parser.parse_args()
    result = measure(options.blocks, options.seed) | {"machine": describe_machine(Path("."))}
    if options.json == "-":
        print(json.dumps(result))
    else:
        Path(options.json).write_text(json.dumps(result, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
