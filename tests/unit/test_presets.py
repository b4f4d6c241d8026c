"""Layouts of well-known models, against the sizes that their publishers' numbers give."""

from __future__ import annotations

import pytest

from tierstore.errors import ConfigError, LayoutError
from tierstore.layout import PageKind
from tierstore.presets import PRESETS, preset

KIB_A_TOKEN = {
    "deepseek-v3": 68.625,
    "glm-4.5-air": 184,
    "gpt-oss-120b": 72,
    "kimi-k2": 68.625,
    "llama-3.1-70b": 320,
    "llama-3.1-8b": 128,
    "minimax-m2": 248,
    "mistral-7b": 128,
    "qwen3-235b": 188,
    "qwen3-30b-a3b": 96,
    "qwen3-32b": 256,
    "qwen3-8b": 144,
}


def test_every_preset_has_its_known_size_a_token() -> None:
    sizes = {name: preset(name, block_tokens=16).block_nbytes / 16 / 1024 for name in PRESETS}
    assert sizes == KIB_A_TOKEN


def test_a_preset_keeps_one_page_a_layer_whatever_the_block() -> None:
    assert preset("llama-3.1-8b", 256).pages == preset("llama-3.1-8b", 16).pages
    assert len(preset("llama-3.1-8b", 16).pages) == 32


def test_gpt_oss_alternates_sliding_and_full_layers() -> None:
    kinds = [page.kind for page in preset("gpt-oss-120b", 16).pages]
    assert kinds == [PageKind.SLIDING, PageKind.FULL] * 18


def test_an_unknown_preset_is_refused_with_the_nearest_known_one() -> None:
    with pytest.raises(ConfigError, match=r'"llama-3\.1-8" is not a preset; did you mean llama-3\.1-8b\?'):
        preset("llama-3.1-8", 16)


def test_a_preset_with_no_tokens_a_block_is_refused() -> None:
    with pytest.raises(LayoutError, match="block_tokens is 0"):
        preset("qwen3-8b", 0)
