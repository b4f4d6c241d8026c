"""The verbs of one namespace: what a caller holds. Checks what it is given, then starts a request and returns.

Made by `tierstore.store`; awaited in `tierstore.aio`. Moves nothing itself and never blocks, but for `clear`.
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

    Hashes are given in prefix order, each once: a sequence of 32-byte hashes, or uint8[n, 32]. Buffers are an
    engine's cache bound as a `PagedKV`, or one array or tensor whose first axis counts blocks (or a sequence of
    such, one a page of the layout), in the layout's dtype or as raw bytes, C-contiguous within a block. They must
    stay untouched until the transfer is done.

    Attributes:
        namespace: Whose blocks.
        generation: The living one; `begin_next` moves on to another.
    """

    def __init__(self, house: House, namespace: Namespace, generation: Generation, begin_next: BeginNext) -> None:
        self.namespace = namespace
        self._house = house
        self._engine = house.engine
        self.generation = generation
        self._begin_next = begin_next
        self._prefetching = PrefetchPolicy.of(house.config.prefetch)

    def lookup(self, hashes: Sequence[bytes] | UInt8Array) -> int:
        """How many blocks from the first are usable without a hole. Pins nothing and moves nothing."""
        return self._engine.leading(self.generation.number, as_hashes(hashes))

    def presence(self, hashes: Sequence[bytes] | UInt8Array) -> list[Presence]:
        """What is known of each block."""
        return self._engine.presence(self.generation.number, as_hashes(hashes))

    def places(self, hashes: Sequence[bytes] | UInt8Array) -> UInt8Array:
        """uint8[n]: the nearest tier from which each block could be loaded, as `tierstore.advice.Place`."""
        return scheduling.places(self._engine, self.generation.number, as_hashes(hashes))

    def held(self) -> tuple[int, int]:
        """How many blocks are in host memory, and on SSD. Takes a few ms for a million blocks, in slices."""
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
            hashes: Whose blocks.
            buffers: The bytes.
            block_ids: The row of each block in the buffers; None where block i is row i.
            parent: Hash of the block before the first; zeros at the start of a chain.
            durable: Wait for the disk. REJECTED where there is no SSD tier.
            after: Copy only after this event, of the store or of the framework whose tensors these are, such as a
                ``torch.cuda.Event``; or one for each page group of the cache, which holds that group alone. None: after
                what the calling thread has enqueued on the device so far.
            deadline_seconds: End by then.

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
        """Load the longest prefix there is; `leading` of the result says how long. Rows behind it are not written.

        Args:
            hashes: Whose blocks.
            buffers: Where to.
            block_ids: The place of each block in the cache, or of each row of ids that it was bound with a sequence of
                them; None where block i is row i.
            after: As for `put`.
            deadline_seconds: Load what is ready by then, and no more.

        Raises:
            LayoutError, IdentityError, ClosedError: Before anything has happened.
        """
        keys = as_hashes(hashes)
        memory = self._memory(keys, buffers, block_ids, after, written=True)
        return self._start(openings.getting(keys), keys, memory, deadline_seconds)

    def acquire(self, hashes: Sequence[bytes] | UInt8Array, *, deadline_seconds: float | None = None) -> Lease:
        """Lend the slots of the longest prefix there is to who copies for himself. Does not block.

        The blocks can neither be evicted nor change until the lease is released. What is lent at the same time is at
        most half of the pool; beyond it the prefix is cut short.

        Args:
            hashes: Whose blocks.
            deadline_seconds: Lend what is ready by then, and no more.

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
        """Lend slots for blocks that nobody holds, to be filled by who asks, and then committed. Does not block.

        Until then look-ups say PENDING, and who gets or puts these blocks waits. See `put` and `acquire`.
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
        """Bring a prefix from SSD into host memory, behind every get, into free or cold slots only.

        Args:
            hashes: Whose blocks.
            deadline_seconds: End by then; None for what ``prefetch.policy`` says.
            priority: Of the prefetches that wait, the highest go first, and of equal ones the nearest deadline.

        Raises:
            IdentityError, ConfigError, ClosedError: Before anything has happened.
        """
        keys = as_hashes(hashes)
        if deadline_seconds is None:
            deadline_seconds = self._prefetching.within(len(keys) * self.namespace.layout.block_tokens)
        return self._start(openings.prefetching(keys, as_priority(priority)), keys, None, deadline_seconds)

    def may_start(self, prefetch: Transfer) -> bool:
        """Whether the request of a prefetch may start now, as ``prefetch.policy`` says. Does not block.

        With ``best-effort`` it always may, and what has not begun is withdrawn; else once the prefetch is done.
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
        """Say which requests wait in an engine: their blocks are kept, and read from SSD ahead of their turn.

        Tell what has changed since the last call. Never waits for a copy, and promises nothing: a get says what is
        there. Of blocks that wait, those of the last request leave host memory first, after all that nobody waits for.

        Args:
            added: (rank, hashes) of requests that wait now, nearest first. Ranks only grow, over all namespaces of the
                session; the newest may be named again with the blocks that follow.
            removed: Ranks that wait no longer: given up, or started and their get has been called.
            session_id: Whose queue, where engines share a store and take turns; `Store.end_session` ends it.

        Raises:
            RankError: A rank is not newer than those before it. What was named before it counts.
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
        """What of a prompt is worth loading, as the links are now, against computing it. Moves nothing for the caller.

        Get blocks [first, stop) of the advice, with `recompute_seconds` as the deadline, and compute the rest: then a
        disk that slows down at that moment costs a request no more than that.

        Args:
            hashes: All blocks of the prompt.
            computed_tokens: How many tokens of its head the engine holds itself.
            deadline_seconds: Load only what can be there by then.
            from_tail: The engine can load a tail while it computes the head; else what it loads is the head.

        Raises:
            IdentityError, ConfigError, ClosedError: Before anything has happened.
        """
        if computed_tokens < 0:
            raise ConfigError(f"computed_tokens is {computed_tokens}; pass 0, or how many tokens the engine holds")
        wanted = LoadRequest(as_hashes(hashes), computed_tokens, seconds_of(deadline_seconds), from_tail)
        return scheduling.plan_load(self._engine, self.generation.number, wanted)

    def report_prefill(self, *, prefix_tokens: int, num_tokens: int, seconds: float) -> None:
        """Say what computing has taken: `num_tokens` behind `prefix_tokens`. `plan_load` learns from it.

        What is no measurement, such as the difference of a clock that was set back, is passed over.
        """
        with self._engine.planning() as planner:
            prefill = planner.loading.prefill(self.namespace.fingerprint)
            prefill.report(prefix_tokens=prefix_tokens, num_tokens=num_tokens, seconds=seconds)

    def delete(self, hashes: Sequence[bytes] | UInt8Array) -> Transfer:
        """Make blocks unknown, in this run at once and in later ones once the transfer is done.

        Outcomes: OK for a block that was known, MISS for one that was not. Anything else says that the SSD
        could not take it down, and that a restart may find the block again. ReadOnlyError with ``ssd.read_only``.
        """
        if self._house.config.ssd.read_only:
            raise ReadOnlyError("delete")
        keys, number = as_hashes(hashes), self.generation.number
        return self._engine.start(lambda planner: planner.delete(number, keys), num_blocks=len(keys), block_nbytes=0)

    def clear(self) -> None:
        """Forget every block of the namespace, durably: nothing put before comes back. Blocks.

        DiskError where it could not be written, and nothing is forgotten; ReadOnlyError with ``ssd.read_only``.
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
