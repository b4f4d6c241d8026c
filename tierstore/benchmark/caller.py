"""A stand-in for an engine: one buffer with the blocks of a call, and the verbs that it calls with them.

Called by the measuring modules. Every call is synchronous. A rejected or missed block is an error here, because the
figure would then cover fewer bytes than it claims.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from tierstore.benchmark.payload import Payload
from tierstore.errors import TierstoreError
from tierstore.keys import Namespace
from tierstore.types import PAGE_NBYTES

if TYPE_CHECKING:
    from tierstore.benchmark.plan import BenchmarkPlan
    from tierstore.store import Store, Transfer
    from tierstore.types import UInt8Array

__all__ = ["PUTS_IN_FLIGHT", "Caller"]

PUTS_IN_FLIGHT = 4
"""Puts that a call is cut into, as an engine has them, so that copies and writes overlap."""

_ROOM_CALL = 1 << 40
"""A call whose blocks come and go to make room."""

_TIMEOUT_SECONDS = 120.0


class Caller:
    """One caller.

    A call is a number; its blocks have the keys ``number * batch`` onwards.

    Args:
        plan: Layout and batch.
        store: An open store.

    Attributes:
        buffer: uint8[batch, block_nbytes], ordinary memory.
    """

    def __init__(self, plan: BenchmarkPlan, store: Store) -> None:
        self.buffer = np.empty((plan.batch, plan.block_nbytes), np.uint8)
        self._payload = Payload(plan.block_nbytes)
        self._slot_nbytes = plan.slot_nbytes
        self._store = store
        self._handle = store.namespace(Namespace(model="benchmark", layout=plan.layout))
        self._hashes: list[bytes] = []

    def fill(self, call: int) -> None:
        """Make ready to put a call's blocks."""
        self._hashes = self._payload.hashes(self._keys(call))
        self._payload.fill(self.buffer, self._keys(call))

    def poison(self, call: int) -> None:
        """Make ready to get a call's blocks: what a get leaves unwritten will show."""
        self._hashes = self._payload.hashes(self._keys(call))
        self._payload.poison(self.buffer)

    def put(self, call: int) -> None:
        """Put the blocks made ready. Blocks until they are readable."""
        self._finish("put", call, [self._handle.put(self._hashes, self.buffer)])

    def put_durable(self, call: int, puts: int) -> None:
        """Put the blocks made ready, cut into so many puts in flight at once. Blocks until durable."""
        step = -(-len(self.buffer) // puts)
        parts = [slice(first, first + step) for first in range(0, len(self.buffer), step)]
        transfers = [self._handle.put(self._hashes[part], self.buffer[part], durable=True) for part in parts]
        self._finish("durable put", call, transfers)

    def get(self, call: int) -> None:
        """Get the blocks made ready into the buffer. Blocks."""
        self._finish("get", call, [self._handle.get(self._hashes, self.buffer)])

    def prefetch(self, call: int) -> None:
        """Bring the blocks made ready into the host pool. Blocks."""
        self._finish("prefetch", call, [self._handle.prefetch(self._hashes)])

    def make_room(self) -> list[UInt8Array]:
        """Evict the coldest blocks to make room for one call, whatever their age; a prefetch evicts only old ones.

        Returns:
            The slots that are free now, which the next blocks will fill; see `slots`.
        """
        self._hashes = self._payload.hashes(self._keys(_ROOM_CALL))
        self.put(_ROOM_CALL)
        self._store.flush().result(_TIMEOUT_SECONDS)
        slots = self.slots()
        self._handle.delete(self._hashes).result()
        return slots

    def slots(self) -> list[UInt8Array]:
        """The pool slots of the blocks made ready, in their order; the pool must hold all of them.

        Returns:
            uint8[n, slot_nbytes] for every n slots that lie side by side.
        """
        keys = np.frombuffer(b"".join(self._hashes), np.uint64).reshape(len(self._hashes), -1)
        with self._store.engine.planning() as planner:
            entries = planner.directory.find(self._handle.generation.number, keys)
            pages = planner.directory.host_page[entries].astype(np.int64)
        starts = pages * PAGE_NBYTES
        edges = [0, *(np.flatnonzero(np.diff(starts) != self._slot_nbytes) + 1).tolist(), len(starts)]
        memory = self._store.pool.view
        return [
            memory[starts[first] :][: (stop - first) * self._slot_nbytes].reshape(stop - first, -1)
            for first, stop in pairwise(edges)
        ]

    def num_wrong(self, call: int) -> int:
        """How many blocks in the buffer are not, byte for byte, those of this call."""
        return self._payload.num_wrong(self.buffer, self._keys(call))

    def num_wrong_held(self, call: int) -> int:
        """The same for what the store holds: gets the blocks first."""
        self.poison(call)
        self.get(call)
        return self.num_wrong(call)

    def _keys(self, call: int) -> range:
        return range(call * len(self.buffer), (call + 1) * len(self.buffer))

    def _finish(self, verb: str, call: int, transfers: list[Transfer]) -> None:
        results = [transfer.result(_TIMEOUT_SECONDS) for transfer in transfers]
        num_moved = sum(result.leading for result in results)
        if num_moved != len(self.buffer):
            outcomes = sorted({outcome.name for result in results for outcome in result.outcomes})
            raise TierstoreError(
                f"{verb} {call} moved {num_moved} of {len(self.buffer)} blocks ({', '.join(outcomes)}), so it "
                "cannot be measured; use a smaller --batch"
            )
