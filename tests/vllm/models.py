"""Models small enough for a test: of random weights, written as vLLM loads them. Run in the engine's process."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    import torch

    Random: TypeAlias = Callable[..., torch.Tensor]
    Weights: TypeAlias = dict[str, torch.Tensor]

__all__ = ["write_adapter", "write_model"]

_CONFIG: dict[str, object] = {
    "max_position_embeddings": 8192,
    "rope_theta": 10000.0,
    "torch_dtype": "float32",
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_LLAMA: dict[str, object] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
}
_LFM2: dict[str, object] = {
    "architectures": ["Lfm2ForCausalLM"],
    "model_type": "lfm2",
    "norm_eps": 1e-5,
    "tie_word_embeddings": True,
    "conv_L_cache": 3,
    "conv_bias": False,
    "block_multiple_of": 1,
    "block_auto_adjust_ff_dim": False,
    "block_ffn_dim_multiplier": 1.0,
}
"""Layers of two kinds: those of "conv" keep the last two tokens' values as their state."""
_DEEPSEEK: dict[str, object] = {
    "architectures": ["DeepseekV2ForCausalLM"],
    "model_type": "deepseek_v2",
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "moe_layer_freq": 1,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 64,
    "v_head_dim": 64,
    "q_lora_rank": None,
}
"""Attention through latents, of which every worker holds the same; its sizes are the only ones that vLLM computes."""


def write_model(
    folder: str,
    *,
    layers: int = 4,
    heads: int = 4,
    kv_heads: int = 2,
    head_size: int = 64,
    vocabulary: int = 512,
    seed: int = 0,
    state_layers: Sequence[int] = (),
    latent: bool = False,
    **config: object,
) -> None:
    """Write a model, where the folder does not hold one yet.

    A Llama, or an LFM2 where some layers keep a state, or a DeepSeek V2 where what is kept is latent.
    """
    path = Path(folder)
    if (path / "config.json").exists():
        return
    import torch
    from safetensors.torch import save_file

    hidden, inner = heads * head_size, 2 * heads * head_size
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator) * 0.05

    shape: dict[str, object] = {
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "num_hidden_layers": layers,
        "head_dim": head_size,
        "vocab_size": vocabulary,
    }
    weights = {"model.embed_tokens.weight": random(vocabulary, hidden)}
    kv_size = kv_heads * head_size
    if state_layers:
        kinds = ["conv" if layer in state_layers else "full_attention" for layer in range(layers)]
        shape |= _LFM2 | {"layer_types": kinds, "conv_dim": hidden, "block_dim": hidden, "block_ff_dim": inner}
        weights |= _lfm2_weights(kinds, random, hidden, kv_size=kv_size, head_size=head_size)
    elif latent:
        shape |= _DEEPSEEK | {"moe_intermediate_size": hidden, "first_k_dense_replace": layers}
        weights["lm_head.weight"] = random(vocabulary, hidden)
        weights |= _deepseek_weights(layers, random, hidden, heads=heads)
    else:
        shape |= _LLAMA
        weights["lm_head.weight"] = random(vocabulary, hidden)
        weights |= _llama_weights(layers, random, hidden, kv_size=kv_size)
    path.mkdir(parents=True, exist_ok=True)
    save_file(weights, path / "model.safetensors", metadata={"format": "pt"})
    (path / "config.json").write_text(json.dumps(_CONFIG | shape | config))


def _llama_weights(layers: int, random: Random, hidden: int, *, kv_size: int) -> Weights:
    import torch

    weights = {"model.norm.weight": torch.ones(hidden)}
    for layer in range(layers):
        prefix = f"model.layers.{layer}."
        weights |= {
            f"{prefix}self_attn.q_proj.weight": random(hidden, hidden),
            f"{prefix}self_attn.k_proj.weight": random(kv_size, hidden),
            f"{prefix}self_attn.v_proj.weight": random(kv_size, hidden),
            f"{prefix}self_attn.o_proj.weight": random(hidden, hidden),
            f"{prefix}mlp.gate_proj.weight": random(2 * hidden, hidden),
            f"{prefix}mlp.up_proj.weight": random(2 * hidden, hidden),
            f"{prefix}mlp.down_proj.weight": random(hidden, 2 * hidden),
            f"{prefix}input_layernorm.weight": torch.ones(hidden),
            f"{prefix}post_attention_layernorm.weight": torch.ones(hidden),
        }
    return weights


