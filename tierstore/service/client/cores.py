"""Which core a thread runs on, and how a helper leaves the core of the thread it helps. Called by a client's copies.

If few cores share a cache and are busy, the kernel wakes a thread on the core of its waker, even if others
are idle, and moves it only at a later tick: two threads that shared a copy of 10 ms took turns on one core.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

__all__ = ["core", "off"]

_UNKNOWN = -1
_sched_getcpu = getattr(ctypes.CDLL(None), "sched_getcpu", lambda: _UNKNOWN)


def core() -> int:
    """The core that the calling thread runs on; -1 where nobody says."""
    found: int = _sched_getcpu()
    return found


@contextmanager
def off(taken: int) -> Iterator[None]:
    """While it lasts, keep the calling thread off a core where it runs just now, if others are allowed to it."""
    allowed = os.sched_getaffinity(0) if taken != _UNKNOWN and core() == taken else set[int]()
    others = allowed - {taken}
    if others:
        with suppress(OSError):
            os.sched_setaffinity(0, others)
    try:
        yield
    finally:
        if others and os.sched_getaffinity(0) == others:  # else somebody has said meanwhile where it is to run
            with suppress(OSError):
                os.sched_setaffinity(0, allowed)
