"""Layers of a cache that differ from its others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, List, Optional, Union
from typing import Sequence as Many

from . import _native
from ._arrays import HOST, dense_of
from ._errors import KvqArgumentError, initialised
from ._text import value_of


@dataclass
class LayerShape:
    """Shape of layers that differ from the cache's others, such as those with larger heads, without RoPE, or without
    keys and values of their own."""

    first_layer: int
    n_layers: int = 1
    q_heads: int = 0
    """0, here and below: the cache's."""
    kv_heads: int = 0
    key_dim: int = 0
    """Channels of a key and of a query, a multiple of 8, 8 … 576."""
    value_dim: int = 0
    """Channels of a value and of an output, a multiple of 8, 8 … 512."""
    values_are_key_prefix: bool = False
    """Values are the first `value_dim` channels of the keys, of which there are more, as in latent attention (MLA), and
    are stored once. Appending takes no values; of the keys, only the channels behind them may be rotated."""
    rope: Optional[Union[str, int]] = None
    """As for ``Cache``; None: the cache's."""
    rotary_begin: int = 0
    """First channel that is rotated; 0: the first one, or `value_dim` with `values_are_key_prefix`."""
    rotary_dim: int = 0
    """Channels that are rotated; 0: the cache's, if it has one, else all from `rotary_begin` on."""
    rope_base: float = 0.0
    """0: the cache's, with its `inv_freq`."""
    inv_freq: Any = None
    """Radians per position, float32 in host memory; None: those of `rope_base`."""
    scale: float = 0.0
    """Factor on q·k; 0: the cache's, or ``1 / sqrt(key_dim)`` if that is 0."""
    logit_softcap: float = 0.0
    """Of calls whose own is 0."""
    pages_of_layer: Optional[int] = None
    """The earlier layer whose pages these layers read, as models with shared KV layers do (Gemma 3n, Gemma 4); None:
    their own. They hold no tokens: append to that layer, then attend to these. Their KV heads, channels and RoPE are
    that layer's, their query heads, scale and soft cap their own."""
    recurrent: bool = False
    """The layers keep no keys and values, as recurrent and linear-attention layers of hybrid models: they take no
    memory and no tokens, and sequences may carry their states (``Sequence.put_state``). They have no other fields."""
    sliding_window: int = 0
    """As for ``Cache``; 0: the cache's, -1: none."""
    attention_chunk: int = 0
    """As for ``Cache``; 0: the cache's, -1: none."""


_NUMBERS = (
    "first_layer",
    "n_layers",
    "q_heads",
    "kv_heads",
    "key_dim",
    "value_dim",
    "values_are_key_prefix",
    "rotary_begin",
    "rotary_dim",
    "rope_base",
    "scale",
    "logit_softcap",
    "recurrent",
    "sliding_window",
    "attention_chunk",
)


def set_shapes(options: _native.kvq_cache_options, shapes: Many[LayerShape]) -> List[Any]:
    """Set the options' shapes; returns what they point to."""
    kind: Any = _native.kvq_layer_shape * len(shapes)
    structs = kind()
    kept: List[Any] = [structs]
    for i, shape in enumerate(shapes):
        if not isinstance(shape, LayerShape):
            raise KvqArgumentError("shapes[%d] is a %s, not a LayerShape" % (i, type(shape).__name__))
        struct = initialised(_native.kvq_layer_shape, **{name: getattr(shape, name) for name in _NUMBERS})
        if shape.pages_of_layer is not None:
            struct.pages_of_layer = shape.pages_of_layer
        if shape.rope is not None:
            struct.rope = value_of(_native.kvq_rope, "rope", shape.rope)
        if shape.inv_freq is not None:
            key_dim, value_dim = shape.key_dim or options.head_dim, shape.value_dim or options.head_dim
            begin = shape.rotary_begin or (value_dim if shape.values_are_key_prefix else 0)
            rotated = shape.rotary_dim or options.rotary_dim or key_dim - begin
            view = dense_of("shapes[%d].inv_freq" % i, shape.inv_freq, [rotated // 2], "f32", HOST)
            struct.inv_freq = view.address
            kept.append(view)
        structs[i] = struct
    options.n_shapes = len(shapes)
    if shapes:
        options.shapes = structs
    return kept
