#!/usr/bin/env python3
"""Bytes of caches for the shapes of some models, as docs/guide.md has them: of the layers that have a KV cache.

    cache_bytes.py KVQ_PROGRAM
"""
import json
import subprocess
import sys

FORMATS = ["fp16", "int8", "int4+hadamard", "gs4", "gs3", "gs2", "gs1"]
NEAR, FAR = 32768, 131072  # between which a token's bytes are taken: work space and the pages in FP16 are in both

# layers with a KV cache, query heads, KV heads, head size
SHAPES = {
    "8B, Llama 3.1: 32 layers": (32, 32, 8, 128),
    "27B, Qwen 3.5: 16 of 64 layers": (16, 24, 4, 256),
    "27B, Gemma 3: all 62 layers in full": (62, 32, 16, 128),
    "27B, Gemma 3: its 10 full layers": (10, 32, 16, 128),
    "671B, DeepSeek V3, expanded: 61 layers": (61, 128, 128, 192),
}


def plan(program, shape):
    layers, heads, kv_heads, head_dim = shape
    given = f"layers={layers},q_heads={heads},kv_heads={kv_heads},head_dim={head_dim},context={FAR}"
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
