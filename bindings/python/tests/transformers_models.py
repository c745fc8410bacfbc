"""Models, texts and reference caches for the tests of libkvq.transformers."""

from __future__ import annotations

import inspect
import pathlib
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM, DynamicCache, GenerationMixin, PreTrainedTokenizerFast

import libkvq.transformers  # noqa: F401  (registers "kvq")
from libkvq.transformers.linear import recurrent_layers

# Threads of torch and of kvq wait for each other by spinning, which is slow where other programs use the cores too.
torch.set_num_threads(1)

ROOT = pathlib.Path(__file__).resolve().parents[3]
DEMO = ROOT / "models" / "demo"
CODEBOOK = DEMO / "commvq-2bit.safetensors"
ROUTER = DEMO / "moqae.safetensors"
MOQAE = ROOT / "docs" / "policies" / "moqae.yaml"


#: What models and `generate` call their cache: "cache" from transformers 5.24 on, which warns about the older name.
CACHE = next(
    name
    for name in ("cache", "past_key_values")
    if name in inspect.signature(inspect.unwrap(GenerationMixin.prepare_inputs_for_generation)).parameters
)


def using(cache: Any) -> dict[str, Any]:
    """The argument that makes a model use a cache."""
    return {CACHE: cache}


def demo(attention: str = "kvq", **options: Any) -> Any:
    """The embedded demo model: Llama of 8 million parameters, in float32."""
    options = {"dtype": torch.float32, "attn_implementation": attention, **options}
    return AutoModelForCausalLM.from_pretrained(DEMO, **options).eval()


def demo_tokens(n: int, begin: int = 0) -> torch.Tensor:
    """`[1, n]` tokens of the demo's own text."""
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(DEMO / "tokenizer.json"))
    text = (DEMO / "sample.txt").read_text(encoding="utf-8")
    return tokenizer(text[: 10 * (begin + n)], return_tensors="pt").input_ids[:, begin : begin + n]


_SMALL = {
    "vocab_size": 101,
    "hidden_size": 64,
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

_MIXED = ["sliding_attention", "full_attention", "sliding_attention"]

KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "llama with as many heads of both kinds": ("Llama", {"num_key_value_heads": 4}),
    "llama with one KV head": ("Llama", {"num_key_value_heads": 1}),
    "mistral with a sliding window": ("Mistral", {"sliding_window": 40}),
    "qwen2 with biases and a window in some layers": (
        "Qwen2",
        {"use_sliding_window": True, "sliding_window": 24, "max_window_layers": 1},
    ),
    "qwen3 with norms of queries and keys": ("Qwen3", {}),
    "gemma2 with a soft cap, another scale and windows": (
        "Gemma2",
        {"attn_logit_softcapping": 3.0, "query_pre_attn_scalar": 20, "sliding_window": 24},
    ),
    "gemma3 with two rotary embeddings": (
        "Gemma3Text",
        {"sliding_window": 24, "query_pre_attn_scalar": 20, "layer_types": _MIXED},
    ),
    "gemma3n with layers that share pages": (
        "Gemma3nText",
        {
            "sliding_window": 24,
            "num_hidden_layers": 6,
            "num_kv_shared_layers": 3,
            "layer_types": [*_MIXED, *_MIXED],
            "intermediate_size": [64] * 6,
            "activation_sparsity_pattern": [0.5, 0.0, 0.0, 0.0, 0.0, 0.0],
            "vocab_size_per_layer_input": 101,
            "hidden_size_per_layer_input": 16,
            "altup_num_inputs": 2,
            "laurel_rank": 8,
        },
    ),
    "gemma4 with larger heads in global layers, and layers that share pages": (
        "Gemma4Text",
        {
            "sliding_window": 24,
            "num_hidden_layers": 6,
            "num_kv_shared_layers": 2,
            "layer_types": [*_MIXED, "sliding_attention", *_MIXED[:2]],
            "global_head_dim": 64,
            "num_global_key_value_heads": 1,
            "attention_k_eq_v": True,
            "vocab_size_per_layer_input": 101,
            "hidden_size_per_layer_input": 16,
        },
    ),
    "mimo with smaller values, and more KV heads in windows": (
        "MiMoV2Flash",
        {
            "sliding_window": 24,
            "head_dim": 48,
            "v_head_dim": 32,
            "layer_types": _MIXED[1:] + _MIXED[:1],
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "n_group": 1,
            "topk_group": 1,
            "moe_intermediate_size": 32,
        },
    ),
    "deepseek with latents": (
        "DeepseekV3",
        {
            "kv_lora_rank": 40,
            "q_lora_rank": 24,
            "qk_nope_head_dim": 24,
            "qk_rope_head_dim": 16,
            "head_dim": 16,
            "v_head_dim": 32,
            "num_key_value_heads": 4,
            "first_k_dense_replace": 1,
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "n_group": 1,
            "topk_group": 1,
            "moe_intermediate_size": 32,
        },
    ),
    "qwen3.5 with linear attention": (
        "Qwen3_5Text",
        {
            "num_hidden_layers": 5,
            "layer_types": [*["linear_attention"] * 2, "full_attention", "linear_attention", "full_attention"],
            "linear_conv_kernel_dim": 4,
            "linear_key_head_dim": 16,
            "linear_value_head_dim": 16,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
        },
    ),
    "lfm2 with convolutions": ("Lfm2", {"layer_types": ["conv", "full_attention", "conv"], "conv_L_cache": 3}),
    "phi3 with fused projections": ("Phi3", {}),
    "gpt-oss with sinks": ("GptOss", {"sliding_window": 24, "num_local_experts": 2, "num_experts_per_tok": 2}),
}
# The oldest transformers that kvq works with has not all of them.
KINDS = {kind: model for kind, model in KINDS.items() if hasattr(transformers, model[0] + "Config")}
HYBRID = ["qwen3.5 with linear attention", "lfm2 with convolutions"]
if not hasattr(DynamicCache, "get_conv_state"):  # Whose states KvqCache takes from transformers 5.24 on.
    KINDS = {kind: model for kind, model in KINDS.items() if kind not in HYBRID}


