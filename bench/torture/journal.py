"""Facts of a life, taken in here and written down for whoever outlives it.

Called by every thread of a life; one fact is one line, written whole before `say` returns, so that a killed
process has said what it was told. A life that is not killed from outside writes nothing down.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Sequence
from dataclasses import replace

from bench.torture.blocks import Block
from bench.torture.knowledge import FACTS, Fate, Knowledge

__all__ = ["Journal"]


class Journal:
    """What the life at hand knows.

    Args:
        knowledge: Of the lives before; told of everything.
        descriptor: Of a file open for appending; None where the life runs in its parent.
    """

    def __init__(self, knowledge: Knowledge, descriptor: int | None = None) -> None:
        self._knowledge = knowledge
        self._descriptor = descriptor
        self._lock = threading.Lock()

    def say(self, name: str, *told: object) -> None:
        """Say one fact: the name of a method of `Knowledge`, and what it is told with."""
        assert name in FACTS, f"{name!r} is no fact"
        with self._lock:
            if self._descriptor is not None:
                os.write(self._descriptor, json.dumps([name, *told]).encode() + b"\n")
            getattr(self._knowledge, name)(*told)

    def fates(self, space: int, numbers: Sequence[int]) -> list[Fate]:
        """What is known of blocks now: copies."""
        with self._lock:
            return [replace(self._knowledge.fates[Block(space, number)]) for number in numbers]
