"""What verbs are given: their keywords, and hashes and deadlines as the store keeps them, checked."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypedDict

import numpy as np

from tierstore.errors import ConfigError, IdentityError
from tierstore.keys import pack_hashes
from tierstore.transfer.caller_memory import BlockIds
from tierstore.types import HASH_NBYTES

if TYPE_CHECKING:
    from tierstore.types import UInt8Array, UInt64Array

__all__ = ["GetOptions", "PrefetchOptions", "PutOptions", "ReserveOptions", "as_hashes", "as_priority", "seconds_of"]


_PRIORITY_MAX = 1_000_000
"""Far more than there are reasons to tell requests apart."""


_FEW = 128
"""Hashes that a set tells apart sooner than sorting does on cold caches of a processor: 64 in 0.06 ms for 0.1."""


class GetOptions(TypedDict, total=False):
    """Keywords of `NamespaceHandle.get`."""

    block_ids: BlockIds | None
    after: object
    deadline_seconds: float | None


class PutOptions(GetOptions, total=False):
    """Keywords of `NamespaceHandle.put`."""

    parent: bytes
    durable: bool


class ReserveOptions(TypedDict, total=False):
    """Keywords of `NamespaceHandle.reserve`."""

    parent: bytes
    durable: bool
    deadline_seconds: float | None


class PrefetchOptions(TypedDict, total=False):
    """Keywords of `NamespaceHandle.prefetch`."""

    deadline_seconds: float | None
    priority: int


def seconds_of(deadline_seconds: float | None) -> float:
    """Seconds that something may take; infinity for no deadline, ConfigError where it is no number."""
    if deadline_seconds is None:
        return math.inf
    if math.isnan(deadline_seconds):
        raise ConfigError("deadline_seconds is nan; pass a number of seconds from now, or None for no deadline")
    return deadline_seconds


def as_priority(priority: int) -> int:
    """The priority of a prefetch; ConfigError where it is none."""
    if not -_PRIORITY_MAX <= priority <= _PRIORITY_MAX:
        raise ConfigError(f"priority is {priority!r}; pass a whole number from -{_PRIORITY_MAX} to {_PRIORITY_MAX}")
    return priority


def as_hashes(hashes: Sequence[bytes] | UInt8Array) -> UInt8Array:
    """Hashes as uint8[n, 32] of the store's own; IdentityError where one is malformed or comes twice."""
    if isinstance(hashes, np.ndarray):
        if hashes.dtype != np.uint8 or hashes.ndim != 2 or hashes.shape[1] != HASH_NBYTES:
            raise IdentityError(f"hashes are {hashes.dtype}{list(hashes.shape)}; pass uint8[n, {HASH_NBYTES}]")
        packed = np.array(hashes, order="C")
    else:
        packed = np.frombuffer(pack_hashes(hashes), np.uint8).reshape(-1, HASH_NBYTES)
    if _may_repeat(packed.view(np.uint64)[:, 0]):
        _check_distinct(packed)
    return packed


def _may_repeat(heads: UInt64Array) -> bool:
    """Whether two hashes begin alike."""
    if len(heads) <= _FEW:
        return len(set(heads.tolist())) < len(heads)
    heads = np.sort(heads)
    return bool((heads[1:] == heads[:-1]).any())


def _check_distinct(packed: UInt8Array) -> None:
    seen: dict[bytes, int] = {}
    for position, row in enumerate(packed):
        first = seen.setdefault(row.tobytes(), position)
        if first != position:
            raise IdentityError(f"hash {position} is hash {first} again; a chain names each block once")
