"""States of linear-attention and recurrent layers, which kvq carries and transformers computes."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from collections.abc import Sequence as Many
from typing import Any

import torch
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from transformers import Cache, cache_utils

import libkvq

WITHOUT_KEYS = ("linear_attention", "conv", "moe", "mlp")
"""What configs call layers that have no keys and values."""


def recurrent_layers(config: Any) -> list[int]:
    """Layers of a model without keys and values: most have states."""
    kinds = list(getattr(config, "layer_types", None) or [])
    return [layer for layer, kind in enumerate(kinds) if kind in WITHOUT_KEYS]


class LinearStates:
    """The states of all rows, in transformers' own objects."""

    def __init__(self) -> None:
        self.layers: dict[int, Any] = {}
        self._pass, self._start = 0, -1  # The current forward pass, and columns before it.
        self._newest: dict[int, int] = {}  # The pass that updated a layer last.

    def layer(self, index: int) -> Any:
        if not hasattr(Cache, "get_conv_state"):
            raise ValueError("a KvqCache holds states of linear attention from transformers 5.24 on")
        if index not in self.layers:
            self.layers[index] = cache_utils.LinearAttentionLayer()
        return self.layers[index]

    def updated(self, index: int) -> Any:
        """The layer, whose states the current forward pass updates."""
        self._newest[index] = self._pass
        return self.layer(index)

    def begin_pass(self, start: int) -> None:
        """Expect a forward pass after so many columns; for several masks it is announced several times.

        Raise RuntimeError if an aborted one left newer states in some layers: they cannot be undone.
        """
        passes = set(self._newest.values())
        if self._pass in passes if start == self._start else len(passes) > 1:
            self.refuse_repetition()
        if start != self._start:
            self._pass, self._start = self._pass + 1, start

    def refuse_repetition(self) -> None:
        if self.layers:
            raise RuntimeError("a forward pass ended early, and states of linear attention go one way: reset the cache")

    def copy(self) -> LinearStates:
        return copy.deepcopy(self)

    def select(self, rows: Many[int]) -> None:
        """Make row i what row `rows[i]` is now."""
        for layer in self.layers.values():
            for states in (layer.conv_states, layer.recurrent_states):
                for i, state in states.items():
                    states[i] = None if state is None else state[list(rows)]

    def put(self, row: int, sequence: libkvq.Sequence, tokens: int) -> None:
        """Give copies of a row's states to its sequence, in place of older ones."""
        if tokens == 0:
            raise RuntimeError(f"row {row} has no tokens: kvq keeps states of linear attention from the first token on")
        sequence.drop_states(0, 2**31 - 1)
        for index, layer in self.layers.items():
            named = {"conv": layer.conv_states, "recurrent": layer.recurrent_states}
            tensors = {
                f"{name}.{i}": state[row].contiguous().cpu()
                for name, states in named.items()
                for i, state in states.items()
                if state is not None
            }
            sequence.put_state(index, tokens, save_tensors(tensors))

    @classmethod
    def of(cls, rows: Many[libkvq.Sequence], tokens: Many[int], layers: Iterable[int], device: Any) -> LinearStates:
        """Take the states that each sequence has after so many tokens."""
        made = cls()
        for index in layers:
            if not rows or not tokens[0] or rows[0].find_state(index, tokens[0]) != tokens[0]:
                continue
            of_rows = [load_tensors(row.get_state(index, n)) for row, n in zip(rows, tokens)]
            layer = made.layer(index)
            for name in of_rows[0]:
                kind, i = name.split(".")
                state = torch.stack([tensors[name] for tensors in of_rows]).to(device)
                if kind == "conv":
                    layer.conv_states[int(i)] = state
                    layer.is_conv_states_initialized[int(i)] = True
                    layer.conv_kernel_size[int(i)] = state.shape[-1]
                    layer.dtype, layer.device = state.dtype, state.device
                else:
                    layer.recurrent_states[int(i)] = state
                    layer.is_recurrent_states_initialized[int(i)] = True
                layer.has_previous_state[int(i)] = True
        return made
