"""Measures calls without block bytes: leases and look-ups, each beside a bare call with as many bytes both ways."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from tierstore.benchmark.measure import Measurement, Probe
from tierstore.benchmark.payload import Payload
from tierstore.client import Client
from tierstore.errors import TierstoreError
from tierstore.keys import Namespace
from tierstore.layout import KVLayout
from tierstore.service.client.raw import RawCalls
from tierstore.types import PAGE_NBYTES

if TYPE_CHECKING:
    from tierstore.benchmark.serve_plan import ServePlan
    from tierstore.benchmark.serve_processes import Served

__all__ = ["ACQUIRED_BLOCKS", "LOOKED_UP_BLOCKS", "measure_control"]

ACQUIRED_BLOCKS = 256
LOOKED_UP_BLOCKS = 8192
_PUT_BLOCKS = 4096
_TIMEOUT_SECONDS = 120.0
_TRIES = 64


def measure_control(plan: ServePlan, served: Served, take: Callable[[Probe], Measurement]) -> Iterator[Measurement]:
    """Measure the calls over small blocks, many of them. Blocks."""
    layout = KVLayout.opaque(block_nbytes=PAGE_NBYTES)
    namespace = Namespace(model="benchmark of calls", layout=layout)
    with Client(served.address, connect_seconds=_TIMEOUT_SECONDS, call_seconds=_TIMEOUT_SECONDS) as client:
        hashes = _put_blocks(client, namespace, min(plan.index_blocks, plan.host_nbytes // 2 // PAGE_NBYTES))
        calls = RawCalls(client, namespace)
        leases = _Leases(calls, hashes[: 32 * ACQUIRED_BLOCKS])
        yield take(_probe("control.acquire", served, calls, leases.acquire, leases.release))
        leases.release(0)
        yield take(_probe("control.acquire_release", served, calls, leases.acquire_release, lambda _: None))
        wanted = hashes[: 32 * LOOKED_UP_BLOCKS]

        def look_up(_: int) -> None:
            if calls.lookup(wanted) != len(wanted) // 32:
                raise TierstoreError("blocks are missing, so that look-ups cannot be measured; raise --host-size")

        yield take(_probe("control.lookup", served, calls, look_up, lambda _: None))


class _Leases:
    """One lease at a time."""

    def __init__(self, calls: RawCalls, hashes: bytes) -> None:
        self._calls = calls
        self._hashes = hashes
        self._held: list[int] = []

    def acquire(self, _: int) -> None:
        """Take it."""
        lease_id, count = self._calls.acquire(self._hashes)
        self._held.append(lease_id)
        if count != len(self._hashes) // 32:
            raise TierstoreError("blocks are missing, so that leases cannot be measured; raise --host-size")

    def release(self, _: int) -> None:
        """Give back what is held."""
        while self._held:
            self._calls.release(self._held.pop())

    def acquire_release(self, call: int) -> None:
        """Take it and give it back."""
        self.acquire(call)
        self.release(call)


def _put_blocks(client: Client, namespace: Namespace, count: int) -> bytes:
    """Put so many small blocks; their packed hashes, last ones first, as the oldest may have had to go."""
    handle, payload = client.namespace(namespace), Payload(PAGE_NBYTES)
    blocks = np.zeros((_PUT_BLOCKS, PAGE_NBYTES), np.uint8)
    packed = b""
    for first in range(0, count, _PUT_BLOCKS):
        hashes = payload.hashes(range(first, min(count, first + _PUT_BLOCKS)))
        for _ in range(_TRIES):  # slabs come one after another from the blocks that were measured before
            if handle.put(hashes, blocks[: len(hashes)]).result(_TIMEOUT_SECONDS).ok:
                break
        packed = b"".join(hashes) + packed
    return packed


def _probe(
    link: str,
    served: Served,
    calls: RawCalls,
    product: Callable[[int], None],
    prepare: Callable[[int], None],
) -> Probe:
    product(0)  # says how many bytes a call has
    request_nbytes, response_nbytes = calls.request_nbytes, calls.response_nbytes
    return Probe(
        link=link,
        threads=1,
        pages="no blocks",
        limit_name="bare call",
        call_nbytes=request_nbytes + response_nbytes,
        num_pairs_min=8,
        num_pairs_max=2000,
        prepare=prepare,
        limit=lambda _: served.bare.echo(max(8, request_nbytes), response_nbytes),
        product=product,
        num_wrong=lambda _: 0,
    )
