"""A real engine and a real mind on simulated links, with a clock of the test's own and no thread.

For tests of planning: the test calls a verb, looks at the jobs that wait in each link, and says which one
ends next and how. After every job the mind's invariants are checked, and every block that a get calls OK
must lie in its caller's rows.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from tierstore.control.entry import State
from tierstore.control.index import as_keys
from tierstore.control.mind import Limits
from tierstore.control.planner import Planner
from tierstore.control.slabs import SlotAllocator
from tierstore.layout import KVLayout
from tierstore.metrics import Metrics
from tierstore.policy.admission import AdmitAlways
from tierstore.policy.lru import Lru
from tierstore.testing.clock import SimAlarm, SimClock
from tierstore.testing.sim_bytes import SimBytes, as_extents, identities
from tierstore.testing.sim_link import SimLink
from tierstore.transfer import catalogue, openings, scheduling
from tierstore.transfer.engine import Engine
from tierstore.transfer.links import Links
from tierstore.types import HASH_NBYTES, PAGE_NBYTES, Generation, Outcome

if TYPE_CHECKING:
    from tierstore.advice import Usage
    from tierstore.control.device_room import DevicePool
    from tierstore.control.requests import Request
    from tierstore.policy.base import AdmissionPolicy
    from tierstore.transfer.future import Transfer
    from tierstore.transfer.timer import Alarm
    from tierstore.types import Presence, UInt8Array

__all__ = ["EngineWorld", "chain"]

SLAB_PAGES = 8
"""The least a slab may have; with the least number of slabs the pool is 32 pages."""


def chain(name: str, count: int) -> UInt8Array:
    """uint8[count, 32]: the hashes of a chain's blocks; the same name gives the same ones."""
    digests = [hashlib.sha256(f"{name} {position}".encode()).digest() for position in range(count)]
    return np.frombuffer(b"".join(digests), np.uint8).reshape(count, HASH_NBYTES)


