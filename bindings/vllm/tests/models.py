"""Small models with random weights, of kinds that the embedded one is not."""

from __future__ import annotations

import pathlib
from typing import Any

_SMALL = {
    "vocab_size": 160,
    "hidden_size": 128,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 512,
    "initializer_range": 0.15,  # Large enough for attention that is far from uniform.
    "bos_token_id": 1,
    "eos_token_id": None,
    "pad_token_id": 0,
}

KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "a sliding window": ("Mistral", {"sliding_window": 40}),
    "a soft cap, another scale and windows in some layers": (
        "Gemma2",
        {"sliding_window": 40, "query_pre_attn_scalar": 20, "attn_logit_softcapping": 2.0},
    ),
    "biases": ("Qwen2", {}),
}


def save(kind: str, folder: pathlib.Path) -> pathlib.Path:
    import torch
    import transformers

    family, options = KINDS[kind]
    torch.manual_seed(5)
    config = getattr(transformers, family + "Config")(**{**_SMALL, **options})
    getattr(transformers, family + "ForCausalLM")(config).half().save_pretrained(folder)
    return folder


def with_outlier_channels(model: pathlib.Path, folder: pathlib.Path) -> pathlib.Path:
    """The same Llama with some channels of keys 16 times as large and of queries as much smaller."""
    import json

    import safetensors.torch

    config = json.loads((model / "config.json").read_text())
    head_dim = config["head_dim"]
    weights = safetensors.torch.load_file(model / "model.safetensors")
    for name, weight in weights.items():
        factor = {"k_proj": 16.0, "q_proj": 1 / 16}.get(name.split(".")[-2])
        if factor is not None:
            channels = weight.view(-1, head_dim, weight.shape[-1])
            for channel in (5, 20, 43):
                channels[:, [channel, channel + head_dim // 2]] *= factor  # a pair that RoPE rotates
    folder.mkdir()
    safetensors.torch.save_file(weights, folder / "model.safetensors")
    for name in ("config.json", "tokenizer.json"):
        (folder / name).symlink_to((model / name).resolve())
    return folder
