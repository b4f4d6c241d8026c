"""Calls of an engine's scheduler: it tells which requests wait, and asks what is worth loading. In slices.

Called by the handles. Every step is one call of `Engine.tell` or one look under the lock, so that no lock hold
grows with a queue or a prompt. Nothing here waits for a copy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tierstore.control.lookahead import hint_slices
from tierstore.control.planner import SLICE_BLOCKS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tierstore.advice import LoadAdvice
    from tierstore.control.loading import LoadRequest
    from tierstore.control.lookahead import Waiting
    from tierstore.control.planner import Planner
    from tierstore.transfer.engine import Engine
    from tierstore.types import Plan, UInt8Array

__all__ = ["end_session", "hint", "places", "plan_load"]


def hint(engine: Engine, session_id: int, number: int, added: Sequence[Waiting], removed: Sequence[int]) -> None:
    """See `Lookahead.hint`."""
    for piece in hint_slices(added, SLICE_BLOCKS):
        engine.tell(_hinted(session_id, number, piece, removed))
        removed = ()


def _hinted(
    session_id: int, number: int, added: Sequence[Waiting], removed: Sequence[int]
) -> Callable[[Planner, float], tuple[None, Plan]]:
    return lambda planner, now: (None, planner.hint(session_id, number, now, added=added, removed=removed))


def end_session(engine: Engine, session_id: int) -> None:
    """See `Planner.end_session`; returns once none of its requests counts."""
    engine.tell(lambda planner, now: (None, planner.end_session(session_id, now)))


def plan_load(engine: Engine, number: int, wanted: LoadRequest) -> LoadAdvice:
    """See `Loading.consider`. Only a probe changes anything; all else is asked on the caller's thread."""
    found = places(engine, number, wanted.hashes)
    advice, probe = engine.look(lambda planner, now: planner.plan_load(number, found, wanted, now))
    if probe:
        engine.tell(lambda planner, now: (None, planner.probe(number, wanted, advice, now)))
    return advice


def places(engine: Engine, number: int, hashes: UInt8Array) -> UInt8Array:
    """uint8[n]: the nearest tier from which each block could be loaded, as `tierstore.advice.Place`."""
    found: list[UInt8Array] = [np.empty(0, np.uint8)]
    for first in range(0, len(hashes), SLICE_BLOCKS):
        with engine.planning() as planner:
            found.append(planner.loading.places(number, hashes[first : first + SLICE_BLOCKS]))
    return np.concatenate(found)
