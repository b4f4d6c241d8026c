"""Transfers: the futures that verbs return. Made by the engine, waited for by callers."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from tierstore.forks import check_owner
from tierstore.types import Outcome
from tierstore.worker import attempt

if TYPE_CHECKING:
    from tierstore.transfer.layers import LayerEvent, Layers
    from tierstore.types import UInt8Array

__all__ = ["Transfer", "TransferResult"]


@dataclass(frozen=True, slots=True, eq=False)
class TransferResult:
    """How a verb ended.

    Attributes:
        leading: The number of blocks usable from the first, up to the first hole.
        codes: uint8[n] of `Outcome`, one a block.
        nbytes: Bytes of the blocks that are OK.
        seconds: From the call to the end.
    """

    leading: int
    codes: UInt8Array
    nbytes: int
    seconds: float

    def __repr__(self) -> str:
        counts = Counter(outcome.name for outcome in self.outcomes)
        named = ", ".join(f"{count} {name}" for name, count in counts.items())
        return (
            f"TransferResult({self.leading} leading, {named or 'no blocks'}, {self.nbytes} bytes, {self.seconds:.6f} s)"
        )

    @property
    def outcomes(self) -> list[Outcome]:
        """The outcome of each block."""
        return [Outcome(code) for code in self.codes.tolist()]

    @property
    def num_ok(self) -> int:
        """How many blocks are OK."""
        return len(self.codes) - int((self.codes != Outcome.OK).sum())

    @property
    def ok(self) -> bool:
        """Whether every block is OK."""
        return not self.codes.any()


class Transfer:
    """A verb under way. The memory passed to the verb must not be touched until it is done.

    Args:
        block_nbytes: Bytes of each block.
        cancel: Cancels the request.
        num_blocks: Blocks of the request.
        layers: The page groups of a get; None for other verbs.
        help_out: Runs queued work on a thread that only waits, if no other thread has begun that work.
    """

    def __init__(
        self,
        block_nbytes: int,
        cancel: Callable[[Transfer], None],
        num_blocks: int = 1,
        layers: Layers | None = None,
        help_out: Callable[[], None] | None = None,
    ) -> None:
        self._block_nbytes = block_nbytes
        self._num_blocks = num_blocks
        self._cancel = cancel
        self._layers = layers
        self._help_out = help_out
        self._begun = time.perf_counter()
        self._result: TransferResult | None = None
        self._sleepers: list[threading.Lock] = []
        self._callbacks: list[Callable[[Transfer], None]] = []
        self._owner_pid = os.getpid()

    def done(self) -> bool:
        """Whether the result is there."""
        return self._result is not None

    def result(self, timeout: float | None = None) -> TransferResult:
        """Wait for the end. Blocks. Without a timeout, a thread other than the main one may do the work itself.

        Raises:
            TimeoutError: The transfer has not ended after `timeout` seconds; it goes on.
            ForkError: The transfer had not ended when this process was forked; it ends in the parent alone.
        """
        if self._result is None:
            check_owner(self._owner_pid)
            if timeout is None and self._help_out is not None:
                self._help_out()
        if self._result is None:
            self._sleep(-1 if timeout is None else min(max(timeout, 0.0), threading.TIMEOUT_MAX))
        if self._result is None:
            raise TimeoutError(f"the transfer has not ended after {timeout} s; wait longer, or cancel() it")
        return self._result

    def _sleep(self, seconds: float) -> None:
        """Wait on a lock of this call's own: if an exception leaves it behind, it blocks no other waiter."""
        sleeper = threading.Lock()
        sleeper.acquire()
        self._sleepers.append(sleeper)
        if self._result is None:  # else `resolve` may have looked at the sleepers before this one came
            sleeper.acquire(timeout=seconds)
        self._sleepers.remove(sleeper)

    def layer_ready(self, group: int) -> LayerEvent:
        """For a get: the event after which a page group of the caller's cache holds all blocks that the get loads.

        `PagedKV.bind` sets how many groups a cache has, and so how many events. Does not block.
        """
        assert self._layers is not None, "only a get brings layers"
        return self._layers.event(group)

    def cancel(self) -> None:
        """Cancel copies that have not begun. Does not block: the transfer is done once no copy touches its memory.

        Raises:
            ForkError: As `result` does.
        """
        if not self.done():
            check_owner(self._owner_pid)
            self._cancel(self)

    def add_done_callback(self, callback: Callable[[Transfer], None]) -> None:
        """Call back when done, in order, on a thread of the store; at once if it is done. Must not block.

        What a callback raises is passed to `threading.excepthook` and affects nothing else.
        """
        self._callbacks.append(callback)
        if self._result is not None and callback in self._callbacks:
            self.call_back()

    def call_back(self) -> None:
        """Run the callbacks of a transfer that is done."""
        while self._callbacks:
            try:
                callback = self._callbacks.pop(0)
            except IndexError:  # another thread took the last one
                return
            attempt(partial(callback, self))

    def abandon(self) -> None:
        """End it as CANCELLED; called by an engine that closes."""
        self.resolve(0, np.full(self._num_blocks, Outcome.CANCELLED, np.uint8))

    def resolve(self, leading: int, codes: UInt8Array) -> None:
        """End it; called once, by the engine."""
        self.settle(leading, codes)
        self.call_back()

    def settle(self, leading: int, codes: UInt8Array) -> None:
        """The same without the callbacks, for a caller that holds other locks; another thread must `call_back`."""
        assert self._result is None, "a transfer ends once"
        seconds = time.perf_counter() - self._begun
        num_ok = len(codes) - int((codes != Outcome.OK).sum())
        self._result = TransferResult(leading, codes, num_ok * self._block_nbytes, seconds)
        if self._layers is not None:
            self._layers.end()
        for sleeper in self._sleepers.copy():
            sleeper.release()
