"""Proves and times on a GPU what kvq_vllm does inside vLLM, where no vLLM runs.

    python benchmarks/cuda_driver.py tests [--policies gs4 gs2]
    python benchmarks/cuda_driver.py speed

`tests` lets `paged_engine.Engine` serve several hundred sequences, and 256 of 64 to 32768 tokens at once. It compares
outputs with exact attention in PyTorch, and those of CUDA graphs bit for bit with those of calls without one.

`speed` times decode steps at 1, 16 and 128 sequences of 8192 tokens, in CUDA graphs that are captured for 32768 tokens:

- attention of 32 layers of 32 query and 8 KV heads of 128, storing the new token included;
- the same in a whole model of 8 billion parameters in FP16, without rotary embeddings and sampling: matrix products,
  norms and the head of 128256 tokens. Weights of 4 layers take turns.

Caches of some layers take turns, so many that none is served from a GPU's L2. Beside kvq's formats stands FP16
attention of PyTorch over contiguous keys and values of equal length, by the fastest of its kernels, with the query
heads of a KV head as rows.

Needs libkvq, PyTorch and kvq_vllm; each format has a process of its own.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import random
import subprocess
import sys
import time
from dataclasses import dataclass, field, replace
from typing import Any, Callable

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent), str(pathlib.Path(__file__).resolve().parents[1])]

import numpy  # noqa: E402
import torch  # noqa: E402
from decode_speed import KERNELS, Sizes, speed, table  # noqa: E402
from paged_engine import BlockPool, Engine, Scheduler, Sequence, Shape  # noqa: E402

from kvq_vllm._model import Heads, Limits  # noqa: E402

POLICIES = ["fp16", "int8", "int4+hadamard", "gs4", "gs2"]

#: Distance of a sequence's output from exact attention, by the exact one's length: of all together, and the largest.
#: For formats that lose: what rounding numbers of a normal distribution loses (2 bits .34, 4 bits .10, 8 bits .006), a
#: third more since keys are rounded as well as values; and twice as much for single ones.
LIMITS = {
    "fp16": (0.0025, 0.003),
    "int8": (0.008, 0.012),
    "int4+hadamard": (0.13, 0.2),
    "gs4": (0.13, 0.2),
    "gs2": (0.45, 0.7),
}


@dataclass
class Checks:
    """What a run has found."""

    steps: int = 0
    graph_steps: int = 0
    different: int = 0
    errors: list[float] = field(default_factory=list)

    def run(self, engine: Engine, batch: list[tuple[Sequence, int]], compare: int) -> None:
        """:param compare: so many sequences."""
        same = engine.run(batch)
        self.steps += 1
        self.graph_steps += same is not None
        self.different += same is False
        if compare:
            self.errors += engine.errors(batch, compare)

    @property
    def mean(self) -> float:
        """The root of the mean square."""
        return float(numpy.mean(numpy.square(self.errors)) ** 0.5)

    @property
    def worst(self) -> float:
        return float(numpy.max(self.errors))  # NaN if one is

    def failures(self, policy: str) -> list[str]:
        found = []
        for name, error, limit in zip(("mean", "largest"), (self.mean, self.worst), LIMITS[policy], strict=True):
            if not error <= limit:
                found.append("the %s distance from exact attention is %.4f, above %g" % (name, error, limit))
        if self.different:
            found.append("%d graphs gave other bits than calls without one" % self.different)
        return found


def serve(
    policy: str, shape: Shape, device: torch.device, n: int, prompt: int, answer: int, numbers_requests: bool = True
) -> tuple[Checks, Scheduler]:
    """Sequences come and go: prompts in chunks beside decoding, prefixes in common, too few blocks for all."""
    choice, values = random.Random(3), numpy.random.default_rng(5)
    engine = Engine(policy, shape, device, numbers_requests=numbers_requests)
    scheduler = Scheduler(shape, choice)
    systems = [values.integers(0, 50000, prompt // 2) for _ in range(3)]
    for _ in range(n):
        begin = choice.choice([*systems, systems[0][:0]])
        own = values.integers(0, 50000, choice.randint(5, prompt) + choice.randint(1, answer))
        tokens = numpy.concatenate([begin, own])
        scheduler.waiting.append(Sequence(tokens, len(tokens) - choice.randint(1, min(answer, len(own) - 1))))
    checks = Checks()
    while scheduler.waiting or scheduler.running:
        batch = scheduler.next_batch()
        checks.run(engine, batch, compare=48 if device.type == "cpu" or checks.steps % 4 == 0 else 0)
        scheduler.advance(batch)
        if device.type == "cuda" and choice.random() < 0.05:
            engine.run_dummy(choice.choice(engine.sizes))
    return checks, scheduler


def ragged(policy: str, shape: Shape, device: torch.device, longest: int, answer: int = 8) -> Checks:
    """As many sequences as a batch has, of 64 tokens to the longest: their prompts in chunks, then all decode."""
    choice, values = random.Random(4), numpy.random.default_rng(6)
    engine = Engine(policy, shape, device, graphs=(shape.limits.sequences,))
    pool = BlockPool(shape.n_blocks, choice)
    sequences = []
    for i in range(shape.limits.sequences):
        length = int(64 * (longest / 64) ** (i / (shape.limits.sequences - 1)))
        blocks = [pool.take() for _ in range(-(-length // shape.block_tokens))]
        sequences.append(Sequence(values.integers(0, 50000, length), length - answer, blocks=blocks, number=i))
    choice.shuffle(sequences)
    checks = Checks()
    while sequences[0].computed < len(sequences[0].tokens):
        batch, budget = [], shape.limits.tokens
        for sequence in sequences:
            n = min(sequence.n_prompt - sequence.computed, budget)
            if n > 0:
                batch.append((sequence, n))
                budget -= n
        decodes = not batch
        batch = batch or [(sequence, 1) for sequence in sequences]
        checks.run(engine, batch, compare=len(batch) if decodes or checks.steps % 8 == 0 else 0)
        for sequence, n in batch:
            sequence.computed += n
    return checks


def test(policy: str, device: torch.device) -> dict[str, Any]:
    gib = torch.cuda.get_device_properties(device).total_memory >> 30 if device.type == "cuda" else 0
    large = gib >= 64
    if device.type == "cuda":
        serving = Shape(n_blocks=2500)
        n, prompt, answer, longest = 400, 800, 120, 32768 if large else 4096
        uneven = Shape(n_layers=1, limits=Limits(256, 16384, longest), n_blocks=44000 if large else 12000)
    else:
        heads = Heads(q_heads=8, kv_heads=2, head_dim=64, scale=0.125)
        serving = Shape(heads, 2, Limits(8, 96, 512), n_blocks=24)
        n, prompt, answer, longest = 16, 120, 40, 512
        uneven = Shape(heads, 1, Limits(8, 200, longest), n_blocks=80)
    result = {"policy": policy, "failures": []}
    cases: dict[str, Callable[[], Any]] = {
        "serving": lambda: serve(policy, serving, device, n, prompt, answer),
        "serving, tails by block": lambda: serve(policy, serving, device, n // 4, prompt, answer, False),
        "bfloat16, blocks of 128": lambda: serve(
            policy,
            replace(serving, dtype=torch.bfloat16, block_tokens=128, n_blocks=serving.n_blocks // 3),
            device,
            n // 4,
            prompt,
            answer,
        ),
        "ragged": lambda: ragged(policy, uneven, device, longest),
    }
    lines = []
    for name, case in cases.items():
        begin = time.perf_counter()
        found = case()
        checks, scheduler = found if isinstance(found, tuple) else (found, None)
        result["failures"] += ["%s: %s" % (name, each) for each in checks.failures(policy)]
        if scheduler is not None and name == "serving" and not (scheduler.preemptions and scheduler.shared_blocks):
            result["failures"].append("serving: nothing was preempted or shared")
        lines.append(
            "%s, %s: %d steps, %d by graphs; %d outputs compared, %.4f from exact, at most %.4f%s (%.0f s)"
            % (
                policy,
                name,
                checks.steps,
                checks.graph_steps,
                len(checks.errors),
                checks.mean,
                checks.worst,
                "; %d preemptions, %d blocks shared" % (scheduler.preemptions, scheduler.shared_blocks)
                if scheduler
                else "",
                time.perf_counter() - begin,
            )
        )
        print(lines[-1], flush=True)
        if device.type == "cuda":
            torch.cuda.empty_cache()
    return result


def child(policy: str, options: argparse.Namespace) -> subprocess.Popen[str]:
    command = [sys.executable, __file__, options.what, "--device", options.device, "--policy", policy]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ended(process: subprocess.Popen[str], policy: str, seconds: float) -> dict[str, Any]:
    """What a process's last line says; everything before it is shown."""
    try:
        output, errors = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        output, errors = process.communicate()
        errors += "\nno end in %.0f s" % seconds
    *lines, last = output.splitlines() or [""]
    if process.returncode == 0:
        print("\n".join([*lines, *errors.splitlines()[-2:]]) or "%s: done" % policy, flush=True)
        found: dict[str, Any] = json.loads(last)
        return found
    print("\n".join([*lines, last, "%s: FAILED" % policy, errors[-1500:]]), flush=True)
    return {"policy": policy, "failures": ["%s: failed" % policy]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["tests", "speed"])
    parser.add_argument("--policies", nargs="+", default=POLICIES)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--seconds", type=float, default=140, help="limit of each process")
    parser.add_argument("--policy", help=argparse.SUPPRESS)
    options = parser.parse_args()
    device, counts = torch.device(options.device), (1, 16, 128)
    if options.policy:
        torch.set_grad_enabled(False)
        result = (
            test(options.policy, device) if options.what == "tests" else speed(options.policy, Sizes(), counts, device)
        )
        print("\n" + json.dumps(result), flush=True)
        return
    if options.what == "tests":
        processes = [(policy, child(policy, options)) for policy in options.policies]
        failures = sum((ended(each, policy, options.seconds)["failures"] for policy, each in processes), [])
        print("\n".join([*failures, "%d failed" % len(failures)]))
        sys.exit(1 if failures else 0)
    found = [ended(child(policy, options), policy, options.seconds) for policy in [*KERNELS, *options.policies]]
    results = [
        {**each, "steps": {int(n): times for n, times in each["steps"].items()}} for each in found if "steps" in each
    ]
    print(table(results, counts))
    sys.exit(len(results) < len(found))


if __name__ == "__main__":
    main()
