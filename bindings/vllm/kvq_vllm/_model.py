"""The attention layers of the model that a process of vLLM runs, as one cache and one pool of kvq."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Optional

import libkvq
import torch

from ._settings import Settings


@dataclass(frozen=True)
class Layer:
    """What one attention layer computes."""

    q_heads: int
    kv_heads: int
    head_dim: int
    scale: float
    sliding_window: int = 0
    """Positions that a query sees; 0: all."""
    logit_softcap: float = 0.0
    pages_of_layer: Optional[int] = None
    """The earlier layer whose keys and values it reads; None: its own."""


@dataclass(frozen=True)
class Limits:
    """The largest batch."""

    sequences: int
    tokens: int
    length: int


class Model:
    """Layers in the order in which vLLM makes them, their sizes in a pool, and their tails.

    vLLM asks for the size of blocks through class methods, which have no model: ``Model.newest`` is the one that this
    process made last.
    """

    newest: ClassVar[Optional[Model]] = None

    def __init__(self, settings: Settings, limits: Limits, n_tails: int, block_tokens: int, owner: object) -> None:
        """:param owner: what tells this model's layers from those of another engine in this process."""
        self.settings = settings
        self.limits = limits
        self.n_tails = settings.n_tails or n_tails
        self.block_tokens = block_tokens
        self.owner = owner
        self.layers: list[Layer] = []
        self._sizes: Optional[libkvq.Cache] = None

    def add(self, layer: Layer) -> int:
        """The number of a layer that vLLM has made."""
        self.layers.append(layer)
        return len(self.layers) - 1

    def cache(self, context: libkvq.Context) -> libkvq.Cache:
        """The cache of all layers, which arrive with rotated keys and queries."""
        first = self.layers[0]
        return libkvq.Cache(
            context,
            n_layers=len(self.layers),
            q_heads=first.q_heads,
            kv_heads=first.kv_heads,
            head_dim=first.head_dim,
            rope="none",
            scale=first.scale,
            policy=self.settings.policy,
            centres=self.settings.load_centres(context),
            shapes=[self._shape(i, layer) for i, layer in enumerate(self.layers) if layer != first],
        )

    def _shape(self, index: int, layer: Layer) -> libkvq.LayerShape:
        return libkvq.LayerShape(
            index,
            q_heads=layer.q_heads,
            kv_heads=layer.kv_heads,
            key_dim=layer.head_dim,
            value_dim=layer.head_dim,
            scale=layer.scale,
            pages_of_layer=layer.pages_of_layer,
        )

    def layout(self, layer: int, block_tokens: int) -> libkvq.BlockLayout:
        """Sizes of a layer's blocks and tails."""
        if self._sizes is None:
            self._sizes = self.cache(libkvq.Context())
        return self._sizes.block_layout(layer, block_tokens)

    def block_bytes(self, block_tokens: int) -> int:
        """Bytes of a block of any layer: vLLM gives all layers of these heads the same, so the largest."""
        return max(self.layout(layer, block_tokens).block_bytes for layer in range(len(self.layers)))

    def unused_bytes(self, block_tokens: int) -> int:
        """Bytes of a block of all layers that smaller layers leave empty."""
        sizes = [self.layout(i, block_tokens).block_bytes for i in range(len(self.layers))]
        return sum(max(sizes) - size for size in sizes if size > 0)

    def new_tails(self, layer: int, block_tokens: int, device: torch.device) -> Optional[torch.Tensor]:
        """Memory of a layer's tails; None: it needs none."""
        size = self.layout(layer, block_tokens).tail_bytes
        return torch.zeros(self.n_tails, size, dtype=torch.uint8, device=device) if size else None


class Run:
    """A pool over vLLM's blocks and the plan of its steps."""

    def __init__(
        self,
        model: Model,
        block_tokens: int,
        blocks: Sequence[Optional[torch.Tensor]],
        tails: Sequence[Optional[torch.Tensor]],
        device: torch.device,
    ) -> None:
        cache = model.cache(_context(model.settings, device))
        self.pool = libkvq.Pool(cache, block_tokens, blocks, tails)
        self.plan = self.pool.plan(
            max_sequences=model.limits.sequences,
            max_tokens=model.limits.tokens,
            max_blocks=-(-model.limits.length // block_tokens),
        )
        self.has_tails = any(one is not None for one in tails)


def _context(settings: Settings, device: torch.device) -> libkvq.Context:
    if device.type == "cuda":
        return libkvq.Context(
            device="cuda", device_index=device.index or 0, stream=torch.cuda.current_stream(device)
        )
    with _all_processors():
        return libkvq.Context(n_threads=settings.n_threads or torch.get_num_threads())


@contextmanager
def _all_processors() -> Iterator[None]:
    """Lets threads that start here run on all processors that any thread of this process may use.

    OpenMP may have bound the thread that calls to one of them, which new threads would inherit.
    """
    own = os.sched_getaffinity(0)
    every: set[int] = set()
    for thread in os.listdir("/proc/self/task"):
        try:
            every |= os.sched_getaffinity(int(thread))
        except OSError:  # it has ended
            continue
    os.sched_setaffinity(0, every)
    try:
        yield
    finally:
        os.sched_setaffinity(0, own)


def bytes_of_blocks(cache: torch.Tensor) -> torch.Tensor:
    """vLLM's tensor of a layer, ``[blocks, 1, 1, bytes]``, as ``[blocks, bytes]``."""
    return cache.view(torch.uint8).view(cache.shape[0], -1)


def address(tensor: Any) -> int:
    return int(tensor.data_ptr())
