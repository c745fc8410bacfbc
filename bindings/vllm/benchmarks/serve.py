"""Capacity, loss and speed of vLLM with its own cache and with kvq's formats, as a table.

    python benchmarks/serve.py --model DIR --text FILE --policies gs4 gs2

Each cache has engines in processes of their own. The loss is that of the text's windows, 32 tokens at once, so that
almost all of what a token sees has been stored. Speed is that of one thread, in tokens a second of its own processor
time, so that other programs matter little; decoding is the best of three rounds. Needs kvq-vllm and vLLM, and
``tokenizer.json`` beside the model.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from typing import Any


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--text", required=True)
    parser.add_argument("--policies", nargs="+", default=["fp16", "int8", "int4+hadamard", "gs4", "gs2"])
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--memory", type=int, default=256, help="MiB for blocks")
    parser.add_argument("--sequences", type=int, default=4)
    parser.add_argument("--prompt", type=int, default=1000, help="tokens")
    parser.add_argument("--generate", type=int, default=64, help="tokens")
    parser.add_argument("--measure", choices=["loss", "speed"], help=argparse.SUPPRESS)
    return parser.parse_args()


def engine(options: argparse.Namespace, **others: Any) -> Any:
    from vllm import LLM

    return LLM(
        options.model,
        dtype=options.dtype,
        enforce_eager=True,
        skip_tokenizer_init=True,
        block_size=32,
        max_model_len=options.prompt + options.generate + 64,
        max_num_seqs=options.sequences,
        kv_cache_memory_bytes=options.memory << 20,
        **others,
    )


def windows(options: argparse.Namespace) -> list[dict[str, list[int]]]:
    from tokenizers import Tokenizer

    with open(options.text, encoding="utf-8") as file:
        text = file.read(12 * options.sequences * options.prompt)
    tokenizer = Tokenizer.from_file(os.path.join(options.model, "tokenizer.json"))
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    cut = [ids[i * options.prompt : (i + 1) * options.prompt] for i in range(options.sequences)]
    if len(cut[-1]) < options.prompt:
        sys.exit("the text has fewer than %d tokens" % (options.sequences * options.prompt))
    return [{"prompt_token_ids": one} for one in cut]


def measure_loss(options: argparse.Namespace) -> dict[str, Any]:
    from vllm import SamplingParams

    chunks = {"max_num_batched_tokens": 32 * options.sequences, "long_prefill_token_threshold": 32}
    llm = engine(options, enable_prefix_caching=False, **chunks)
    parameters = SamplingParams(temperature=0, max_tokens=1, detokenize=False, prompt_logprobs=0)
    prompts = windows(options)
    losses = [
        -each[prompt["prompt_token_ids"][i]].logprob
        for prompt, output in zip(prompts, llm.generate(prompts, parameters, use_tqdm=False), strict=True)
        for i, each in enumerate(output.prompt_logprobs)
        if each
    ]
    cache = llm.llm_engine.vllm_config.cache_config
    return {"loss": statistics.fmean(losses), "tokens": cache.num_gpu_blocks * cache.block_size}


def measure_speed(options: argparse.Namespace) -> dict[str, Any]:
    from vllm import SamplingParams

    llm = engine(options, max_num_batched_tokens=2048, enable_prefix_caching=True)
    prompts = windows(options)

    def seconds(tokens: int, given: Any = prompts) -> float:
        parameters = SamplingParams(temperature=0, max_tokens=tokens, detokenize=False, ignore_eos=True)
        begin = time.process_time()
        llm.generate(given, parameters, use_tqdm=False)
        return time.process_time() - begin

    seconds(4, [{"prompt_token_ids": [5 + i] * 100} for i in range(options.sequences)])
    prefill = seconds(1)
    # The prompts are there from now on, but for the newest tokens of each.
    rests = min(seconds(1) for _ in range(3))
    both = min(seconds(1 + options.generate) for _ in range(3))
    return {
        "prefill": options.sequences * options.prompt / prefill,
        "decode": options.sequences * options.generate / (both - rests),
    }


def measured(policy: str, what: str) -> dict[str, Any]:
    environment = {**os.environ, "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_LOGGING_LEVEL": "ERROR"}
    environment |= {"OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    environment.pop("KVQ_VLLM_POLICY", None)
    if policy:
        environment["KVQ_VLLM_POLICY"] = policy
    result = subprocess.run(
        [sys.executable, *sys.argv, "--measure", what], env=environment, capture_output=True, text=True
    )
    if result.returncode != 0:
        sys.exit(result.stderr)
    values: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    return values


def main() -> None:
    options = parsed()
    if options.measure:
        measure = measure_loss if options.measure == "loss" else measure_speed
        print("\n" + json.dumps(measure(options)), flush=True)
        os._exit(0)
    print("| cache | tokens | times | loss | rise | prefill, tokens/s | decode, tokens/s |")
    print("|---|---|---|---|---|---|---|", flush=True)
    first: dict[str, Any] = {}
    for policy in ["", *options.policies]:
        found = {**measured(policy, "loss"), **measured(policy, "speed")}
        first = first or found
        print(
            "| %s | %d | %.2f | %.4f | %+.4f | %.0f | %.0f |"
            % (
                policy or "vLLM's own",
                found["tokens"],
                found["tokens"] / first["tokens"],
                found["loss"],
                found["loss"] - first["loss"],
                found["prefill"],
                found["decode"],
            ),
            flush=True,
        )


if __name__ == "__main__":
    main()
