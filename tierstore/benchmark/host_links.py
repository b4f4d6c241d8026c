"""The links between the caller's memory and the host pool: host.put and host.get.

Called by `tierstore.benchmark.bandwidth`. The limit copies the same rows between the same kinds of pages
(an ordinary buffer, a pool of its own) with the fastest primitive there is, in one thread like the store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import TYPE_CHECKING

import numpy as np

from tierstore.benchmark.caller import Caller
from tierstore.benchmark.limits import copy_ways, fastest_copy
from tierstore.benchmark.measure import Measurement, Probe
from tierstore.store import Store
from tierstore.tiers.host_pool import HostPool

if TYPE_CHECKING:
    from tierstore.benchmark.plan import BenchmarkPlan
    from tierstore.types import UInt8Array

__all__ = ["measure_host_links"]

_COLD_NBYTES = 128 << 20
"""Read between filling a buffer and copying it: more than a core's last cache holds."""

_FIRST_GET = 1 << 32
"""Calls from here on are those that the gets put beforehand: no put that is measured reaches it."""


def measure_host_links(plan: BenchmarkPlan, take: Callable[[Probe], Measurement]) -> Iterator[Measurement]:
    """Measure puts into a pool that is full, then gets of blocks that it holds. Blocks."""
    with (
        Store(host_size=plan.host_nbytes, host_slab_size=plan.slab_nbytes, host_populate=True, ssd_size=0) as store,
        closing(HostPool(plan.host_nbytes)) as pool,
    ):
        pool.populate(0, plan.host_nbytes)
        caller = Caller(plan, store)
        num_areas = plan.host_nbytes // (plan.batch * plan.slot_nbytes)
        areas = pool.view[: num_areas * plan.batch * plan.slot_nbytes].reshape(num_areas, plan.batch, plan.slot_nbytes)
        areas = areas[:, :, : plan.block_nbytes]
        scratch = np.ones(_COLD_NBYTES, np.uint8)
        ways = copy_ways()
        into_name, into_pool = fastest_copy(ways, dst=areas[0], src=caller.buffer)
        out_name, out_of_pool = fastest_copy(ways, dst=caller.buffer, src=areas[0])
        yield take(
            Probe(
                link="host.put",
                threads=1,
                pages="buffer to memfd",
                limit_name=into_name,
                call_nbytes=plan.call_nbytes,
                prepare=lambda call: _cooled(caller.fill, call, scratch),
                limit=lambda call: into_pool(areas[call % num_areas], caller.buffer),
                product=caller.put,
                num_wrong=caller.num_wrong_held,
            )
        )
        num_held = max(1, num_areas // 2)
        for call in range(_FIRST_GET, _FIRST_GET + num_held):
            caller.fill(call)
            caller.put(call)
        yield take(
            Probe(
                link="host.get",
                threads=1,
                pages="memfd to buffer",
                limit_name=out_name,
                call_nbytes=plan.call_nbytes,
                prepare=lambda call: _cooled(caller.poison, _FIRST_GET + call % num_held, scratch),
                limit=lambda call: out_of_pool(caller.buffer, areas[call % num_areas]),
                product=lambda call: caller.get(_FIRST_GET + call % num_held),
                num_wrong=lambda call: caller.num_wrong(_FIRST_GET + call % num_held),
            )
        )


def _cooled(make_ready: Callable[[int], None], call: int, scratch: UInt8Array) -> None:
    """Make a call ready, then push its buffer out of the caches of the core that did.

    An engine's blocks come from elsewhere. Left in these caches they would be near for the limit, which runs on
    this core, and far for the store's stream, which may run on another.
    """
    make_ready(call)
    np.add.reduce(scratch)
