"""Measures how a service moves bytes: in place in the mapped pool, and in streams.

The limit of a local get copies the same bytes between pages of the same kind, with the fastest primitive, in as many
threads as there are clients. The limit of a local put also computes the blocks' checksums, as every put does. The
limit of a stream moves as many bytes from the same buffers into a bare server's memory, or back into the buffers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING

import crc32c

from tierstore.benchmark.crew import Crew, together
from tierstore.benchmark.limits import copy_ways, fastest_copy
from tierstore.benchmark.measure import Measurement, Probe
from tierstore.tiers.host_pool import HostPool
from tierstore.worker import Worker

if TYPE_CHECKING:
    from tierstore.benchmark.serve_plan import ServePlan
    from tierstore.benchmark.serve_processes import Served
    from tierstore.service.bare import BareClient
    from tierstore.types import UInt8Array

__all__ = ["measure_local", "measure_streams"]

_FIRST_GET = 1 << 20
"""Calls from here on are those that the gets put beforehand."""


def measure_local(plan: ServePlan, served: Served, take: Callable[[Probe], Measurement]) -> Iterator[Measurement]:
    """Measure puts and gets in place. Blocks."""
    with closing(Crew(plan, served.address, attach=True, room=0)) as crew, closing(_Copies(plan, crew)) as copies:
        pages = "buffers to mapped pool", "mapped pool to buffers"
        names = f"{copies.into_name} and CRC32C", copies.out_name
        yield from _measure(plan, crew, take, "local", limits=(copies.put, copies.get), names=names, pages=pages)


def measure_streams(plan: ServePlan, served: Served, take: Callable[[Probe], Measurement]) -> Iterator[Measurement]:
    """Measure puts and gets in streams. Blocks."""
    with (
        closing(Crew(plan, served.address, attach=False, room=1)) as crew,
        closing(_Streams(crew, served.bare)) as streams,
    ):
        limits = streams.upload, streams.download
        pages = "buffers to socket", "socket to buffers"
        yield from _measure(
            plan, crew, take, "stream", limits=limits, names=("bare stream", "bare stream"), pages=pages
        )


def _measure(
    plan: ServePlan,
    crew: Crew,
    take: Callable[[Probe], Measurement],
    way: str,
    *,
    limits: tuple[Callable[[int], None], Callable[[int], None]],
    names: tuple[str, str],
    pages: tuple[str, str],
) -> Iterator[Measurement]:
    yield take(
        Probe(
            link=f"{way}.put",
            threads=plan.clients,
            pages=pages[0],
            limit_name=names[0],
            call_nbytes=plan.clients * plan.call_nbytes,
            num_pairs_min=8,
            prepare=lambda call: crew.all(lambda member: member.fill(call)),
            limit=limits[0],
            product=crew.put,
            num_wrong=crew.num_wrong_held,
        )
    )
    held = range(_FIRST_GET, _FIRST_GET + plan.num_held_calls)
    for call in held:
        crew.all(lambda member, call=call: member.fill(call))  # type: ignore[misc]
        crew.put(call)
    yield take(
        Probe(
            link=f"{way}.get",
            threads=plan.clients,
            pages=pages[1],
            limit_name=names[1],
            call_nbytes=plan.clients * plan.call_nbytes,
            num_pairs_min=8,
            prepare=lambda call: crew.all(lambda member: member.poison(held[call % len(held)])),
            limit=limits[1],
            product=lambda call: crew.get(held[call % len(held)]),
            num_wrong=lambda call: crew.num_wrong(held[call % len(held)]),
        )
    )


class _Copies:
    """The limit: plain copies between the members' buffers and a pool like the service's."""

    def __init__(self, plan: ServePlan, crew: Crew) -> None:
        self._buffers = [member.buffer for member in crew.members]
        self._block_nbytes = plan.layout.block_nbytes
        self._worker = Worker("bench-limit", capacity=plan.clients, threads=plan.clients)
        area_nbytes = plan.batch * plan.slot_nbytes
        self._areas_each = min(plan.num_held_calls, 4)
        self._pool = HostPool(plan.clients * self._areas_each * area_nbytes, shared=True)
        self._pool.populate(0, self._pool.nbytes)
        areas = self._pool.view.reshape(plan.clients, self._areas_each, plan.batch, plan.slot_nbytes)
        self._areas = areas[..., : self._block_nbytes]
        ways = copy_ways()
        self.into_name, self._into = fastest_copy(ways, dst=self._areas[0, 0], src=self._buffers[0])
        self.out_name, self._out = fastest_copy(ways, dst=self._buffers[0], src=self._areas[0, 0])

    def put(self, call: int) -> None:
        """Copy every buffer in, and compute the checksum of each block where it lies then."""

        def put(index: int) -> None:
            area = self._areas[index, call % self._areas_each]
            self._into(area, self._buffers[index])
            for row in area:
                crc32c.crc32c(row.data)

        self._each(put)

    def get(self, call: int) -> None:
        """Copy as many bytes out."""
        self._each(lambda index: self._out(self._buffers[index], self._area(index, call)))

    def _area(self, index: int, call: int) -> UInt8Array:
        area: UInt8Array = self._areas[index, call % self._areas_each]
        return area

    def _each(self, copy: Callable[[int], None]) -> None:
        together([partial(copy, index) for index in range(len(self._buffers))], self._worker)

    def close(self) -> None:
        """Let go of the memory and the threads."""
        self._worker.close()
        del self._areas
        self._pool.close()


class _Streams:
    """The limit: bare streams, as many as there are clients."""

    def __init__(self, crew: Crew, bare: BareClient) -> None:
        self._buffers = [member.buffer.reshape(-1) for member in crew.members]
        self._bare = bare
        self._worker = Worker("bench-bare", capacity=len(self._buffers), threads=len(self._buffers))

    def upload(self, _call: int) -> None:
        """Every buffer to the server."""
        together([partial(self._bare.upload, buffer) for buffer in self._buffers], self._worker)

    def download(self, _call: int) -> None:
        """Every buffer from the server."""
        together([partial(self._bare.download, buffer) for buffer in self._buffers], self._worker)

    def close(self) -> None:
        """End the threads."""
        self._worker.close()
