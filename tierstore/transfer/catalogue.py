"""Tells the planner which blocks are on SSD, and reads that back. In slices, so that no lock hold grows with a folder.

Called by the store when it opens a namespace, by the writer of the recency file, and for quotas.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tierstore.advice import Usage
from tierstore.control.planner import SLICE_BLOCKS

if TYPE_CHECKING:
    from tierstore.transfer.engine import Engine
    from tierstore.types import Extents, UInt8Array

__all__ = ["adopt", "held", "usage"]


def adopt(engine: Engine, number: int, hashes: UInt8Array, extents: Extents, used: Usage | None = None) -> int:
    """See `Catalogue.adopt`."""
    adopted = 0
    for first in range(0, len(hashes), SLICE_BLOCKS):
        rows = slice(first, first + SLICE_BLOCKS)
        own = None if used is None else Usage(used.prefix[rows], used.last_use[rows], used.hits[rows])
        with engine.planning() as planner:
            adopted += planner.catalogue.adopt(number, hashes[rows], extents.rows(rows), own)
    return adopted


def usage(engine: Engine) -> list[Usage]:
    """How every block on SSD has been used."""
    found: list[Usage] = []
    start: int | None = 0
    while start is not None:
        with engine.planning() as planner:
            used, start = planner.catalogue.usage(start)
        found.append(used)
    return found


def held(engine: Engine, number: int) -> tuple[int, int]:
    """The numbers of blocks of a generation in host memory and on SSD."""
    in_host = on_ssd = 0
    start: int | None = 0
    while start is not None:
        with engine.planning() as planner:
            more_in_host, more_on_ssd, start = planner.catalogue.held(number, start)
        in_host, on_ssd = in_host + more_in_host, on_ssd + more_on_ssd
    return in_host, on_ssd
