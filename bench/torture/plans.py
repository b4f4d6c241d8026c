"""What is drawn for each life from the seed: over which folder, with which settings, how it ends, what befalls it.

Called by `lives`. Equal seeds give equal plans; how the threads of a life meet is not in the plan, so a life that is
lived again may end otherwise. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from random import Random
from types import MappingProxyType
from typing import Final

from bench.torture.damage import KINDS as DAMAGES
from bench.torture.witness import Moment

__all__ = ["KINDS", "LIVES_PER_WORLD", "Kind", "Plan", "plan_life"]

LIVES_PER_WORLD: Final = 10
"""Lives over one folder, each of which finds what the ones before it left."""

_CALLS_MAX: Final = 1500
"""A life may end at any of so many disk calls, rather sooner than later."""


_ANSWERS_MAX: Final = 80
"""A life may end behind any of so many answers."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of world: one folder and the lives over it.

    Attributes:
        about: What is tortured, for a person.
        real: A process that is killed over a real folder, rather than a power loss over a simulated disk.
        capacity_files: Chunk files that the folder may hold; in some lives a quarter less.
        damaged: Whether the folder is damaged between lives, and during some.
        codecs: Of which each life takes one.
    """

    about: str
    real: bool
    capacity_files: int
    damaged: bool = False
    codecs: tuple[str, ...] = ("raw",)

    @property
    def reclaims(self) -> bool:
        """Whether the folder is too small for what is put."""
        return self.capacity_files < _ROOMY


_TIGHT, _MIDDLING, _ROOMY = 11, 16, 512
"""Chunk files; no fewer, for what a store takes at least must be there in a smaller life too."""

KINDS: Final[Mapping[str, Kind]] = MappingProxyType(
    {
        "power": Kind("power loss, room for all", real=False, capacity_files=_ROOMY),
        "power-reclaim": Kind("power loss, files are reclaimed", real=False, capacity_files=_TIGHT),
        "power-lz4": Kind("power loss, two codecs", real=False, capacity_files=_MIDDLING, codecs=("raw", "lz4")),
        "power-damage": Kind("power loss and damage", real=False, capacity_files=_MIDDLING, damaged=True),
        "kill": Kind("kill -9, room for all", real=True, capacity_files=_ROOMY),
        "kill-reclaim": Kind("kill -9, files are reclaimed", real=True, capacity_files=_TIGHT, codecs=("raw", "lz4")),
        "kill-damage": Kind("kill -9 and damage", real=True, capacity_files=_MIDDLING, damaged=True),
    }
)
"""Every kind by its name."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One life.

    Attributes:
        settings: Of the store, but for its folder.
        seed: Of what the life draws itself.
        runs: How often it opens the store.
        steps: Of each caller in each run.
        threads: Callers at once.
        trap_call: The disk call at which it ends; 0 where none ends it.
        trap_moment: When in that call.
        last_answer: The durable put, delete, flush or clear behind whose answer it ends at once; 0 where none ends it.
        kill_seconds: When it is killed from outside; infinity where it is not.
        closes: Whether it is closed in the end, if nothing has ended it before.
        torn: Whether the power loss keeps some of what was not synced.
        damages: What befalls the folder before it.
        spoilt_while_open: Whether something befalls it while it is open.
    """

    settings: Mapping[str, object]
    seed: str
    runs: int
    steps: int
    threads: int
    trap_call: int
    trap_moment: Moment
    last_answer: int
    kill_seconds: float
    closes: bool
    torn: bool
    damages: tuple[str, ...]
    spoilt_while_open: bool

    @property
    def capacity_nbytes(self) -> int:
        """What all chunk files may take."""
        return int(str(self.settings["ssd_size"]))


FILE_NBYTES: Final = 128 << 10
"""Of a chunk file: seven to fourteen blocks."""


def plan_life(kind: Kind, seed: str, index: int) -> Plan:
    """Draw the life with this place in its world.

    Args:
        kind: Of the world.
        seed: Of the world.
        index: From 0.
    """
    rng = Random(f"{seed}/{index}")
    way = rng.random()
    traps, answers = way < 0.4, 0.4 <= way < 0.75
    kills = kind.real and 0.75 <= way < 0.9
    return Plan(
        settings={
            "host_size": "384 KiB",
            "host_slab_size": "64 KiB",
            "ssd_size": kind.capacity_files * FILE_NBYTES * rng.choice((4, 4, 3)) // 4,
            "ssd_file_size": FILE_NBYTES,
            "ssd_free_floor": "4 KiB",
            "ssd_stall_seconds": 0,  # a machine that is stopped for a while is no disk that hangs
            "prefetch_cold_seconds": 0,
            "ssd_read_threads": rng.choice((1, 4)),
            "admission_name": rng.choice(("always", "always", "second-hit")),
            "codec_name": rng.choice(kind.codecs),
        },
        seed=f"{seed}/{index}/life",
        runs=rng.choice((1, 1, 2)),
        steps=rng.randrange(10, 100),
        threads=rng.randrange(1, 4),
        trap_call=int(_CALLS_MAX ** rng.uniform(0.2, 1)) if traps else 0,
        trap_moment=rng.choice(list(Moment)),
        last_answer=int(_ANSWERS_MAX ** rng.random()) if answers else 0,
        kill_seconds=rng.uniform(0.002, 0.4) if kills else inf,
        closes=rng.random() < 0.5,
        torn=rng.random() < 0.6,
        damages=tuple(rng.choices(DAMAGES, k=rng.choice((0, 1, 1, 2)))) if kind.damaged and index else (),
        spoilt_while_open=kind.damaged and rng.random() < 0.3,
    )
