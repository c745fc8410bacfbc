#!/usr/bin/env python3
"""Bytes of caches for the shapes of some models, as docs/guide.md has them: `kvq plan` says them for a config.json of
the layers that have a KV cache.

    cache_bytes.py KVQ_PROGRAM
"""
import json
import pathlib
import subprocess
import sys
import tempfile

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
    config = {
        "architectures": ["LlamaForCausalLM"], "num_hidden_layers": layers, "num_attention_heads": heads,
        "num_key_value_heads": kv_heads, "head_dim": head_dim, "max_position_embeddings": FAR,
        "rms_norm_eps": 1e-6, "vocab_size": 64, "hidden_size": 64, "intermediate_size": 64,
    }
    # the sizes of all else change nothing of the cache
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "config.json")
        path.write_text(json.dumps(config))
        answer = subprocess.run([program, "plan", "--model", path, "--json"], check=True, stdout=subprocess.PIPE, text=True)
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
