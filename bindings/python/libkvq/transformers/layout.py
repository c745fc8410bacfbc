"""The libkvq objects behind a KvqCache, created when the first tokens show the model's shape and device."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from collections.abc import Sequence as Many
from dataclasses import dataclass, field
from typing import Any

import torch

import libkvq
from libkvq import LayerShape

from .linear import recurrent_layers
from .rotary import Rotary


def read_policy(policy: str | os.PathLike[str] | Mapping[str, Any] | libkvq.Policy) -> libkvq.Policy:
    """A policy from any of the forms that KvqCache takes; errors appear here, not at the first token."""
    if isinstance(policy, libkvq.Policy):
        return policy
    if isinstance(policy, Mapping):
        policy = json.dumps({"version": 1, **policy})  # JSON is YAML.
    elif not isinstance(policy, (str, os.PathLike)):
        raise TypeError(f"policy is {type(policy).__name__}, must be str, a mapping, a path or a Policy")
    elif isinstance(policy, os.PathLike) or policy.endswith((".yaml", ".yml")):
        with open(policy, encoding="utf-8") as file:
            policy = file.read()
    return libkvq.Policy(libkvq.Context(), policy)


def read_bytes(source: str | os.PathLike[str] | bytes | None) -> bytes | None:
    if source is None or isinstance(source, bytes):
        return source
    with open(source, "rb") as file:
        return file.read()


def _shapes(
    module: torch.nn.Module, n_layers: int, kv_heads: int, key_dim: int, value_dim: int, window: int | None
) -> list[LayerShape]:
    """Layers that differ from the first one, whose heads these are.

    An attention module knows its own layer only, so one of each of the config's kinds is made, without memory.

    :param window: the first layer's; 0: none. None: layers keep all tokens, whatever their windows.
    """
    kinds: list[str] = list(getattr(module.config, "layer_types", None) or [])[:n_layers] or [""] * n_layers

    def stated(one: Any) -> tuple[int, int, int]:
        keys = getattr(one, "head_dim", key_dim)
        return getattr(one, "num_key_value_groups", 1), keys, getattr(one, "v_head_dim", keys)

    first = (kv_heads, key_dim, value_dim)
    sizes = dict.fromkeys(kinds, first)
    windows = dict.fromkeys(kinds, window or 0)
    recurrent = recurrent_layers(module.config)
    for kind in set(kinds) - {kinds[0]} - {kinds[layer] for layer in recurrent}:
        other: Any = module
        with contextlib.suppress(TypeError), torch.device("meta"):  # Of constructors that need more.
            other = type(module)(module.config, layer_idx=kinds.index(kind))
        if window is not None:
            windows[kind] = getattr(other, "sliding_window", None) or 0 if other is not module else 0
        if stated(other) != stated(module):
            groups, *channels = stated(other)
            sizes[kind] = (kv_heads * stated(module)[0] // groups, channels[0], channels[1])
    return [
        LayerShape(
            layer,
            kv_heads=sizes[kind][0],
            key_dim=sizes[kind][1],
            value_dim=sizes[kind][2],
            sliding_window=windows[kind],
        )
        for layer, kind in enumerate(kinds)
        if (sizes[kind] != (kv_heads, key_dim, key_dim) or windows[kind]) and layer not in recurrent
    ] + [LayerShape(layer, recurrent=True) for layer in recurrent]


@dataclass
class Layout:
    """A context and a cache with the shape of one model's attention layers in this process."""

    policy: libkvq.Policy
    codebook: bytes | None
    router: bytes | None
    threads: int | None
    max_bytes: int
    model_id: int
    rotary: Rotary | None = None
    n_layers: int = 0
    shape: dict[str, Any] = field(default_factory=dict)
    _cache: libkvq.Cache | None = None
    _device: torch.device | None = None
    _stream: int = 0

    @property
    def recurrent(self) -> list[int]:
        """Layers with states in place of keys and values."""
        return [one.first_layer for one in self.shape.get("shapes", []) if one.recurrent]

    @property
    def windows(self) -> dict[int, int]:
        """Tokens that layers keep, if not all."""
        return {one.first_layer: one.sliding_window for one in self.shape.get("shapes", []) if one.sliding_window}

    @property
    def created(self) -> bool:
        return self._cache is not None

    def cache(self) -> libkvq.Cache:
        if self._cache is None:
            raise RuntimeError("the cache is empty: its shape comes with the first tokens")
        return self._cache

    def prepare(
        self,
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value_dim: int,
        latent: bool,
        scaling: float | None,
        window: int,
    ) -> None:
        """Create the objects for a model's first tokens; later, check that tokens still match them.

        :param latent: values are the first `value_dim` channels of the keys.
        :param window: of the module's layer; 0: none.
        """
        if query.shape[0] != key.shape[0] or query.shape[1] % key.shape[1] or query.shape[3] != key.shape[3]:
            raise ValueError(f"queries {list(query.shape)} and keys {list(key.shape)} do not fit together")
        head_dim = value_dim if latent else key.shape[3]
        shape = {"q_heads": query.shape[1], "kv_heads": key.shape[1], "head_dim": head_dim}
        if self._cache is None:
            layers = getattr(getattr(module, "config", None), "num_hidden_layers", None)
            if not isinstance(layers, int):
                raise ValueError(f"the config of {type(module).__name__} has no num_hidden_layers")
            shared = getattr(module.config, "num_kv_shared_layers", None) or 0  # The last ones, which store nothing.
            layers -= shared
            if self.codebook is not None or self.router is not None:
                self.rotary = Rotary(module, key)
            evicts = self.policy.describe().eviction_budget > 0
            scale = scaling if scaling is not None else key.shape[3] ** -0.5
            if latent:
                of_all = LayerShape(0, layers, key_dim=key.shape[3], value_dim=value_dim, values_are_key_prefix=True)
                shapes = [of_all]
            else:
                # Other layers' queries come later, codebooks and routers need layers of one shape.
                forgets = not (shared or evicts or self.codebook is not None or self.router is not None)
                shapes = _shapes(module, layers, key.shape[1], key.shape[3], value_dim, window if forgets else None)
            self.create({"n_layers": layers, **shape, "scale": scale, "shapes": shapes}, key.device)
        elif any(self.shape[name] != size for name, size in shape.items()):
            made_for = {name: self.shape[name] for name in shape}
            raise ValueError(f"the cache was made for {made_for}, this model has {shape}")
        elif self.rotary is None and self.shape["rope"] != "none":
            self.rotary = Rotary(module, key)
            if self.rotary.options() != {name: self.shape[name] for name in self.rotary.options()}:
                raise ValueError("the cache was saved from a model with another rotary embedding")
        if key.device != self._device:
            raise ValueError(
                f"the cache is on {self._device}, a layer on {key.device}: a KvqCache lives on one device (models "
                "larger than one are run by tensor parallelism, where each process has its own)"
            )
        if key.device.type == "cuda":
            stream = torch.cuda.current_stream(key.device).cuda_stream
            if stream != self._stream:
                self.cache().context.set_stream(stream)
                self._stream = stream

    def create(self, shape: dict[str, Any], device: torch.device) -> None:
        """Create the context and the cache; on failure nothing is kept."""
        if device.type not in ("cpu", "cuda"):
            raise ValueError(f"kvq computes on CPUs and CUDA GPUs, not on {device}")
        shape = {"rope": "none", **shape, **(self.rotary.options() if self.rotary is not None else {})}
        stream = 0
        if device.type == "cuda":
            device = torch.device("cuda", torch.cuda.current_device() if device.index is None else device.index)
            stream = torch.cuda.current_stream(device).cuda_stream
        context = libkvq.Context(
            device=device.type,
            device_index=device.index or 0,
            stream=stream,
            n_threads=self.threads or torch.get_num_threads(),
            max_bytes=self.max_bytes,
        )
        self._cache = libkvq.Cache(
            context,
            **shape,
            model_id=self.model_id,
            policy=self.policy,
            codebook=None if self.codebook is None else libkvq.Codebook.load(context, self.codebook),
            router=None if self.router is None else libkvq.Router.load(context, self.router),
        )
        self._device, self._stream = device, stream
        self.n_layers, self.shape = shape["n_layers"], shape

    def attend(
        self,
        layer: int,
        rows: Many[libkvq.Sequence],
        new: tuple[torch.Tensor, torch.Tensor | None] | None,
        q: torch.Tensor,
        counts: list[int] | None,
        window: int,
        softcap: float | None,
        sinks: torch.Tensor | None,
        scaling: float | None,
    ) -> torch.Tensor:
        """Append tokens, unless the layer's pages have them already, and attend with their queries.

        :param new: keys `[tokens, kv_heads, key_dim]` and values `[tokens, kv_heads, value_dim]`, none of latents.
        :param q: `[tokens, q_heads, key_dim]`.
        :returns: `[tokens, q_heads, value_dim]`.
        """
        if not window and self.windows.get(layer):
            raise ValueError(f"layer {layer} attends to all tokens, but keeps a window of {self.windows[layer]}")
        if scaling is not None and scaling != self.shape["scale"]:
            q = q * (scaling / self.shape["scale"])
        how: dict[str, Any] = {
            "sliding_window": window,
            "logit_softcap": softcap or 0.0,
            "sinks": None if sinks is None else sinks.detach().float(),
        }
        output: torch.Tensor
        if new is None:
            output = self.cache().attend(layer, rows, q, query_counts=counts, **how)
        else:
            output = self.cache().extend(layer, rows, *new, q, token_counts=counts, **how)
        return output
