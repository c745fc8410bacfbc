#!/usr/bin/env python3
"""Bytes of caches for the shapes of some models, as docs/guide.md has them: of the layers that have a KV cache.

    cache_bytes.py KVQ_PROGRAM
"""
import json
import subprocess
import sys

FORMATS = ["fp16", "int8", "int4+hadamard", "gs4", "gs3", "gs2", "gs1"]
NEAR, FAR = 32768, 131072  # between which a token's bytes are taken: work space and the pages in FP16 are in both

# layers with a KV cache, and their heads
SHAPES = {
    "8B, Llama 3.1: 32 layers": "layers=32,q_heads=32,kv_heads=8,head_dim=128",
    "27B, Qwen 3.5: 16 of 64 layers": "layers=16,q_heads=24,kv_heads=4,head_dim=256",
    "27B, Gemma 3: without windows": "layers=62,q_heads=32,kv_heads=16,head_dim=128",
    "27B, Gemma 3: 52 of 62 layers with windows": "layers=10,q_heads=32,kv_heads=16,head_dim=128",
    "671B, DeepSeek V3: 61 latents": "layers=61,q_heads=128,kv_heads=1,head_dim=576,value_dim=512,latent=1",
}


def plan(program, shape):
    given = f"{shape},context={FAR}"
    answer = subprocess.run([program, "plan", "--shape", given, "--json"], check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(answer.stdout)


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    print("| bytes a token | " + " | ".join(FORMATS) + " |\n|---|" + "---|" * len(FORMATS))
    for name, shape in SHAPES.items():
        answer = plan(sys.argv[1], shape)
        near, far = (answer["contexts"].index(tokens) for tokens in (NEAR, FAR))
        cells = [name]
        for name_of_format in FORMATS:
            of_context = answer["cache_bytes"][name_of_format]
            cells.append(format(round((of_context[far] - of_context[near]) / (FAR - NEAR)), ",").replace(",", " "))
        print("| " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
