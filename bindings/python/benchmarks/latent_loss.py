"""Measures what latents lose in a format: KL of the next token's distribution, on a Llama-like model.

    python latent_loss.py --model DIR --text FILE gs4 gs2 int4+hadamard
    python latent_loss.py --model DIR --text FILE --outliers 8 gs4 gs4@none

Keys and values of a layer are linear functions of its normed input: a latent of both from which nothing
is lost, if it has at most 512 channels. It is stored as a model with MLA would store its own: keys and values are
projections of what the pages hold, except those of a token's own page and of the first one, which are in FP16.
`--outliers X` makes eight channels of each latent X times as large and gives eight others an offset of X, which what
reads the latent undoes. A format takes scales of the first 128 tokens; `@none` takes none.
"""

import argparse
import json
import math
from pathlib import Path
from typing import Callable, Optional

import numpy
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch.nn import functional

import libkvq

PAGE, ROTARY, CHUNK = 32, 64, 256

# Latents [tokens, channels] of a layer and the queries that meet them [tokens, heads, channels] to latents as stored.
Store = Callable[[int, torch.Tensor, torch.Tensor], torch.Tensor]


class Model:
    """A Llama without biases, computed layer by layer in FP32."""

    def __init__(self, folder: Path, tokens: int) -> None:
        config = json.loads((folder / "config.json").read_text())
        self.weights = {name: one.float() for name, one in load_file(folder / "model.safetensors").items()}
        self.layers, self.channels = config["num_hidden_layers"], config["hidden_size"]
        self.heads, self.kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
        self.head_dim = config.get("head_dim") or self.channels // self.heads
        self.eps = config["rms_norm_eps"]
        half = torch.arange(0, self.head_dim, 2).double() / self.head_dim
        angles = torch.arange(tokens).double()[:, None] * config["rope_theta"] ** -half
        self.cos, self.sin = angles.cos().float()[:, None], angles.sin().float()[:, None]
        places = torch.arange(tokens)
        pages = places // PAGE
        self.causal = places[:, None] >= places[None]
        self.exact = self.causal & ((pages[:, None] == pages[None]) | (pages[None] == 0))

    def norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + self.eps) * self.weights[f"{name}.weight"]

    def rotate(self, x: torch.Tensor) -> torch.Tensor:
        a, b = x.chunk(2, dim=-1)
        return torch.cat([a * self.cos - b * self.sin, b * self.cos + a * self.sin], -1)

    @torch.inference_mode()
    def log_probabilities(self, tokens: torch.Tensor, store: Optional[Store]) -> torch.Tensor:
        n, group = len(tokens), self.heads // self.kv_heads
        x = self.weights["model.embed_tokens.weight"][tokens]
        for layer in range(self.layers):
            name = f"model.layers.{layer}"

            def project(part: str, y: torch.Tensor) -> torch.Tensor:
                return functional.linear(y, self.weights[f"{name}.{part}.weight"])  # noqa: B023  (used at once)

            def keys_values(latent: torch.Tensor) -> list[torch.Tensor]:
                k = self.rotate(project("self_attn.k_proj", latent).view(n, self.kv_heads, self.head_dim))
                v = project("self_attn.v_proj", latent).view(n, self.kv_heads, self.head_dim)
                return [one.repeat_interleave(group, 1) for one in (k, v)]

            latent = self.norm(x, f"{name}.input_layernorm")
            q = project("self_attn.q_proj", latent).view(n, self.heads, self.head_dim)
            k, v = keys_values(latent)
            scores = torch.einsum("qhd,khd->hqk", self.rotate(q), k)
            if store is not None:
                up = self.weights[f"{name}.self_attn.k_proj.weight"].view(self.kv_heads, self.head_dim, -1)
                absorbed = torch.einsum("qhd,hdc->qhc", q, up.repeat_interleave(group, 0))
                stored_k, stored_v = keys_values(store(layer, latent, absorbed))
                scores = torch.where(self.exact, scores, torch.einsum("qhd,khd->hqk", self.rotate(q), stored_k))
            weights = scores.div(math.sqrt(self.head_dim)).masked_fill(~self.causal, -math.inf).softmax(-1)
            if store is None:
                y = torch.einsum("hqk,khd->qhd", weights, v)
            else:
                y = torch.einsum("hqk,khd->qhd", weights * self.exact, v)
                y += torch.einsum("hqk,khd->qhd", weights * ~self.exact, stored_v)
            x = x + project("self_attn.o_proj", y.reshape(n, -1))
            y = self.norm(x, f"{name}.post_attention_layernorm")
            gated = functional.silu(project("mlp.gate_proj", y)) * project("mlp.up_proj", y)
            x = x + project("mlp.down_proj", gated)
        x = self.norm(x, "model.norm")
        head = self.weights.get("lm_head.weight", self.weights["model.embed_tokens.weight"])
        return functional.linear(x, head).log_softmax(-1)


