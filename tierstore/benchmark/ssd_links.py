"""The links between the host pool and the SSD: ssd.write and ssd.read, and ssd.get from SSD to the caller.

Called by `tierstore.benchmark.bandwidth`. The limit moves the same blocks, in the same order and as many
a call, to and from one plain file in the same folder. Between writing and reading the store is closed and
opened again, so that what is read was durable and comes from the SSD.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from tierstore.benchmark.caller import PUTS_IN_FLIGHT, Caller
from tierstore.benchmark.limits import LimitFile, drop_page_cache
from tierstore.benchmark.measure import Measurement, Probe
from tierstore.errors import TierstoreError
from tierstore.settings import format_size
from tierstore.store import Store
from tierstore.tiers.host_pool import HostPool
from tierstore.types import PAGE_NBYTES

if TYPE_CHECKING:
    from tierstore.benchmark.plan import BenchmarkPlan
    from tierstore.types import UInt8Array

__all__ = ["measure_ssd_links"]

_READ_NBYTES = 'tierstore_link_bytes_total{link="ssd-read"}'


def measure_ssd_links(plan: BenchmarkPlan, take: Callable[[Probe], Measurement]) -> Iterator[Measurement]:
    """Measure durable puts into a fresh folder, then prefetches and gets of all that was written. Blocks."""
    area_nbytes = plan.batch * plan.slot_nbytes
    with (
        closing(LimitFile(plan.folder, nbytes=plan.num_ssd_calls_max * area_nbytes, threads=plan.read_threads)) as file,
        closing(HostPool(area_nbytes)) as pool,
    ):
        limit = _Limit(file, pool.view.reshape(plan.batch, plan.slot_nbytes))
        with _open_store(plan) as store:
            written = take(_write_probe(plan, Caller(plan, store), limit))
        num_calls = written.num_pairs + 1
        with _open_store(plan) as store:
            caller = Caller(plan, store)
            written.num_wrong += sum(caller.num_wrong_held(call) for call in range(num_calls))
            yield written
            take_cold = partial(_take_cold, store, take)
            read = take_cold(_read_probe(plan, caller, limit, num_calls))
            yield read
            yield take_cold(_get_probe(plan, caller, limit, num_calls, first=read.num_pairs + 1))


def _take_cold(store: Store, take: Callable[[Probe], Measurement], probe: Probe) -> Measurement:
    """Take a probe of reads, and make sure that every block of it did come from the SSD."""
    before = store.metrics()[_READ_NBYTES]
    taken = take(probe)
    came_nbytes = int(store.metrics()[_READ_NBYTES] - before)
    claimed_nbytes = (taken.num_pairs + 1) * probe.call_nbytes
    if came_nbytes < claimed_nbytes:
        raise TierstoreError(
            f"{probe.link} read {format_size(came_nbytes)} of {format_size(claimed_nbytes)} from SSD, the rest was "
            "still in the host pool; use a larger --ssd-size"
        )
    return taken


@dataclass(frozen=True, slots=True)
class _Limit:
    """The plain file and the pool pages it is written from and read into, uint8[batch, slot_nbytes]."""

    file: LimitFile
    rows: UInt8Array

    @property
    def pages(self) -> str:
        return "direct" if self.file.direct else "buffered, cache dropped"

    def write(self, call: int) -> None:
        self.file.write(self.rows, call * self.rows.nbytes)

    def read(self, call: int) -> None:
        self.file.read(self.rows, call * self.rows.nbytes)

    def drop_cache(self) -> None:
        if not self.file.direct:
            drop_page_cache(self.file.path.parent)


def _open_store(plan: BenchmarkPlan) -> Store:
    return Store(
        host_size=plan.ssd_host_nbytes,
        host_slab_size=plan.slab_nbytes,
        host_populate=True,
        ssd_dir=plan.folder / "store",
        ssd_size=plan.ssd_nbytes,
        ssd_file_size=plan.ssd_file_nbytes,
        ssd_read_threads=plan.read_threads,
        codec_name=plan.codec,
        prefetch_inflight=plan.batch * plan.slot_nbytes,
        links_write_inflight=PAGE_NBYTES,  # so that blocks put to make room stay off the SSD; durable puts do not ask
    )


def _write_probe(plan: BenchmarkPlan, caller: Caller, limit: _Limit) -> Probe:
    limit.rows[:] = 0
    caller.fill(0)
    limit.rows[:, : plan.block_nbytes] = caller.buffer
    return Probe(
        link="ssd.write",
        threads=1,
        pages=f"buffer to file, {limit.pages}, synced, {PUTS_IN_FLIGHT} puts in flight",
        limit_name="pwritev and fdatasync",
        call_nbytes=plan.call_nbytes,
        num_pairs_min=plan.num_ssd_calls_min,
        num_pairs_max=plan.num_ssd_calls_max,
        prepare=caller.fill,
        limit=limit.write,
        product=caller.put_durable,
        num_wrong=lambda _: 0,  # all of it is read back once the store has been opened again
    )


def _read_probe(plan: BenchmarkPlan, caller: Caller, limit: _Limit, num_calls: int) -> Probe:
    def prepare(call: int) -> None:
        caller.make_room()
        caller.poison(call % num_calls)
        limit.drop_cache()

    return Probe(
        link="ssd.read",
        threads=plan.read_threads,
        pages=f"file to memfd, {limit.pages}",
        limit_name="preadv",
        call_nbytes=plan.call_nbytes,
        prepare=prepare,
        limit=lambda call: limit.read(call % num_calls),
        product=lambda call: caller.prefetch(call % num_calls),
        num_wrong=lambda call: caller.num_wrong_held(call % num_calls),
    )


def _get_probe(plan: BenchmarkPlan, caller: Caller, limit: _Limit, num_calls: int, first: int) -> Probe:
    """The same from SSD to the caller's buffer, going on where the prefetches ended, at blocks not in the pool."""
    probe = _read_probe(plan, caller, limit, num_calls)
    return replace(
        probe,
        link="ssd.get",
        pages=f"file to buffer, {limit.pages}",
        prepare=lambda call: probe.prepare(first + call),
        limit=lambda call: probe.limit(first + call),
        product=lambda call: caller.get((first + call) % num_calls),
        num_wrong=lambda call: caller.num_wrong((first + call) % num_calls),
    )
