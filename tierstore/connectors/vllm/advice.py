"""Asks the store what it holds of a request: directly in this process, or on a thread through a service.

The scheduler never waits for a socket. A question to a service is sent when a request arrives, and again at each query
after an answer. Until the answer comes the request may be held back. Called on the scheduler's thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

import numpy as np

from tierstore.advice import Place
from tierstore.errors import TierstoreError
from tierstore.worker import Worker

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tierstore.client import ClientHandle
    from tierstore.handle import NamespaceHandle

    Handle: TypeAlias = NamespaceHandle | ClientHandle

__all__ = ["NOTHING", "Advisor", "Found", "Here", "Kept", "There", "fit"]

_QUESTIONS_MAX = 4096
_logger = logging.getLogger("vllm.tierstore.advice")


@dataclass(frozen=True, slots=True)
class Kept:
    """One group of layers on one shard, in the store.

    Attributes:
        handle: The verbs of its namespace.
        group: Position in the list of groups.
        window: How many blocks before its end a prefix needs of this group; None: all.
        queue: Number of its queue of waiting requests; each namespace has its own.
    """

    handle: Handle
    group: int
    window: int | None
    queue: int

    def needs(self, keys: Sequence[bytes]) -> list[bytes]:
        """The blocks that a prefix of these needs."""
        return list(keys if self.window is None else keys[-self.window :])


@dataclass(frozen=True, slots=True)
class Found:
    """What is known of a prompt's blocks, over all groups and shards. A block counts if every one has what it needs.

    Attributes:
        head: Leading blocks that the store holds, of those that the engine holds itself.
        leading: Blocks after those that the store holds without a hole.
        stop: How many of the `leading` blocks are worth loading.
        in_host: How many of the `stop` blocks are in host memory now.
    """

    head: int
    leading: int
    stop: int
    in_host: int


NOTHING = Found(0, 0, 0, 0)


def _find(kept: Sequence[Kept], keys: Sequence[bytes], first: int) -> Found:
    """Ask about the blocks of a prompt behind the `first` ones."""
    head, tail = list(keys[:first]), list(keys[first:])
    found, windows = [], []
    for one in kept:
        if one.window is not None:
            windows.append((one.window, one.handle.places(tail)))
            continue
        advice = one.handle.plan_load(tail)
        held = one.handle.lookup(head) if head else 0
        found.append(Found(held, advice.leading, advice.stop, min(advice.in_host, advice.stop)))
    if found:
        whole = Found(*(min(getattr(one, name) for one in found) for name in ("head", "leading", "stop", "in_host")))
    else:
        whole = Found(0, len(tail), len(tail), len(tail))
    if not windows:
        return whole
    held_windows = [(window, places != Place.NOWHERE) for window, places in windows]
    stop = fit(held_windows, whole.stop)
    in_host = fit([(window, places == Place.HOST) for window, places in windows], min(stop, whole.in_host))
    return Found(whole.head, fit(held_windows, whole.leading), stop, in_host)


def fit(windows: Sequence[tuple[int, NDArray[np.bool_]]], stop: int) -> int:
    """The longest prefix, of at most `stop` blocks, such that every window before its end is complete.

    Args:
        windows: For each, its length in blocks and bool[n]: whether each block is there.
        stop: At most n.
    """
    holes = [(window, np.flatnonzero(~there)) for window, there in windows]
    settled = False
    while not settled:
        settled = True
        for window, missing in holes:
            before = int(np.searchsorted(missing, stop))
            if before and missing[before - 1] >= stop - window:
                stop, settled = int(missing[before - 1]), False
    return stop


class Advisor(Protocol):
    """Asks the store on the scheduler's behalf. Only `close` blocks. A refusal by the store counts as a miss."""

    def begin(self, request_id: str, keys: Sequence[bytes]) -> None:
        """A request has come, and will be asked about."""

    def find(self, request_id: str, keys: Sequence[bytes], first: int) -> Found | None:
        """What is known of a prompt's blocks; None where the answer is on its way."""

    def last(self, request_id: str) -> Found:
        """The latest answer; nothing where there was none."""

    def tell(self, message: Callable[[Kept], object]) -> None:
        """Have every group and shard told something, in the order of the calls."""

    def forget(self, request_id: str) -> None:
        """A request has ended."""

    def close(self) -> None:
        """Ask no more. Blocks until what is under way has ended."""


class Here:
    """A store in this process: see `Advisor`."""

    def __init__(self, kept: Sequence[Kept]) -> None:
        self._kept = kept

    def begin(self, request_id: str, keys: Sequence[bytes]) -> None:
        """It is early enough to ask when the answer is wanted."""

    def find(self, request_id: str, keys: Sequence[bytes], first: int) -> Found | None:
        """At once."""
        try:
            return _find(self._kept, keys, first)
        except TierstoreError as error:
            _logger.warning("the store is left alone: %s", error)
            return NOTHING

    def last(self, request_id: str) -> Found:
        """Every answer is at once, so that none is late."""
        return NOTHING

    def tell(self, message: Callable[[Kept], object]) -> None:
        """At once."""
        _tell(self._kept, message)

    def forget(self, request_id: str) -> None:
        """Nothing is kept of a request."""

    def close(self) -> None:
        """Nothing is under way."""


class There:
    """A store behind a service: see `Advisor`."""

    def __init__(self, kept: Sequence[Kept]) -> None:
        self._kept = kept
        self._worker = Worker("lookups", capacity=_QUESTIONS_MAX)
        self._asked: dict[str, int] = {}
        self._answers: dict[str, tuple[int, Found]] = {}
        self._last: dict[str, Found] = {}

    def begin(self, request_id: str, keys: Sequence[bytes]) -> None:
        """Ask already: as a rule the engine holds nothing of it."""
        self.find(request_id, keys, 0)

    def find(self, request_id: str, keys: Sequence[bytes], first: int) -> Found | None:
        """An answer that has arrived since the last query; otherwise the question is sent or in flight."""
        answer = self._answers.pop(request_id, None)
        if answer is not None:
            del self._asked[request_id]
            if answer[0] == first:
                self._last[request_id] = answer[1]
                return answer[1]
        if request_id not in self._asked:
            known = list(keys)
            self._asked[request_id] = first  # before the thread can answer
            if not self._worker.submit(lambda: self._ask(request_id, known, first)):
                del self._asked[request_id]
        return None

    def _ask(self, request_id: str, keys: list[bytes], first: int) -> None:
        found = NOTHING
        try:
            found = _find(self._kept, keys, first)
        except TierstoreError as error:
            _logger.warning("the service is left alone: %s", error)
        if request_id in self._asked:
            self._answers[request_id] = first, found

    def last(self, request_id: str) -> Found:
        """The latest answer."""
        return self._last.get(request_id, NOTHING)

    def tell(self, message: Callable[[Kept], object]) -> None:
        """On the thread; dropped where too many wait."""
        self._worker.submit(lambda: _tell(self._kept, message))

    def forget(self, request_id: str) -> None:
        """Drop its answers."""
        self._asked.pop(request_id, None)
        self._answers.pop(request_id, None)
        self._last.pop(request_id, None)

    def close(self) -> None:
        """End the thread."""
        self._worker.close()


def _tell(kept: Sequence[Kept], message: Callable[[Kept], object]) -> None:
    try:
        for one in kept:
            message(one)
    except TierstoreError as error:
        _logger.warning("the store is left alone: %s", error)
