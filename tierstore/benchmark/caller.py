"""What stands in for an engine: one buffer of a call's blocks, and the verbs it calls with them.

Called by the rooms that measure. Every call is synchronous; a block that is refused or missed is an
error here, for a figure over fewer bytes than it claims would be a lie.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tierstore.benchmark.payload import Payload
from tierstore.errors import TierstoreError
from tierstore.keys import Namespace

if TYPE_CHECKING:
    from tierstore.benchmark.plan import BenchmarkPlan
    from tierstore.store import Store, Transfer

__all__ = ["Caller"]

_TIMEOUT_SECONDS = 120.0


class Caller:
    """One caller with one call in flight.

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

    def put(self, call: int, *, durable: bool = False) -> None:
        """Put the blocks made ready. Blocks until they are readable, or durable."""
        self._finish("put", call, self._handle.put(self._hashes, self.buffer, durable=durable))

    def get(self, call: int) -> None:
        """Get the blocks made ready into the buffer. Blocks."""
        self._finish("get", call, self._handle.get(self._hashes, self.buffer))

    def prefetch(self, call: int) -> None:
        """Bring the blocks made ready into the host pool. Blocks."""
        self._finish("prefetch", call, self._handle.prefetch(self._hashes))

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

    def _finish(self, verb: str, call: int, transfer: Transfer) -> None:
        result = transfer.result(_TIMEOUT_SECONDS)
        if result.leading != len(self.buffer):
            outcomes = sorted({outcome.name for outcome in result.outcomes})
            raise TierstoreError(
                f"{verb} {call} moved {result.leading} of {len(self.buffer)} blocks ({', '.join(outcomes)}), so it "
                "cannot be measured; use a smaller --batch"
            )
