"""Promises to waiting requests: blocks that are in host memory and worth loading.

A request may be held back briefly if it then gets more: while a service's answer is in flight, while its blocks are
read from SSD, or while its first missing block is loaded for another request. Called by the scheduler's half.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from typing import TYPE_CHECKING

from tierstore.connectors.vllm.patience import Patience

if TYPE_CHECKING:
    from tierstore.connectors.vllm.advice import Advisor, Found
    from tierstore.connectors.vllm.options import Options
    from tierstore.connectors.vllm.waiting import Waiting

__all__ = ["Promises"]


class Promises:
    """What each request may load.

    Args:
        options: The connector's.
        advisor: Asks the store.
        held_back: Called whenever a request is held back.

    Attributes:
        loading: Blocks that are being loaded for some request.
    """

    def __init__(self, options: Options, advisor: Advisor, held_back: Callable[[], None]) -> None:
        self.loading: set[bytes] = set()
        self._advisor = advisor
        self._ranks = count()
        self._held_back = held_back
        self._seconds = options.lookup_seconds
        self._patience = Patience(options.lookups_max, options.lookup_seconds)

    def begin(self, state: Waiting, keys: Sequence[bytes]) -> None:
        """A request waits: its blocks are kept, and read ahead of its turn."""
        rank = state.rank = next(self._ranks)
        waiting = list(keys)
        self._advisor.tell(lambda kept: kept.handle.hint(added=[(rank, kept.needs(waiting))], session_id=kept.queue))
        self._advisor.begin(state.request.request_id, keys)

    def end(self, state: Waiting) -> None:
        """It waits no longer: its blocks age like any other's."""
        self._patience.end(state.request.request_id)
        rank, state.rank = state.rank, None
        if rank is not None:
            self._advisor.tell(lambda kept: kept.handle.hint(removed=[rank], session_id=kept.queue))
        self._advisor.forget(state.request.request_id)
        state.stop_reading()

    def promise(self, state: Waiting, keys: Sequence[bytes], first: int) -> int | None:
        """Blocks from `first` that are in host memory and worth loading; None if the request should wait for more."""
        promised = self._promise(state, keys, first) if first < len(keys) else 0
        if promised is not None:
            self._patience.end(state.request.request_id)
        return promised

    def _promise(self, state: Waiting, keys: Sequence[bytes], first: int) -> int | None:
        found = self._find(state, keys, first)
        if found is None:
            return None
        state.cursor = first + found.leading if found.head == first else found.head
        stop, in_host = min(found.stop, len(keys) - first), min(found.in_host, len(keys) - first)
        if stop == 0:
            return 0
        state.in_host = in_host if state.in_host is None else state.in_host
        under_way = keys[first] in self.loading
        if in_host == stop and not under_way:
            return in_host
        if state.prefetches is None and in_host < stop:
            self._read(state, list(keys[first : first + stop]))
        if (under_way or state.reading) and self._may_wait(state):
            return None
        if in_host < stop:  # it may have come since
            found = self._find(state, keys, first)
        return None if found is None else min(found.in_host, stop)

    def _read(self, state: Waiting, wanted: list[bytes]) -> None:
        state.prefetches = []
        seconds = self._seconds
        self._advisor.tell(lambda kept: state.reads(kept.handle.prefetch(kept.needs(wanted), deadline_seconds=seconds)))

    def _find(self, state: Waiting, keys: Sequence[bytes], first: int) -> Found | None:
        """What the store holds of it; None where it is worth waiting for the answer."""
        request_id = state.request.request_id
        found = self._advisor.find(request_id, keys, first)
        if found is None:
            return None if self._may_wait(state) else self._advisor.last(request_id)
        return found

    def _may_wait(self, state: Waiting) -> bool:
        may_wait = self._patience.may_wait(state.request.request_id)
        if may_wait:
            self._held_back()
        return may_wait
