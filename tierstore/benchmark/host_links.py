"""The links between the caller's memory and the host pool: host.put and host.get.

Called by `tierstore.benchmark.bandwidth`. The limit copies the same rows between the same pages (the caller's
buffer, the store's own slots) with the fastest primitive there is, in one thread like the store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from tierstore.benchmark.caller import Caller
from tierstore.benchmark.limits import copy_ways, fastest_copy
from tierstore.benchmark.measure import Measurement, Probe
from tierstore.store import Store

if TYPE_CHECKING:
    from tierstore.benchmark.limits import Copy
    from tierstore.benchmark.plan import BenchmarkPlan
    from tierstore.types import UInt8Array

__all__ = ["measure_host_links"]

_COLD_NBYTES = 128 << 20
"""Read between filling a buffer and copying it: more than a core's last cache holds."""

_FIRST_GET = 1 << 32
"""Calls from here on are those that the gets put beforehand: no put that is measured reaches it."""


def measure_host_links(plan: BenchmarkPlan, take: Callable[[Probe], Measurement]) -> Iterator[Measurement]:
    """Measure puts into a pool that is full, then gets of blocks that it holds. Blocks."""
    with Store(
        host_size=plan.host_nbytes,
        host_slab_size=plan.slab_nbytes,
        host_populate=True,
        ssd_size=0,
        policy_name="lru",  # by whose order the calls know what the pool still holds
    ) as store:
        caller = Caller(plan, store)
        limit = _Limit(caller)
        scratch = np.ones(_COLD_NBYTES, np.uint8)
        ways = copy_ways()
        area = store.pool.view[: plan.batch * plan.slot_nbytes].reshape(plan.batch, -1)[:, : plan.block_nbytes]
        into_name, into_pool = fastest_copy(ways, dst=area, src=caller.buffer)
        out_name, out_of_pool = fastest_copy(ways, dst=caller.buffer, src=area)

        def prepare_put(call: int) -> None:
            limit.slots = caller.make_room()
            caller.fill(call)
            _cool(scratch)

        yield take(
            Probe(
                link="host.put",
                threads=1,
                pages="buffer to pool",
                limit_name=into_name,
                call_nbytes=plan.call_nbytes,
                prepare=prepare_put,
                limit=lambda _: limit.put(into_pool),
                product=caller.put,
                num_wrong=caller.num_wrong_held,
            )
        )
        num_held = max(1, plan.host_nbytes // (plan.batch * plan.slot_nbytes) // 2)
        for call in range(_FIRST_GET, _FIRST_GET + num_held):
            caller.fill(call)
            caller.put(call)

        def prepare_get(call: int) -> None:
            caller.poison(_FIRST_GET + call % num_held)
            limit.slots = caller.slots()
            _cool(scratch)

        yield take(
            Probe(
                link="host.get",
                threads=1,
                pages="pool to buffer",
                limit_name=out_name,
                call_nbytes=plan.call_nbytes,
                prepare=prepare_get,
                limit=lambda _: limit.get(out_of_pool),
                product=lambda call: caller.get(_FIRST_GET + call % num_held),
                num_wrong=lambda call: caller.num_wrong(_FIRST_GET + call % num_held),
            )
        )


class _Limit:
    """Plain copies between the caller's buffer and the slots that the next call uses; see `Caller.slots`."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self.slots: list[UInt8Array] = []

    def put(self, copy: Copy) -> None:
        for in_pool, rows in self._runs():
            copy(in_pool, rows)

    def get(self, copy: Copy) -> None:
        for in_pool, rows in self._runs():
            copy(rows, in_pool)

    def _runs(self) -> Iterator[tuple[UInt8Array, UInt8Array]]:
        buffer, first = self._caller.buffer, 0
        for run in self.slots:
            yield run[:, : buffer.shape[1]], buffer[first : first + len(run)]
            first += len(run)


def _cool(scratch: UInt8Array) -> None:
    """Push a buffer out of the caches of the core that made it ready.

    An engine's blocks come from elsewhere. Left in these caches they would be near for the limit, which runs on
    this core, and far for the store's stream, which may run on another.
    """
    np.add.reduce(scratch)
