"""The attention layers of the model that a process of vLLM runs, as one cache and one pool of kvq."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar, Optional

import libkvq
import torch

from ._settings import Settings
from ._tails import PAGE


class Unsupported(ValueError):
    """What this package does not do; the message names it."""


@dataclass(frozen=True)
class Heads:
    """What all attention layers of a model have in common."""

    q_heads: int
    kv_heads: int
    head_dim: int
    scale: float


@dataclass(frozen=True)
class Limits:
    """The largest batch."""

    sequences: int
    tokens: int
    length: int


class Model:
    """The attention layers in the order in which vLLM makes them, their sizes in a pool, and their tails.

    vLLM asks for the size of blocks through class methods, which have no model: ``Model.newest`` is the one that this
    process made last.
    """

    newest: ClassVar[Optional[Model]] = None

    def __init__(
        self,
        settings: Settings,
        heads: Heads,
        limits: Limits,
        n_tails: int,
        block_tokens: Callable[[], int],
        owner: object,
    ) -> None:
        """
        :param block_tokens: tells the blocks' size, which vLLM may change until it asks for their bytes.
        :param owner: what tells this model's layers from those of another engine in this process.
        """
        self.settings = settings
        self.heads = heads
        self.limits = limits
        self.n_tails = settings.n_tails or n_tails
        self._block_tokens = block_tokens
        self.owner = owner
        self.n_layers = 0
        self._layouts: dict[tuple[int, int], list[libkvq.BlockLayout]] = {}
        self._context: Optional[libkvq.Context] = None
        self._tails: list[Optional[torch.Tensor]] = []
        self._run: Optional[Run] = None

    def add_layer(self) -> int:
        """The number of a layer that vLLM has made."""
        self.n_layers += 1
        return self.n_layers - 1

    def cache(self, context: libkvq.Context) -> libkvq.Cache:
        """The cache of all layers, whose keys and queries arrive rotated."""
        return libkvq.Cache(
            context,
            n_layers=self.n_layers,
            q_heads=self.heads.q_heads,
            kv_heads=self.heads.kv_heads,
            head_dim=self.heads.head_dim,
            rope="none",
            scale=self.heads.scale,
            policy=self.settings.policy,
            centres=self.settings.load_centres(context),
        )

    @property
    def block_tokens(self) -> int:
        tokens = self._block_tokens()
        if tokens % PAGE != 0:
            raise Unsupported("kvq-vllm needs blocks of a multiple of %d tokens, --block-size is %d" % (PAGE, tokens))
        return tokens

    @property
    def layouts(self) -> list[libkvq.BlockLayout]:
        """Sizes of the blocks and tails of each layer, once vLLM has made all of them."""
        return self._layouts_of(self.block_tokens)

    def _layouts_of(self, block_tokens: int) -> list[libkvq.BlockLayout]:
        key = (self.n_layers, block_tokens)
        if key not in self._layouts:
            with libkvq.Context() as context:
                cache = self.cache(context)
                self._layouts[key] = [cache.block_layout(layer, block_tokens) for layer in range(self.n_layers)]
        return self._layouts[key]

    @property
    def block_bytes(self) -> int:
        """Bytes of a block in vLLM, which gives all layers the same: the largest one's."""
        return max(layout.block_bytes for layout in self.layouts)

    @property
    def tail_bytes(self) -> int:
        """Bytes of one tail of every layer."""
        return sum(layout.tail_bytes for layout in self.layouts)

    def allocate(self, device: torch.device) -> None:
        """Memory of all layers' tails, and on a GPU what plans need: when all layers are known, before blocks are."""
        if self._tails:
            return
        # Whatever the size of blocks will be.
        layouts = self._layouts_of(PAGE)
        self._tails = [_rows(self.n_tails, layout.tail_bytes, device) for layout in layouts]
        if device.type == "cuda":  # The context keeps what a plan over one block has taken and given back.
            block = _rows(1, max(layout.block_bytes for layout in layouts), device)
            Run(self, self.context(device), PAGE, [block] * self.n_layers, self._tails).close()

    def run_over(self, blocks: Sequence[torch.Tensor], device: torch.device) -> Run:
        """The pool over these blocks, in place of that over earlier ones, whose graphs cannot be replayed any more."""
        self.allocate(device)
        if self._run is not None:
            self._run.close()
        self._run = Run(self, self.context(device), self.block_tokens, blocks, self._tails)
        return self._run

    def context(self, device: torch.device) -> libkvq.Context:
        if self._context is None:
            self._context = _context(self.settings, device)
        return self._context


class Run:
    """A pool over an engine's blocks and the plan of its steps."""

    def __init__(
        self,
        model: Model,
        context: libkvq.Context,
        block_tokens: int,
        blocks: Sequence[Optional[torch.Tensor]],
        tails: Sequence[Optional[torch.Tensor]],
    ) -> None:
        self._context = context
        self._stream: Optional[int] = None
        self.has_tails = any(tail is not None for tail in tails)
        self._cache = model.cache(context)
        self.pool = libkvq.Pool(self._cache, block_tokens, blocks, tails)
        self.plan = self.pool.plan(
            max_sequences=model.limits.sequences,
            max_tokens=model.limits.tokens,
            max_blocks=-(-model.limits.length // block_tokens),
        )

    def close(self) -> None:
        for each in (self.plan, self.pool, self._cache):
            each.close()

    def follow_stream(self) -> None:
        """Compute on PyTorch's current stream, if it is a GPU that computes."""
        if self._context.device == "cpu":
            return
        stream = torch.cuda.current_stream()
        if stream.cuda_stream != self._stream:  # a stream of PyTorch is not unequal to None
            self._context.set_stream(stream)
            self._stream = stream.cuda_stream


def _rows(n: int, size: int, device: torch.device) -> Optional[torch.Tensor]:
    return torch.zeros(n, size, dtype=torch.uint8, device=device) if size else None


def _context(settings: Settings, device: torch.device) -> libkvq.Context:
    if device.type == "cuda":
        index = torch.cuda.current_device() if device.index is None else device.index
        return libkvq.Context(device="cuda", device_index=index, stream=torch.cuda.current_stream(index))
    with _all_processors():
        return libkvq.Context(n_threads=settings.n_threads or torch.get_num_threads())


@contextmanager
def _all_processors() -> Iterator[None]:
    """Lets threads that start here run on the processors of all of OpenMP's.

    If OpenMP has bound each of its threads to some, so that the others have as many, new threads would inherit those of
    the thread that calls.
    """
    own = os.sched_getaffinity(0)
    every = set(own)
    for thread in os.listdir("/proc/self/task"):
        try:
            others = os.sched_getaffinity(int(thread))
        except OSError:  # it has ended
            continue
        if len(others) == len(own):
            every |= others
    os.sched_setaffinity(0, every)
    try:
        yield
    finally:
        os.sched_setaffinity(0, own)


def bytes_of_blocks(cache: torch.Tensor) -> torch.Tensor:
    """vLLM's tensor of a layer, ``[blocks, 1, 1, bytes]``, as ``[blocks, bytes]``."""
    return cache.view(torch.uint8).view(cache.shape[0], -1)
