"""The input of one forward pass to a cache, computed once for all layers."""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from .cache import KvqCache


class CacheOffset(int):
    """Offset 0 that remembers its cache, because transformers does not pass the cache when it creates masks."""

    cache: KvqCache

    def __new__(cls, cache: KvqCache) -> CacheOffset:
        offset = super().__new__(cls, 0)
        offset.cache = cache
        return offset


class Step:
    """Replaces a mask tensor: which columns of the batch hold tokens, and how far tokens see.

    A column is a position in `input_ids`, which transformers counts as a token. Columns that `attention_mask` hides are
    padding and never enter the cache; the rest of a row is one kvq sequence without gaps.
    """

    def __init__(self, cache: KvqCache, columns: int, mask: torch.Tensor | None, window: int | None) -> None:
        self.cache = cache
        self.start = cache.get_seq_length()
        self.columns = columns  # Of queries: the last ones before `end`.
        self.end = self.start + columns
        self.window = window or 0
        self.masked = mask is not None
        # Host and device copies of the mask's new columns; None if all of them hold tokens.
        self.present: torch.Tensor | None = None
        self.device_present: torch.Tensor | None = None
        # Tokens per row, and their rotations if kvq applies RoPE.
        self.counts: list[int] | None = None
        self.rotation: tuple[torch.Tensor, torch.Tensor] | None = None
        if mask is not None:
            self._read(mask)
        cache.announce(self.start)

    def __getitem__(self, index: tuple[slice, ...]) -> Step:
        """Part of the queries, which transformers takes from a mask where the last layers compute nothing else."""
        part = copy(self)
        part.columns = len(range(self.columns)[index[2]])
        if self.present is not None and self.device_present is not None:
            part.present = self.present[:, index[2]]
            part.device_present = self.device_present[:, index[2]]
            part.counts = part.present.sum(dim=1).tolist()
        return part

    def _read(self, mask: torch.Tensor) -> None:
        if mask.shape[1] != self.end:
            raise ValueError(
                f"attention_mask has {mask.shape[1]} columns; it needs {self.end}: {self.start} of what the cache has "
                f"seen, padding included, and {self.columns} new ones"
            )
        host = mask.cpu()
        past = self.cache.present_columns(host.shape[0], self.start)
        if past is None and bool(host.all()):
            return
        seen = host[:, : self.start]
        if not (bool(seen.all()) if past is None else torch.equal(seen, past)):
            raise ValueError(
                "attention_mask hides columns that entered the cache as tokens, or shows columns that were padding "
                "when they came: neither can be changed later"
            )
        new = host[:, self.start :]
        if not bool(new.all()):
            self.present = new
            self.device_present = mask[:, self.start :]
            self.counts = new.sum(dim=1).tolist()

    def require_next(self, positions: Any, past: torch.Tensor | None, rows: int) -> None:
        """Refuse tokens that the cache holds already and gaps, by the positions that transformers gave the new tokens.

        :param positions: position_ids, `[rows or 1, columns]`, with or without padding counted.
        :param past: mask of earlier columns, `[rows, start]`; None: all hold tokens.
        """
        if not torch.is_tensor(positions) or positions.ndim != 2:
            if self.start and self.columns > 1 and not self.masked:
                raise ValueError(
                    "neither attention_mask nor position_ids tell whether the new tokens follow those in the cache: "
                    "pass an attention_mask of all tokens"
                )
            return
        if positions.shape[1] != self.columns or positions.shape[0] not in (1, rows):
            raise ValueError(
                f"position_ids has the shape {list(positions.shape)}, the new tokens are {[rows, self.columns]}"
            )
        given = positions.cpu()
        columns = torch.arange(self.start, self.start + self.columns)
        if bool((given == columns).all()):
            return
        present = torch.ones((rows, self.columns), dtype=torch.bool) if self.present is None else self.present
        held = torch.full((rows,), self.start) if past is None else past.sum(dim=1)
        tokens = held[:, None] + present.cumsum(dim=1) - 1
        wrong = present & (given != columns) & (given != tokens)
        if not bool(wrong.any()):
            return
        row, column = wrong.nonzero()[0].tolist()
        first = int(present[row].nonzero()[0])
        own = given.expand(rows, -1)[row]
        if column != first:
            raise ValueError(f"position_ids of row {row} are {own.tolist()}: they are not consecutive")
        raise ValueError(
            f"position_ids begin at {int(own[first])}, the new tokens of row {row} at {int(tokens[row, first])}: the "
            "input repeats tokens that are in the cache, or leaves some out"
        )

    def tokens(self, x: torch.Tensor) -> torch.Tensor:
        """`[rows, heads, columns, head_dim]` to `[tokens, heads, head_dim]`, without a copy where strides allow it."""
        x = x.transpose(1, 2)
        if self.device_present is not None:
            return x[self.device_present]
        return x.squeeze(1) if self.columns == 1 else x.reshape(-1, x.shape[2], x.shape[3])

    def columns_of(self, tokens: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        """`[tokens, heads, value_dim]` to `[rows, columns, heads, value_dim]`, with zeros for padding.

        :param like: queries, `[rows, heads, columns, key_dim]`.
        """
        rows, heads, columns, _ = like.shape
        if self.device_present is None:
            return tokens.view(rows, columns, heads, -1)
        output = tokens.new_zeros((rows, columns, heads, tokens.shape[2]))
        output[self.device_present] = tokens
        return output
