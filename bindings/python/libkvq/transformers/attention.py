"""Functions that transformers calls for `attn_implementation="kvq"`."""

from __future__ import annotations

from typing import Any, Callable

import torch
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, causal_mask_function, sdpa_mask
from transformers.utils import logging

from .step import CacheOffset, Step

logger = logging.get_logger(__name__)


def register() -> None:
    """Register "kvq" with transformers."""
    AttentionInterface.register("kvq", attention)
    AttentionMaskInterface.register("kvq", mask)


def mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Any] = causal_mask_function,
    attention_mask: torch.Tensor | None = None,
    local_size: int | None = None,
    allow_is_causal_skip: bool = True,
    config: Any = None,
    **kwargs: Any,
) -> Step | torch.Tensor | None:
    """A Step if a KvqCache is in use, else the mask of torch's scaled_dot_product_attention."""
    if not isinstance(kv_offset, CacheOffset):
        if kv_length > q_length:
            logger.warning_once(
                'attn_implementation="kvq" is in use with a cache that is no KvqCache: attention is computed by '
                "torch's scaled_dot_product_attention and nothing is compressed"
            )
        plain_mask: torch.Tensor | None = sdpa_mask(
            batch_size=batch_size,
            q_length=q_length,
            kv_length=kv_length,
            q_offset=q_offset,
            kv_offset=kv_offset,
            mask_function=mask_function,
            attention_mask=attention_mask,
            local_size=local_size,
            allow_is_causal_skip=allow_is_causal_skip,
            config=config,
            **kwargs,
        )
        return plain_mask
    plain = mask_function is causal_mask_function
    # transformers allows the causal mask to be skipped exactly where nothing was added to it; a mask of chunks has a
    # local size too.
    sliding = (
        local_size is not None and allow_is_causal_skip and getattr(config, "attention_chunk_size", None) != local_size
    )
    if not plain and not sliding:
        raise ValueError(
            "kvq attends causally, also with a sliding window; this model or call needs another mask "
            "(bidirectional, in chunks, in blocks, or packed)"
        )
    return Step(kv_offset.cache, q_length, attention_mask, local_size if sliding else None)


def attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: Step | torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    position_bias: torch.Tensor | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Attention over a KvqCache, or by torch without one.

    :param query: `[rows, q_heads, columns, head_dim]`, like `key` and `value`, which KvqCache.update has marked.
    :returns: `[rows, columns, q_heads, head_dim]`, and no weights.
    """
    if kwargs.get("output_attentions"):
        raise ValueError('output_attentions needs attn_implementation="eager": kvq computes no matrix of weights')
    if kwargs.get("indices") is not None:
        raise ValueError("kvq attends to all tokens; this model selects some of them (sparse attention)")
    origin = getattr(key, "kvq_origin", None)
    latents = None
    if origin is None and isinstance(attention_mask, Step):
        found = attention_mask.cache.latents(module)
        if found is not None:
            layer, latents = found
            origin = attention_mask.cache, layer
    if origin is None:
        plain = _plain_mask(module, attention_mask, softcap, s_aux)
        return sdpa_attention_forward(
            module,
            query,
            key,
            value,
            plain,
            dropout=dropout,
            scaling=scaling,
            is_causal=is_causal,
            position_bias=position_bias,
        )
    cache, layer = origin
    if not isinstance(attention_mask, Step) or attention_mask.cache is not cache:
        raise ValueError(f"layer {layer} was not given the mask that kvq made for this cache")
    tracked = query.requires_grad or key.requires_grad or value.requires_grad
    tracked = tracked or s_aux is not None and s_aux.requires_grad
    if dropout or (tracked and torch.is_grad_enabled()):
        raise RuntimeError("a KvqCache has no gradients: call the model in eval mode under torch.no_grad()")
    if position_bias is not None or is_causal is False:
        raise ValueError("kvq attends causally and without position biases, which this model needs")
    output = cache.attend(attention_mask, layer, module, query, key, value, scaling, softcap, s_aux, kwargs, latents)
    return output, None


def _plain_mask(
    module: torch.nn.Module, attention_mask: Step | torch.Tensor | None, softcap: float | None, s_aux: Any
) -> torch.Tensor | None:
    """The mask for torch's attention, which stands in without a KvqCache; refuses what that would compute otherwise."""
    if isinstance(attention_mask, Step):
        raise ValueError(
            f"{type(module).__name__} attends to keys that it did not put into the KvqCache as they are (shared "
            "between layers, or changed after the update), which kvq does not support"
        )
    if softcap is not None or s_aux is not None:
        raise ValueError(
            "without a KvqCache attention is torch's scaled_dot_product_attention, which has neither soft caps nor "
            "sinks: pass a KvqCache"
        )
    return attention_mask
