"""The health of a tier: whether it is in service, since when and why; and the faults of its medium.

Plain data that all layers share: tiers report faults, the planner draws conclusions, interfaces show them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["Fault", "Service", "TierHealth"]


class Service(StrEnum):
    """How far a tier takes part."""

    SERVING = "serving"
    WRITES_OFF = "writes_off"
    """Nothing is written to it; what it holds is served."""
    READS_OFF = "reads_off"
    """Nothing is written to it, and what it holds is a miss."""


@dataclass(frozen=True, slots=True)
class TierHealth:
    """The present health of a tier.

    Attributes:
        service: How far it takes part.
        since: Unix time in seconds from which on this is so.
        why: What has turned it off, in words; empty where it serves.
    """

    service: Service
    since: float
    why: str = ""


@dataclass(frozen=True, slots=True)
class Fault:
    """Why a tier could not do what it was asked to.

    Attributes:
        text: The first call that its medium refused, in words.
        full: Whether giving something back would make room.
    """

    text: str
    full: bool = False
