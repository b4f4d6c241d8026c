"""Measures the links between host pool and SSD (ssd.write, ssd.read), and whole durable puts and gets from SSD.

Called by `tierstore.benchmark.bandwidth`. The limit moves as many bytes a call in the same order, between the same
slots that the store uses and one plain file in the same folder: the speed of direct I/O depends on how the kernel
has laid out the pool's pages, which differs in every pool. Between writing and reading the store is closed and
opened again, so that the blocks read were durable and come from the SSD.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from tierstore.benchmark.caller import PUTS_IN_FLIGHT, Caller
from tierstore.benchmark.limits import LimitFile, drop_page_cache
from tierstore.benchmark.measure import Measurement, Probe
from tierstore.errors import TierstoreError
from tierstore.settings import format_size
from tierstore.store import Store
from tierstore.types import PAGE_NBYTES

if TYPE_CHECKING:
    from tierstore.benchmark.plan import BenchmarkPlan
    from tierstore.types import UInt8Array

__all__ = ["measure_ssd_links"]

_READ_NBYTES = 'tierstore_link_bytes_total{link="ssd-read"}'


def measure_ssd_links(plan: BenchmarkPlan, take: Callable[[Probe], Measurement]) -> Iterator[Measurement]:
    """Measure writes into a fresh folder, then reads of all that was written. Blocks."""
    half = plan.num_ssd_calls_max // 2
    file_nbytes = plan.num_ssd_calls_max * plan.batch * plan.slot_nbytes
    with closing(LimitFile(plan.folder, nbytes=file_nbytes, threads=plan.read_threads)) as file:
        limit = _Limit(file)
        with _open_store(plan) as store:
            caller = Caller(plan, store)
            writes = take(_write_probe(plan, caller, limit, num_calls_max=half))
            first_put = writes.num_pairs + 1
            puts = take(_put_probe(plan, caller, limit, first=first_put, num_calls_max=half))
        num_calls = first_put + puts.num_pairs + 1
        with _open_store(plan) as store:
            caller = Caller(plan, store)
            wrong = [caller.num_wrong_held(call) for call in range(num_calls)]
            writes.num_wrong += sum(wrong[:first_put])
            puts.num_wrong += sum(wrong[first_put:])
            yield writes
            take_cold = partial(_take_cold, store, take)
            reads = take_cold(_read_probe(plan, caller, limit, num_calls))
            yield reads
            yield puts
            yield take_cold(_get_probe(plan, caller, limit, num_calls, first=reads.num_pairs + 1))


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


@dataclass(slots=True)
class _Limit:
    """The plain file, and the store's slots that the next call uses; see `Caller.slots`."""

    file: LimitFile
    slots: list[UInt8Array] = field(default_factory=list)

    @property
    def pages(self) -> str:
        return "direct" if self.file.direct else "buffered, cache dropped"

    def write(self, call: int) -> None:
        self.file.write(self.slots, self._offset(call))

    def read(self, call: int) -> None:
        self.file.read(self.slots, self._offset(call))

    def _offset(self, call: int) -> int:
        return call * sum(run.nbytes for run in self.slots)

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
        policy_name="lru",  # by whose order the calls know what the pool still holds
        prefetch_inflight=plan.batch * plan.slot_nbytes,
        links_write_inflight=PAGE_NBYTES,  # so that blocks put to make room stay off the SSD; durable puts do not ask
    )


def _write_probe(plan: BenchmarkPlan, caller: Caller, limit: _Limit, num_calls_max: int) -> Probe:
    """From slots to the SSD: the blocks are in the pool before the clock runs, and the puts copy nothing."""

    def prepare(call: int) -> None:
        caller.fill(call)
        caller.put(call)
        limit.slots = caller.slots()

    return Probe(
        link="ssd.write",
        threads=1,
        pages=f"pool to file, {limit.pages}, synced",
        limit_name="pwritev and fdatasync",
        call_nbytes=plan.call_nbytes,
        num_pairs_min=plan.num_ssd_calls_min // 2,
        num_pairs_max=num_calls_max,
        prepare=prepare,
        limit=limit.write,
        product=partial(caller.put_durable, puts=1),
        num_wrong=lambda _: 0,  # all of it is read back once the store has been opened again
    )


def _put_probe(plan: BenchmarkPlan, caller: Caller, limit: _Limit, first: int, num_calls_max: int) -> Probe:
    """The same from the caller's buffer, the copy into the pool included."""

    def settle(_: int) -> int:
        limit.slots = caller.slots()  # the next call's limit writes from where this one's blocks lie
        return 0

    return replace(
        _write_probe(plan, caller, limit, num_calls_max),
        link="ssd.put",
        pages=f"buffer to file, {limit.pages}, synced, {PUTS_IN_FLIGHT} puts in flight",
        prepare=lambda call: caller.fill(first + call),
        limit=lambda call: limit.write(first + call),
        product=lambda call: caller.put_durable(first + call, PUTS_IN_FLIGHT),
        num_wrong=settle,
    )


def _read_probe(plan: BenchmarkPlan, caller: Caller, limit: _Limit, num_calls: int) -> Probe:
    def prepare(call: int) -> None:
        limit.slots = caller.make_room()
        caller.poison(call % num_calls)
        limit.drop_cache()

    return Probe(
        link="ssd.read",
        threads=plan.read_threads,
        pages=f"file to pool, {limit.pages}",
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
