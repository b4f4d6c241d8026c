"""Models small enough for a test: a Llama of random weights, written as vLLM loads it. Run in the engine's process."""

from __future__ import annotations

import json
from pathlib import Path

__all__ = ["write_adapter", "write_model"]

_CONFIG: dict[str, object] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def write_model(
    folder: str,
    *,
    layers: int = 4,
    heads: int = 4,
    kv_heads: int = 2,
    head_size: int = 64,
    vocabulary: int = 512,
    seed: int = 0,
    **config: object,
) -> None:
    """Write a model, where the folder does not hold one yet."""
    path = Path(folder)
    if (path / "config.json").exists():
        return
    import torch
    from safetensors.torch import save_file

    hidden, inner = heads * head_size, 2 * heads * head_size
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator) * 0.05

    weights = {
        "model.embed_tokens.weight": random(vocabulary, hidden),
        "lm_head.weight": random(vocabulary, hidden),
        "model.norm.weight": torch.ones(hidden),
    }
    for layer in range(layers):
        prefix = f"model.layers.{layer}."
        weights |= {
            f"{prefix}self_attn.q_proj.weight": random(hidden, hidden),
            f"{prefix}self_attn.k_proj.weight": random(kv_heads * head_size, hidden),
            f"{prefix}self_attn.v_proj.weight": random(kv_heads * head_size, hidden),
            f"{prefix}self_attn.o_proj.weight": random(hidden, hidden),
            f"{prefix}mlp.gate_proj.weight": random(inner, hidden),
            f"{prefix}mlp.up_proj.weight": random(inner, hidden),
            f"{prefix}mlp.down_proj.weight": random(hidden, inner),
            f"{prefix}input_layernorm.weight": torch.ones(hidden),
            f"{prefix}post_attention_layernorm.weight": torch.ones(hidden),
        }
    path.mkdir(parents=True, exist_ok=True)
    save_file(weights, path / "model.safetensors", metadata={"format": "pt"})
    shape = {
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "num_hidden_layers": layers,
        "head_dim": head_size,
        "vocab_size": vocabulary,
    }
    (path / "config.json").write_text(json.dumps(_CONFIG | shape | config))


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
