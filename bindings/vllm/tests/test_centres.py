"""A model with outlier channels loses little with scales that kvq has found in it."""

import os
import statistics
import subprocess

import pytest

pytest.importorskip("vllm")

import models  # noqa: E402
from engines import MODEL, folder_of, run, text_tokens  # noqa: E402

PROGRAM = os.environ.get("KVQ_TEST_PROGRAM", "")
WINDOWS = [text_tokens(500, 1024 * i) for i in range(2)]
IN_CHUNKS = {"max_num_batched_tokens": 64, "long_prefill_token_threshold": 32}


@pytest.mark.skipif(not PROGRAM, reason="KVQ_TEST_PROGRAM is not the path of kvq")
def test_scales_of_channels_halve_what_outliers_cost(tmp_path):
    folder = models.with_outlier_channels(folder_of(MODEL), tmp_path / "model")
    scales = tmp_path / "scales.safetensors"
    subprocess.run([PROGRAM, "balance", "--model", folder, "--scales", scales], check=True, capture_output=True)

    def losses(policy, **environment):
        result = run(policy, [WINDOWS], losses=True, model=folder, environment=environment, **IN_CHUNKS)
        assert not result.error, result.error
        return sum(result.answers[0].losses, [])

    own = losses(None)

    def divergence(other):
        return statistics.fmean((a - b) ** 2 for a, b in zip(other, own, strict=True)) / 2

    without, scaled = divergence(losses("gs4")), divergence(losses("gs4", KVQ_VLLM_CENTRES=str(scales)))
    print("KL about %.5f without scales, %.5f with them" % (without, scaled))
    assert scaled < 0.5 * without
    assert scaled < 0.005
