"""tierstore in vLLM: name this module as `kv_connector_module_path`, and `TierStoreConnector` as `kv_connector`.

Read docs/vllm.md to use it. vLLM imports this in its front end too, so everything is loaded on first use, after a look
at the version of vLLM.

    connector    what vLLM calls; hands each call to one of its two halves
    scheduler    the half in the scheduler: what to load, what to wait for, what to save; with it promises, advice,
                 waiting, patience, saves, events and adapters
    worker       the half in a worker: binds the cache, starts copies, reports how they ended
    seat         where the halves of one engine find their store
    hosting      a store that the scheduler's process serves to several workers
    pages        which bytes of the engine's cache are which bytes of a block
    identity     what goes into a namespace; with it weights
    options      `kv_connector_extra_config`, checked

Beside the connector stands `secondary_tier`: the store behind vLLM's own CPU tier.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from tierstore.connectors.vllm.versions import check_version

if TYPE_CHECKING:
    from tierstore.connectors.vllm.connector import TierStoreConnector

__all__ = ["TierStoreConnector"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'tierstore.connectors.vllm' has no attribute {name!r}")
    check_version()
    value: object = getattr(importlib.import_module("tierstore.connectors.vllm.connector"), name)
    globals()[name] = value
    return value
