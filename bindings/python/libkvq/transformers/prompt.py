"""Attention of a prompt to itself, which needs no cache: torch computes it on the uncompressed keys and values."""

from __future__ import annotations

import torch
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from .step import Step


def attends_exactly(step: Step, evicts: bool, softcap: float | None, sinks: torch.Tensor | None) -> bool:
    """Whether these queries attend only to tokens of the same call, and torch can compute that.

    Policies that evict score tokens by the queries that kvq has observed, so it must see those of the prompt.
    """
    window_cuts = 0 < step.window < step.columns
    return step.columns == step.end > 1 and not (evicts or window_cuts or softcap or sinks is not None)


def exact_attention(
    step: Step,
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scaling: float | None,
) -> torch.Tensor:
    """`[rows, columns, q_heads, value_dim]`. Rows with padding are computed one by one, without the padding."""
    if step.device_present is None:
        return sdpa_attention_forward(module, query, key, value, None, scaling=scaling, is_causal=True)[0]
    rows, heads, columns, _ = query.shape
    output = query.new_zeros((rows, columns, heads, value.shape[3]))
    for row in range(rows):
        here = step.device_present[row]
        if step.counts is not None and step.counts[row]:
            q, k, v = (x[row : row + 1, :, here] for x in (query, key, value))
            output[row, here] = sdpa_attention_forward(module, q, k, v, None, scaling=scaling, is_causal=True)[0][0]
    return output
