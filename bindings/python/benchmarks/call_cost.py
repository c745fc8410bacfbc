"""Measures the overhead of a call: appends one token and attends with one query in the smallest cache.

python call_cost.py [numpy|torch]
"""

import statistics
import sys
import time

import libkvq

WARM_UP, BLOCKS, CALLS = 200, 2000, 32


def main():
    if sys.argv[1:] == ["torch"]:
        import torch

        ones = torch.ones
    else:
        import numpy

        def ones(shape):
            return numpy.ones(shape, numpy.float32)

    k, q, output = ones((1, 1, 8)), ones((1, 1, 8)), ones((1, 1, 8))
    cache = libkvq.Cache(libkvq.Context(), n_layers=1, q_heads=1, kv_heads=1, head_dim=8, policy="fp16")
    sequence = cache.sequence()
    sequences = [sequence]

    def blocks(before, call):
        times = []
        for _ in range(WARM_UP + BLOCKS):
            before()
            begin = time.perf_counter_ns()
            for _ in range(CALLS):
                call()
            times.append((time.perf_counter_ns() - begin) / CALLS)
        return statistics.median(times[WARM_UP:])

    append = blocks(lambda: sequence.truncate(0), lambda: sequence.append(0, k, k))
    attend = blocks(lambda: None, lambda: cache.attend(0, sequences, q, output=output))
    print("append %.0f attend %.0f" % (append, attend))


if __name__ == "__main__":
    main()
