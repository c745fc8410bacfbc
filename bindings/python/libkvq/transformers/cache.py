"""A transformers cache that stores keys and values in kvq."""

from __future__ import annotations

import os
from collections.abc import Mapping
from collections.abc import Sequence as Many
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import Cache

import libkvq

from . import snapshot
from .latent import Latents
from .layout import Layout, read_bytes, read_policy
from .linear import LinearStates
from .prompt import attends_exactly, exact_attention
from .step import CacheOffset, Step


class KvqCache(Cache):
    """Keys and values of a batch, compressed, for models loaded with `attn_implementation="kvq"`.

    Pass it as `past_key_values`, or `cache` from transformers 5.24 on, to `model(...)` or `model.generate(...)`. Every
    row of the batch is one kvq sequence without padding. The first tokens set its shape: the heads that this process
    computes, on their device.

    :param policy: a kvq policy: its short form ("int4+hadamard"), YAML text, a mapping with the same keys, the path of
        a `.yaml` file, or a `libkvq.Policy`.
    :param codebook: path or bytes of codebooks, for the format commvq.
    :param router: path or bytes of routers. With a codebook or a router, kvq applies RoPE: both are trained on keys
        before it.
    :param threads: CPU threads; by default as many as torch uses.
    :param max_bytes: limit on all memory allocated for this cache; 0: none.
    :param model_id: any number that identifies the model's weights; codebooks, routers and saved caches must have it.
    :param compress: "prompt": a policy that evicts tokens does so when the first single token follows longer input;
        "manual": when `compress` is called.
    """

    def __init__(
        self,
        policy: str | os.PathLike[str] | Mapping[str, Any] | libkvq.Policy = "int4+hadamard",
        *,
        codebook: str | os.PathLike[str] | bytes | None = None,
        router: str | os.PathLike[str] | bytes | None = None,
        threads: int | None = None,
        max_bytes: int = 0,
        model_id: int = 0,
        compress: str = "prompt",
    ) -> None:
        super().__init__(layers=[])
        if compress not in ("prompt", "manual"):
            raise ValueError(f'compress is {compress!r}; it is "prompt" or "manual"')
        self.policy = read_policy(policy)
        self._evicts = self.policy.describe().eviction_budget > 0
        self._compresses_prompts = self._evicts and compress == "prompt"
        self._layout = Layout(self.policy, read_bytes(codebook), read_bytes(router), threads, max_bytes, model_id)
        self._start_empty()

    def _start_empty(self) -> None:
        self._rows: list[libkvq.Sequence] = []
        self._seen: list[int] = []  # Columns that each layer has seen, including padding.
        self._present: torch.Tensor | None = None  # [rows, columns], on the host; None: all columns hold tokens.
        self._announced = -1  # Columns before the forward pass that kvq has created masks for,
        self._begun = -1  # and before the current one.
        self._prompt_waits = False  # Several tokens have arrived since the last eviction.
        self._given: tuple[int, torch.Tensor, torch.Tensor] | None = None  # To update, until they are attended to.
        self._linear = LinearStates()

    # ------------------------------------------------------------------------------------- interface of transformers

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Mark the keys for the attention function, which stores them: only it knows padding and queries."""
        if self._announced != (self._seen[layer_idx] if self._seen else 0):
            raise ValueError(
                'a KvqCache needs kvq as attention and its masks: load the model with attn_implementation="kvq", and '
                "pass masks of tokens and padding, [rows, columns], or none; four-dimensional ones cannot be expressed"
            )
        key_states.kvq_origin = (self, layer_idx)  # type: ignore[attr-defined]
        self._given = layer_idx, key_states, value_states
        return key_states, value_states

    def latents(self, module: torch.nn.Module) -> tuple[int, Latents] | None:
        """What the module's layer has put here last, if it then expanded that to keys and values; and the layer."""
        if self._given is None or getattr(module, "layer_idx", None) != self._given[0]:
            return None
        layer, latent, rotary = self._given
        return (layer, Latents(module, latent, rotary)) if Latents.expanded_by(module, latent, rotary) else None

    def update_indexer(self, *args: Any, **kwargs: Any) -> Any:
        raise ValueError(
            "a KvqCache holds keys, values and states of linear attention; this model also caches keys of an indexer "
            "(sparse attention), which kvq does not support"
        )

    # States of linear attention, which transformers computes.

    def update_conv_state(
        self, conv_states: torch.Tensor, layer_idx: int, state_idx: int = 0, **kwargs: Any
    ) -> torch.Tensor:
        layer = self._linear.updated(layer_idx)
        updated: torch.Tensor = layer.update_conv_state(conv_states, state_idx, **kwargs)
        return updated

    def update_recurrent_state(
        self, recurrent_states: torch.Tensor, layer_idx: int, state_idx: int = 0, **kwargs: Any
    ) -> torch.Tensor:
        layer = self._linear.updated(layer_idx)
        updated: torch.Tensor = layer.update_recurrent_state(recurrent_states, state_idx, **kwargs)
        return updated

    def has_previous_state(self, layer_idx: int | None = None, state_idx: int | None = None) -> bool:
        layers = self._linear.layers
        if layer_idx is None:
            return any(all(layer.has_previous_state.values()) for layer in layers.values())
        if layer_idx not in layers:
            return False
        known = layers[layer_idx].has_previous_state
        return all(known.values()) if state_idx is None else bool(known[state_idx])

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> torch.Tensor | None:
        return self._linear.layer(layer_idx).conv_states[state_idx] if self.has_previous_state(layer_idx) else None

    def get_recurrent_state(self, layer_idx: int, state_idx: int = 0) -> torch.Tensor | None:
        return self._linear.layer(layer_idx).recurrent_states[state_idx] if self.has_previous_state(layer_idx) else None

    def is_recording_past(self, layer_idx: int) -> bool:
        return False

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Columns that all layers have seen, including padding and evicted tokens."""
        return self._seen[-1] if self._seen else 0

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        if self._seen and self._seen[0] != self._seen[-1]:
            self._undo_part_of_a_pass()
        return self.get_seq_length() + query_length, CacheOffset(self)

    def announce(self, start: int) -> None:
        """Expect a forward pass that begins after `start` columns, for which kvq has created masks."""
        if start == 0:
            self._linear = LinearStates()
        self._linear.begin_pass(start)
        self._announced = start
        self._begun = -1

    def get_max_length(self, layer_idx: int | None = None) -> int:
        return -1

    def __len__(self) -> int:
        return len(self._seen)

    def __repr__(self) -> str:
        return f"KvqCache(rows={len(self._rows)}, columns={self.get_seq_length()}, layers={len(self)})"

    @property
    def batch_size(self) -> int:
        return len(self._rows) or -1

    @property
    def is_initialized(self) -> bool:
        return bool(self._rows)

    # transformers' own are of a list of layers, which would be empty: all of none are sliding, linear, ...

    @property
    def is_sliding(self) -> list[bool]:
        return [False] * max(1, len(self))

    is_linear = is_dummy = is_sliding

    @property
    def is_compileable(self) -> bool:
        return False

    @property
    def is_croppable(self) -> bool:
        return not self._linear.layers  # Whose states are those of the newest token alone.

    def reset(self) -> None:
        """Drop all tokens."""
        self._start_empty()

    def crop(self, tokens_to_remove: int) -> None:
        """Remove columns from the end: `-n` removes n. As in transformers, a positive number is the number to keep.

        A policy with `recent: 2` can always remove at least 32 tokens; otherwise the cut must lie in the open page or
        on a page boundary. Layers with a sliding window can remove no more than that and the newest forward pass.
        """
        tokens_to_remove = int(tokens_to_remove)  # transformers 5.17 passes a tensor
        columns = self.get_seq_length()
        left = min(tokens_to_remove, columns) if tokens_to_remove > 0 else columns + tokens_to_remove
        if left == columns:
            return
        if self._linear.layers:
            raise ValueError("a cache with states of linear attention cannot be cropped: these are of the newest token")
        if len(set(self._seen)) > 1:
            self._undo_part_of_a_pass()
        if left < 0:
            raise ValueError(f"cannot remove {-tokens_to_remove} tokens: the cache holds {columns}")
        present = self.present_columns(len(self._rows), left)
        lengths = [left] * len(self._rows) if present is None else present.sum(dim=1).tolist()
        self._truncate(lengths)
        self._seen = [left] * len(self._seen)
        self._present = present
        self._announced = self._begun = -1

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        """Make row i a fork of row `beam_idx[i]`; pages are shared until either changes them."""
        self._select(beam_idx.tolist())

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        self._select(torch.arange(len(self._rows))[indices.cpu()].tolist())

    def batch_repeat_interleave(self, repeats: int) -> None:
        self._select([row for row in range(len(self._rows)) for _ in range(repeats)])

    def fork(self) -> KvqCache:
        """Create a cache that starts with all tokens of this one. Pages are shared until either changes them."""
        fork = object.__new__(type(self))
        fork.__dict__.update(self.__dict__)
        fork._rows = [row.fork() for row in self._rows]
        fork._seen = list(self._seen)
        fork._linear = self._linear.copy()
        return fork

    __copy__ = fork

    def __deepcopy__(self, memo: dict[int, Any]) -> KvqCache:
        return self.fork()

    # --------------------------------------------------------------------------------------------- additions of kvq

    @property
    def sequences(self) -> list[libkvq.Sequence]:
        """The kvq sequence of each row."""
        return list(self._rows)

    def usage(self, row: int | None = None) -> libkvq.Usage:
        """Bytes used by the cache, with shared pages counted once, or by one row."""
        if row is None:
            return self._layout.cache().usage()
        return self._rows[row].usage()

    def compress(self, budget: int | None = None) -> list[libkvq.Compressed]:
        """Evict tokens of each row as the policy says, or so that a KV head keeps `budget` tokens on average."""
        results = [row.compress(budget) for row in self._rows]
        self._prompt_waits = False
        return results

    def save(self) -> bytes:
        """The cache in the safetensors format, for `KvqCache.load`."""
        for i, row in enumerate(self._rows if self._linear.layers else []):
            self._linear.put(i, row, self._tokens(row))
        return snapshot.save(self._layout, self._rows, self._seen, self._present)

    @classmethod
    def load(cls, data: bytes, device: str | torch.device = "cpu", **options: Any) -> KvqCache:
        """Create a cache from the bytes that `save` returned. Every byte is checked.

        :param options: as for KvqCache; policy, codebooks and routers must be those of the saved cache.
        """
        cache = cls(**options)
        cache._rows, cache._seen, cache._present = snapshot.load(data, cache._layout, torch.device(device))
        tokens = [cache._tokens(row) for row in cache._rows]
        try:
            cache._linear = LinearStates.of(cache._rows, tokens, range(len(cache)), device)
        except (SafetensorError, KeyError, IndexError, RuntimeError, ValueError) as error:
            raise ValueError(f"not a saved KvqCache: its states of linear attention: {error}") from error
        return cache

    def _tokens(self, row: libkvq.Sequence) -> int:
        """Tokens of a row, without padding."""
        recurrent = self._layout.recurrent
        return row.length(next(layer for layer in range(len(self)) if layer not in recurrent))

    # ------------------------------------------------------------------------------------------------------ attention

    def attend(
        self,
        step: Step,
        layer: int,
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scaling: float | None,
        softcap: float | None,
        sinks: torch.Tensor | None,
        arguments: dict[str, Any],
        latents: Latents | None = None,
    ) -> torch.Tensor:
        """Append a layer's new tokens and attend to all of them; the attention function calls this.

        :param latents: of which `key` and `value` are expansions.
        """
        self._given = None
        k, v, q = key, value, query
        if latents is not None:
            k, q = latents.keys, latents.queries(query)
        if not self._layout.created or step.start != self._begun:
            values = value.shape[3] if latents is None else latents.values
            self._begin(step, module, q, k, values, latents is not None, scaling, arguments.get("position_ids"))
        shared = self._seen[layer] == step.end and getattr(module, "layer_idx", layer) > layer
        if self._seen[layer] != step.start and not shared:
            raise RuntimeError(
                f"layer {layer} has seen {self._seen[layer]} columns, the others {step.start}: reset the cache"
            )
        if self._layout.rotary is not None:
            q, k = self._layout.rotary.undo(step, self._rows, layer, query, key, arguments.get("position_ids"))
        rows = self._rows
        counts = step.counts
        if counts is not None and 0 in counts:
            rows = [row for row, count in zip(rows, counts) if count]
            counts = [count for count in counts if count]
        elif counts is None and step.columns > 1:
            counts = [step.columns] * len(rows)
        if not rows:
            self._mark(layer, step.end)
            return query.new_zeros((query.shape[0], query.shape[2], query.shape[1], value.shape[3]))
        # The pages of a shared layer have these tokens already.
        new = None if shared else (step.tokens(k), step.tokens(v) if latents is None else None)
        exactly = attends_exactly(step, self._evicts, softcap, sinks)
        if exactly and new is not None:
            self._layout.cache().append(layer, rows, *new, token_counts=counts)
        if exactly:
            output = exact_attention(step, module, query, key, value, scaling)
        else:
            output = self._layout.attend(layer, rows, new, step.tokens(q), counts, step.window, softcap, sinks, scaling)
            output = step.columns_of(output, query)
            output = output if latents is None else latents.outputs(output)
        self._mark(layer, step.end)
        return output

    def _mark(self, layer: int, end: int) -> None:
        """A layer has seen all columns before `end`, and so have those with states beside it."""
        self._seen[layer] = end
        for other in self._layout.recurrent:
            self._seen[other] = end

    def _begin(
        self,
        step: Step,
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value_dim: int,
        latent: bool,
        scaling: float | None,
        positions: Any,
    ) -> None:
        """Prepare a forward pass, once before its first layer."""
        self._layout.prepare(module, query, key, value_dim, latent, scaling, step.window)
        batch = key.shape[0]
        if step.start and len(self._rows) != batch:
            raise ValueError(f"the cache holds {len(self._rows)} rows, the input has {batch}")
        past = self.present_columns(batch, step.start)
        step.require_next(positions, past, batch)
        if step.start == 0:
            self._rows = [self._layout.cache().sequence() for _ in range(batch)]
            self._seen = [0] * self._layout.n_layers
        if step.columns > 1:
            self._prompt_waits = True
        elif self._prompt_waits and self._compresses_prompts:
            self.compress()
        if past is not None or step.present is not None:
            past = torch.ones((batch, step.start), dtype=torch.bool) if past is None else past
            new = torch.ones((batch, step.columns), dtype=torch.bool) if step.present is None else step.present
            past = torch.cat([past, new], dim=1)
        self._present = past
        self._begun = step.start

    def present_columns(self, rows: int, end: int) -> torch.Tensor | None:
        """Mask of the columns before `end` that hold tokens, `[rows, end]`; None: all."""
        if self._present is None or end == 0:
            return None
        if self._present.shape[0] != rows:
            raise ValueError(f"the cache holds {self._present.shape[0]} rows, the input has {rows}")
        return self._present[:, :end]

    def _select(self, indices: Many[int]) -> None:
        self._linear.select(indices)
        rows: list[libkvq.Sequence] = []
        taken: set[int] = set()
        for index in indices:
            rows.append(self._rows[index].fork() if index in taken else self._rows[index])
            taken.add(index)
        self._rows = rows
        if self._present is not None:
            self._present = self._present[list(indices)]

    def _truncate(self, lengths: Many[int]) -> None:
        """All rows or none."""
        try:
            if len(self._rows) == 1:
                self._rows[0].truncate(lengths[0])
                return
            forks = [row.fork() for row in self._rows]
            for fork, length in zip(forks, lengths):
                fork.truncate(length)
            self._rows = forks
        except libkvq.KvqStateError as error:
            raise RuntimeError(f"{error}; a policy with `recent: 2` keeps the newest 32 tokens removable") from error

    def _undo_part_of_a_pass(self) -> None:
        """Drop tokens that an aborted forward pass (an error, an interrupt) left in the first layers."""
        self._linear.refuse_repetition()
        shortest = min(self._seen)
        layer = self._seen.index(shortest)
        try:
            for row in self._rows:
                row.truncate(row.length(layer))
        except libkvq.KvqStateError as error:
            raise RuntimeError(
                f"a forward pass ended before layer {layer}, and what it left in the cache cannot be removed: reset it "
                f"({error})"
            ) from error
        self._seen = [shortest] * len(self._seen)
        self._announced = self._begun = -1
