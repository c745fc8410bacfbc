"""What vLLM asks of the backend, answered without an engine."""

from types import SimpleNamespace

import pytest

pytest.importorskip("vllm")

import torch  # noqa: E402

from kvq_vllm import _backend, _model  # noqa: E402
from kvq_vllm._settings import Settings  # noqa: E402

HEADS = _model.Heads(q_heads=8, kv_heads=4, head_dim=128, scale=0.1)
LIMITS = _model.Limits(sequences=4, tokens=64, length=1024)


def model_of(policy, n_layers=2, block_tokens=32):
    model = _model.Model(Settings(policy, policy), HEADS, LIMITS, 8, lambda: block_tokens, None)
    for _ in range(n_layers):
        model.add_layer()
    return model


def test_blocks_are_as_large_as_fp16s_in_vllm():
    fp16 = model_of("fp16", block_tokens=64)
    assert fp16.block_bytes == 64 * 4 * 128 * 2 * 2
    assert fp16.tail_bytes == 0


def test_graphs_are_those_of_batches_that_decode():
    from vllm.v1.attention.backend import AttentionCGSupport

    support = _backend.KvqBuilder.get_cudagraph_support(None, None)
    assert support == AttentionCGSupport.UNIFORM_SINGLE_TOKEN_DECODE


def test_layers_with_different_formats_have_the_largest_ones_blocks():
    policy = "{version: 1, keys: gs4, values: gs4, layers: [{range: [1, 1], keys: int8, values: int8}]}"
    mixed = model_of(policy)
    assert mixed.block_bytes == model_of("int8").block_bytes > model_of("gs4").block_bytes
    assert mixed.tail_bytes == model_of("gs4").tail_bytes == 2 * 2 * 32 * 4 * 128 * 2 * 2


def test_the_size_of_blocks_is_asked_for_when_it_is_needed():
    size = [16]
    model = _model.Model(Settings("gs4", "gs4"), HEADS, LIMITS, 8, lambda: size[0], None)
    model.add_layer()
    model.allocate(torch.device("cpu"))
    with pytest.raises(_model.Unsupported, match="--block-size is 16"):
        _ = model.block_bytes
    size[0] = 32
    assert model.block_bytes > 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kv_transfer_config": object()}, "KV connectors"),
        ({"decode_context_parallel_size": 2}, "context parallelism"),
        ({"prefill_context_parallel_size": 2}, "context parallelism"),
        ({"enable_dbo": True}, "dual batch overlap"),
    ],
)
def test_what_changes_a_step_is_refused(changes, message):
    parallel = {"decode_context_parallel_size": 1, "prefill_context_parallel_size": 1, "enable_dbo": False}
    values = {"speculative_config": None, "kv_transfer_config": None}
    config = SimpleNamespace(**values, parallel_config=SimpleNamespace(**parallel))
    for name, value in changes.items():
        setattr(config if name in values else config.parallel_config, name, value)
    with pytest.raises(_model.Unsupported, match=message):
        _backend._check(config)
