#!/usr/bin/env python3
"""Models for tests and timings, with the gguf package that comes with llama.cpp (PYTHONPATH): make_gguf.py KIND OUT [MODEL]

    timing     the weights of layers of an 8B Llama in Q4_0, random; as many layers as MODEL says, 4 without
    windows    a tiny Gemma 2: windows, soft cap          sinks      a tiny gpt-oss: windows, sinks
    biases     a tiny MPT: ALiBi                           recurrent  a tiny Mamba
    positions  a tiny Qwen2-VL: M-RoPE
    llama      the Llama in the folder MODEL, in Hugging Face's layout; OUT.tokens has the numbers of its sample.txt's tokens
"""
import pathlib
import sys

import gguf
import numpy

VOCABULARY = 512
WIDTH, FORWARD, HEADS, KV_HEADS, HEAD_DIM, LAYERS = 128, 256, 4, 2, 64, 4
WINDOW = 100
RANDOM = numpy.random.default_rng(1)


class Tiny:
    """Random weights of a small model."""

    def __init__(self, path, architecture, width=WIDTH, forward=FORWARD, heads=HEADS, kv_heads=KV_HEADS, head_dim=HEAD_DIM,
                 layers=LAYERS, vocabulary=VOCABULARY, q4=False):
        self.q4, self.layers = q4, layers
        writer = self.writer = gguf.GGUFWriter(path, architecture)
        writer.add_vocab_size(vocabulary)
        writer.add_tokenizer_model("no_vocab")
        writer.add_context_length(65536 if q4 else 4096)
        writer.add_embedding_length(width)
        writer.add_block_count(layers)
        writer.add_feed_forward_length(forward)
        writer.add_head_count(heads)
        writer.add_head_count_kv(kv_heads)
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
        writer.add_layer_norm_rms_eps(1e-5)
        self.matrix("token_embd", vocabulary, width)
        self.ones("output_norm", width)

    def numbers(self, name, *shape, deviation=1.0):
        self.writer.add_tensor(name, RANDOM.normal(0, deviation, shape).astype(numpy.float32))

    def ones(self, name, size):
        self.writer.add_tensor(name + ".weight", numpy.ones(size, numpy.float32))

    def matrix(self, name, *shape):
        """Columns last; numbers that keep the size of what they multiply."""
        if not self.q4:
            return self.numbers(name + ".weight", *shape, deviation=2 / shape[-1]**0.5)
        blocks = RANDOM.integers(0, 256, (shape[0], shape[1] // 32, 18), numpy.uint8)  # an FP16 scale, 32 numbers of 4 bits
        blocks[:, :, :2] = numpy.array([1 / (4 * shape[1]**0.5)], numpy.float16).view(numpy.uint8)
        self.writer.add_tensor(name + ".weight", blocks.reshape(shape[0], -1), raw_dtype=gguf.GGMLQuantizationType.Q4_0)

    def attention(self, layer, width=WIDTH, heads=HEADS, kv_heads=KV_HEADS, head_dim=HEAD_DIM):
        self.ones(f"blk.{layer}.attn_norm", width)
        self.matrix(f"blk.{layer}.attn_q", heads * head_dim, width)
        self.matrix(f"blk.{layer}.attn_k", kv_heads * head_dim, width)
        self.matrix(f"blk.{layer}.attn_v", kv_heads * head_dim, width)
        self.matrix(f"blk.{layer}.attn_output", width, heads * head_dim)

    def feed_forward(self, layer, width=WIDTH, forward=FORWARD):
        self.ones(f"blk.{layer}.ffn_norm", width)
        self.matrix(f"blk.{layer}.ffn_gate", forward, width)
        self.matrix(f"blk.{layer}.ffn_up", forward, width)
        self.matrix(f"blk.{layer}.ffn_down", width, forward)

    def close(self):
        self.writer.write_header_to_file()
        self.writer.write_kv_data_to_file()
        self.writer.write_tensors_to_file()
        self.writer.close()


def timing(path, layers=4):
    heads = {"width": 4096, "heads": 32, "kv_heads": 8, "head_dim": 128}
    model = Tiny(path, "llama", forward=14336, layers=layers, vocabulary=4096, q4=True, **heads)
    model.writer.add_rope_dimension_count(128)
    model.writer.add_rope_freq_base(500000.0)
    for layer in range(model.layers):
        model.attention(layer, **heads)
        model.feed_forward(layer, 4096, 14336)
    model.close()


def windows(path):
    model = Tiny(path, "gemma2")
    model.writer.add_sliding_window(WINDOW)
    model.writer.add_attn_logit_softcapping(5.0)
    model.writer.add_final_logit_softcapping(30.0)
    for layer in range(LAYERS):
        model.attention(layer)
        model.feed_forward(layer)
        model.ones(f"blk.{layer}.post_attention_norm", WIDTH)
        model.ones(f"blk.{layer}.post_ffw_norm", WIDTH)
    model.close()


def sinks(path):
    experts = 4
    model = Tiny(path, "gpt-oss")
    model.writer.add_sliding_window(WINDOW)
    model.writer.add_expert_count(experts)
    model.writer.add_expert_used_count(experts)  # all: a choice would jump with the smallest difference
    model.writer.add_expert_feed_forward_length(FORWARD)
    model.writer.add_rope_dimension_count(HEAD_DIM)
    model.matrix("output", VOCABULARY, WIDTH)
    for layer in range(LAYERS):
        block = f"blk.{layer}."
        model.attention(layer)
        for name, size in (("q", HEADS * HEAD_DIM), ("k", KV_HEADS * HEAD_DIM), ("v", KV_HEADS * HEAD_DIM), ("output", WIDTH)):
            model.numbers(f"{block}attn_{name}.bias", size)
        model.numbers(f"{block}attn_sinks.weight", HEADS, deviation=2.0)
        model.ones(f"{block}post_attention_norm", WIDTH)
        model.matrix(f"{block}ffn_gate_inp", experts, WIDTH)
        model.numbers(f"{block}ffn_gate_inp.bias", experts)
        for name, rows, columns in (("gate", FORWARD, WIDTH), ("up", FORWARD, WIDTH), ("down", WIDTH, FORWARD)):
            model.matrix(f"{block}ffn_{name}_exps", experts, rows, columns)
            model.numbers(f"{block}ffn_{name}_exps.bias", experts, rows)
    model.close()


def biases(path):
    model = Tiny(path, "mpt", heads=2, kv_heads=2)
    model.writer.add_layer_norm_eps(1e-5)
    model.writer.add_max_alibi_bias(8.0)
    for layer in range(LAYERS):
        block = f"blk.{layer}."
        model.ones(f"{block}attn_norm", WIDTH)
        model.matrix(f"{block}attn_qkv", 3 * WIDTH, WIDTH)
        model.matrix(f"{block}attn_output", WIDTH, WIDTH)
        model.ones(f"{block}ffn_norm", WIDTH)
        model.matrix(f"{block}ffn_up", FORWARD, WIDTH)
        model.matrix(f"{block}ffn_down", WIDTH, FORWARD)
    model.close()


def recurrent(path):
    inner, states, rank, convolution = 256, 16, 8, 4
    model = Tiny(path, "mamba")
    model.writer.add_ssm_conv_kernel(convolution)
    model.writer.add_ssm_inner_size(inner)
    model.writer.add_ssm_state_size(states)
    model.writer.add_ssm_time_step_rank(rank)
    for layer in range(LAYERS):
        block = f"blk.{layer}."
        model.ones(f"{block}attn_norm", WIDTH)
        model.matrix(f"{block}ssm_in", 2 * inner, WIDTH)
        model.matrix(f"{block}ssm_conv1d", inner, convolution)
        model.numbers(f"{block}ssm_conv1d.bias", inner)
        model.matrix(f"{block}ssm_x", rank + 2 * states, inner)
        model.matrix(f"{block}ssm_dt", inner, rank)
        model.numbers(f"{block}ssm_dt.bias", inner)
        model.numbers(f"{block}ssm_a", inner, states)
        model.numbers(f"{block}ssm_d", inner)
        model.matrix(f"{block}ssm_out", WIDTH, inner)
    model.close()


def positions(path):
    model = Tiny(path, "qwen2vl", heads=2, kv_heads=2)
    model.writer.add_rope_dimension_sections([8, 12, 12, 0])
    for layer in range(LAYERS):
        model.attention(layer, heads=2, kv_heads=2)
        for name in "qkv":
            model.numbers(f"blk.{layer}.attn_{name}.bias", WIDTH)
        model.feed_forward(layer)
    model.close()


def llama(path, directory):
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "scripts"))
    import tokenizers
    from gguf_models import write_gguf
    write_gguf(directory, path)
    tokenizer = tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json"))
    tokens = tokenizer.encode((directory / "sample.txt").read_text(encoding="utf-8"), add_special_tokens=False).ids
    pathlib.Path(f"{path}.tokens").write_text(" ".join(map(str, tokens)), encoding="utf-8")


def main():
    kinds = {make.__name__: make for make in (timing, windows, sinks, biases, recurrent, positions)}
    if len(sys.argv) == 3 and sys.argv[1] in kinds:
        kinds[sys.argv[1]](sys.argv[2])
    elif len(sys.argv) == 4 and sys.argv[1] == "timing":
        timing(sys.argv[2], int(sys.argv[3]))
    elif len(sys.argv) == 4 and sys.argv[1] == "llama":
        llama(sys.argv[2], pathlib.Path(sys.argv[3]))
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
