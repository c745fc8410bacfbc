import pathlib

import numpy
import pytest

import libkvq

ROOT = pathlib.Path(__file__).resolve().parents[3]


@pytest.fixture
def context():
    with libkvq.Context() as made:
        yield made


@pytest.fixture
def random():
    return numpy.random.default_rng(7)


@pytest.fixture
def cache(context):
    """Two layers, four query heads on two KV heads."""
    return libkvq.Cache(context, n_layers=2, q_heads=4, kv_heads=2, head_dim=32, policy="int4+hadamard")


@pytest.fixture
def filled(cache, random):
    """A sequence of 100 tokens in both layers."""
    sequence = cache.sequence()
    for layer in range(2):
        k, v = random.standard_normal((2, 100, 2, 32), dtype="f4")
        sequence.append(layer, k, v)
    return sequence
