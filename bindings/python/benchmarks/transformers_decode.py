"""Measures decoding speed and cache size: transformers' own cache with sdpa against KvqCache.

    python transformers_decode.py --model DIR --prompt 7900 --generate 100 --policies fp16 int4 int4+hadamard int2
    python transformers_decode.py --device cuda --dtype bfloat16 --shape 8b --prompt 32768 --generate 200

Every cache decodes the same number of tokens after the same prompt, in several interleaved rounds; the prompt is
not timed. Prints a table of medians.
"""

import argparse
import statistics
import time
from typing import Callable, Union

import torch
from transformers import AutoModelForCausalLM, DynamicCache, LlamaConfig

from libkvq.transformers import KvqCache

SIZES = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
)
SHAPES = {"8b": (4096, 14336, 32, 32, 8, 128), "1b": (2048, 8192, 16, 32, 8, 64)}


def load(options: argparse.Namespace) -> torch.nn.Module:
    dtype = getattr(torch, options.dtype)
    if options.model:
        model = AutoModelForCausalLM.from_pretrained(options.model, dtype=dtype, attn_implementation="sdpa")
        return model.to(options.device).eval()
    sizes = dict(zip(SIZES, SHAPES[options.shape]), vocab_size=128256, max_position_embeddings=1 << 20)
    config = LlamaConfig(**sizes, rope_theta=500000.0)
    torch.manual_seed(1)
    with torch.device(options.device):
        return AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="sdpa").eval()


@torch.inference_mode()
def decode(
    model: torch.nn.Module, prompt: torch.Tensor, chunk: int, n: int, cache: Union[DynamicCache, KvqCache]
) -> tuple[float, list[float]]:
    """Seconds of the prompt, and of each token."""

    def finish() -> None:
        if prompt.is_cuda:
            torch.cuda.synchronize()

    begin = time.perf_counter()
    for piece in prompt.split(chunk, dim=1):
        output = model(piece, past_key_values=cache, logits_to_keep=1)
    token = output.logits[:, -1:].argmax(-1)
    finish()
    prompt_seconds = time.perf_counter() - begin
    seconds = []
    for _ in range(n):
        begin = time.perf_counter()
        token = model(token, past_key_values=cache, logits_to_keep=1).logits[:, -1:].argmax(-1)
        finish()
        seconds.append(time.perf_counter() - begin)
    return prompt_seconds, seconds


def cache_bytes(cache: Union[DynamicCache, KvqCache]) -> tuple[int, float]:
    if isinstance(cache, KvqCache):
        usage = cache.usage()
        return usage.total_bytes, usage.bits_per_scalar
    tensors = [one for layer in cache.layers for one in (layer.keys, layer.values)]
    return sum(one.nbytes for one in tensors), 8.0 * tensors[0].element_size()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--model", help="folder of a model")
    parser.add_argument("--shape", choices=SHAPES, default="8b", help="random weights of this shape, without --model")
    parser.add_argument("--prompt", type=int, default=7900, help="tokens")
    parser.add_argument("--chunk", type=int, default=1 << 30, help="tokens of the prompt given to the model at once")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--generate", type=int, default=100, help="tokens")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="of the CPU")
    parser.add_argument("--policies", nargs="*", default=["fp16", "int8", "int4", "int4+hadamard", "int2"])
    options = parser.parse_args()
    torch.set_num_threads(options.threads)

    model = load(options)
    generator = torch.Generator().manual_seed(1)
    shape = (options.batch, options.prompt)
    prompt = torch.randint(3, model.config.vocab_size, shape, generator=generator).to(options.device)
    makers: dict[str, Callable[[], Union[DynamicCache, KvqCache]]] = {"DynamicCache": DynamicCache}
    for policy in options.policies:
        makers[policy] = lambda policy=policy: KvqCache(policy)
    prompts: dict[str, list[float]] = {name: [] for name in makers}
    tokens: dict[str, list[float]] = {name: [] for name in makers}
    sizes = {}
    for _ in range(options.rounds):
        for name, make in makers.items():
            model.set_attn_implementation("sdpa" if name == "DynamicCache" else "kvq")
            cache = make()
            seconds, each = decode(model, prompt, options.chunk, options.generate, cache)
            prompts[name].append(seconds)
            tokens[name] += each
            sizes[name] = cache_bytes(cache)
            del cache
    where = torch.cuda.get_device_name() if "cuda" in options.device else f"CPU, {options.threads} threads"
    print(f"{where}; {options.dtype}; batch {options.batch}, prompt {options.prompt}, {options.generate} tokens")
    print(f"torch {torch.__version__}, medians of {options.rounds} rounds\n")
    own = statistics.median(tokens["DynamicCache"])
    print("| cache | prompt, s | ms a token | tokens/s | against DynamicCache | cache, MB | bits a scalar |")
    print("|---|---|---|---|---|---|---|")
    for name in makers:
        median = statistics.median(tokens[name])
        print(
            f"| {name} | {statistics.median(prompts[name]):.2f} | {1e3 * median:.2f} | {options.batch / median:.1f} | "
            f"{own / median:.2f}× | {sizes[name][0] / 1e6:.1f} | {sizes[name][1]:.2f} |"
        )


if __name__ == "__main__":
    main()
