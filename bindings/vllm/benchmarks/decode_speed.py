"""Times decode steps over kvq's blocks and over FP16 attention of PyTorch; cuda_driver.py says what is counted."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Optional

import numpy
import torch
import torch.nn.functional as F
from paged_engine import BlockPool, Buffers, Sequence, Shape, captured, model_of
from torch.nn.attention import SDPBackend, sdpa_kernel

from kvq_vllm._model import Heads, Limits
from kvq_vllm._steps import Steps


@dataclass(frozen=True)
class Sizes:
    """Of what is timed."""

    heads: Heads = Heads(q_heads=32, kv_heads=8, head_dim=128, scale=128**-0.5)
    n_layers: int = 32
    inner: int = 14336
    vocabulary: int = 128256
    context: int = 8192
    max_model_len: int = 32768
    repetitions: int = 16

    @property
    def hidden(self) -> int:
        return self.heads.q_heads * self.heads.head_dim

    def layers_of_cache(self, n: int) -> int:
        """Layers with a cache of their own: their pages, in 2 bits, are several times as large as an L2."""
        return min(self.n_layers, max(3, 128 // n))


Attend = Callable[[int, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


class Weights:
    """A model's FP16 weights without attention, of four layers that take turns."""

    def __init__(self, sizes: Sizes, device: torch.device) -> None:
        heads, hidden = sizes.heads, sizes.hidden
        self.sizes = sizes
        self.columns = [hidden, heads.kv_heads * heads.head_dim, heads.kv_heads * heads.head_dim]

        def weight(rows: int, columns: int) -> torch.Tensor:
            return torch.randn(rows, columns, device=device, dtype=torch.float16).mul_(rows**-0.5)

        shapes = [(hidden, sum(self.columns)), (hidden, hidden), (hidden, 2 * sizes.inner), (sizes.inner, hidden)]
        self.layers = [[weight(*shape) for shape in shapes] for _ in range(4)]
        self.head = weight(hidden, sizes.vocabulary)

    def run(self, x: torch.Tensor, attend: Attend) -> torch.Tensor:
        heads, n, hidden = self.sizes.heads, len(x), self.sizes.hidden
        norm = (hidden,)
        output = torch.empty(n, heads.q_heads, heads.head_dim, device=x.device, dtype=x.dtype)
        for i in range(self.sizes.n_layers):
            qkv, out, up, down = self.layers[i % 4]
            parts = (F.rms_norm(x, norm) @ qkv).split(self.columns, -1)
            q, k, v = (part.view(n, -1, heads.head_dim) for part in parts)
            x = x + attend(i, q, k, v, output).view(n, hidden) @ out
            gate, inner = (F.rms_norm(x, norm) @ up).chunk(2, -1)
            x = x + (F.silu(gate) * inner) @ down
        return F.rms_norm(x, norm) @ self.head


def milliseconds(step: Callable[[], Any], repetitions: int, device: torch.device) -> float:
    """Of one step, the mean of the better half of runs of several."""
    for _ in range(3):
        step()
    times = []
    for _ in range(4):
        if device.type == "cuda":
            torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(repetitions):
            step()
        if device.type == "cuda":
            torch.cuda.synchronize()
        times.append(1000 * (time.perf_counter() - begin) / repetitions)
    return float(numpy.mean(sorted(times)[:2]))


def inputs(sizes: Sizes, n: int, device: torch.device) -> tuple[torch.Tensor, ...]:
    heads = sizes.heads
    return tuple(
        torch.randn(n, count, heads.head_dim, device=device, dtype=torch.float16)
        for count in (heads.q_heads, heads.kv_heads, heads.kv_heads, heads.q_heads)
    )


def times_of(
    cache: Decoder | Contiguous, weights: Optional[Weights], sizes: Sizes, n: int, device: torch.device
) -> list[float]:
    """Milliseconds of a step's attention, and of a whole model's step."""
    q, k, v, output = inputs(sizes, n, device)
    found = []

    def attention() -> None:
        for i in range(sizes.n_layers):
            cache.attend(i, q, k, v, output)

    acts: list[Callable[[], Any]] = [attention]
    if weights is not None:
        x = torch.randn(n, sizes.hidden, device=device, dtype=torch.float16)
        acts.append(lambda: weights.run(x, cache.attend))
    for act in acts:
        cache.plan(True)
        replay = captured(act) if device.type == "cuda" else act

        def step(replay: Callable[[], Any] = replay) -> None:
            cache.plan(False)
            replay()

        found.append(milliseconds(step, sizes.repetitions, device))
    return found