def storing(model: Model, text: str, outliers: float, bits: list[float]) -> Store:
    """Stores latents in a format; appends the bits that a channel takes."""
    name, _, calibrate = text.partition("@")
    policy = {"version": 1, "keys": "fp16", "values": name, "calibrate": calibrate or "first"}
    shape = libkvq.LayerShape(
        0, key_dim=model.channels + ROTARY, value_dim=model.channels, values_are_key_prefix=True, scale=1.0
    )
    context = libkvq.Context(n_threads=torch.get_num_threads())
    cache = libkvq.Cache(context, 1, model.heads, 1, 64, policy=json.dumps(policy), shapes=[shape])
    random = torch.Generator().manual_seed(3)
    scales, offsets = torch.ones(model.layers, model.channels), torch.zeros(model.layers, model.channels)
    for layer in range(model.layers if outliers else 0):
        chosen = torch.randperm(model.channels, generator=random)
        scales[layer, chosen[:8]] = outliers
        offsets[layer, chosen[8:16]] = outliers * torch.randint(0, 2, (8,), generator=random).mul(2).sub(1.0)

    def rows(x: torch.Tensor) -> numpy.ndarray:
        return functional.pad(x, (0, ROTARY)).numpy()  # no rotary channels of its own

    def store(layer: int, latent: torch.Tensor, queries: torch.Tensor) -> torch.Tensor:
        sequence = cache.sequence()
        k = rows(latent[:, None] * scales[layer] + offsets[layer])
        q = rows(queries / scales[layer] / math.sqrt(model.head_dim))
        for begin in range(0, len(latent), CHUNK):
            n = min(CHUNK, len(latent) - begin)
            cache.extend(0, sequence, k[begin : begin + n], None, q[begin : begin + n], token_counts=[n])
        usage = sequence.usage()
        rotary = 16 * ROTARY * len(latent)
        bits.append((8 * (usage.sealed_bytes + usage.fp16_bytes) - rotary) / (model.channels * len(latent)))
        return (torch.from_numpy(sequence.decode(0, 0).v) - offsets[layer]) / scales[layer]

    return store


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("formats", nargs="+", help="of common channels, with @none: without scales")
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--windows", type=int, default=3)
    parser.add_argument("--context", type=int, default=2048)
    parser.add_argument("--outliers", type=float, default=0.0)
    options = parser.parse_args()
    model = Model(options.model, options.context)
    tokenizer = Tokenizer.from_file(str(options.model / "tokenizer.json"))
    text = options.text.read_text(encoding="utf-8")[: 16 * options.windows * options.context]
    tokens = torch.tensor(tokenizer.encode(text, add_special_tokens=False).ids)
    windows = tokens.split(options.context)[: options.windows]
    exact = [model.log_probabilities(window, None) for window in windows]
    print(f"{'format':<24}{'bits':>8}{'KL':>10}")
    for name in options.formats:
        bits: list[float] = []
        store = storing(model, name, options.outliers, bits)
        losses = [
            float(functional.kl_div(model.log_probabilities(window, store), p, log_target=True, reduction="batchmean"))
            for window, p in zip(windows, exact)
        ]
        print(f"{name:<24}{sum(bits) / len(bits):8.2f}{sum(losses) / len(losses):10.4f}", flush=True)


if __name__ == "__main__":
    main()