def _deepseek_weights(layers: int, random: Random, hidden: int, *, heads: int) -> Weights:
    import torch

    weights = {"model.norm.weight": torch.ones(hidden)}
    for layer in range(layers):
        prefix = f"model.layers.{layer}."
        weights |= {
            f"{prefix}self_attn.q_proj.weight": random(heads * 128, hidden),
            f"{prefix}self_attn.kv_a_proj_with_mqa.weight": random(512 + 64, hidden),
            f"{prefix}self_attn.kv_a_layernorm.weight": torch.ones(512),
            f"{prefix}self_attn.kv_b_proj.weight": random(heads * 128, 512),
            f"{prefix}self_attn.o_proj.weight": random(hidden, heads * 64),
            f"{prefix}mlp.gate_proj.weight": random(2 * hidden, hidden),
            f"{prefix}mlp.up_proj.weight": random(2 * hidden, hidden),
            f"{prefix}mlp.down_proj.weight": random(hidden, 2 * hidden),
            f"{prefix}input_layernorm.weight": torch.ones(hidden),
            f"{prefix}post_attention_layernorm.weight": torch.ones(hidden),
        }
    return weights


def _lfm2_weights(kinds: Sequence[str], random: Random, hidden: int, *, kv_size: int, head_size: int) -> Weights:
    import torch

    weights = {"model.embedding_norm.weight": torch.ones(hidden)}
    for layer, kind in enumerate(kinds):
        prefix = f"model.layers.{layer}."
        weights |= {
            f"{prefix}operator_norm.weight": torch.ones(hidden),
            f"{prefix}ffn_norm.weight": torch.ones(hidden),
            f"{prefix}feed_forward.w1.weight": random(2 * hidden, hidden),
            f"{prefix}feed_forward.w3.weight": random(2 * hidden, hidden),
            f"{prefix}feed_forward.w2.weight": random(hidden, 2 * hidden),
        }
        if kind == "conv":
            weights |= {
                f"{prefix}conv.conv.weight": 5 * random(hidden, 1, 3),  # so that the tokens before have their say
                f"{prefix}conv.in_proj.weight": random(3 * hidden, hidden),
                f"{prefix}conv.out_proj.weight": random(hidden, hidden),
            }
            continue
        weights |= {
            f"{prefix}self_attn.q_proj.weight": random(hidden, hidden),
            f"{prefix}self_attn.k_proj.weight": random(kv_size, hidden),
            f"{prefix}self_attn.v_proj.weight": random(kv_size, hidden),
            f"{prefix}self_attn.out_proj.weight": random(hidden, hidden),
            f"{prefix}self_attn.q_layernorm.weight": torch.ones(head_size),
            f"{prefix}self_attn.k_layernorm.weight": torch.ones(head_size),
        }
    return weights


def write_adapter(folder: str, *, layers: int = 4, hidden: int = 256, rank: int = 8, seed: int = 0) -> None:
    """Write a LoRA adapter of random weights for the model that `write_model` writes with these sizes."""
    import torch
    from safetensors.torch import save_file

    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for layer in range(layers):
        prefix = f"base_model.model.model.layers.{layer}.self_attn.q_proj"
        weights[f"{prefix}.lora_A.weight"] = torch.randn(rank, hidden, generator=generator)
        weights[f"{prefix}.lora_B.weight"] = torch.randn(hidden, rank, generator=generator)
    path = Path(folder)
    path.mkdir(parents=True)
    save_file(weights, path / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "target_modules": ["q_proj"], "bias": "none"}
    (path / "adapter_config.json").write_text(json.dumps(config))
