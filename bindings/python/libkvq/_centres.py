"""Centres, with their scales as arrays."""

from __future__ import annotations

from ctypes import c_float
from typing import NamedTuple, Optional

from . import _native, _objects


class LayerScales(NamedTuple):
    """Scales of one layer's channels, ``[kv_heads, head_dim]`` of float32; None where centres have none of that side.

    ``numpy.asarray`` makes arrays of them.
    """

    key_scales: Optional[memoryview[float]]
    """Of keys; both channels of a RoPE pair have the same."""
    value_scales: Optional[memoryview[float]]
    """Of values."""
    value_offsets: Optional[memoryview[float]]
    """What is subtracted from values before scaling."""


class Centres(_objects.Centres):
    __doc__ = _objects.Centres.__doc__

    def read_scales(self, layer: int) -> LayerScales:
        """Read the scales of one layer, for example to fold them into weights.

        Scales are in (0, 1]: only their ratios within a head mean anything.
        """
        info = self.describe()
        shape = (info.kv_heads, info.head_dim)
        present = (info.key_scales, info.value_scales, info.value_scales)
        numbers = [(c_float * (shape[0] * shape[1]))() if one else None for one in present]
        with self._shared() as centres:
            self._call(_native.kvq_centres_read_scales, centres, layer, *numbers)
        views = [None if one is None else memoryview(one).cast("B").cast("f", shape) for one in numbers]
        return LayerScales(*views)
