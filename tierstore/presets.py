"""KV layouts of well-known models, so that a bench or a plan can be asked for by name.

Called by the command line, the benchmarks and the planner of sizes. Pure data: shapes only, no weights
and no network. An engine states its own layout; nothing here is consulted on the data path.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from tierstore.errors import ConfigError
from tierstore.layout import KVLayout, PageKind, PageSpec
from tierstore.settings import nearest

__all__ = ["PRESETS", "preset"]


def _attention(layers: int, kv_heads: int, head_size: int = 128) -> KVLayout:
    return KVLayout.attention(layers=layers, kv_heads=kv_heads, head_size=head_size, block_tokens=1)


def _alternating(layers: int, kv_heads: int, head_size: int) -> KVLayout:
    kinds = (PageKind.SLIDING, PageKind.FULL)
    pages = (PageSpec(f"layers.{layer}", kinds[layer % 2], kv_heads, head_size, 2) for layer in range(layers))
    return KVLayout(tuple(pages), block_tokens=1, dtype="bfloat16")


PRESETS: Mapping[str, KVLayout] = MappingProxyType(
    {
        "deepseek-v3": KVLayout.mla(layers=61, latent_size=512 + 64, block_tokens=1),
        "glm-4.5-air": _attention(layers=46, kv_heads=8),
        "gpt-oss-120b": _alternating(layers=36, kv_heads=8, head_size=64),
        "kimi-k2": KVLayout.mla(layers=61, latent_size=512 + 64, block_tokens=1),
        "llama-3.1-70b": _attention(layers=80, kv_heads=8),
        "llama-3.1-8b": _attention(layers=32, kv_heads=8),
        "minimax-m2": _attention(layers=62, kv_heads=8),
        "mistral-7b": _attention(layers=32, kv_heads=8),
        "qwen3-235b": _attention(layers=94, kv_heads=4),
        "qwen3-30b-a3b": _attention(layers=48, kv_heads=4),
        "qwen3-32b": _attention(layers=64, kv_heads=8),
        "qwen3-8b": _attention(layers=36, kv_heads=8),
    }
)
"""Layouts of one token in BF16, without tensor parallelism and without layers for speculative decoding.

Numbers are those of each model's published ``config.json``: ``num_hidden_layers``,
``num_key_value_heads`` and ``head_dim``; for MLA ``kv_lora_rank + qk_rope_head_dim``.
"""


def preset(name: str, block_tokens: int) -> KVLayout:
    """The layout of a known model with blocks of `block_tokens` tokens.

    Raises:
        ConfigError: No such preset; the message names the nearest one.
        LayoutError: block_tokens below 1.
    """
    layout = PRESETS.get(name)
    if layout is None:
        raise ConfigError(f'"{name}" is not a preset; {nearest(name, PRESETS)}')
    return replace(layout, block_tokens=block_tokens)
