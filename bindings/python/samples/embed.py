"""Minimal embedding: one attention layer of an engine decodes on a cache compressed to about five bits per scalar.

python embed.py
"""

import numpy

import libkvq

LAYERS = 1
Q_HEADS = 8
KV_HEADS = 2
HEAD_DIM = 64
TOKENS = 1000


class Numbers:
    """Stands in for the engine's projections: numbers in [-1, 1)."""

    def __init__(self):
        self.state = 1

    def __call__(self, *shape):
        x = numpy.empty(shape, numpy.float32)
        for i in range(x.size):
            self.state = (self.state * 1664525 + 1013904223) & 0xFFFFFFFF
            x.flat[i] = (self.state >> 8) / 8388608 - 1
        return x


def checksum(total, x):
    """Hash of the attention outputs' bits, to compare with the same program in another language."""
    for bits in x.view(numpy.uint32).ravel().tolist():
        total = (total ^ bits) * 16777619 & 0xFFFFFFFF
    return total


def main():
    numbers = Numbers()
    total = 2166136261
    with libkvq.Context() as context:
        cache = libkvq.Cache(
            context,
            n_layers=LAYERS,
            q_heads=Q_HEADS,
            kv_heads=KV_HEADS,
            head_dim=HEAD_DIM,
            policy="int4+hadamard",  # or a YAML policy: formats per layer, FP16 pages
        )
        sequence = cache.sequence()
        for _ in range(TOKENS):
            q = numbers(1, Q_HEADS, HEAD_DIM)  # before RoPE: the library rotates queries and keys
            k = numbers(1, KV_HEADS, HEAD_DIM)
            v = numbers(1, KV_HEADS, HEAD_DIM)
            sequence.append(0, k, v)
            total = checksum(total, cache.attend(0, sequence, q))
        usage = sequence.usage()
        print(
            "%d tokens at %.2f bits per scalar: %d bytes instead of %d, checksum %08x"
            % (TOKENS, usage.bits_per_scalar, usage.total_bytes, usage.plain_fp16_bytes, total)
        )


if __name__ == "__main__":
    main()
