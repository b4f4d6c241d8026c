"""Estimates the prefill speed of a model from operations a token and operations a second.

Called by the command line if no measured speed is given. A dense forward pass takes two operations a parameter
and token (Kaplan et al.: Scaling laws for neural language models, 2020, https://arxiv.org/abs/2001.08361, table 1).
The cost of attention over long prompts is left out, so that the estimate favours computing over the store.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from tierstore.errors import ConfigError
from tierstore.settings import nearest

__all__ = ["tokens_per_second"]

_BILLIONS_ACTIVE: Mapping[str, float] = MappingProxyType(
    {
        "deepseek-v3": 37.0,
        "glm-4.5-air": 12.0,
        "gpt-oss-120b": 5.1,
        "kimi-k2": 32.0,
        "llama-3.1-70b": 70.6,
        "llama-3.1-8b": 8.0,
        "minimax-m2": 10.0,
        "mistral-7b": 7.2,
        "qwen3-235b": 22.0,
        "qwen3-30b-a3b": 3.3,
        "qwen3-32b": 32.8,
        "qwen3-8b": 8.2,
    }
)
"""Parameters that a token passes through, as each model's card states them."""


def tokens_per_second(model: str, tflops: float) -> float:
    """Prompt tokens a second of a known model on hardware that reaches `tflops` 10**12 operations a second.

    Raises:
        ConfigError: No such model; the message names the nearest one.
    """
    if model not in _BILLIONS_ACTIVE:
        raise ConfigError(f'"{model}" is not a preset; {nearest(model, _BILLIONS_ACTIVE)}')
    return tflops * 1e3 / (2 * _BILLIONS_ACTIVE[model])
