"""State of a request in the scheduler's half. Plain data, which includes vLLM's own request object."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tierstore.transfer.future import Transfer

__all__ = ["Waiting"]


@dataclass(slots=True, eq=False)
class Waiting:
    """A request that the engine knows.

    Attributes:
        request: vLLM's.
        salt: That of the engine's keys when it came; empty before the first reset.
        rank: Its turn in the look-ahead window; None where it has none, and once it has started.
        cursor: Blocks of the store from the first that are held already or have been saved.
        computed: Tokens that the engine held itself when it was asked last.
        loading: Keys that are being loaded for it.
        failed: A load for it has failed: what it lacks is computed.
        prefetches: Reads from SSD that it waits for; None where none were asked for.
        in_host: Blocks behind the computed ones that lay in host memory when it was asked first; None before.
    """

    request: Any
    salt: bytes = b""
    rank: int | None = None
    cursor: int = 0
    computed: int = 0
    loading: tuple[bytes, ...] = ()
    failed: bool = False
    prefetches: list[Transfer] | None = None
    in_host: int | None = None
    _adapter: bytes | None = None
    _salted: dict[bytes, bytes] = field(default_factory=dict)

    def from_host(self, num_tokens: int, store_tokens: int) -> int:
        """How many of a load's tokens lay in host memory when it was asked about first."""
        return num_tokens if self.in_host is None else min(num_tokens, self.in_host * store_tokens)

    @property
    def reading(self) -> bool:
        """Whether anything is being read for it."""
        return any(not prefetch.done() for prefetch in self.prefetches or ())

    def reads(self, prefetch: Transfer) -> None:
        """Something is being read for it; where it has started meanwhile, in vain."""
        if self.prefetches is None:
            prefetch.cancel()
        else:
            self.prefetches.append(prefetch)

    def stop_reading(self) -> None:
        """It waits no longer."""
        prefetches, self.prefetches = self.prefetches, None
        for prefetch in prefetches or ():
            prefetch.cancel()

    def keys(self, blocks_per_store_block: int, adapter: bytes) -> Sequence[bytes]:
        """Keys of every block of the store whose tokens are all known, in order.

        Empty once the adapter has changed: it was replaced under the request, whose KV may be of both.

        Args:
            blocks_per_store_block: Of the engine's.
            adapter: Digest of the request's adapter; empty without one.
        """
        if self._adapter is None:
            self._adapter = adapter
        if adapter != self._adapter:
            return []
        hashes: Sequence[bytes] = self.request.block_hashes
        if blocks_per_store_block > 1:
            hashes = hashes[blocks_per_store_block - 1 :: blocks_per_store_block]
        salt, salted = self.salt + adapter, self._salted
        if not salt:
            return hashes
        for block_hash in hashes[len(salted) :]:
            salted[block_hash] = hashlib.sha256(salt + block_hash).digest()
        return [salted[block_hash] for block_hash in hashes]