def small(kind: str, attention: str = "kvq", **options: Any) -> Any:
    """A model of one of KINDS with random weights, the same ones at every call."""
    name, own = KINDS[kind]
    config = getattr(transformers, name + "Config")(**{**_SMALL, **own, **options})
    torch.manual_seed(7)
    model = AutoModelForCausalLM.from_config(config, attn_implementation=attention, dtype=torch.float32).eval()
    for parameter_name, parameter in model.named_parameters():
        if "bias" in parameter_name or "sinks" in parameter_name:  # Which start as zeros.
            torch.nn.init.normal_(parameter, std=0.5)
        if name.startswith("Gemma4") and "q_norm" in parameter_name:  # In place of a scale, which it has not.
            torch.nn.init.constant_(parameter, 0.2)
    return model


def small_tokens(rows: int, columns: int, seed: int = 1) -> torch.Tensor:
    return torch.randint(3, 101, (rows, columns), generator=torch.Generator().manual_seed(seed))


def own_cache(config: Any) -> DynamicCache:
    """transformers' own cache, which needs a config only for states of linear attention: windows keep all tokens."""
    return DynamicCache(config=config) if recurrent_layers(config) else DynamicCache()


class HalfCache(DynamicCache):
    """transformers' own cache, but keys and values are rounded to FP16 on their way in.

    A prompt attends to its keys and values as they came in layers where a KvqCache lets torch compute this.
    """

    def __init__(self, config: Any = None) -> None:
        kinds = getattr(config, "layer_types", None) or []
        super().__init__(config=config if recurrent_layers(config) else None)
        window = getattr(config, "sliding_window", None) if not kinds else None
        own_logits = getattr(config, "attn_logit_softcapping", None) or "GptOss" in type(config).__name__
        self.rounds_all = bool(window or own_logits)
        self.rounds = [kind == "sliding_attention" for kind in kinds]

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any):
        rounds = self.rounds_all or (layer_idx < len(self.rounds) and self.rounds[layer_idx])
        exact = self.get_seq_length(layer_idx) == 0 and key_states.shape[2] > 1 and not rounds
        stored = super().update(key_states.half().float(), value_states.half().float(), layer_idx)
        return (key_states, value_states) if exact else stored


@torch.no_grad()
def logits_in_pieces(model: Any, tokens: torch.Tensor, cache: Any, pieces: list[int], **inputs: Any) -> torch.Tensor:
    """Logits of all columns, `[rows, columns, vocabulary]`, fed to the model in pieces of the given lengths."""
    parts, begin = [], 0
    for piece in pieces:
        part = model(tokens[:, begin : begin + piece], **using(cache), use_cache=True, **inputs)
        parts.append(part.logits)
        begin += piece
    assert begin == tokens.shape[1]
    return torch.cat(parts, dim=1)


def generated(model: Any, tokens: torch.Tensor, n: int, cache: Any = None, **options: Any) -> torch.Tensor:
    """The tokens that the likeliest continuation adds."""
    options = {"do_sample": False, "max_new_tokens": n, "min_new_tokens": n, "pad_token_id": 0, **options}
    mask = options.pop("attention_mask", torch.ones_like(tokens))
    if cache is not None:
        options.update(using(cache))
    return model.generate(tokens, attention_mask=mask, **options)[:, tokens.shape[1] :]


def divergence(reference: Any, other: Any) -> float:
    """Mean Kullback-Leibler divergence of next-token distributions, in nats."""
    p, q = reference.double().log_softmax(-1), other.double().log_softmax(-1)
    return float((p.exp() * (p - q)).sum(-1).mean())
