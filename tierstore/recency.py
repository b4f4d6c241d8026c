"""Keeps the usage of blocks across restarts: reads it at start, writes it every minute and at the end.

Made by `tierstore.assembly` if the store owns an SSD folder. Advice only: a failed read or write loses ages, never
blocks, and is logged.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import numpy as np

from tierstore.advice import Usage
from tierstore.errors import DiskError
from tierstore.tiers.recency import RECENCY, read_recency, recency_keys, write_recency
from tierstore.transfer import catalogue
from tierstore.transfer.timer import Timer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tierstore.disk.base import Disk
    from tierstore.tiers.base import Recovered
    from tierstore.transfer.engine import Engine
    from tierstore.types import UInt8Array

__all__ = ["RecencyKeeper"]

_PERIOD_SECONDS = 60.0
_PATIENCE_SECONDS = 2.0

_logger = logging.getLogger(__name__)


class RecencyKeeper:
    """The recency file of one folder, and what the run before left in it.

    Args:
        disk: The folder.
        engine: Asked for the usage of blocks.
        waiting: Blocks of namespaces that are not open yet, by fingerprint; the store's own mapping.
    """

    def __init__(self, disk: Disk, engine: Engine, waiting: Mapping[bytes, list[Recovered]]) -> None:
        self._disk = disk
        self._engine = engine
        self._waiting = waiting
        rows = read_recency(disk)
        rows = np.empty(0, RECENCY) if rows is None else rows
        self._left = rows[np.argsort(rows["key"], kind="stable")]
        self._timer = Timer(engine.now, self._save_and_rest, name="recency")
        self._timer.arm(engine.now() + _PERIOD_SECONDS)

    def of(self, fingerprint: bytes, hashes: UInt8Array) -> Usage | None:
        """How the run before used uint8[n, 32] blocks: zeros where it does not say, None where it says nothing."""
        if not len(self._left):
            return None
        keys = recency_keys(fingerprint, hashes)
        places = np.minimum(np.searchsorted(self._left["key"], keys), len(self._left) - 1)
        known = self._left["key"][places] == keys
        last_use = np.where(known, self._left["last_use"][places], 0).astype(np.uint32)
        return Usage(keys, last_use, np.where(known, self._left["hits"][places], 0).astype(np.uint16))

    def save(self) -> None:
        """Write the file, where the SSD is on. Blocks; a disk that fails is a line in the log."""
        with self._engine.planning() as planner:
            if not planner.health.writes_on:
                return
        parts = [np.empty(0, RECENCY)]
        for usage in [*catalogue.usage(self._engine), *self._still_waiting()]:
            rows = np.empty(len(usage), RECENCY)
            rows["key"], rows["last_use"], rows["hits"] = usage.prefix, usage.last_use, usage.hits
            parts.append(rows)
        try:
            write_recency(self._disk, np.concatenate(parts))
        except DiskError as error:
            _logger.warning("how blocks were used is not written down: %s", error)

    def _still_waiting(self) -> list[Usage]:
        """What the run before said of blocks whose namespace this one has not opened."""
        batches = [batch for batches in list(self._waiting.values()) for batch in batches]
        usages = [self.of(batch.fingerprint, batch.hashes) for batch in batches]
        return [usage for usage in usages if usage is not None]

    def close(self) -> None:
        """End the thread and write the file once more, where the SSD takes it. Blocks, but for no disk that hangs."""
        self._timer.close(_PATIENCE_SECONDS)
        self.save()

    def _save_and_rest(self) -> float:
        self.save()
        return self._engine.now() + _PERIOD_SECONDS
