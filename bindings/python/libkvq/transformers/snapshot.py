"""Saves a KvqCache as a safetensors file with one kvq snapshot per row."""

from __future__ import annotations

import json
from array import array
from collections.abc import Sequence as Many
from dataclasses import asdict
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors

import libkvq

from .layout import Layout

_VERSION = 1
_SHAPE = {"n_layers", "q_heads", "kv_heads", "head_dim", "scale", "rope", "rotary_dim", "inv_freq", "shapes"}


def save(layout: Layout, rows: Many[libkvq.Sequence], seen: list[int], present: torch.Tensor | None) -> bytes:
    if len(set(seen)) > 1:
        raise RuntimeError("a forward pass has not come to its end: the layers have seen different numbers of tokens")
    layout.cache()
    tensors = {f"row.{i}": torch.frombuffer(bytearray(row.save()), dtype=torch.uint8) for i, row in enumerate(rows)}
    if present is not None:
        tensors["present"] = present.to(torch.uint8)
    columns = seen[0] if seen else 0
    shape = {name: list(one) if name == "inv_freq" else one for name, one in layout.shape.items()}
    shape["shapes"] = [asdict(one) for one in layout.shape["shapes"]]
    header = {"version": _VERSION, "rows": len(rows), "columns": columns, "shape": shape}
    return save_tensors(tensors, metadata={"kvq_cache": json.dumps(header)})


def _header(data: bytes) -> dict[str, Any]:
    size = int.from_bytes(data[:8], "little")
    header: dict[str, Any] = json.loads(json.loads(data[8 : 8 + size])["__metadata__"]["kvq_cache"])
    if header["version"] != _VERSION:
        raise ValueError(f"its version is {header['version']!r}, not {_VERSION}")
    if not _SHAPE >= set(header["shape"]):
        raise ValueError(f"its shape has {sorted(set(header['shape']) - _SHAPE)}")
    return header


def load(
    data: bytes, layout: Layout, device: torch.device
) -> tuple[list[libkvq.Sequence], list[int], torch.Tensor | None]:
    """Fill a new layout; raise ValueError for bytes that `save` cannot have written."""
    try:
        tensors = load_tensors(data)
        header = _header(data)
        n, columns, shape = header["rows"], header["columns"], header["shape"]
        if not (isinstance(n, int) and isinstance(columns, int)) or n < 0 or columns < 0 or (n == 0 < columns):
            raise ValueError(f"it has {n!r} rows of {columns!r} columns")
        snapshots = [tensors[f"row.{i}"] for i in range(n)]
        present = tensors["present"].bool() if "present" in tensors else None
        if present is not None and list(present.shape) != [n, columns]:
            raise ValueError(f"present is {list(present.shape)}, not {[n, columns]}")
        if "inv_freq" in shape:
            shape["inv_freq"] = array("f", shape["inv_freq"])
        shape["shapes"] = [libkvq.LayerShape(**one) for one in shape.get("shapes", [])]
        layout.create(shape, device)
        rows = [layout.cache().load_sequence(snapshot.numpy().tobytes()) for snapshot in snapshots]
        tokens = [columns] * n if present is None else present.sum(dim=1).tolist()
        for i, (row, expected) in enumerate(zip(rows, tokens)):
            attending = set(range(layout.n_layers)) - set(layout.recurrent)
            if any(row.length(layer) != expected for layer in attending):
                raise ValueError(f"row {i} does not have {expected} tokens in every layer")
    except libkvq.KvqError:
        raise
    except (SafetensorError, KeyError, TypeError, AttributeError, UnicodeDecodeError, ValueError) as error:
        raise ValueError(f"not a saved KvqCache: {error}") from error
    return rows, [columns] * layout.n_layers, present
