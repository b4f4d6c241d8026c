"""tierstore: a hierarchical store for the KV cache of LLM inference.

Blocks of K/V move between a device pool, pinned host memory and SSD chunk files, asynchronously and
ahead of need. Importing this package is cheap: what needs numpy or torch is loaded on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tierstore.aio import AsyncStore
    from tierstore.device.axes import PagedTensor
    from tierstore.device.paged_kv import PagedKV
    from tierstore.keys import Namespace, chain_hashes
    from tierstore.layout import KVLayout, MemoryOrder, PageKind, PageSpec
    from tierstore.store import Store
    from tierstore.types import Outcome, Presence, Priority

__version__ = "0.1.0"

_HOMES = {
    "AsyncStore": "tierstore.aio",
    "KVLayout": "tierstore.layout",
    "MemoryOrder": "tierstore.layout",
    "Namespace": "tierstore.keys",
    "Outcome": "tierstore.types",
    "PageKind": "tierstore.layout",
    "PageSpec": "tierstore.layout",
    "PagedKV": "tierstore.device.paged_kv",
    "PagedTensor": "tierstore.device.axes",
    "Presence": "tierstore.types",
    "Priority": "tierstore.types",
    "Store": "tierstore.store",
    "chain_hashes": "tierstore.keys",
}

__all__ = [
    "AsyncStore",
    "KVLayout",
    "MemoryOrder",
    "Namespace",
    "Outcome",
    "PageKind",
    "PageSpec",
    "PagedKV",
    "PagedTensor",
    "Presence",
    "Priority",
    "Store",
    "chain_hashes",
]


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'tierstore' has no attribute {name!r}")
    value: object = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value
