"""What llama.cpp's types of caches lose on a model in Hugging Face's layout: the Python package llama-cpp-python runs it, the
package gguf writes it as llama.cpp reads it, and tokenizers splits the text. Nothing of these comes with kvq."""
import math

import llama_cpp
import numpy
import tokenizers

from ggml_attention import TYPES
from gguf_models import Unsupported, write_gguf

PIECE = 512  # tokens that enter a cache at once
FLASH_ATTENTION = 1  # of enum llama_flash_attn_type; values in few bits need it


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
