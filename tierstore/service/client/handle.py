"""The verbs of one namespace over the service: those of the embedded store, with the same arguments and results.

Made by the client. Verbs that move blocks return at once with a transfer; the others wait for the server, briefly. If
the service is gone, too slow or full, the outcome is a miss or a refusal, never an exception in an engine.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from tierstore.advice import LoadAdvice, Place
from tierstore.arguments import as_hashes, as_priority, seconds_of
from tierstore.device.binding import bind_for
from tierstore.errors import ConfigError
from tierstore.service import convert
from tierstore.service._pb import tierstore_pb2 as pb
from tierstore.service.client.moving import Moving
from tierstore.service.wire import HASHES_MAX
from tierstore.transfer.caller_memory import CallerMemory
from tierstore.types import HASH_NBYTES, Presence

if TYPE_CHECKING:
    from tierstore.keys import Namespace
    from tierstore.service.client.calling import Calling
    from tierstore.transfer.caller_memory import BlockIds
    from tierstore.transfer.future import Transfer
    from tierstore.types import UInt8Array

__all__ = ["ClientHandle"]

_NO_PARENT = bytes(HASH_NBYTES)


class ClientHandle:
    """See `tierstore.handle.NamespaceHandle`, whose verbs these are. May be used from any thread.

    A get that the server ends early may have written part of the row after the leading ones. The service takes 65,536
    blocks in one call: of more, only the leading ones are asked for, and the others end as without a service.
    """

    def __init__(self, calling: Calling, namespace: Namespace) -> None:
        self.namespace = namespace
        self._calling = calling
        self._moving = Moving(calling, namespace)

    def lookup(self, hashes: Sequence[bytes] | UInt8Array) -> int:
        """How many blocks from the first are usable without a hole; 0 without a service. Waits for the server."""
        request = pb.LookupRequest(hashes=as_hashes(hashes).tobytes())
        response = self._calling.ask(request, pb.LookupResponse, self.namespace)
        return 0 if response is None else response.leading

    def presence(self, hashes: Sequence[bytes] | UInt8Array) -> list[Presence]:
        """What is known of each block; without a service all are MISS. Waits for the server."""
        return convert.to_presence(self.places(hashes))

    def places(self, hashes: Sequence[bytes] | UInt8Array) -> UInt8Array:
        """uint8[n]: the nearest tier of each block, as `tierstore.advice.Place`; NOWHERE without a service. Waits."""
        keys = as_hashes(hashes)
        request = pb.LookupRequest(hashes=keys.tobytes(), with_places=True)
        response = self._calling.ask(request, pb.LookupResponse, self.namespace)
        places = np.full(len(keys), Place.NOWHERE, np.uint8)
        if response is not None:
            known = convert.to_places(response.places)
            places[: len(known)] = known
        return places

    def put(
        self,
        hashes: Sequence[bytes] | UInt8Array,
        buffers: object,
        *,
        block_ids: BlockIds | None = None,
        parent: bytes = _NO_PARENT,
        durable: bool = False,
        after: object = None,
        deadline_seconds: float | None = None,
    ) -> Transfer:
        """Store blocks; REJECTED without a service. Does not block.

        Raises:
            LayoutError, IdentityError, ClosedError: Before anything has happened.
        """
        keys, seconds = as_hashes(hashes), _checked(deadline_seconds)
        memory = self._memory(keys, buffers, block_ids, after, written=False)
        request = pb.PutBegin(
            hashes=keys.tobytes(), parent=as_hashes([parent]).tobytes(), durable=durable, deadline_seconds=seconds
        )
        return self._moving.put(request, memory)

    def get(
        self,
        hashes: Sequence[bytes] | UInt8Array,
        buffers: object,
        *,
        block_ids: BlockIds | None = None,
        after: object = None,
        deadline_seconds: float | None = None,
    ) -> Transfer:
        """Load the longest stored prefix; nothing without a service. Does not block.

        Raises:
            LayoutError, IdentityError, ClosedError: Before anything has happened.
        """
        keys, seconds = as_hashes(hashes), _checked(deadline_seconds)
        memory = self._memory(keys, buffers, block_ids, after, written=True)
        return self._moving.get(pb.GetRequest(hashes=keys.tobytes(), deadline_seconds=seconds), memory)

    def prefetch(
        self, hashes: Sequence[bytes] | UInt8Array, *, deadline_seconds: float | None = None, priority: int = 0
    ) -> Transfer:
        """Bring a prefix from the server's SSD into its memory; MISS without a service. Does not block."""
        request = pb.PrefetchRequest(
            hashes=as_hashes(hashes).tobytes(),
            deadline_seconds=_checked(deadline_seconds),
            priority=as_priority(priority),
        )
        return self._moving.prefetch(request)

    def may_start(self, prefetch: Transfer) -> bool:
        """Whether the request of a prefetch may start now, as the server's ``prefetch.policy`` says. Does not block."""
        if not self._calling.prefetch_waits:
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
        """Say which requests wait in an engine. The queue ends with the session: then tell it again from its start.

        Waits for the server. Raises RankError and IdentityError as the embedded store does; without a service nothing.
        """
        waiting = [pb.Waiting(rank=rank, hashes=as_hashes(hashes).tobytes()) for rank, hashes in added]
        requests = [pb.HintRequest(queue=session_id, removed=removed)]
        nbytes = 0
        for one in waiting:
            nbytes += len(one.hashes)
            if nbytes > HASHES_MAX * HASH_NBYTES:  # no message is too long for the server
                requests.append(pb.HintRequest(queue=session_id))
                nbytes = len(one.hashes)
            requests[-1].added.append(one)
        for request in requests:
            self._calling.ask(request, pb.HintResponse, self.namespace)

    def plan_load(
        self,
        hashes: Sequence[bytes] | UInt8Array,
        *,
        computed_tokens: int = 0,
        deadline_seconds: float | None = None,
        from_tail: bool = False,
    ) -> LoadAdvice:
        """Which blocks of a prompt are worth loading; none without a service. Waits for the server."""
        if computed_tokens < 0:
            raise ConfigError(f"computed_tokens is {computed_tokens}; pass 0, or how many tokens the engine holds")
        request = pb.PlanLoadRequest(
            hashes=as_hashes(hashes).tobytes(),
            computed_tokens=computed_tokens,
            deadline_seconds=_checked(deadline_seconds),
            from_tail=from_tail,
        )
        response = self._calling.ask(request, pb.PlanLoadResponse, self.namespace)
        if response is not None:
            return convert.to_advice(response)
        first = computed_tokens // self.namespace.layout.block_tokens
        return LoadAdvice(0, first, first, 0.0, None, in_host=first)

    def report_prefill(self, *, prefix_tokens: int, num_tokens: int, seconds: float) -> None:
        """Report how long a prefill took. Does not wait for the server."""
        request = pb.ReportPrefillRequest(prefix_tokens=prefix_tokens, num_tokens=num_tokens, seconds=seconds)
        self._calling.tell(request, pb.ReportPrefillResponse, self.namespace)

    def delete(self, hashes: Sequence[bytes] | UInt8Array) -> Transfer:
        """Make blocks unknown; IO_ERROR without a service, as a restart may find them. Does not block."""
        return self._moving.delete(pb.DeleteRequest(hashes=as_hashes(hashes).tobytes()))

    def clear(self) -> None:
        """Forget every block of the namespace, durably. Blocks. Raises ServiceError if that failed."""
        self._calling.demand(pb.ClearRequest(), pb.ClearResponse, self.namespace)

    def _memory(
        self, keys: UInt8Array, buffers: object, block_ids: BlockIds | None, after: object, *, written: bool
    ) -> CallerMemory:
        device = self._calling.device
        kv = bind_for(buffers, self.namespace, device)
        events = [device.as_event(given) for given in (after if isinstance(after, Sequence) else [after])]
        return CallerMemory.check(kv, len(keys), block_ids, events, written=written)


def _checked(deadline_seconds: float | None) -> float:
    """A deadline as messages have it: 0 for none."""
    seconds = seconds_of(deadline_seconds)
    return 0.0 if np.isinf(seconds) else max(seconds, 1e-9)
