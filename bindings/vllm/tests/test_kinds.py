"""Models with windows, soft caps and other scales give the losses and tokens of vLLM's own attention."""

import pytest

pytest.importorskip("vllm")

import models  # noqa: E402
from engines import run  # noqa: E402

PROMPTS = [[(7 * i + seed) * (i + 3) % 150 + 5 for i in range(length)] for seed, length in enumerate((20, 90, 150))]


@pytest.mark.parametrize("kind", models.KINDS)
def test_as_in_vllms_own_cache(kind, tmp_path):
    folder = models.save(kind, tmp_path)
    options = {"model": folder, "losses": True, "max_model_len": 400, "max_num_batched_tokens": 64, "dtype": "float32"}
    own, result = (run(policy, [PROMPTS], 30, **options) for policy in (None, "fp16"))
    assert not own.error, own.error
    assert not result.error, result.error
    assert result.is_kvq
    for losses, expected in zip(result.answers[0].losses, own.answers[0].losses, strict=True):
        assert losses == pytest.approx(expected, abs=0.05)
        assert sum(losses) / len(losses) == pytest.approx(sum(expected) / len(expected), abs=0.002)
    same = sum(a == b for a, b in zip(result.answers[0].tokens, own.answers[0].tokens, strict=True))
    assert same >= 2
