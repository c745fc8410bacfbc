"""The example of docs/transformers.md, and the programs in benchmarks, run as they are."""

import inspect
import json
import os
import re
import subprocess
import sys

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from torch.distributed.tensor import distribute_tensor  # noqa: E402
from transformers_models import DEMO, ROOT  # noqa: E402

BENCHMARKS = ROOT / "bindings" / "python" / "benchmarks"


def output_of(*command):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_the_example_of_the_documentation_runs():
    text = (ROOT / "docs" / "transformers.md").read_text(encoding="utf-8")
    example = re.search(r"```python\n(.*?)```", text, re.DOTALL).group(1)
    output = output_of(sys.executable, "-c", example)
    assert output.startswith("It was the best of times,")
    assert 5 < float(re.search(r"([0-9.]+) bits a scalar", output).group(1)) < 9


@pytest.mark.skipif(
    "src_data_rank" not in inspect.signature(distribute_tensor).parameters,
    reason="transformers divides models among processes with a newer PyTorch only",
)
def test_one_and_two_processes_generate_the_same_tokens():
    program = [BENCHMARKS / "transformers_parallel.py", "--model", DEMO, "--text", DEMO / "sample.txt"]
    program += ["--policy", "fp16", "--prompt", "200", "--generate", "64"]
    one = json.loads(output_of(sys.executable, *program))
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    two = json.loads(output_of(sys.executable, *launcher, *program))
    assert (one["processes"], two["processes"]) == (1, 2)
    assert one["tokens"] == two["tokens"]
    assert [rank["kv_heads"] for rank in one["ranks"] + two["ranks"]] == [2, 1, 1]
    for rank in two["ranks"]:
        assert 0.45 < rank["bytes"] / one["ranks"][0]["bytes"] < 0.55


def test_the_benchmark_of_decoding_prints_its_table():
    program = [BENCHMARKS / "transformers_decode.py", "--model", DEMO, "--prompt", "100", "--generate", "5"]
    output = output_of(sys.executable, *program, "--rounds", "1", "--policies", "fp16", "int2")
    rows = [line.split("|")[1].strip() for line in output.splitlines() if line.startswith("|")]
    assert rows == ["cache", "---", "DynamicCache", "fp16", "int2"]
