"""Wraps a codec and counts its seconds, so that metrics show whether codec or disk limits the speed.

The SSD tier wraps its codecs, and returns the seconds when metrics are read. From any thread.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, TypeAlias

from tierstore.codec.base import Codec, ZarrCodec

__all__ = ["TimedCodec", "Verb"]

Verb: TypeAlias = Literal["encode", "decode"]


class TimedCodec:
    """Another codec, timed. See `Codec`.

    Args:
        codec: The codec.
    """

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        self._lock = threading.Lock()
        self._seconds: dict[Verb, float] = {"encode": 0.0, "decode": 0.0}
        self.name = codec.name
        self.codec_id = codec.codec_id

    def max_encoded_nbytes(self, raw_nbytes: int) -> int:
        """Upper bound of `encode`'s result."""
        return self._codec.max_encoded_nbytes(raw_nbytes)

    def encode(self, src: memoryview, dst: memoryview, *, item_nbytes: int) -> int:
        """Encode."""
        with self._timed("encode"):
            return self._codec.encode(src, dst, item_nbytes=item_nbytes)

    def decode(self, src: memoryview, dst: memoryview, *, item_nbytes: int) -> None:
        """Decode."""
        with self._timed("decode"):
            self._codec.decode(src, dst, item_nbytes=item_nbytes)

    def zarr_codecs(self, item_nbytes: int) -> list[ZarrCodec]:
        """Those of the codec."""
        return self._codec.zarr_codecs(item_nbytes)

    def take_seconds(self) -> dict[Verb, float]:
        """How long all threads together have encoded and decoded since this was last asked."""
        with self._lock:
            seconds, self._seconds = self._seconds, {"encode": 0.0, "decode": 0.0}
        return seconds

    @contextmanager
    def _timed(self, verb: Verb) -> Iterator[None]:
        started = time.perf_counter()
        try:
            yield
        finally:
            seconds = time.perf_counter() - started
            with self._lock:
                self._seconds[verb] += seconds
