"""The GPU's driver on a CPU: the same calls, small, without graphs."""

import pathlib
import sys

import pytest

torch = pytest.importorskip("torch")
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "benchmarks"))

import cuda_driver  # noqa: E402
import decode_speed  # noqa: E402

from kvq_vllm._model import Heads  # noqa: E402

CPU = torch.device("cpu")


@pytest.mark.parametrize("policy", cuda_driver.POLICIES)
def test_attention_of_served_sequences_is_close_to_exact_attention(policy):
    assert cuda_driver.test(policy, CPU)["failures"] == []


def test_speed_is_told_beside_that_of_pytorch():
    small = Heads(q_heads=4, kv_heads=2, head_dim=64, scale=0.125)
    sizes = decode_speed.Sizes(
        small, n_layers=3, inner=64, vocabulary=128, context=64, max_model_len=256, repetitions=1
    )
    found = [decode_speed.speed(policy, sizes, (1, 3), CPU) for policy in ("PyTorch FP16, flash", "gs4")]
    lines = decode_speed.table(found, (1, 3)).splitlines()
    assert lines[2].startswith("| PyTorch FP16 | 1.5 | ") and lines[3].startswith("| gs4 | ")
