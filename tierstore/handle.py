"""The verbs of one namespace. Each checks its arguments, starts a request and returns.

Handles are made by `tierstore.store`; `tierstore.aio` awaits them. They move no bytes, and only `clear` blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from tierstore.arguments import as_hashes, as_priority, seconds_of
from tierstore.control.loading import LoadRequest
from tierstore.device.binding import bind_for
from tierstore.errors import ConfigError, ReadOnlyError
from tierstore.keys import Namespace
from tierstore.policy.prefetching import PrefetchPolicy
from tierstore.transfer import catalogue, openings, scheduling
from tierstore.transfer.caller_memory import BlockIds, CallerMemory
from tierstore.transfer.future import Transfer
from tierstore.transfer.lending import Lease, Reservation
from tierstore.types import HASH_NBYTES, Generation, Presence

if TYPE_CHECKING:
    from tierstore.advice import LoadAdvice
    from tierstore.assembly import House
    from tierstore.transfer.base import FarSide
    from tierstore.types import UInt8Array

    BeginNext: TypeAlias = Callable[["NamespaceHandle"], None]

__all__ = ["NO_PARENT", "NamespaceHandle"]

NO_PARENT = bytes(HASH_NBYTES)


class NamespaceHandle:
    """The verbs of one namespace. Made by `Store.namespace`; may be used from any thread.

    Hashes are a sequence of 32-byte hashes, or uint8[n, 32], in prefix order and without repeats. Buffers are an
    engine's cache bound as a `PagedKV`, or one array or tensor whose first axis counts blocks, or a sequence of
    such arrays, one for each page of the layout. Arrays have the layout's dtype or hold raw bytes, and are
    C-contiguous within a block. The caller must not touch the buffers until the transfer is done.

    Attributes:
        namespace: The namespace that the blocks belong to.
        generation: The current one; `clear` begins the next.
    """

    def __init__(self, house: House, namespace: Namespace, generation: Generation, begin_next: BeginNext) -> None:
        self.namespace = namespace
        self._house = house
        self._engine = house.engine
        self.generation = generation
        self._begin_next = begin_next
        self._prefetching = PrefetchPolicy.of(house.config.prefetch)

    def lookup(self, hashes: Sequence[bytes] | UInt8Array) -> int:
        """The number of blocks usable from the first, up to the first hole. Pins nothing and moves nothing."""
        return self._engine.leading(self.generation.number, as_hashes(hashes))

    def presence(self, hashes: Sequence[bytes] | UInt8Array) -> list[Presence]:
        """What is known of each block."""
        return self._engine.presence(self.generation.number, as_hashes(hashes))

    def places(self, hashes: Sequence[bytes] | UInt8Array) -> UInt8Array:
        """uint8[n]: the nearest tier from which each block could be loaded, as `tierstore.advice.Place`."""
        return scheduling.places(self._engine, self.generation.number, as_hashes(hashes))

    def held(self) -> tuple[int, int]:
        """The numbers of blocks in host memory and on SSD. Takes a few ms for a million blocks, in slices."""
        return catalogue.held(self._engine, self.generation.number)

    def put(
        self,
        hashes: Sequence[bytes] | UInt8Array,
        buffers: object,
        *,
        block_ids: BlockIds | None = None,
        parent: bytes = NO_PARENT,
        durable: bool = False,
        after: object = None,
        deadline_seconds: float | None = None,
    ) -> Transfer:
        """Store blocks. Done when they are readable; with `durable`, when they are on disk and synced.

        Args:
            hashes: Hashes of the blocks.
            buffers: The bytes.
            block_ids: The row of each block in the buffers. None: block i is row i.
            parent: Hash of the block before the first; zeros at the start of a chain.
            durable: Wait for the disk. Without an SSD tier the blocks are REJECTED.
            after: The copy waits for this event, one of the store or of the tensors' framework, such as a
                ``torch.cuda.Event``. A sequence has one event for each page group, which delays that group alone.
                None: wait for everything that the calling thread has enqueued on the device so far.
            deadline_seconds: The put ends by then.

        Raises:
            LayoutError, IdentityError, ClosedError: Before anything has happened.
        """
        keys = as_hashes(hashes)
        memory = self._memory(keys, buffers, block_ids, after, written=False)
        parents = _parents(parent, keys)
        return self._start(openings.putting(keys, parents, durable=durable), keys, memory, deadline_seconds)

    def get(
        self,
        hashes: Sequence[bytes] | UInt8Array,
        buffers: object,
        *,
        block_ids: BlockIds | None = None,
        after: object = None,
        deadline_seconds: float | None = None,
    ) -> Transfer:
        """Load the longest prefix available; `leading` of the result is its length. Rows behind it are not written.

        Args:
            hashes: Hashes of the blocks.
            buffers: The memory to load into.
            block_ids: The place of each block in the cache, or a sequence of such rows, one for each row of ids that
                the cache was bound with. None: block i is row i.
            after: As for `put`.
            deadline_seconds: Load only what is ready by then.

        Raises:
            LayoutError, IdentityError, ClosedError: Before anything has happened.
        """
        keys = as_hashes(hashes)
        memory = self._memory(keys, buffers, block_ids, after, written=True)
        return self._start(openings.getting(keys), keys, memory, deadline_seconds)

    def acquire(self, hashes: Sequence[bytes] | UInt8Array, *, deadline_seconds: float | None = None) -> Lease:
        """Lend the slots of the longest prefix available to a caller that copies by itself. Does not block.

        The blocks are pinned and cannot change until the lease is released. At most half of the pool is lent at a
        time; beyond that the prefix is cut short.

        Args:
            hashes: Hashes of the blocks.
            deadline_seconds: Lend only what is ready by then.

        Raises:
            IdentityError, ClosedError: Before anything has happened.
        """
        keys = as_hashes(hashes)
        lease = Lease(self._house.pool.generations, self._engine.shield)
        lease.begin(lambda loan: self._start(openings.lent(openings.getting(keys)), keys, loan, deadline_seconds))
        return lease

    def reserve(
        self,
        hashes: Sequence[bytes] | UInt8Array,
        *,
        parent: bytes = NO_PARENT,
        durable: bool = False,
        deadline_seconds: float | None = None,
    ) -> Reservation:
        """Lend slots for blocks that the store lacks. The caller fills them and commits. Does not block.

        Until the commit, look-ups return PENDING, and gets and puts of these blocks wait. See `put` and `acquire`.
        """
        keys = as_hashes(hashes)
        parents = _parents(parent, keys)
        reservation = Reservation(self._house.pool.generations, self._engine.shield)
        opening = openings.lent(openings.putting(keys, parents, durable=durable))
        reservation.begin(lambda loan: self._start(opening, keys, loan, deadline_seconds))
        return reservation

    def prefetch(
        self, hashes: Sequence[bytes] | UInt8Array, *, deadline_seconds: float | None = None, priority: int = 0
    ) -> Transfer:
        """Read a prefix from SSD into host memory, after every get, into free or cold slots only.

        Args:
            hashes: Hashes of the blocks.
            deadline_seconds: The prefetch ends by then. None: as ``prefetch.policy`` says.
            priority: Queued prefetches run by highest priority, then by nearest deadline.

        Raises:
            IdentityError, ConfigError, ClosedError: Before anything has happened.
        """
        keys = as_hashes(hashes)
        if deadline_seconds is None:
            deadline_seconds = self._prefetching.within(len(keys) * self.namespace.layout.block_tokens)
        return self._start(openings.prefetching(keys, as_priority(priority)), keys, None, deadline_seconds)

    def may_start(self, prefetch: Transfer) -> bool:
        """Whether the request of a prefetch may start now, as ``prefetch.policy`` says. Does not block.

        With ``best-effort`` it always may, and reads not begun are cancelled; else once the prefetch is done.
        """
        if not self._prefetching.waits:
            prefetch.cancel()
            return True
        return prefetch.done()

    def hint(
        self,
        added: Iterable[tuple[int, Sequence[bytes] | UInt8Array]] = (),
        removed: Iterable[int] = (),
        *,
        session_id: int = 0,
    ) -> None:
        """Tell the store which requests wait in an engine: it keeps their blocks and reads them from SSD in advance.

        Pass what has changed since the last call. Never waits for a copy, and promises nothing: only a get tells what
        is there. Blocks that no request waits for are evicted first, then those of the last request in the queue.

        Args:
            added: (rank, hashes) of requests that wait now, nearest first. Ranks only grow, over all namespaces of the
                session; the newest may be named again to add the blocks that follow.
            removed: Ranks that no longer wait: cancelled, or started, with their get called.
            session_id: Names the engine's queue if several share a store; `Store.end_session` ends it.

        Raises:
            RankError: A rank is not newer than those before it. The requests named before it were taken.
            IdentityError, ClosedError: Before anything has happened.
        """
        waiting = [(rank, as_hashes(hashes)) for rank, hashes in added]
        scheduling.hint(self._engine, session_id, self.generation.number, waiting, list(removed))

    def plan_load(
        self,
        hashes: Sequence[bytes] | UInt8Array,
        *,
        computed_tokens: int = 0,
        deadline_seconds: float | None = None,
        from_tail: bool = False,
    ) -> LoadAdvice:
        """Which part of a prompt is faster to load than to recompute, at the links' present speed. Copies nothing.

        Get blocks [first, stop) of the advice, with `recompute_seconds` as the deadline, and compute the rest. If the
        disk slows down at that moment, it costs the request no more than the deadline.

        Args:
            hashes: All blocks of the prompt.
            computed_tokens: How many tokens of the prompt's head the engine already holds.
            deadline_seconds: Load only what can arrive by then.
            from_tail: The engine can load a tail while it computes the head. False: it loads the head.

        Raises:
            IdentityError, ConfigError, ClosedError: Before anything has happened.
        """
        if computed_tokens < 0:
            raise ConfigError(f"computed_tokens is {computed_tokens}; pass 0, or how many tokens the engine holds")
        wanted = LoadRequest(as_hashes(hashes), computed_tokens, seconds_of(deadline_seconds), from_tail)
        return scheduling.plan_load(self._engine, self.generation.number, wanted)

    def report_prefill(self, *, prefix_tokens: int, num_tokens: int, seconds: float) -> None:
        """Report the seconds that computing `num_tokens` behind `prefix_tokens` took; `plan_load` learns from it.

        Values that cannot be measurements, such as the difference of a clock that was set back, are ignored.
        """
        with self._engine.planning() as planner:
            prefill = planner.loading.prefill(self.namespace.fingerprint)
            prefill.report(prefix_tokens=prefix_tokens, num_tokens=num_tokens, seconds=seconds)

    def delete(self, hashes: Sequence[bytes] | UInt8Array) -> Transfer:
        """Delete blocks: unknown at once in this run, and after a restart once the transfer is done.

        Outcomes: OK for a block that was known, MISS for one that was not. Any other means that the deletion could
        not be written to SSD, and that a restart may find the block again. ReadOnlyError with ``ssd.read_only``.
        """
        if self._house.config.ssd.read_only:
            raise ReadOnlyError("delete")
        keys, number = as_hashes(hashes), self.generation.number
        return self._engine.start(lambda planner: planner.delete(number, keys), num_blocks=len(keys), block_nbytes=0)

    def clear(self) -> None:
        """Delete every block of the namespace, durably: nothing put before comes back. Blocks.

        DiskError if this could not be written; then nothing is deleted. ReadOnlyError with ``ssd.read_only``.
        """
        self._begin_next(self)

    def _start(
        self, open_request: openings.Opening, keys: UInt8Array, memory: FarSide | None, deadline_seconds: float | None
    ) -> Transfer:
        engine, number = self._engine, self.generation.number
        deadline = engine.now() + seconds_of(deadline_seconds)
        return engine.start(
            lambda planner: open_request(planner, number, deadline),
            num_blocks=len(keys),
            block_nbytes=self.namespace.layout.block_nbytes,
            memory=memory,
            deadline=deadline,
        )

    def _memory(
        self, keys: UInt8Array, buffers: object, block_ids: BlockIds | None, after: object, *, written: bool
    ) -> CallerMemory:
        kv = bind_for(buffers, self.namespace, self._house.device)
        events = [self._house.device.as_event(given) for given in (after if isinstance(after, Sequence) else [after])]
        return CallerMemory.check(kv, len(keys), block_ids, events, written=written)


def _parents(parent: bytes, keys: UInt8Array) -> UInt8Array:
    """uint8[n, 32]: each block's predecessor."""
    return np.concatenate([as_hashes([parent]), keys[:-1]])[: len(keys)]
