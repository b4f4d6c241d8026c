"""Identity: the namespace, which is everything that shaped a block's bytes, and the hashes of blocks within it.

A block's identity is (namespace fingerprint, block hash), both 32 bytes. Namespaces that differ in any field
share no blocks. An unknown field is an explicit None, which matches only None.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from operator import index as as_index

from tierstore.encoding import encode_canonical
from tierstore.errors import IdentityError
from tierstore.layout import KVLayout
from tierstore.quantized import QuantizedBlock
from tierstore.types import HASH_NBYTES

__all__ = ["Namespace", "chain_hashes", "pack_hashes"]


@dataclass(frozen=True)
class Namespace:
    """Everything that shaped the bytes of its blocks.

    Attributes:
        model: Model id, such as ``"meta-llama/Llama-3.1-8B"``.
        layout: Pages, heads, dtype, tokens and memory order.
        revision: Digest or revision of the weights.
        engine_config: Digest of whatever the engine says shapes KV (RoPE scaling, sliding window, …).
        quantization: Scheme of the stored KV.
        tp_size: Tensor-parallel ranks.
        pp_size: Pipeline-parallel ranks.
        shard: (index, count) of this shard; (0, 1) for what every rank holds alike, such as MLA.
        tenant: The owner of the blocks.
        stored_as: How the store keeps the KV where it may lose precision: ``"fp8_e4m3"`` or ``"int8"``, a byte an
            element with a scale for each token and head. None keeps every byte.

    Raises:
        IdentityError: An empty model, parallel sizes that make no sense, or a field of another type.
        LayoutError: Blocks of this layout cannot be kept as `stored_as` says.
    """

    model: str
    layout: KVLayout
    revision: str | None = None
    engine_config: str | None = None
    quantization: str | None = None
    tp_size: int | None = None
    pp_size: int | None = None
    shard: tuple[int, int] = (0, 1)
    tenant: str | None = None
    stored_as: str | None = None

    def __post_init__(self) -> None:
        if not self.model:
            raise IdentityError("model is empty; name the model that made the KV")
        for name in ("model", "revision", "engine_config", "quantization", "tenant", "stored_as"):
            if getattr(self, name) is not None:
                _check_text(name, getattr(self, name))
        if not isinstance(self.layout, KVLayout):
            raise IdentityError(f"layout is of type {type(self.layout).__name__}; pass a KVLayout")
        if {type(number) for number in (*self.shard, self.tp_size or 1, self.pp_size or 1)} != {int}:
            sizes = f"tp_size is {self.tp_size!r}, pp_size {self.pp_size!r} and shard {self.shard!r}"
            raise IdentityError(f"{sizes}; their numbers must be of type int")
        index, count = self.shard
        if not 0 <= index < count:
            raise IdentityError(f"shard is {self.shard}; it must be (index, count) with 0 <= index < count")
        for name, size in (("tp_size", self.tp_size), ("pp_size", self.pp_size)):
            if size is not None and size < 1:
                raise IdentityError(f"{name} is {size}; it must be at least 1, or None where unknown")

        _ = self.quantized

    @cached_property
    def quantized(self) -> QuantizedBlock | None:
        """How a block lies in its slot where the store quantizes it; None where it keeps every byte."""
        return None if self.stored_as is None else QuantizedBlock.of(self.layout, self.stored_as)

    @cached_property
    def stored_layout(self) -> KVLayout:
        """The layout of blocks in slots and on SSD: `layout`, but for blocks that are quantized."""
        return self.layout if self.quantized is None else self.quantized.stored_layout(self.layout.block_tokens)

    @cached_property
    def fingerprint(self) -> bytes:
        """32 bytes; equal namespaces, and only those, have equal fingerprints."""
        return hashlib.sha256(b"tierstore namespace 1\0" + encode_canonical(self.as_fields())).digest()

    def as_fields(self) -> dict[str, object]:
        """The identity as plain values, for the canonical encoding and for a person to read."""
        values: dict[str, object] = {field.name: getattr(self, field.name) for field in fields(self)}
        values["layout"] = self.layout.as_fields()
        values["shard"] = list(self.shard)
        if self.stored_as is None:  # younger than the folders that hold fingerprints without it
            del values["stored_as"]
        return values


def _check_text(name: str, text: str) -> None:
    """Refuse what has no form in bytes: it would fail later, with words of another room."""
    try:
        str.encode(text)
    except (TypeError, UnicodeEncodeError) as error:
        raise IdentityError(f"{name} is {text!r}; pass text that UTF-8 can hold") from error


def chain_hashes(
    token_ids: Sequence[int],
    block_tokens: int,
    extra: Mapping[int, bytes] | bytes = b"",
) -> list[bytes]:
    """Hash token ids into one prefix-chained 32-byte hash a full block.

    ``h_i = SHA-256(h_{i-1} ‖ tokens_i as little-endian u32 ‖ len(extra_i) ‖ extra_i)``: cryptographic
    and unseeded, so the same in every process and after a restart. A rest of less than one block has no hash.

    Args:
        token_ids: Token ids, each below 2**32.
        block_tokens: Tokens a block.
        extra: What else shaped the KV (salt, adapter, media digest): bytes for the whole chain, seeding
            its first block, or a mapping from block index to that block's bytes.

    Returns:
        ``len(token_ids) // block_tokens`` hashes of 32 bytes, in prefix order.

    Raises:
        IdentityError: block_tokens below 1, or a token id that is no whole number in 0…2**32-1.
    """
    if block_tokens < 1:
        raise IdentityError(f"block_tokens is {block_tokens}; it must be at least 1")
    extras = {0: extra} if isinstance(extra, bytes) else extra
    num_blocks = len(token_ids) // block_tokens
    hashes: list[bytes] = []
    previous = bytes(HASH_NBYTES)
    for index in range(num_blocks):
        tokens = token_ids[index * block_tokens : (index + 1) * block_tokens]
        try:
            body = b"".join(as_index(token).to_bytes(4, "little") for token in tokens)
        except OverflowError as error:
            raise IdentityError(f"block {index} holds a token id outside 0…4294967295: {list(tokens)}") from error
        except TypeError as error:
            raise IdentityError(f"block {index} holds a token id that is no whole number: {list(tokens)}") from error
        own = extras.get(index, b"")
        previous = hashlib.sha256(previous + body + len(own).to_bytes(8, "little") + own).digest()
        hashes.append(previous)
    return hashes


def pack_hashes(hashes: Iterable[bytes]) -> bytes:
    """Join hashes into one bytes object of 32 bytes each, checking every length.

    Raises:
        IdentityError: A hash that is not 32 bytes; the message names its position and length.
    """
    parts = list(hashes)
    if set(map(type, parts)) <= {bytes} and set(map(len, parts)) <= {HASH_NBYTES}:
        return b"".join(parts)
    for index, part in enumerate(parts):
        if not isinstance(part, bytes | bytearray | memoryview):
            raise IdentityError(f"hash {index} is a {type(part).__name__}; block hashes are {HASH_NBYTES} bytes each")
        if len(part) != HASH_NBYTES:
            raise IdentityError(f"hash {index} has {len(part)} bytes; block hashes are {HASH_NBYTES} bytes each")
    return b"".join(parts)
