"""An engine that calls kvq_vllm as vLLM's model runner does, with random keys, values and queries in place of a model.

It has what matters to attention: blocks in random order of which number 0 is nobody's, prefixes shared by block,
prompts in chunks beside sequences that decode, preemption and recomputation, batches filled up with rows of length 0
and slots of -1, and CUDA graphs of batches that decode, which are replayed while tables and lengths change in place.
What it uses of the package are `Model`, `Steps.plan` and `Step.attend`: the calls of KvqBuilder and KvqImpl in vLLM.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Optional

import numpy
import torch

from kvq_vllm._model import Heads, Limits, Model
from kvq_vllm._settings import Settings
from kvq_vllm._steps import Step, Steps

VECTORS = 4096
"""Different keys, values and queries of a layer. A token's are chosen by what it is and by its place."""


@dataclass
class Shape:
    """Of a model and of the largest batch."""

    heads: Heads = Heads(q_heads=32, kv_heads=8, head_dim=128, scale=128**-0.5)
    n_layers: int = 2
    limits: Limits = Limits(sequences=256, tokens=8192, length=32768)
    n_blocks: int = 4096
    block_tokens: int = 32
    dtype: torch.dtype = torch.float16

    @property
    def table_width(self) -> int:
        return -(-self.limits.length // self.block_tokens)


def model_of(policy: str, shape: Shape, n_tails: int) -> Model:
    model = Model(Settings(policy, policy), shape.heads, shape.limits, n_tails, lambda: shape.block_tokens, shape)
    for _ in range(shape.n_layers):
        model.add_layer()
    return model


@dataclass(eq=False)
class Sequence:
    """All its tokens, those that it will generate as well, which are random."""

    tokens: numpy.ndarray
    n_prompt: int
    computed: int = 0
    blocks: list[int] = field(default_factory=list)
    number: int = -1

    keys: list[int] = field(default_factory=list)
    """What tells each full block's tokens, and all before them, from others."""

    def key(self, i: int, block_tokens: int) -> int:
        while len(self.keys) <= i:
            begin = len(self.keys) * block_tokens
            own = self.tokens[begin : begin + block_tokens].tobytes()
            self.keys.append(hash((self.keys[-1] if self.keys else 0, own)))
        return self.keys[i]


class BlockPool:
    """Blocks that are free, in use, or free with tokens that another sequence may begin with."""

    def __init__(self, n_blocks: int, choice: random.Random) -> None:
        order = list(range(1, n_blocks))
        choice.shuffle(order)
        self.free = dict.fromkeys(order)  # in the order in which they are given away
        self._users = [0] * n_blocks
        self._blocks: dict[int, int] = {}
        self._keys: dict[int, int] = {}

    def take(self) -> int:
        block = next(iter(self.free))
        del self.free[block]
        self._blocks.pop(self._keys.pop(block, 0), None)
        self._users[block] = 1
        return block

    def share(self, key: int) -> Optional[int]:
        block = self._blocks.get(key)
        if block is not None:
            self.free.pop(block, None)
            self._users[block] += 1
        return block

    def name(self, block: int, key: int) -> None:
        """Says which tokens a full block holds, unless another block does already."""
        if key not in self._blocks and block not in self._keys:
            self._blocks[key], self._keys[block] = block, key

    def release(self, blocks: list[int]) -> None:
        for block in reversed(blocks):
            self._users[block] -= 1
            if self._users[block] == 0:
                self.free[block] = None


class Scheduler:
    """Chooses the tokens of each step: first of running sequences, then of waiting ones while there is room."""

    def __init__(self, shape: Shape, choice: random.Random) -> None:
        self.shape = shape
        self.pool = BlockPool(shape.n_blocks, choice)
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.preemptions = self.shared_blocks = 0
        self._numbers = list(range(shape.limits.sequences))
        choice.shuffle(self._numbers)

    def next_batch(self) -> list[tuple[Sequence, int]]:
        """Sequences and how many new tokens of each."""
        batch: list[tuple[Sequence, int]] = []
        budget, preemptions = self.shape.limits.tokens, self.preemptions
        for sequence in self.running[:]:
            n = min(self._wanted(sequence), budget)
            if n == 0 or sequence not in self.running:
                continue
            while not self._make_room(sequence, sequence.computed + n):
                self._preempt(self.running[-1])
                if sequence not in self.running:
                    break
            else:
                batch.append((sequence, n))
                budget -= n
        batch = [(sequence, n) for sequence, n in batch if sequence in self.running]
        if self.preemptions > preemptions:
            return batch
        while self.waiting and budget > 0 and self._numbers:
            sequence = self.waiting[0]
            self._take_prefix(sequence)
            n = min(self._wanted(sequence), budget)
            if not self._make_room(sequence, sequence.computed + n):
                self._drop(sequence)
                break
            self.waiting.popleft()
            sequence.number = self._numbers.pop()
            self.running.append(sequence)
            batch.append((sequence, n))
            budget -= n
        return batch

    def advance(self, batch: list[tuple[Sequence, int]]) -> None:
        for sequence, n in batch:
            size = self.shape.block_tokens
            for i in range(sequence.computed // size, (sequence.computed + n) // size):
                self.pool.name(sequence.blocks[i], sequence.key(i, size))
            sequence.computed += n
            if sequence.computed == len(sequence.tokens):
                self._stop(sequence)

    @staticmethod
    def _wanted(sequence: Sequence) -> int:
        return max(sequence.n_prompt - sequence.computed, 1)

    def _make_room(self, sequence: Sequence, length: int) -> bool:
        missing = -(-length // self.shape.block_tokens) - len(sequence.blocks)
        if missing > len(self.pool.free):
            return False
        sequence.blocks += [self.pool.take() for _ in range(missing)]
        return True

    def _take_prefix(self, sequence: Sequence) -> None:
        most = (sequence.n_prompt - 1) // self.shape.block_tokens  # the last token has to be computed
        for i in range(most):
            block = self.pool.share(sequence.key(i, self.shape.block_tokens))
            if block is None:
                break
            sequence.blocks.append(block)
            self.shared_blocks += 1
        sequence.computed = len(sequence.blocks) * self.shape.block_tokens

    def _preempt(self, sequence: Sequence) -> None:
        self.preemptions += 1
        sequence.n_prompt = max(sequence.n_prompt, sequence.computed)  # generated tokens are computed like a prompt's
        self._stop(sequence)
        self.waiting.appendleft(sequence)

    def _stop(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self._numbers.append(sequence.number)
        self._drop(sequence)

    def _drop(self, sequence: Sequence) -> None:
        self.pool.release(sequence.blocks)
        sequence.blocks, sequence.computed = [], 0


@dataclass
class Batch:
    """The fields of vLLM's CommonAttentionMetadata that matter here."""

    num_reqs: int
    num_actual_tokens: int
    max_query_len: int
    max_seq_len: int
    query_start_loc: torch.Tensor
    seq_lens: torch.Tensor
    block_table_tensor: torch.Tensor
    slot_mapping: torch.Tensor
    req_idx: Optional[numpy.ndarray]


class Buffers:
    """Tensors of batches, at the same addresses in every step."""

    def __init__(self, shape: Shape, device: torch.device, n_layers: int) -> None:
        """:param n_layers: with tensors of tokens."""
        limits, heads = shape.limits, shape.heads
        self._shape, self._device = shape, device
        self.starts = torch.zeros(limits.sequences + 1, dtype=torch.int32, device=device)
        self.lengths = torch.zeros(limits.sequences, dtype=torch.int32, device=device)
        self.table = torch.zeros(limits.sequences, shape.table_width, dtype=torch.int32, device=device)
        self.slots = torch.zeros(limits.tokens, dtype=torch.int64, device=device)
        self.k, self.v = (
            torch.zeros(n_layers, limits.tokens, heads.kv_heads, heads.head_dim, dtype=shape.dtype, device=device)
            for _ in range(2)
        )
        self.q, self.output = (
            torch.zeros(n_layers, limits.tokens, heads.q_heads, heads.head_dim, dtype=shape.dtype, device=device)
            for _ in range(2)
        )

    def put(self, batch: list[tuple[Sequence, int]], rows: int, numbers_requests: bool) -> Batch:
        """The metadata of a batch, with rows of length 0 behind it."""
        n, size = len(batch), self._shape.block_tokens
        counts = [each for _, each in batch]
        lengths = [sequence.computed + each for sequence, each in batch]
        starts = numpy.zeros(rows + 1, "int32")
        starts[1 : n + 1] = numpy.cumsum(counts)
        starts[n + 1 :] = starts[n]
        tokens = max(int(starts[n]), rows)
        table = numpy.zeros((rows, self._shape.table_width), "int32")
        slots = numpy.full(tokens, -1, "int64")
        for i, (sequence, count) in enumerate(batch):
            blocks = numpy.array(sequence.blocks, "int32")
            table[i, : len(blocks)] = blocks
            places = numpy.arange(sequence.computed, sequence.computed + count)
            slots[starts[i] : starts[i + 1]] = blocks[places // size].astype("int64") * size + places % size
        for to, given in ((self.starts, starts), (self.table, table), (self.slots, slots)):
            to[: len(given)].copy_(torch.from_numpy(given))
        self.lengths.zero_()
        self.lengths[:n].copy_(torch.tensor(lengths, dtype=torch.int32))
        numbers = numpy.array([sequence.number for sequence, _ in batch]) if numbers_requests else None
        return self.batch(rows, tokens, max(counts), max(lengths), numbers)

    def batch(
        self, rows: int, tokens: int, max_queries: int, max_length: int, numbers: Optional[numpy.ndarray]
    ) -> Batch:
        return Batch(
            rows,
            tokens,
            max_queries,
            max_length,
            self.starts[: rows + 1],
            self.lengths[:rows],
            self.table[:rows],
            self.slots[:tokens],
            numbers,
        )

    def put_dummy(self, rows: int, max_length: int, numbers_requests: bool) -> Batch:
        """As vLLM warms graphs up: sequences of one token in block 0."""
        self.starts.copy_(torch.arange(len(self.starts)))
        self.starts.clamp_(max=rows)
        self.lengths.zero_()
        self.lengths[:rows] = 1
        self.table.zero_()
        return self.batch(rows, rows, 1, max_length, numpy.arange(rows) if numbers_requests else None)


def captured(act: Callable[[], Any]) -> Callable[[], None]:
    """The same launches as a CUDA graph."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        act()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            act()
    torch.cuda.current_stream().wait_stream(stream)
    return graph.replay


class Engine:
    """Runs batches, by graphs where they decode, and keeps exact keys and values by slot."""

    def __init__(
        self,
        policy: str,
        shape: Shape,
        device: torch.device,
        graphs: tuple[int, ...] = (),
        numbers_requests: bool = True,
    ) -> None:
        self.shape, self.device = shape, device
        self.numbers_requests = numbers_requests
        self.model = model_of(policy, shape, shape.limits.sequences * (1 if numbers_requests else 2))
        self.model.allocate(device)
        size = (shape.n_blocks, 1, 1, self.model.block_bytes)
        self.caches = [torch.zeros(size, dtype=torch.uint8, device=device) for _ in range(shape.n_layers)]
        self.steps = Steps(self.model, lambda: self.caches, device)
        self.buffers = Buffers(shape, device, shape.n_layers)
        self.exact = [torch.zeros_like(self._of_slots()) for _ in range(2 * shape.n_layers)]
        heads, generator = shape.heads, torch.Generator(device).manual_seed(7)
        self._vectors = [
            torch.randn(VECTORS, n, heads.head_dim, generator=generator, device=device).to(shape.dtype)
            for _ in range(shape.n_layers)
            for n in (heads.kv_heads, heads.kv_heads, heads.q_heads)
        ]
        self.sizes = graphs or tuple(1 << i for i in range(10) if 1 << i <= shape.limits.sequences)
        self._graphs: dict[int, Callable[[], None]] = {}
        if device.type == "cuda":
            for rows in reversed(self.sizes):
                self._capture(rows)

    def _of_slots(self) -> torch.Tensor:
        heads, n = self.shape.heads, self.shape.n_blocks * self.shape.block_tokens
        return torch.empty(n, heads.kv_heads, heads.head_dim, dtype=self.shape.dtype, device=self.device)

    def _capture(self, rows: int) -> None:
        step = self.steps.plan(self.buffers.put_dummy(rows, self.shape.limits.length, self.numbers_requests))
        self._graphs[rows] = captured(lambda: self.forward(step))

    def forward(self, step: Step) -> None:
        to = self.buffers
        for layer in range(self.shape.n_layers):
            step.attend(layer, to.q[layer], to.k[layer], to.v[layer], to.output[layer])

    def put_tokens(self, batch: list[tuple[Sequence, int]]) -> None:
        """Keys, values and queries of new tokens; queries are near to their own token's key."""
        to, n = self.buffers, sum(each for _, each in batch)
        places = numpy.concatenate([numpy.arange(s.computed, s.computed + each) for s, each in batch])
        tokens = numpy.concatenate([s.tokens[s.computed : s.computed + each] for s, each in batch])
        rows = torch.from_numpy((tokens * 7919 + places * 104729) % VECTORS).to(self.device)
        group = self.shape.heads.q_heads // self.shape.heads.kv_heads
        for layer in range(self.shape.n_layers):
            k, v, q = (vectors[rows] for vectors in self._vectors[3 * layer : 3 * layer + 3])
            to.k[layer, :n], to.v[layer, :n] = k, v
            to.q[layer, :n] = q + 0.6 * k.repeat_interleave(group, 1)
            for exact, given in zip(self.exact[2 * layer : 2 * layer + 2], (k, v), strict=True):
                exact[to.slots[:n]] = given

    def run(self, batch: list[tuple[Sequence, int]]) -> Optional[bool]:
        """A step. None: without a graph; else whether the graph gave the bits that calls without one give."""
        decodes = all(each == 1 for _, each in batch) and len(batch) <= self.sizes[-1]
        rows = min(size for size in self.sizes if size >= len(batch)) if decodes else len(batch)
        step = self.steps.plan(self.buffers.put(batch, rows, self.numbers_requests))
        self.put_tokens(batch)
        if not decodes or not self._graphs:
            self.forward(step)
            return None
        self._graphs[rows]()
        return self._is_as_without_graph(batch, rows, step)

    def _is_as_without_graph(self, batch: list[tuple[Sequence, int]], rows: int, step: Step) -> bool:
        """Stores the same tokens once more, at the same places: with as many rows the bits are the same, and without
        those that fill the batch up, where pages are divided among a GPU's processors in another way, about the same.
        """
        n = len(batch)
        found = self.buffers.output[:, :n].clone()
        if not self.numbers_requests:  # a second plan would look for tails that the first one has moved
            return self._is_same(found, step, exact=rows > 1)
        filled = self.buffers.put(batch, rows, True)
        filled.max_seq_len = self.shape.limits.length  # the graph's
        same = self._is_same(found, self.steps.plan(filled), exact=True)
        return same and self._is_same(found, self.steps.plan(self.buffers.put(batch, n, True)), exact=False)

    def _is_same(self, found: torch.Tensor, step: Step, exact: bool) -> bool:
        self.buffers.output.zero_()
        self.forward(step)
        output = self.buffers.output[:, : found.shape[1]]
        if exact:
            return torch.equal(found, output)
        return float((found.float() - output.float()).norm() / output.float().norm()) < 0.002

    def run_dummy(self, rows: int) -> None:
        """As vLLM runs while other processes have requests; nothing of any sequence may change."""
        self.forward(self.steps.plan(self.buffers.put_dummy(rows, 1, self.numbers_requests)))

    def errors(self, batch: list[tuple[Sequence, int]], most: int, most_rows: int = 32) -> list[float]:
        """Of some sequences and each layer: the output's distance from exact attention, by the exact one's length."""
        found = []
        ends = numpy.cumsum([each for _, each in batch])
        for i in numpy.linspace(0, len(batch) - 1, min(most, len(batch))).astype(int):
            (sequence, each), end = batch[i], int(ends[i])
            length, size = sequence.computed + each, self.shape.block_tokens
            places = torch.arange(length, device=self.device)
            slots = torch.tensor(sequence.blocks, device=self.device)[places // size] * size + places % size
            own = torch.arange(each, device=self.device)
            if each > most_rows:
                own = own[torch.linspace(0, each - 1, most_rows).long().to(self.device)]
            hidden = places[None, :] > (sequence.computed + own)[:, None]
            rows = end - each + own
            for layer in range(self.shape.n_layers):
                exact = self._attention(layer, rows, slots, hidden)
                difference = self.buffers.output[layer, rows].to(exact.dtype) - exact
                found.append(float(difference.norm() / exact.norm()))
        return found

    def _attention(self, layer: int, rows: torch.Tensor, slots: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        heads = self.shape.heads
        wide = torch.float64 if self.device.type == "cpu" else torch.float32
        k, v = (exact[slots].to(wide) for exact in self.exact[2 * layer : 2 * layer + 2])
        q = self.buffers.q[layer, rows].to(wide).view(len(rows), heads.kv_heads, -1, heads.head_dim)
        scores = torch.einsum("rhgd,lhd->hgrl", q, k) * heads.scale
        weights = scores.masked_fill_(hidden, float("-inf")).softmax(-1)
        return torch.einsum("hgrl,lhd->rhgd", weights, v).reshape(len(rows), heads.q_heads, heads.head_dim)
