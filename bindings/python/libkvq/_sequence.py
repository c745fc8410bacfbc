"""Sequences: the pages of one conversation."""

from __future__ import annotations

from ctypes import addressof, byref, c_uint64, sizeof
from typing import TYPE_CHECKING, Any, List, NamedTuple, Optional, Union

from . import _native
from ._arrays import bytes_of, empty_host, view_of
from ._errors import call, initialised
from ._handle import Handle, reading
from ._infos import RecodeInfo, Usage
from ._library import Function
from ._objects import SequenceMethods
from ._policy import PolicyOrText, policy_of

if TYPE_CHECKING:
    from ._cache import Cache


class Decoded(NamedTuple):
    """Decoded slots of one KV head."""

    k: Any
    """Keys ``[slots, key_dim]`` as attention reads them, after RoPE; float32."""
    v: Any
    """Values ``[slots, value_dim]``, float32."""
    positions: Any
    """Original positions ``[slots]``, int32."""


class Compressed(NamedTuple):
    """Result of an eviction."""

    kept: Any
    """Number of tokens that each head holds now, ``[n_layers, kv_heads]``, int32."""
    bytes_freed: int
    """Decrease in the bytes of the sequence."""


class Sequence(SequenceMethods):
    """The pages of one conversation, from ``Cache.sequence``, ``Cache.load`` or ``Sequence.fork``.

    Calls that append to, change or close it wait for each other and for calls that attend to it. Any number of threads
    may attend to it at once, unless the policy evicts.
    """

    _new = _native.kvq_sequence
    _destroy = _native.kvq_sequence_destroy
    _instead_of_copying = "fork() makes a sequence with the same tokens, save() a snapshot"

    cache: Cache
    """The cache that the sequence belongs to."""

    @classmethod
    def _made(cls, cache: Cache, function: Function, *arguments: Any) -> Sequence:
        """Wrap the handle that a function creates. The cache is in use."""
        result = cls.__new__(cls)
        result.cache = cache
        result._create(cache._hooks, function, *arguments)
        with cache._sequences_lock:
            cache._sequences.add(result)
        return result

    @classmethod
    def _all_loaded(cls, cache: Cache, n: int, address: int, size: int, options: Any) -> List[Sequence]:
        """Wrap the handles that ``kvq_cache_load`` creates. The cache is in use."""
        kind: Any = _native.kvq_sequence * n
        handles = kind()
        made: List[Sequence] = []
        try:
            try:
                call(_native.kvq_cache_load, cache._pointer, address, size, handles, n, byref(options))
            finally:
                for handle in handles:
                    if handle.value:  # also if a hook has raised
                        one = cls.__new__(cls)
                        one.cache = cache
                        Handle.__init__(one, _native.kvq_sequence(handle.value), cache._hooks)
                        made.append(one)
                if cache._hooks is not None:
                    cache._hooks.finish()
        except BaseException:
            for one in made:  # which the traceback would keep alive
                one._finalizer()
            raise
        with cache._sequences_lock:
            cache._sequences.update(made)
        return made

    def append(self, layer: int, k: Any, v: Any = None, positions: Any = None, dtype: Optional[str] = None) -> None:
        """Append tokens to one layer: all of them or none. See ``Cache.append``."""
        self.cache._append(layer, (self,), None, None, k, v, positions, dtype)

    def put_state(self, layer: int, tokens: int, data: Union[bytes, bytearray, memoryview]) -> None:
        """Keep a copy of the state of a layer after the first `tokens` tokens, for recurrent layers of hybrid models.

        Forks share it, ``save`` writes it with the pages, and ``truncate`` drops those after more tokens: where it
        drops tokens, each layer that has states needs one there, which ``find_states`` finds.

        :param layer: any layer of the model.
        :param tokens: at least 1; a state of the same layer after as many tokens is replaced.
        :param data: the state, as contiguous bytes in host memory.
        """
        address, size, _view = bytes_of("data", data)
        with self.cache._shared() as cache, self._alone() as sequence:
            self._call(_native.kvq_sequence_put_state, cache, sequence, layer, tokens, address, size)

    def fork(self) -> Sequence:
        """Create a sequence that starts with all tokens of this one. Pages are shared until either changes them."""
        with self.cache._shared() as cache, self._shared() as parent:
            return Sequence._made(self.cache, _native.kvq_sequence_fork, cache, parent)

    def recode(self, policy: PolicyOrText = None) -> None:
        """Give the sequence another policy than its cache's: its pages are written anew in that policy's formats.

        So a conversation takes less memory from here on, without processing its tokens again. Forks made before keep
        theirs. Of the policy, the formats, `sink` and `recent` count; eviction stays the cache's. All pages change or
        none, unless a device fails.

        :param policy: a ``Policy``, or its text; None: the cache's.
        """
        used = policy_of(self.cache.context, policy)
        with self.cache._shared() as cache, self._alone() as sequence, reading(used) as (formats,):
            self._call(_native.kvq_sequence_recode, cache, sequence, formats)

    def predict_recode(self, policy: PolicyOrText = None) -> RecodeInfo:
        """What ``recode`` takes. With `needed_bytes` free it succeeds if the host has the memory."""
        used = policy_of(self.cache.context, policy)
        info = _native.kvq_recode_info(sizeof(_native.kvq_recode_info))
        with self.cache._shared() as cache, self._alone() as sequence, reading(used) as (formats,):
            self._call(_native.kvq_sequence_predict_recode, cache, sequence, formats, byref(info))
        return RecodeInfo._of(info)

    def decode(self, layer: int, kv_head: int, begin: int = 0, n: Optional[int] = None) -> Decoded:
        """Decode `n` slots from `begin` on (None: all), for inspection and tests. Not optimised."""
        with self.cache._shared() as cache, self._shared() as sequence:
            count = self.slots(layer, kv_head) - begin if n is None else n
            info = self.cache._layer(layer)
            rows = max(count, 0)
            result = Decoded(
                empty_host((rows, info.key_dim), "f32"),
                empty_host((rows, info.value_dim), "f32"),
                empty_host((rows,), "i32"),
            )
            addresses = [view_of(name, one).address for name, one in result._asdict().items()]
            self._call(_native.kvq_sequence_decode, cache, sequence, layer, kv_head, begin, count, *addresses)
        return result

    def compress(self, budget: Optional[int] = None) -> Compressed:
        """Evict tokens as the policy says, scored by queries that ``attend`` has observed.

        :param budget: tokens that a KV head keeps on average; None: the policy's budget.
        """
        info = self.cache._info
        kept, freed = empty_host((info.n_layers, info.kv_heads), "i32"), c_uint64()
        options = initialised(_native.kvq_compress_options, budget=0 if budget is None else budget)
        options.kept, options.bytes_freed = view_of("kept", kept).address, addressof(freed)
        with self.cache._shared() as cache, self._alone() as sequence:
            self._call(_native.kvq_compress, cache, sequence, byref(options))
        return Compressed(kept, freed.value)

    def usage(self) -> Usage:
        """Bytes used by this sequence; shared pages are counted in full."""
        with self._shared() as sequence:
            return self.cache._described(_native.kvq_cache_usage, _native.kvq_usage, Usage._of, sequence)
