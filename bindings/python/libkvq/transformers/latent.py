"""Latent attention (MLA): what a layer expands to keys and values of all heads is cached and attended to as it is."""

from __future__ import annotations

from typing import Any

import torch


class Latents:
    """New latents of one layer, and the projections that queries and outputs pass in place of keys and values."""

    def __init__(self, module: Any, latent: torch.Tensor, rotary: torch.Tensor) -> None:
        """
        :param latent: `[rows, 1, columns, kv_lora_rank]`, from which the module expands keys and values.
        :param rotary: `[rows, 1, columns, qk_rope_head_dim]`, rotated, which all keys have in common.
        """
        projection = module.kv_b_proj
        plain = type(projection) is torch.nn.Linear and projection.bias is None
        hooks = plain and (projection._forward_hooks or projection._forward_pre_hooks)
        if not plain or hooks or not projection.weight.is_floating_point():
            raise ValueError(
                f"kv_b_proj of {type(module).__name__} is a {type(projection).__name__}, must be a torch.nn.Linear "
                "without bias and hooks: queries and outputs meet its weights (merge adapters, dequantize it)"
            )
        self.values: int = latent.shape[3]
        self.keys = torch.cat([latent, rotary], dim=3)
        rows_of_head = module.qk_nope_head_dim + module.v_head_dim
        weight = module.kv_b_proj.weight.view(-1, rows_of_head, self.values)  # [heads, rows, kv_lora_rank]
        self._of_keys, self._of_values = weight[:, : module.qk_nope_head_dim], weight[:, module.qk_nope_head_dim :]

    @staticmethod
    def expanded_by(module: torch.nn.Module, latent: torch.Tensor, rotary: torch.Tensor) -> bool:
        """Whether the module expands such latents, so that these are what its layer cached."""
        sizes = getattr(module, "kv_lora_rank", None), getattr(module, "qk_rope_head_dim", None)
        return hasattr(module, "kv_b_proj") and sizes == (latent.shape[3], rotary.shape[3]) and latent.shape[1] == 1

    def queries(self, query: torch.Tensor) -> torch.Tensor:
        """`[rows, heads, columns, nope + rope]` to `[rows, heads, columns, kv_lora_rank + rope]`."""
        nope, rotary = query[..., : self._of_keys.shape[1]], query[..., self._of_keys.shape[1] :]
        return torch.cat([torch.einsum("bhcd,hdr->bhcr", nope, self._of_keys), rotary], dim=3)

    def outputs(self, output: torch.Tensor) -> torch.Tensor:
        """`[rows, columns, heads, kv_lora_rank]` to `[rows, columns, heads, v_head_dim]`."""
        return torch.einsum("bchr,hdr->bchd", output, self._of_values)
