"""What llama.cpp's types of caches lose on a model in Hugging Face's layout: the Python package llama-cpp-python runs it, the
package gguf writes it as llama.cpp reads it, and tokenizers splits the text. Nothing of these comes with kvq."""
import json
import math

import gguf
import llama_cpp
import numpy
import tokenizers

from ggml_attention import TYPES

PIECE = 512  # tokens that enter a cache at once
FLASH_ATTENTION = 1  # of enum llama_flash_attn_type; values in few bits need it
SAFETENSORS = {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}


class Unsupported(Exception):
    """Says which models are."""


def read_safetensors(directory):
    """Names and FP32 arrays."""
    index = directory / "model.safetensors.index.json"
    names = set(json.loads(index.read_text())["weight_map"].values()) if index.exists() else {"model.safetensors"}
    for name in sorted(names):
        data = numpy.memmap(directory / name, mode="r", dtype=numpy.uint8)
        header = 8 + int(data[:8].view("<u8")[0])
        for key, entry in json.loads(bytes(data[8:header])).items():
            if key == "__metadata__":
                continue
            begin, end = (header + offset for offset in entry["data_offsets"])
            values = data[begin:end].view(SAFETENSORS[entry["dtype"]])
            if entry["dtype"] == "BF16":
                values = (values.astype(numpy.uint32) << 16).view(numpy.float32)
            yield key, values.astype(numpy.float32).reshape(entry["shape"])


def in_pairs(rows, heads):
    """Rotary embeddings pair channels i and i + head_dim / 2 in Hugging Face's layout, neighbours in llama.cpp's."""
    return rows.reshape(heads, 2, -1, rows.shape[-1]).swapaxes(1, 2).reshape(rows.shape)


def write_gguf(directory, path):
    """The model in FP32, without a tokenizer: the numbers of tokens go in."""
    config = json.loads((directory / "config.json").read_text())
    if config.get("model_type") != "llama" or config.get("rope_scaling"):
        raise Unsupported(f"--model {directory}: is {config.get('model_type')}, rope_scaling {config.get('rope_scaling')}; "
                          "this converts Llamas without rope_scaling")
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("no_vocab")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_dimension_count(head_dim)
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config["num_hidden_layers"])
    for name, tensor in read_safetensors(directory):
        turned = {"q_proj.weight": heads, "k_proj.weight": kv_heads}.get(name.rpartition("self_attn.")[2])
        writer.add_tensor(names.get_name(name, (".weight",)), in_pairs(tensor, turned) if turned else tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def windows_of_tokens(directory, text, context, most):
    """As kvq eval perplexity takes them: one behind the other, without a BOS; special tokens spelled in the text are text."""
    tokenizer = tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json"))
    tokenizer.encode_special_tokens = True
    tokens = tokenizer.encode(text.read_text(encoding="utf-8"), add_special_tokens=False).ids
    windows = [tokens[begin:begin + context] for begin in range(0, len(tokens) - context + 1, context)]
    if not windows:
        raise Unsupported(f"--text {text}: has {len(tokens)} tokens, fewer than a window of --context {context}")
    return windows[:most]


@llama_cpp.llama_log_callback
def say_nothing(level, text, data):
    pass


class Cache:
    """A context of llama.cpp whose keys and values are of a type."""

    def __init__(self, model, kind, context, threads):
        params = llama_cpp.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = context, PIECE, PIECE
        params.n_threads = params.n_threads_batch = threads
        params.type_k = params.type_v = TYPES[kind][0]
        params.flash_attn_type = FLASH_ATTENTION
        self.context = llama_cpp.llama_init_from_model(model, params)
        if not self.context:
            raise Unsupported(f"llama.cpp makes no cache of type {kind} for this model")
        self.vocabulary = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
        self.batch = llama_cpp.llama_batch_init(PIECE, 0, 1)

    def clear(self):
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.context), True)

    def next_tokens(self, tokens, begin):
        """Logarithms of the probabilities behind each of these tokens, [tokens, vocabulary]."""
        self.batch.n_tokens = len(tokens)
        for i, token in enumerate(tokens):
            self.batch.token[i], self.batch.pos[i] = token, begin + i
            self.batch.n_seq_id[i], self.batch.seq_id[i][0], self.batch.logits[i] = 1, 0, True
        if llama_cpp.llama_decode(self.context, self.batch) != 0:
            raise Unsupported("llama_decode failed")
        logits = numpy.ctypeslib.as_array(llama_cpp.llama_get_logits(self.context), (len(tokens), self.vocabulary))
        logits = logits - logits.max(axis=1, keepdims=True).astype(numpy.float64)
        return logits - numpy.log(numpy.exp(logits).sum(axis=1, keepdims=True))


def measure(gguf_file, windows, kinds, threads):
    """By type of cache: perplexity, and the mean divergence (KL) of the next token's distribution from f16's, in nats."""
    llama_cpp.llama_log_set(say_nothing, None)
    llama_cpp.llama_backend_init()
    model = llama_cpp.llama_model_load_from_file(str(gguf_file).encode(), llama_cpp.llama_model_default_params())
    if not model:
        raise Unsupported(f"llama.cpp does not load the model as {gguf_file}")
    caches = {kind: Cache(model, kind, len(windows[0]), threads) for kind in ["f16", *kinds]}
    surprise, divergence, scored = dict.fromkeys(caches, 0.0), dict.fromkeys(caches, 0.0), 0
    for window in windows:
        for cache in caches.values():
            cache.clear()
        for begin in range(0, len(window), PIECE):
            tokens = window[begin:begin + PIECE]
            follow = numpy.array(window[begin + 1:begin + 1 + PIECE])
            rows = numpy.arange(len(follow))  # nothing is known to follow a window's last token
            scored += len(follow)
            exact = caches["f16"].next_tokens(tokens, begin)[:len(follow)]
            for kind, cache in caches.items():
                found = exact if kind == "f16" else cache.next_tokens(tokens, begin)[:len(follow)]
                surprise[kind] -= found[rows, follow].sum()
                divergence[kind] += (numpy.exp(exact) * (exact - found)).sum()
    return {kind: (math.exp(surprise[kind] / scored), divergence[kind] / scored) for kind in caches}
