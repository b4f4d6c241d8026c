"""Builds the namespace: everything that shapes the engine's KV and is not in a block hash.

vLLM chains its block hashes over tokens, salt, adapter and media. They do not cover the model, its weights, the KV's
dtype or how a backend packs a page. The worker collects those here, once its cache exists.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tierstore.connectors.vllm.options import Options
from tierstore.connectors.vllm.versions import installed_version
from tierstore.connectors.vllm.weights import digest_folder, find_folder
from tierstore.encoding import encode_canonical
from tierstore.errors import ConfigError
from tierstore.keys import Namespace
from tierstore.layout import KVLayout

__all__ = ["check_hash_tokens", "check_hashes", "check_prefixes", "describe_engine", "find_revision", "make_namespace"]

REPRODUCIBLE = ("sha256", "sha256_cbor")
"""Hash algorithms of vLLM that give the same hash in every process, of 32 bytes."""


def check_hashes(vllm_config: Any) -> None:
    """Refuse block hashes that another process would not find again, or that anyone could make collide.

    Raises:
        ConfigError: Another algorithm than those of `REPRODUCIBLE`.
    """
    algorithm = vllm_config.cache_config.prefix_caching_hash_algo
    if algorithm not in REPRODUCIBLE:
        raise ConfigError(
            f"block hashes are made by {algorithm}, which is seeded anew in every process and not safe against "
            f"collisions; start vLLM with --prefix-caching-hash-algo {' or '.join(REPRODUCIBLE)}"
        )


def check_prefixes(vllm_config: Any) -> None:
    """Refuse to load for an engine whose own prefix cache is off: it may compute as if there were no prefix.

    vLLM turns it off itself if a backend cannot look back, such as that for MLA on a CPU. Saving alone is allowed.

    Raises:
        ConfigError: The prefix cache is off, and blocks would be loaded.
    """
    if vllm_config.kv_transfer_config.is_kv_consumer and not vllm_config.cache_config.enable_prefix_caching:
        raise ConfigError(
            "vLLM's own prefix caching is off, so nothing tells that it can compute behind a prefix that is loaded; "
            "start it with --enable-prefix-caching, or, where vLLM turns that off itself, without the connector"
        )


def check_hash_tokens(vllm_config: Any, kv_cache_config: Any, block_tokens: int) -> None:
    """Refuse hashes that do not cover exactly a block's tokens: a shorter one would name blocks that differ later on.

    Raises:
        ConfigError: vLLM makes more or fewer hashes than blocks.
    """
    from vllm.v1.core.kv_cache_utils import resolve_kv_cache_block_sizes

    _, hash_tokens = resolve_kv_cache_block_sizes(kv_cache_config, vllm_config)
    if hash_tokens != block_tokens:
        raise ConfigError(
            f"vLLM hashes every {hash_tokens} tokens and a block has {block_tokens}, so that no hash names a block; "
            "start vLLM without --prefix-match-unit"
        )


def find_revision(vllm_config: Any, options: Options) -> str:
    """What names the weights: what the user says, else a digest of their files. Blocks on files.

    Raises:
        ConfigError: The weights are found nowhere, and the user says nothing.
    """
    if options.revision is not None:
        return options.revision
    model = vllm_config.model_config
    folder = find_folder(model.model, model.revision)
    if folder is None:
        raise ConfigError(
            f"the weights of {model.model!r} are not on this machine, so nothing tells them from others; set revision "
            "in kv_connector_extra_config to what names them"
        )
    return digest_folder(folder)


def describe_engine(vllm_config: Any, layers: Sequence[str]) -> str:
    """Hex digest of how the engine is set up, as far as it shapes KV: configuration, dtype, backends, packing.

    Args:
        vllm_config: The engine's.
        layers: Whose backends pack the pages.
    """
    model, cache = vllm_config.model_config, vllm_config.cache_config
    contexts = vllm_config.compilation_config.static_forward_context
    packing = sorted({_packing(contexts[layer]) for layer in layers if layer in contexts})
    fields = {
        "vllm": ".".join((installed_version() or "").split(".")[:2]),
        "config": json.dumps(_plain(model.hf_config), sort_keys=True, default=str),
        "dtype": str(model.dtype),
        "quantization": str(model.quantization),
        "layout": str(cache.kv_cache_layout),
        "packing": packing,
    }
    return hashlib.sha256(b"tierstore vllm 1\0" + encode_canonical(fields)).hexdigest()


def _plain(config: Any) -> dict[str, object]:
    """A model's configuration without what only says where it came from."""
    fields: dict[str, object] = dict(config.to_dict())
    for name in ("_name_or_path", "transformers_version"):
        fields.pop(name, None)
    return fields


def _packing(layer: Any) -> str:
    """Who packs a layer's pages, for which instructions, and a state's axes: all decide the order of bytes inside."""
    backend = layer.get_attn_backend() if hasattr(layer, "get_attn_backend") else type(layer)
    packing = f"{backend.__module__}.{backend.__qualname__}:{getattr(layer, 'isa', '')}"
    if hasattr(layer, "get_state_shape"):
        packing += f":{layer.get_state_shape()}:{layer.get_state_dtype()}"
    return packing


def make_namespace(
    vllm_config: Any, options: Options, layout: KVLayout, *, revision: str, engine_config: str, replicas: int
) -> Namespace:
    """The namespace of one group's blocks on this worker.

    Args:
        vllm_config: The engine's; its rank is this worker's.
        options: The connector's.
        layout: Of the blocks.
        revision: What names the weights.
        engine_config: See `describe_engine`.
        replicas: Tensor-parallel ranks next to each other that hold the same KV, and so share their blocks.
    """
    model, cache, parallel = vllm_config.model_config, vllm_config.cache_config, vllm_config.parallel_config
    kv_dtype = str(model.dtype).removeprefix("torch.") if cache.cache_dtype == "auto" else str(cache.cache_dtype)
    name = Path(model.model)
    return Namespace(
        model=name.name if name.is_dir() else model.model,
        layout=layout,
        revision=revision,
        engine_config=engine_config,
        quantization=kv_dtype,
        tp_size=parallel.tensor_parallel_size,
        pp_size=parallel.pipeline_parallel_size,
        shard=(parallel.rank % parallel.tensor_parallel_size // replicas, parallel.tensor_parallel_size // replicas),
        tenant=options.tenant,
    )
