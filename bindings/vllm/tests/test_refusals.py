"""What kvq-vllm refuses, and how it says so."""

import pytest

pytest.importorskip("vllm")

from engines import run, text_tokens  # noqa: E402

PROMPTS = [text_tokens(10), text_tokens(20)]
NGRAM = {"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 3}
EVICTS = "{version: 1, keys: gs4, values: gs4, eviction: {method: streaming, budget: 64}}"


@pytest.mark.parametrize(
    ("policy", "environment", "options", "message"),
    [
        ("gs5", {}, {}, "KVQ_VLLM_POLICY: "),
        ("gs4", {"KVQ_VLLM_CENTRES": "/none"}, {}, "KVQ_VLLM_CENTRES: .*No such file"),
        ("gs4", {"KVQ_VLLM_TAILS": "many"}, {}, "KVQ_VLLM_TAILS is 'many', must be a number"),
        ("gs4", {"KVQ_VLLM_TAILS": "1"}, {}, "a batch has more sequences than the 1 tails"),
        ("commvq", {}, {}, "codebook"),
        (EVICTS, {}, {}, "policy evicts tokens"),
        ("gs4", {}, {"block_size": 16}, "blocks of a multiple of 32 tokens, --block-size is 16"),
        ("gs4", {}, {"kv_cache_dtype": "fp8"}, "--kv-cache-dtype fp8: KVQ_VLLM_POLICY chooses the format"),
        ("gs4", {}, {"speculative_config": NGRAM}, "does not support speculative decoding"),
    ],
)
def test_refused_with_the_reason(policy, environment, options, message):
    result = run(policy, [PROMPTS], environment=environment, **options)
    assert result.error
    import re

    assert re.search(message, result.error), result.error
