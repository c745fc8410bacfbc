"""Measures the training time of one layer on random keys and values.

python train_layer.py codebook|centres [--device cpu|cuda] [--kv-heads N] [--head-dim N] [--tokens N] [--stages N]
"""

import argparse
import time

import numpy

import libkvq
from libkvq.experimental import CentresTrainer, CodebookTrainer

STAGES_OF_A_BIT = 11  # with 64 codes each
CENTRES = 256


def numbers(tokens, heads, dim, seed):
    """Tokens near a few directions per head, as in a model, with noise."""
    random = numpy.random.default_rng(seed)
    directions = random.standard_normal((heads, 32, dim), numpy.float32)
    factors = random.standard_normal((tokens, heads, 32), numpy.float32) / 6
    noise = random.standard_normal((tokens, heads, dim), numpy.float32) / 2
    return numpy.ascontiguousarray(numpy.einsum("thf,hfd->thd", factors, directions, optimize=True) + noise)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["codebook", "centres"])
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--kv-heads", type=int, default=8)
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument("--tokens", type=int, default=65536)
    parser.add_argument("--stages", type=int, default=STAGES_OF_A_BIT)
    options = parser.parse_args()

    shape = dict(n_layers=1, kv_heads=options.kv_heads, head_dim=options.head_dim)
    context = libkvq.Context(device=options.device)
    if options.what == "codebook":
        trainer = CodebookTrainer(context, key_stages=options.stages, **shape)
    else:
        trainer = CentresTrainer(context, key_centres=CENTRES, value_centres=CENTRES, **shape)
    k, v = (numbers(options.tokens, options.kv_heads, options.head_dim, seed) for seed in (1, 2))
    trainer.add(0, k, v)
    begin = time.perf_counter()
    trainer.run(0)
    seconds = time.perf_counter() - begin
    layer = "a layer of %d heads of %d" % (options.kv_heads, options.head_dim)
    print("%s of %s, %d tokens, %s: %.2f s" % (options.what, layer, options.tokens, options.device, seconds))


if __name__ == "__main__":
    main()
