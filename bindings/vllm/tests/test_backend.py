"""What vLLM asks of the backend, answered without an engine."""

from types import SimpleNamespace

import pytest

pytest.importorskip("vllm")

import numpy  # noqa: E402
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


def test_vllm_may_choose_the_backend_on_a_gpu():
    from vllm.platforms.interface import DeviceCapability

    given = dict.fromkeys(("use_mla", "has_sink", "use_sparse", "use_mm_prefix", "use_per_head_quant_scales"), False)
    given |= {"head_size": 128, "dtype": torch.bfloat16, "kv_cache_dtype": "auto", "attn_type": "decoder"}
    given |= {"device_capability": DeviceCapability(9, 0), "block_size": 32}
    reasons_against = _backend.KvqBackend.validate_configuration
    assert reasons_against(**given) == []
    assert reasons_against(**{**given, "block_size": 16}) == ["block_size not supported"]
    assert reasons_against(**given, use_kv_connector=True) == ["KV connector not supported"]
    assert _backend.KvqBackend.get_preferred_block_size(16) == 32


def test_a_batch_is_filled_up_for_a_graph():
    """As the newer model runner does, which CPUs do not have: two requests in four rows, by their numbers."""
    from vllm.v1.attention.backend import CommonAttentionMetadata

    model = model_of("gs4")
    caches = [torch.zeros(8, 1, 1, model.block_bytes, dtype=torch.uint8) for _ in range(2)]
    builder = _backend.KvqBuilder.__new__(_backend.KvqBuilder)
    builder._steps = _backend.Steps(model, lambda: caches, torch.device("cpu"))
    starts = torch.tensor([0, 1, 2, 2, 2], dtype=torch.int32)
    table = torch.zeros(4, 32, dtype=torch.int32)
    table[:2, 0] = torch.tensor([5, 2])
    batch = CommonAttentionMetadata(
        query_start_loc=starts,
        query_start_loc_cpu=starts,
        seq_lens=torch.tensor([1, 1, 0, 0], dtype=torch.int32),
        num_reqs=4,
        num_actual_tokens=4,
        max_query_len=1,
        max_seq_len=LIMITS.length,
        block_table_tensor=table,
        slot_mapping=torch.tensor([5 * 32, 2 * 32, -1, -1]),
        req_idx=numpy.array([3, 1]),
    )
    step = builder.build_for_cudagraph_capture(batch)
    k, v = torch.randn(2, 4, 4, 128).half()
    output = torch.zeros(4, 8, 128, dtype=torch.float16)
    step.attend(1, torch.randn(4, 8, 128).half(), k, v, output)
    assert torch.equal(output[:2], v[:2].repeat_interleave(2, 1))  # one token of each sequence
    assert not output[2:].any()
    assert [bool(tail.any()) for tail in model._tails[1]] == [i in (1, 3) for i in range(model.n_tails)]


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
