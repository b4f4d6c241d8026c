"""Tracks which page groups of a get are loaded, so that an engine can start on one layer while the next still moves.

The load link adds the device's events, the transfer's end ends it, and the caller waits on it. Copies nothing.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tierstore.device.cpu import CpuEvent

if TYPE_CHECKING:
    from tierstore.device.base import Event

__all__ = ["LayerEvent", "Layers"]


class Layers:
    """The page groups of one get.

    Several copies may load one get, as its blocks arrive from SSD. A group is in place once all copies have passed
    it and no more will come.

    Args:
        num_groups: Page groups of the caller's cache.
    """

    def __init__(self, num_groups: int) -> None:
        self.num_groups = num_groups
        self._copies: list[Sequence[Event]] = []
        self._num_blocks = 0
        self._num_wanted: int | None = None
        self._complete = CpuEvent()
        self._lock = threading.Lock()

    def complete(self, num_blocks: int) -> None:
        """The get's copies cover `num_blocks` blocks and no copy will be added; some may not be enqueued yet."""
        self._num_wanted = num_blocks
        self._look()

    def add(self, events: Sequence[Event], num_blocks: int) -> None:
        """A copy of `num_blocks` blocks has been enqueued, with one event for each group."""
        with self._lock:
            self._copies.append(events)
            self._num_blocks += num_blocks
        self._look()

    def end(self) -> None:
        """The get has ended: blocks that have not come will not."""
        self.complete(0)

    def event(self, group: int) -> LayerEvent:
        """The event of one group."""
        assert 0 <= group < self.num_groups, f"there is no page group {group}; the cache has {self.num_groups}"
        return LayerEvent(self, group)

    def copies(self, group: int, timeout: float | None) -> list[Event] | None:
        """Each copy's event for a group, once no more copies will come; None if that takes too long. Blocks."""
        if not self._complete.wait(timeout):
            return None
        return [events[group] for events in self._copies]

    def _look(self) -> None:
        """Wake the waiters if the last copy has been enqueued."""
        with self._lock:
            enough = self._num_wanted is not None and self._num_blocks >= self._num_wanted
            if enough and not self._complete.done():
                self._complete.reach()


class LayerEvent:
    """One page group of a get: done once it holds every block that the get loads.

    It is an `Event` like a device's own: it can be waited for, passed to a verb as `after`, and put before other
    work with ``stream.wait``. The transfer's result, which may come later, says which blocks were loaded.
    """

    def __init__(self, layers: Layers, group: int) -> None:
        self._layers = layers
        self._group = group

    def done(self) -> bool:
        """Whether the group is in place."""
        events = self.copies(0.0)
        return events is not None and all(event.done() for event in events)

    def wait(self, timeout: float | None = None) -> bool:
        """Block until the group is in place, or until `timeout` seconds pass; returns `done()`."""
        end = None if timeout is None else time.monotonic() + timeout
        events = self.copies(timeout)
        return events is not None and all(
            event.wait(None if end is None else max(end - time.monotonic(), 0.0)) for event in events
        )

    def copies(self, timeout: float | None = None) -> list[Event] | None:
        """The device events it consists of, once every copy has been enqueued; None if that takes too long.

        For an engine whose own stream waits for them, so that no thread has to. Blocks until all blocks on SSD
        have been read.
        """
        return self._layers.copies(self._group, timeout)
