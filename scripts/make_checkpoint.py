#!/usr/bin/env python3
"""Make a checkpoint of random BF16 weights in the shape of a Llama, to try commands on a model of a size that one has not got.

It has the files of a download: config.json, tokenizer.json, model.safetensors.index.json and shards. Texts that it writes are
noise; bytes, times and what fits are those of a trained model. Nothing but Python is needed, and little memory.

    make_checkpoint.py /tmp/llama-8b                 # the shape of Llama 3 8B: 16.1 GB
    make_checkpoint.py /tmp/llama-2l --layers 2      # two of its 32 layers: 3.0 GB
"""
import argparse
import array
import json
import pathlib
import random
import sys

POOL = (1 << 22) + 15  # normal numbers, pieces of which from random places make up every matrix
DEMO = pathlib.Path(__file__).resolve().parent.parent / "models/demo"


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=pathlib.Path, help="to make, or to replace the files of")
    for name, value, text in [("layers", 32, ""), ("hidden", 4096, "channels between layers"),
                              ("mlp", 14336, "channels within an MLP"), ("heads", 32, "query heads"),
                              ("kv-heads", 8, "KV heads"), ("head-dim", 128, "channels of a head"),
                              ("vocab", 128256, "tokens"), ("positions", 8192, "tokens that a text may have"),
                              ("seed", 1, "of the random numbers")]:
        parser.add_argument("--" + name, type=int, default=value, help=f"{text} (default: {value})".strip())
    parser.add_argument("--rope-theta", type=float, default=500000.0, help="base of the rotations (default: 500000)")
    parser.add_argument("--std", type=float, default=0.02, help="standard deviation of the weights (default: 0.02)")
    parser.add_argument("--tied", action="store_true", help="the embedding is the output's matrix, too")
    parser.add_argument("--tokenizer", type=pathlib.Path, default=DEMO,
                        help="directory of a model whose tokenizer.json to take (default: the demo model)")
    parser.add_argument("--shard-bytes", type=int, default=5_000_000_000, help="of a file at most (default: 5e9)")
    options = parser.parse_args()
    for name in ("layers", "hidden", "mlp", "heads", "kv_heads", "head_dim", "vocab", "positions", "shard_bytes"):
        if getattr(options, name) < 1:
            parser.error(f"--{name.replace('_', '-')} {getattr(options, name)}: must be at least 1")
    if options.heads % options.kv_heads != 0:
        parser.error(f"--heads {options.heads}: must be a multiple of --kv-heads {options.kv_heads}")
    return options


def tensors(options):
    """Names and shapes, in the order of the files; norms have one dimension."""
    hidden, mlp = options.hidden, options.mlp
    queries, keys = options.heads * options.head_dim, options.kv_heads * options.head_dim
    yield "model.embed_tokens.weight", [options.vocab, hidden]
    for layer in range(options.layers):
        for name, shape in [("input_layernorm", [hidden]), ("self_attn.q_proj", [queries, hidden]),
                            ("self_attn.k_proj", [keys, hidden]), ("self_attn.v_proj", [keys, hidden]),
                            ("self_attn.o_proj", [hidden, queries]), ("post_attention_layernorm", [hidden]),
                            ("mlp.gate_proj", [mlp, hidden]), ("mlp.up_proj", [mlp, hidden]),
                            ("mlp.down_proj", [hidden, mlp])]:
            yield f"model.layers.{layer}.{name}.weight", shape
    yield "model.norm.weight", [hidden]
    if not options.tied:
        yield "lm_head.weight", [options.vocab, hidden]


def bytes_of(shape):
    return 2 * shape[0] * (shape[1] if len(shape) > 1 else 1)


def shards(options):
    """Lists of (name, shape) that fit a file each."""
    files, size = [[]], 0
    for name, shape in tensors(options):
        if files[-1] and size + bytes_of(shape) > options.shard_bytes:
            files.append([])
            size = 0
        files[-1].append((name, shape))
        size += bytes_of(shape)
    return files


def pool_of_normals(std, source):
    """BF16 numbers: the upper halves of little-endian float32."""
    floats = array.array("f", (source.gauss(0.0, std) for _ in range(POOL)))
    if sys.byteorder == "big":
        floats.byteswap()
    raw = floats.tobytes()
    pool = bytearray(2 * POOL)
    pool[0::2], pool[1::2] = raw[2::4], raw[3::4]
    return memoryview(bytes(pool))


def write_matrix(file, size, pool, source):
    while size > 0:
        begin = source.randrange(POOL // 2)
        piece = pool[2 * begin:2 * begin + size]
        file.write(piece)
        size -= len(piece)


def write_shard(path, entries, pool, source):
    header, offset = {"__metadata__": {"format": "pt"}}, 0
    for name, shape in entries:
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [offset, offset + bytes_of(shape)]}
        offset += bytes_of(shape)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, shape in entries:
            if len(shape) == 1:
                file.write(b"\x80\x3f" * shape[0])  # 1.0
            else:
                write_matrix(file, bytes_of(shape), pool, source)
    return offset


def read_json(path):
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SystemExit(f"make_checkpoint.py: {path}: {error.strerror}") from error


def padded_tokenizer(options):
    """The tokenizer with names for all tokens of the model, which may be more than it has."""
    tokenizer = read_json(options.tokenizer / "tokenizer.json")
    vocabulary = tokenizer["model"]["vocab"]
    used = set(vocabulary.values()) | {token["id"] for token in tokenizer.get("added_tokens", [])}
    if max(used) >= options.vocab:
        raise SystemExit(f"make_checkpoint.py: --vocab {options.vocab}: the tokenizer in {options.tokenizer} has "
                         f"{max(used) + 1} tokens")
    vocabulary.update({f"<unused{token}>": token for token in range(options.vocab) if token not in used})
    return tokenizer


def config_of(options):
    special = read_json(options.tokenizer / "config.json")
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": options.vocab,
              "hidden_size": options.hidden, "intermediate_size": options.mlp, "num_hidden_layers": options.layers,
              "num_attention_heads": options.heads, "num_key_value_heads": options.kv_heads,
              "head_dim": options.head_dim, "hidden_act": "silu", "max_position_embeddings": options.positions,
              "rms_norm_eps": 1e-05, "rope_theta": options.rope_theta, "rope_scaling": None,
              "tie_word_embeddings": options.tied, "attention_bias": False, "mlp_bias": False,
              "initializer_range": options.std, "torch_dtype": "bfloat16"}
    return config | {key: special[key] for key in ("bos_token_id", "eos_token_id") if key in special}


def write_json(path, document):
    path.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def main():
    options = arguments()
    config, tokenizer = config_of(options), padded_tokenizer(options)
    source = random.Random(options.seed)
    pool = pool_of_normals(options.std, source)
    options.directory.mkdir(parents=True, exist_ok=True)
    write_json(options.directory / "config.json", config)
    write_json(options.directory / "tokenizer.json", tokenizer)
    files, total, weight_map = shards(options), 0, {}
    for number, entries in enumerate(files, 1):
        name = f"model-{number:05}-of-{len(files):05}.safetensors"
        total += write_shard(options.directory / name, entries, pool, source)
        weight_map.update({tensor: name for tensor, _ in entries})
        print(f"{name}: {total / 1e9:.2f} GB so far", flush=True)
    write_json(options.directory / "model.safetensors.index.json",
               {"metadata": {"total_size": total}, "weight_map": weight_map})


if __name__ == "__main__":
    main()