class Decoder:
    """Sequences in kvq's blocks, which all get a token in each step."""

    def __init__(self, policy: str, sizes: Sizes, n: int, device: torch.device) -> None:
        self.n_layers = sizes.layers_of_cache(n)
        per_sequence = -(-(sizes.context + 32 * sizes.repetitions) // 32)
        chunk = max(n, min(sizes.context, 8192))
        shape = Shape(sizes.heads, self.n_layers, Limits(n, chunk, sizes.max_model_len), n * per_sequence + 1)
        model = model_of(policy, shape, n)
        self.bytes = model.block_bytes
        caches = [
            torch.zeros(shape.n_blocks, 1, 1, model.block_bytes, dtype=torch.uint8, device=device)
            for _ in range(self.n_layers)
        ]
        self._steps = Steps(model, lambda: caches, device)
        self._buffers = Buffers(shape, device, 0)
        pool = BlockPool(shape.n_blocks, random.Random(1))
        tokens = numpy.zeros(0, "int64")
        blocks = [[pool.take() for _ in range(per_sequence)] for _ in range(n)]
        self._sequences = [Sequence(tokens, 0, 0, each, number=i) for i, each in enumerate(blocks)]
        self._fill(sizes, chunk, device)
        self._batch = self._buffers.put([(sequence, 1) for sequence in self._sequences], n, True)
        self._max_lengths = {True: sizes.max_model_len, False: per_sequence * 32}

    def _fill(self, sizes: Sizes, chunk: int, device: torch.device) -> None:
        _, k, v, _ = inputs(sizes, chunk, device)
        for i, sequence in enumerate(self._sequences):
            length = sizes.context - i % 32  # their pages become full in different steps
            while sequence.computed < length:
                n = min(chunk, length - sequence.computed)
                step = self._steps.plan(self._buffers.put([(sequence, n)], 1, True))
                for layer in range(self.n_layers):
                    step.run.plan.append(layer, k[:n], v[:n])
                sequence.computed += n

    def attend(self, i: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, output: torch.Tensor) -> torch.Tensor:
        self._step.attend(i % self.n_layers, q, k, v, output)
        return output

    def plan(self, captures: bool) -> None:
        """A token more of each sequence, as vLLM plans it before it captures or replays a graph."""
        self._buffers.lengths.add_(1)
        self._batch.max_seq_len = self._max_lengths[captures]
        self._step = self._steps.plan(self._batch)


class Contiguous:
    """FP16 keys and values of equally long sequences, each in one piece, and PyTorch's attention."""

    def __init__(self, sizes: Sizes, n: int, kernel: SDPBackend, device: torch.device) -> None:
        self.heads, self.n_layers, self.kernel = sizes.heads, sizes.layers_of_cache(n), kernel
        size = (self.heads.kv_heads, sizes.context, self.heads.head_dim)
        self.bytes = 32 * 4 * self.heads.kv_heads * self.heads.head_dim
        self._k, self._v = (
            [torch.randn(n, *size, device=device, dtype=torch.float16) for _ in range(self.n_layers)] for _ in range(2)
        )

    def attend(self, i: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, output: torch.Tensor) -> torch.Tensor:
        keys, values = self._k[i % self.n_layers], self._v[i % self.n_layers]
        keys[:, :, -1], values[:, :, -1] = k, v
        rows = q.view(len(q), self.heads.kv_heads, -1, self.heads.head_dim)
        with sdpa_kernel(self.kernel):
            found = F.scaled_dot_product_attention(rows, keys, values, scale=self.heads.scale)
        return found.reshape(output.shape)

    def plan(self, captures: bool) -> None:
        pass


#: Kernels of PyTorch, by the name of a process's policy.
KERNELS = {
    "PyTorch FP16, flash": SDPBackend.FLASH_ATTENTION,
    "PyTorch FP16, cuDNN": SDPBackend.CUDNN_ATTENTION,
}


def speed(policy: str, sizes: Sizes, counts: tuple[int, ...], device: torch.device) -> dict[str, Any]:
    """Milliseconds of steps with so many sequences."""
    weights = Weights(sizes, device)
    result: dict[str, Any] = {"policy": policy, "bytes": 0, "steps": {}}
    for n in counts:
        cache = (
            Contiguous(sizes, n, KERNELS[policy], device) if policy in KERNELS else Decoder(policy, sizes, n, device)
        )
        result["bytes"] = cache.bytes / 32 * sizes.n_layers
        try:
            result["steps"][n] = times_of(cache, weights, sizes, n, device)
        except RuntimeError as error:  # a kernel that PyTorch does not have for this
            print("%s, %d sequences: %s" % (policy, n, str(error).splitlines()[0]), file=sys.stderr)
        if n == 1 and policy not in KERNELS:
            short = replace(sizes, max_model_len=sizes.context + 32 * sizes.repetitions)
            cache = Decoder(policy, short, 1, device)
            result["short graph"] = times_of(cache, None, short, 1, device)[0]
        del cache
        if device.type == "cuda":
            torch.cuda.empty_cache()
    return result


def table(results: list[dict[str, Any]], counts: tuple[int, ...]) -> str:
    """Markdown: of PyTorch's kernels the fastest one for each number of sequences."""
    own = [each for each in results if each["policy"] in KERNELS]
    best: dict[str, Any] = {"policy": "PyTorch FP16", "bytes": own[0]["bytes"] if own else 0, "steps": {}}
    for n in counts:
        found = [each["steps"][n] for each in own if n in each["steps"]]
        if found:
            best["steps"][n] = [min(times) for times in zip(*found, strict=True)]
    head = ["cache", "KiB a token"]
    for n in counts:
        head += ["%d: attention, ms" % n, "times", "tokens/s", "times"]
    lines = ["| %s |" % " | ".join(head), "|" + "---|" * len(head)]
    for each in [best, *(each for each in results if each not in own)]:
        cells = [each["policy"], "%.1f" % (each["bytes"] / 1024)]
        for n in counts:
            times = each["steps"].get(n)
            first = best["steps"].get(n)
            if times is None:
                cells += ["", "", "", ""]
                continue
            ratios = ["%.2f" % (first[i] / times[i]) if first else "" for i in range(2)]
            cells += ["%.2f" % times[0], ratios[0], "%.0f" % (1000 * n / times[1]), ratios[1]]
        lines.append("| %s |" % " | ".join(cells))
    for each in results:
        if "short graph" in each:
            lines.append(
                "%s, 1 sequence, graph captured for its own length: attention %.2f ms"
                % (each["policy"], each["short graph"])
            )
    for each in own:
        lines.append("%s: attention %s ms" % (each["policy"], [round(times[0], 2) for times in each["steps"].values()]))
    return "\n".join(lines)
