"""One canonical byte form for plain values, so that equal identities have equal bytes everywhere.

Typed and length-prefixed: ``1`` and ``"1"``, ``["a", "b"]`` and ``["ab"]``, None and ``""`` all differ.
Mappings are sorted by key. The form is part of every fingerprint and may only change with a new
version prefix where it is hashed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

__all__ = ["encode_canonical"]


def encode_canonical(value: object) -> bytes:
    """Encode None, bool, int, str, bytes, sequences and string-keyed mappings of these.

    Raises:
        TypeError: For any other type; floats are refused since equal numbers may differ in bytes.
    """
    if value is None:
        return b"n"
    if isinstance(value, bool):
        return b"t" if value else b"f"
    if isinstance(value, int):
        return _framed(b"i", str(value).encode("ascii"))
    if isinstance(value, str):
        return _framed(b"s", value.encode("utf-8"))
    if isinstance(value, bytes):
        return _framed(b"b", value)
    if isinstance(value, Mapping):
        parts = [encode_canonical(key) + encode_canonical(value[key]) for key in sorted(value)]
        return _framed(b"m", b"".join(parts))
    if isinstance(value, Sequence):
        return _framed(b"l", b"".join(encode_canonical(item) for item in value))
    raise TypeError(f"{type(value).__name__} has no canonical encoding; use None, bool, int, str, bytes, list or dict")


def _framed(tag: bytes, body: bytes) -> bytes:
    return tag + len(body).to_bytes(8, "little") + body
