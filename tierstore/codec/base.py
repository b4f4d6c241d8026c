"""How a block's bytes become the bytes on disk. Pure functions of buffers; called by tier workers only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, TypeAlias, runtime_checkable

__all__ = ["Codec", "RawCodec", "ZarrCodec"]

ZarrCodec: TypeAlias = Mapping[str, object]
"""One codec as Zarr v3 metadata writes it: ``name`` and ``configuration``."""


@runtime_checkable
class Codec(Protocol):
    """One way to encode blocks. Implementations are stateless and may be called from several threads."""

    @property
    def name(self) -> str:
        """As in the configuration and in the array's folder name."""

    @property
    def codec_id(self) -> int:
        """As in record headers; never reused for another codec."""

    def max_encoded_nbytes(self, raw_nbytes: int) -> int:
        """Upper bound of `encode`'s result."""

    def encode(self, src: memoryview, dst: memoryview, *, item_nbytes: int) -> int:
        """Encode `src` into `dst`; returns the bytes written. `item_nbytes` is the KV element's size."""

    def decode(self, src: memoryview, dst: memoryview, *, item_nbytes: int) -> None:
        """Decode `src` into `dst`, filling it exactly. Raises ValueError where it cannot."""

    def zarr_codecs(self, item_nbytes: int) -> list[ZarrCodec]:
        """What decodes the bytes in a Zarr reader: bytes-to-bytes codecs, in the order of encoding."""


class RawCodec:
    """The bytes as they are. The data path recognises it and moves blocks without a copy."""

    name = "raw"
    codec_id = 0

    def max_encoded_nbytes(self, raw_nbytes: int) -> int:
        """Equal to `raw_nbytes`."""
        return raw_nbytes

    def encode(self, src: memoryview, dst: memoryview, *, item_nbytes: int) -> int:
        """Copy."""
        dst[: len(src)] = src
        return len(src)

    def decode(self, src: memoryview, dst: memoryview, *, item_nbytes: int) -> None:
        """Copy."""
        if len(src) != len(dst):
            raise ValueError(f"a raw block of {len(src)} bytes cannot fill {len(dst)}")
        dst[:] = src

    def zarr_codecs(self, item_nbytes: int) -> list[ZarrCodec]:
        """None."""
        return []