class EngineWorld:
    """One engine.

    Args:
        slot_pages: Pages of a block, one layout each; verbs name a layout by its position here.
        slab_pages: Of each of the pool's `slabs`.
        slabs: See `slab_pages`.
        capacity: Blocks the directory can know.
        limits: Bounds on what is in flight.
        ssd: Whether there is an SSD tier.
        file_blocks: Blocks of a chunk file.
        ssd_nbytes: What the SSD can take.
        reclaim_below_nbytes: Free SSD bytes below which a file is reclaimed.
        admission: Which blocks are written back; all where it is None.
        device_pool: The device pool, if there is one.
        on_taken: See `SimLink`.
        new_timer: See `Engine`; by default only the test calls `expire`.

    Attributes:
        clock: The time.
        bytes: Whose bytes lie where.
        load: Host to device, as the next three a link.
        store: Device to host.
        read: SSD to host.
        write: Host to SSD.
        lend: Host to borrowers and back; they end a job when they are done.
        generations: The living generation of each layout.
        requests: The open requests of unfinished transfers.
    """

    def __init__(
        self,
        *,
        slot_pages: Sequence[int] = (1,),
        slab_pages: int = SLAB_PAGES,
        slabs: int = 4,
        capacity: int = 1024,
        limits: Limits | None = None,
        ssd: bool = True,
        file_blocks: int = 64,
        ssd_nbytes: int = 1 << 40,
        reclaim_below_nbytes: int = 0,
        admission: AdmissionPolicy | None = None,
        device_pool: DevicePool | None = None,
        on_taken: Callable[[], None] | None = None,
        new_timer: Callable[[Callable[[], float], Callable[[], float]], Alarm] = SimAlarm,
    ) -> None:
        self.clock = SimClock()
        self.metrics = Metrics()
        self.bytes = SimBytes(file_blocks=file_blocks, free_nbytes=ssd_nbytes)
        self.load, self.store, self.read, self.write, self.lend = (
            SimLink(self.bytes, on_taken=on_taken, on_ended=self.check) for _ in range(5)
        )
        planner = Planner(
            capacity=capacity,
            slots=SlotAllocator(pool_nbytes=slabs * slab_pages * PAGE_NBYTES, slab_nbytes=slab_pages * PAGE_NBYTES),
            device_pool=device_pool,
            new_policy=Lru,
            admission=AdmitAlways() if admission is None else admission,
            limits=Limits() if limits is None else limits,
            metrics=self.metrics,
            reclaim_below_nbytes=reclaim_below_nbytes if ssd else None,
        )
        links = Links(self.load, self.store, self.read, self.write, self.lend)
        links = links if ssd else Links(self.load, self.store, lend=self.lend)
        self.engine = Engine(planner, links, {}, self.clock, new_timer)
        self.generations: list[Generation] = []
        self.requests: dict[Transfer, Request] = {}
        self._num_generations = 0
        for pages in slot_pages:
            layout = KVLayout.opaque(block_nbytes=pages * PAGE_NBYTES)
            self.generations.append(self._open_generation(bytes([pages]) * HASH_NBYTES, 0, layout))

    @property
    def links(self) -> list[SimLink]:
        """Every link."""
        return [self.load, self.store, self.read, self.write, self.lend]

    def get(self, hashes: UInt8Array, *, layout: int = 0, within: float = math.inf) -> Transfer:
        """Begin a get that ends `within` seconds."""
        return self._open(openings.getting(hashes), hashes, layout, within)

    def put(
        self,
        hashes: UInt8Array,
        *,
        parent: UInt8Array | None = None,
        durable: bool = False,
        layout: int = 0,
        within: float = math.inf,
    ) -> Transfer:
        """Begin a put of a chain, behind a block or at its start."""
        before = np.zeros(HASH_NBYTES, np.uint8) if parent is None else parent
        parents = np.concatenate([before[None], hashes])[: len(hashes)]
        return self._open(openings.putting(hashes, parents, durable=durable), hashes, layout, within)

    def acquire(self, hashes: UInt8Array, *, within: float = math.inf) -> Transfer:
        """Begin a lease of what there is; it ends with its jobs in `lend`."""
        return self._open(openings.lent(openings.getting(hashes)), hashes, 0, within)

    def reserve(self, hashes: UInt8Array, *, durable: bool = False, within: float = math.inf) -> Transfer:
        """Begin a reservation for a chain; it is committed with its jobs in `lend`."""
        parents = np.concatenate([np.zeros((1, HASH_NBYTES), np.uint8), hashes])[: len(hashes)]
        return self._open(openings.lent(openings.putting(hashes, parents, durable=durable)), hashes, 0, within)

    def prefetch(self, hashes: UInt8Array, *, layout: int = 0, within: float = math.inf, priority: int = 0) -> Transfer:
        """Begin a prefetch."""
        return self._open(openings.prefetching(hashes, priority), hashes, layout, within)

    def hint(
        self,
        added: Iterable[tuple[int, UInt8Array]] = (),
        removed: Sequence[int] = (),
        *,
        layout: int = 0,
        session_id: int = 0,
    ) -> None:
        """Say which requests wait."""
        scheduling.hint(self.engine, session_id, self.generations[layout].number, list(added), removed)
        self.check()

    def end_session(self, session_id: int) -> None:
        """An engine goes."""
        scheduling.end_session(self.engine, session_id)
        self.check()

    def flush(self) -> Transfer:
        """Begin a flush."""
        return self._start(lambda planner: planner.flush(), 1, 0)

    def delete(self, hashes: UInt8Array, *, layout: int = 0) -> int:
        """Make blocks unknown, tombstones and sync included; returns how many were known."""
        transfer = self.start_delete(hashes, layout=layout)
        while not transfer.done():
            self.write.end(self.write.jobs[-1])
        return transfer.result(0).num_ok

    def start_delete(self, hashes: UInt8Array, *, layout: int = 0) -> Transfer:
        """Begin a delete."""
        number = self.generations[layout].number
        return self._start(lambda planner: planner.delete(number, hashes), len(hashes), layout)

    def clear(self, *, layout: int = 0) -> None:
        """End a layout's generation and begin its next."""
        old = self.generations[layout]
        self.generations[layout] = self._open_generation(old.fingerprint, old.epoch + 1, old.layout)
        self.engine.end_life(old.number)
        self.check()

    def expire_after(self, seconds: float) -> None:
        """Let time pass, and end what is due."""
        self.clock.advance(seconds)
        self.engine.expire()
        self.check()

    def presence(self, hashes: UInt8Array, *, layout: int = 0) -> list[Presence]:
        """What is known of each block."""
        return self.engine.presence(self.generations[layout].number, hashes)

    def num_in_host(self, hashes: UInt8Array, *, layout: int = 0) -> int:
        """How many blocks are READY in the host pool."""
        with self.engine.planning() as planner:
            directory = planner.directory
            entries = directory.find(self.generations[layout].number, as_keys(hashes))
            return int(np.count_nonzero(directory.host.state[entries[entries >= 0]] == State.READY))

    def keep_on_ssd(self, hashes: UInt8Array, *, layout: int = 0, usage: Usage | None = None) -> None:
        """Make blocks known that an earlier run left on SSD, used as it says; where it is None, never."""
        generation = self.generations[layout]
        places = [self.bytes.place(generation, identity) for identity in identities(generation, hashes)]
        extents = as_extents([place for place in places if place is not None], generation.layout.block_nbytes)
        with self.engine.planning() as planner:
            planner.catalogue.adopt_files(sorted(set(extents.file.tolist())))
        assert catalogue.adopt(self.engine, generation.number, hashes, extents, usage) == len(hashes)

    def keep_in_host(self, hashes: UInt8Array, *, layout: int = 0) -> None:
        """Put blocks and end all that this leads to, so that they are in the host pool and written where admitted."""
        assert self.put(hashes, layout=layout).done() is False, "these blocks are held already"
        self.settle()

    def settle(self) -> None:
        """End every job, OK, until no link holds any."""
        while any(link.jobs for link in self.links):
            for link in self.links:
                if link.jobs:
                    link.end()

    def check(self) -> None:
        """Assert the mind's invariants."""
        with self.engine.planning() as planner:
            planner.check()

    def check_idle(self) -> None:
        """Assert that nothing is left over: no request, no job, no pin."""
        with self.engine.planning() as planner:
            planner.check()
            assert (planner.num_requests, planner.num_jobs) == (0, 0), "requests or jobs are left"
            for places in (planner.directory.device, planner.directory.host, planner.directory.ssd):
                assert not places.pins.any(), "pins are left in a tier"
        assert not self.requests, "transfers are left without an end"

    def _open(self, opening: openings.Opening, hashes: UInt8Array, layout: int, within: float) -> Transfer:
        number, deadline = self.generations[layout].number, self.clock.now + within
        return self._start(lambda planner: opening(planner, number, deadline), len(hashes), layout)

    def _start(self, open_request: Callable[[Planner], Request | None], num_blocks: int, layout: int) -> Transfer:
        opened: list[Request] = []

        def remember(planner: Planner) -> Request | None:
            request = open_request(planner)
            opened.extend([] if request is None else [request])
            return request

        block_nbytes = self.generations[layout].layout.block_nbytes
        transfer = self.engine.start(remember, num_blocks=num_blocks, block_nbytes=block_nbytes)
        if opened:
            self.requests[transfer] = opened[0]
            transfer.add_done_callback(self._ended)
        self.check()
        return transfer

    def _ended(self, transfer: Transfer) -> None:
        request = self.requests.pop(transfer)
        if request.story.verb != "get":
            return
        rows = self.bytes.rows.pop(request.request_id, {})
        wanted = identities(request.life.generation, request.hashes)
        for position, outcome in enumerate(transfer.result(0).outcomes):
            assert outcome is not Outcome.OK or rows.get(position) == wanted[position], (
                f"block {position} is called OK and was never loaded"
            )

    def _open_generation(self, fingerprint: bytes, epoch: int, layout: KVLayout) -> Generation:
        generation = Generation(self._num_generations, fingerprint, epoch, layout)
        self._num_generations += 1
        self.engine.open_life(generation, layout.block_nbytes)
        return generation
