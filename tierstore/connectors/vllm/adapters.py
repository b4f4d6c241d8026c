"""Digests of LoRA adapters: a block hash holds an adapter's name and path, and neither tells when its weights change.

Called by the scheduler's half, which waits for no file: a digest is made on a thread of its own when an adapter is met
first, and until it is there the adapter's requests neither load nor save.
"""

from __future__ import annotations

import hashlib
import logging
from pathlib import Path

from tierstore.connectors.vllm.weights import digest_folder
from tierstore.errors import ConfigError
from tierstore.worker import Worker

__all__ = ["Adapters"]

_WAITING_MAX = 1024
_logger = logging.getLogger("vllm.tierstore.adapters")


class Adapters:
    """Every adapter that requests have named."""

    def __init__(self) -> None:
        self._digests: dict[str, bytes | None] = {}
        self._worker: Worker | None = None

    def digest(self, path: str) -> bytes | None:
        """32 bytes that name an adapter's weights; None while they are being read, and where they cannot be."""
        if path not in self._digests:
            self.forget(path)
        return self._digests[path]

    def forget(self, path: str) -> None:
        """Read an adapter's weights, again where they were read before: the engine has been told to load it anew."""
        self._digests[path] = None
        if self._worker is None:
            self._worker = Worker("adapters", capacity=_WAITING_MAX)
        self._worker.submit(lambda: self._read(path))

    def _read(self, path: str) -> None:
        try:
            told = digest_folder(Path(path))
        except ConfigError as error:
            _logger.warning("requests for the adapter in %s are neither loaded nor saved: %s", path, error)
            return
        self._digests[path] = hashlib.sha256(told.encode()).digest()

    def close(self) -> None:
        """End the thread. Blocks while it reads."""
        if self._worker is not None:
            self._worker.close()
