"""Concurrent clients of a service: each has a connection, a thread, keys and a buffer of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from tierstore.benchmark.payload import Payload
from tierstore.client import Client
from tierstore.errors import TierstoreError
from tierstore.keys import Namespace
from tierstore.worker import Worker

if TYPE_CHECKING:
    from tierstore.benchmark.serve_plan import ServePlan
    from tierstore.transfer.future import TransferResult

__all__ = ["Crew", "Member"]

_KEYS_EACH = 1 << 36
_TIMEOUT_SECONDS = 120.0


class Member:
    """One client. A call is a number; its blocks have keys that no other call and no other member has.

    Attributes:
        buffer: uint8[batch, block_nbytes], ordinary memory.
        handle: The verbs.
    """

    def __init__(self, plan: ServePlan, address: str, index: int, *, attach: bool, room: int) -> None:
        self._client = Client(address, attach=attach, connect_seconds=_TIMEOUT_SECONDS, call_seconds=_TIMEOUT_SECONDS)
        if self._client.attached is not attach:
            self._client.close()
            raise TierstoreError("the service's pool cannot be mapped, so that the local path cannot be measured")
        self._first_key = (room * plan.clients + index) * _KEYS_EACH
        self.payload = Payload(plan.layout.block_nbytes)
        self._made: tuple[int, list[bytes]] = (-1, [])
        self.buffer = np.zeros((plan.batch, plan.layout.block_nbytes), np.uint8)
        self.handle = self._client.namespace(Namespace(model="benchmark", layout=plan.layout))

    def fill(self, call: int) -> None:
        """Make ready to put a call's blocks."""
        self.payload.fill(self.buffer, self._keys(call))
        self.hashes(call)

    def poison(self, call: int) -> None:
        """Make ready to get a call's blocks: what a get leaves unwritten will show."""
        self.payload.poison(self.buffer)
        self.hashes(call)

    def put(self, call: int) -> TransferResult:
        """Put a call's blocks. Blocks until they are readable."""
        return self.handle.put(self.hashes(call), self.buffer).result()

    def get(self, call: int) -> TransferResult:
        """Get a call's blocks. Blocks."""
        return self.handle.get(self.hashes(call), self.buffer).result()

    def num_wrong(self, call: int) -> int:
        """How many blocks in the buffer are not, byte for byte, those of this call."""
        return self.payload.num_wrong(self.buffer, self._keys(call))

    def hashes(self, call: int) -> list[bytes]:
        """The keys of a call's blocks, as the store has them; made once for the calls about the same blocks."""
        if call != self._made[0]:
            self._made = call, self.payload.hashes(self._keys(call))
        return self._made[1]

    def _keys(self, call: int) -> range:
        first = self._first_key + call * len(self.buffer)
        return range(first, first + len(self.buffer))

    def close(self) -> None:
        """End the connection."""
        self._client.close()


class Crew:
    """All clients of one measurement.

    Args:
        plan: Says how many there are.
        address: Of the service.
        attach: Whether they map the service's pool.
        room: Crews of different rooms share no key.
    """

    def __init__(self, plan: ServePlan, address: str, *, attach: bool, room: int) -> None:
        self.members = [Member(plan, address, index, attach=attach, room=room) for index in range(plan.clients)]
        self._worker = Worker("bench-client", capacity=plan.clients, threads=plan.clients)

    def all(self, work: Callable[[Member], object]) -> None:
        """Each does it on its own thread. Blocks until the last has; raises what one of them has raised."""
        together([partial(work, member) for member in self.members], self._worker)

    def put(self, call: int) -> None:
        """Put a call's blocks, all of which must be taken."""
        self.all(lambda member: _whole("put", call, member.put(call)))

    def get(self, call: int) -> None:
        """Get a call's blocks, all of which must be there."""
        self.all(lambda member: _whole("get", call, member.get(call)))

    def num_wrong(self, call: int) -> int:
        """Blocks in all buffers that are not those of this call."""
        return sum(member.num_wrong(call) for member in self.members)

    def num_wrong_held(self, call: int) -> int:
        """The same of what the service holds: gets the blocks first."""
        self.all(lambda member: member.poison(call))
        self.get(call)
        return self.num_wrong(call)

    def close(self) -> None:
        """End every connection."""
        for member in self.members:
            member.close()
        self._worker.close()


def together(tasks: Sequence[Callable[[], object]], worker: Worker) -> None:
    """Run tasks at the same time, the only one here. Blocks; raises what one of them has raised."""
    if len(tasks) == 1:
        tasks[0]()
        return
    ended = threading.Semaphore(0)

    def run(task: Callable[[], object]) -> None:
        try:
            task()
        finally:
            ended.release()

    for task in tasks:
        accepted = worker.submit(partial(run, task))
        assert accepted, "there is a thread for each task"
    for _ in tasks:
        ended.acquire()
    if worker.failure is not None:
        raise worker.failure


def _whole(verb: str, call: int, result: TransferResult) -> None:
    if not result.ok:
        outcomes = sorted({outcome.name for outcome in result.outcomes})
        raise TierstoreError(
            f"{verb} {call} moved {result.leading} of {len(result.codes)} blocks ({', '.join(outcomes)}), so it cannot "
            "be measured; use a smaller --batch or a larger --host-size"
        )
