"""State that all addresses of one server share: sessions, quotas, streams, counters. Made once by the server."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from tierstore.metrics import Metrics
    from tierstore.monitor.spans import Propagation
    from tierstore.service.quotas import Quotas
    from tierstore.service.sessions import Session, Sessions
    from tierstore.service.streams import Streams
    from tierstore.service.traffic import Traffic

__all__ = ["Rooms"]

_BOOT_ID_NBYTES = 16


@dataclass(slots=True)
class Rooms:
    """What the dispatchers of all addresses share.

    Attributes:
        sessions: Every session.
        calls: Calls without blocks, by name.
        streams: Get and Put.
        may_attach: Whether a session may map the pool.
        prefetch_waits: Whether requests wait for their prefetches.
        traffic: Calls under way.
        metrics: Counted into, on the server's loop.
        quotas: What each credential has.
        propagation: Of traces; None where nothing is traced.
        boot_id: Another one after each start.
    """

    sessions: Sessions
    calls: Mapping[str, Callable[..., Awaitable[object]]]
    streams: Streams
    may_attach: Callable[[Session], bool]
    prefetch_waits: bool
    traffic: Traffic
    metrics: Metrics
    quotas: Quotas
    propagation: Propagation | None = None
    boot_id: bytes = field(default_factory=lambda: secrets.token_bytes(_BOOT_ID_NBYTES))
