"""Undoes rotary embeddings for policies that need keys before RoPE; kvq then applies it.

transformers rotates queries and keys before any attention function sees them. Rotating by the negative
angle in FP32 restores them up to the rounding of the model's dtype.
"""

from __future__ import annotations

import sys
from array import array
from typing import TYPE_CHECKING, Any, Callable

import torch

import libkvq

if TYPE_CHECKING:
    from .step import Step


class Rotary:
    """The rotary embedding of a model's attention module, and kvq's options for it."""

    def __init__(self, module: torch.nn.Module, key: torch.Tensor) -> None:
        source = sys.modules[type(module).__module__]
        name = type(module).__name__
        kinds = [
            kind
            for kind in vars(source).values()
            if isinstance(kind, type)
            and kind.__module__ == source.__name__
            and kind.__name__.endswith("RotaryEmbedding")
        ]
        rotate = getattr(source, "apply_rotary_pos_emb", None)
        if rotate is None or len(kinds) != 1:
            raise ValueError(f"codebooks and routers need keys before RoPE, and the RoPE of {name} is not known to kvq")
        self._rotate: Callable[..., tuple[torch.Tensor, torch.Tensor]] = rotate
        self._embedding: Any = kinds[0](config=module.config).to(key.device)
        inv_freq = getattr(self._embedding, "inv_freq", None)
        kind = getattr(self._embedding, "rope_type", "default")
        if inv_freq is None or kind in ("dynamic", "longrope") or self._embedding.attention_scaling != 1.0:
            raise ValueError(
                f"codebooks and routers need a RoPE that kvq can apply; that of {name} is {kind!r}, with frequencies "
                "that change with the length, differ between layers, or a factor"
            )
        self._inv_freq: list[float] = inv_freq.float().tolist()
        self._rope = self._pairing(key.shape[3], name)

    def options(self) -> dict[str, Any]:
        """Options of libkvq.Cache."""
        return {"rope": self._rope, "rotary_dim": 2 * len(self._inv_freq), "inv_freq": array("f", self._inv_freq)}

    def _angles(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        cos, sin = self._embedding(torch.empty(0, device=positions.device), positions)
        return cos, sin

    def _pairing(self, head_dim: int, name: str) -> str:
        """The channel pairs that rotate together, found by rotating one vector."""
        position = 3
        device = self._embedding.inv_freq.device
        generator = torch.Generator().manual_seed(1)
        x = torch.randn(head_dim, generator=generator)
        one = x.to(device).view(1, 1, 1, -1)
        rotated = self._rotate(one, one, *self._angles(torch.tensor([[position]], device=device)))[0].flatten().cpu()
        angle = position * torch.tensor(self._inv_freq)
        pairs = len(self._inv_freq)
        channels = torch.arange(pairs)
        for rope, first, second in (
            ("half", channels, channels + pairs),
            ("interleaved", 2 * channels, 2 * channels + 1),
        ):
            expected = x.clone()
            expected[first] = x[first] * angle.cos() - x[second] * angle.sin()
            expected[second] = x[second] * angle.cos() + x[first] * angle.sin()
            if torch.allclose(rotated, expected, atol=1e-4):
                return rope
        raise ValueError(f"codebooks and routers need a RoPE that kvq can apply, which that of {name} is not")

    def undo(
        self,
        step: Step,
        rows: list[libkvq.Sequence],
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        positions: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Queries and keys before RoPE, in FP32."""
        if step.rotation is None:
            step.rotation = self._angles(self._checked(step, rows, layer, key, positions))
        cos, sin = step.rotation
        return self._rotate(query.float(), key.float(), cos, -sin)

    def _checked(
        self, step: Step, rows: list[libkvq.Sequence], layer: int, key: torch.Tensor, positions: Any
    ) -> torch.Tensor:
        """Check that transformers rotated a row's tokens by positions from 0, as kvq counts them."""
        if not torch.is_tensor(positions):
            raise ValueError("codebooks and routers need position_ids, which this model does not hand to its attention")
        given: torch.Tensor = positions.expand(key.shape[0], -1)
        starts = torch.tensor([row.length(layer) for row in rows]).unsqueeze(1)
        present = torch.ones(given.shape, dtype=torch.bool) if step.present is None else step.present
        expected = starts + present.cumsum(dim=1) - 1
        if not torch.equal(given.cpu()[present], expected[present]):
            raise ValueError(
                "codebooks and routers need position_ids that count the tokens of each row from 0, without padding: "
                "pass attention_mask.cumsum(-1) - 1"
            )
        return given
