"""Runs a model under transformers' tensor parallelism; each process caches the KV heads that it computes.

    python transformers_parallel.py --model DIR                                     # one process
    torchrun --nproc-per-node 2 transformers_parallel.py --model DIR                # two, on CPUs (gloo)
    torchrun --nproc-per-node 2 transformers_parallel.py --model DIR --device cuda  # two GPUs (NCCL)

Prints one JSON object: the generated tokens, which depend on the number of processes only by rounding, and the memory
of each process. The number of KV heads must be a multiple of the number of processes.
"""

import argparse
import gc
import json
import os
import time

import torch
import torch.distributed
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.distributed import DistributedConfig

from libkvq.transformers import KvqCache


def load(options: argparse.Namespace, processes: int) -> torch.nn.Module:
    arguments = {"dtype": getattr(torch, options.dtype), "attn_implementation": "kvq"}
    if processes > 1:
        arguments["distributed_config"] = DistributedConfig(tp_plan="auto")
    model = AutoModelForCausalLM.from_pretrained(options.model, **arguments).eval()
    return model if processes > 1 else model.to(options.device)


def run(options: argparse.Namespace, rank: int, processes: int) -> None:
    model = load(options, processes)
    if options.text:
        with open(options.text, encoding="utf-8") as file:
            text = AutoTokenizer.from_pretrained(options.model)(file.read(20 * options.prompt))
        prompt = torch.tensor([text.input_ids[: options.prompt]])
    else:
        generator = torch.Generator().manual_seed(1)
        prompt = torch.randint(3, model.config.vocab_size, (1, options.prompt), generator=generator)
    prompt = prompt.to(model.device)
    cache = KvqCache(options.policy)
    begin = time.perf_counter()
    output = model.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        past_key_values=cache,
        do_sample=False,
        max_new_tokens=options.generate,
        min_new_tokens=options.generate,
        pad_token_id=0,
    )
    tokens = output[0, options.prompt :].tolist()
    seconds = time.perf_counter() - begin
    held = {"kv_heads": cache.sequences[0].cache.describe().kv_heads, "bytes": cache.usage().total_bytes}
    ranks = [held]
    if processes > 1:
        ranks = [{} for _ in range(processes)]
        torch.distributed.all_gather_object(ranks, held)
    if rank == 0:
        print(json.dumps({"processes": processes, "tokens": tokens, "seconds": round(seconds, 3), "ranks": ranks}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, help="folder of a model")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--policy", default="int4+hadamard")
    parser.add_argument("--text", help="file that the prompt is the beginning of; without it, random tokens")
    parser.add_argument("--prompt", type=int, default=500, help="tokens")
    parser.add_argument("--generate", type=int, default=100, help="tokens")
    options = parser.parse_args()

    processes = int(os.environ.get("WORLD_SIZE", "1"))
    rank = int(os.environ.get("LOCAL_RANK", "0"))
    if options.device == "cuda":
        torch.cuda.set_device(rank)
    if processes > 1:
        torch.distributed.init_process_group("nccl" if options.device == "cuda" else "gloo")
    run(options, rank, processes)
    if processes > 1:
        # Free the model's references to the group first: a gloo thread that outlives Python aborts the process.
        gc.collect()
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
