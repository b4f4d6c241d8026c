"""Digests of LoRA adapters. A block hash covers only an adapter's name and path, which stay when its weights change.

Called by the scheduler's half, which never waits for a file. The first request of an adapter starts its digest on a
separate thread; until it is done, the adapter's requests neither load nor save.
"""

from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass
from pathlib import Path

from tierstore.connectors.vllm.weights import digest_folder
from tierstore.errors import ConfigError
from tierstore.worker import Worker

__all__ = ["Adapters"]

_WAITING_MAX = 1024
_logger = logging.getLogger("vllm.tierstore.adapters")


@dataclass(slots=True)
class _Reading:
    """One look at an adapter's weights, and what came of it."""

    digest: bytes | None = None


class Adapters:
    """Every adapter that requests have named."""

    def __init__(self) -> None:
        self._readings: dict[str, _Reading] = {}
        self._worker: Worker | None = None

    def digest(self, path: str) -> bytes | None:
        """32 bytes that name an adapter's weights; None while they are being read, and where they cannot be."""
        reading = self._readings.get(path)
        if reading is None:
            self.forget(path)
            return None
        return reading.digest

    def forget(self, path: str) -> None:
        """Start reading an adapter's weights, also if they were read before: the engine loads the adapter anew."""
        reading = self._readings[path] = _Reading()  # what an earlier one still brings is nobody's
        if self._worker is None:
            self._worker = Worker("adapters", capacity=_WAITING_MAX)
        if not self._worker.submit(lambda: self._read(path, reading)):
            del self._readings[path]

    def _read(self, path: str, reading: _Reading) -> None:
        try:
            told = digest_folder(Path(path))
        except ConfigError as error:
            _logger.warning("requests for the adapter in %s are neither loaded nor saved: %s", path, error)
            return
        reading.digest = hashlib.sha256(told.encode()).digest()

    def close(self) -> None:
        """End the thread. Blocks while it reads."""
        if self._worker is not None:
            self._worker.close()
