"""Training of codebooks, centres and routers, planning, and tuning of a GPU's kernels.

What is here may change in a minor version.
"""

from __future__ import annotations

from ctypes import byref
from typing import Any, ClassVar, Dict, Generic, Optional, TypeVar, Union

from . import _native
from ._arrays import HOST, dense_of, dtype_code
from ._cache import cache_options
from ._centres import Centres
from ._context import Context
from ._errors import KvqArgumentError, assign, initialised
from ._handle import Handle, Trained, reading
from ._hooks import Progress, ProgressHook
from ._library import Function
from ._objects import Codebook, Router
from ._planning import Fusion, Plan, Solution, rates, solve
from ._policy import Policy
from ._text import encoded, value_of
from ._tuning import load_tuning, save_tuning, tune

__all__ = [
    "CentresTrainer",
    "CodebookTrainer",
    "Fusion",
    "Plan",
    "RouterTrainer",
    "Solution",
    "load_tuning",
    "rates",
    "save_tuning",
    "solve",
    "tune",
]


Made = TypeVar("Made", bound=Trained)


class _Trainer(Handle, Generic[Made]):
    """Common to all trainers."""

    _add: ClassVar[Function]
    _run: ClassVar[Function]
    _result: ClassVar[Function]
    _made: Any  # the class of the result
    _heads: Dict[str, int]  # of the tensors of a text
    _head_dim: int

    def _add_text(self, layer: int, dtype: Optional[str], *tensors: Any) -> None:
        """Add tensors `[tokens, heads, head_dim]` of one text, in host memory; None is none."""
        tokens: Optional[int] = None
        codes, views = set(), []
        for (name, heads), x in zip(self._heads.items(), tensors):
            views.append(None if x is None else dense_of(name, x, (tokens, heads, self._head_dim), None, HOST))
            if views[-1] is not None:
                tokens = views[-1].shape[0]
                codes.add(dtype_code(name, views[-1], dtype))
        if tokens is None or len(codes) != 1:
            raise KvqArgumentError("%s must be arrays of one element type" % " and ".join(self._heads))
        addresses = [None if view is None else view.address for view in views]
        with self._alone() as trainer:
            self._call(self._add, trainer, layer, tokens, *addresses, codes.pop())

    def _train(self, share: Any, progress: Optional[ProgressHook]) -> None:
        with Progress(progress) as hook, self._alone() as trainer:
            self._call(self._run, trainer, share, hook, None)

    def result(self) -> Made:
        """What has been trained so far: the layers finished by ``run``."""
        made: Made = self._made.__new__(self._made)
        with self._shared() as trainer:
            made._create(self._hooks, self._result, trainer)
        return made


class _LayerTrainer(_Trainer[Made]):
    """Common to trainers of keys and values of one layer after another."""

    def add(self, layer: int, k: Any, v: Any, dtype: Optional[str] = None) -> None:
        """Add tokens to a layer.

        :param k: keys before RoPE ``[tokens, kv_heads, head_dim]``, contiguous, in host memory; None if nothing is
            trained for keys.
        :param v: values, or None if nothing is trained for values.
        :param dtype: "bf16" where arrays of uint16 hold bfloat16.
        """
        self._add_text(layer, dtype, k, v)

    def run(self, layer: int, progress: Optional[ProgressHook] = None) -> None:
        """Train one layer on the tokens added to it, and drop them. `progress` as for ``Matrix.quantize``."""
        self._train(layer, progress)


class CodebookTrainer(_LayerTrainer[Codebook]):
    """Trains codebooks from keys and values that an engine computed on some texts.

    For every text, for every layer: ``add``; for every layer: ``run``; then ``result``. Layers are independent: where
    memory is short, add and run a few at a time. It works on the context's device, but
    trains networks of values on the host.

    :param key_stages: 0 … 64, 0: no codes for keys.
    :param key_codes: of a stage, a power of two, 2 … 256.
    :param key_group: a divisor of head_dim / 2; 0: head_dim / 2.
    :param key_norms: what shares a norm, "head" or "layer".
    :param value_bits: 0, 1 or 2, 0: no codes for values.
    :param value_scope: what shares a code, "layer" or "head".
    :param key_rounds: rounds of joint refinement; 0: the library's choice.
    :param value_rounds: rounds of least squares, or of 50 steps of the network each; 0: the library's choice.
    :param value_method: "least_squares" or "network".
    :param max_bytes: limit on tokens kept and work space; 0: only the context's.
    :param note: where the codebooks come from, for example.
    :param scales: scales of channels, complete, that the cache of the codebooks will have as its `centres`: added keys
        and values are scaled by them. None: as they are.
    """

    _new = _native.kvq_codebook_trainer
    _destroy = _native.kvq_codebook_trainer_destroy
    _add = _native.kvq_codebook_trainer_add
    _run = _native.kvq_codebook_trainer_run
    _result = _native.kvq_codebook_trainer_result
    _made = Codebook

    def __init__(
        self,
        context: Context,
        n_layers: int,
        kv_heads: int,
        head_dim: int,
        rope: Union[str, int] = "half",
        key_stages: int = 11,
        key_codes: int = 64,
        key_group: int = 0,
        key_norms: Union[str, int] = "head",
        value_bits: int = 1,
        value_scope: Union[str, int] = "layer",
        key_rounds: int = 0,
        value_rounds: int = 0,
        value_method: Union[str, int] = "least_squares",
        seed: int = 1,
        model_id: int = 0,
        max_bytes: int = 0,
        note: str = "",
        scales: Optional[Centres] = None,
    ) -> None:
        options = initialised(_native.kvq_codebook_trainer_options, n_layers=n_layers, kv_heads=kv_heads)
        assign(options, head_dim=head_dim, value_bits=value_bits, note=encoded("note", note))
        assign(options, key_stages=key_stages, key_codes=key_codes, key_group=key_group)
        assign(options, key_rounds=key_rounds, value_rounds=value_rounds)
        assign(options, seed=seed, model_id=model_id, max_bytes=max_bytes)
        options.rope = value_of(_native.kvq_rope, "rope", rope)
        options.key_norms = value_of(_native.kvq_scope, "key_norms", key_norms)
        options.value_scope = value_of(_native.kvq_scope, "value_scope", value_scope)
        options.value_method = value_of(_native.kvq_value_method, "value_method", value_method)
        self._heads, self._head_dim = {"k": kv_heads, "v": kv_heads}, head_dim
        Context._given("context", context)
        with reading(context, Centres._given_or_none("scales", scales)) as (pointer, options.scales):
            self._create(context._hooks, _native.kvq_codebook_trainer_create, pointer, byref(options))

    def resume(self, codebook: Codebook) -> None:
        """Take over finished layers of an earlier, unfinished result."""
        with Codebook._given("codebook", codebook)._shared() as other, self._alone() as trainer:
            self._call(_native.kvq_codebook_trainer_resume, trainer, other)


class CentresTrainer(_LayerTrainer[Centres]):
    """Finds scales of channels and centres, from keys and values that an engine computed on some texts.

    For every text, for every layer: ``add``; for every layer: ``run``; then ``result``. Layers are independent: where
    memory is short, add and run a few at a time. It works on the context's device. Scales without centres need no text:
    ``add_weights`` in place of ``add``.

    :param key_centres: of a head, 0 … 256; 1: the mean, 0: none for keys.
    :param value_centres: the same for values.
    :param rounds: of k-means over all tokens, at most; 0: the library's choice.
    :param max_bytes: limit on tokens kept and work space; 0: only the context's.
    :param note: where the centres come from, for example.
    :param key_scales: find scales of keys.
    :param value_scales: find scales and offsets of values.
    :param fold: scales to fold into weights, see ``Centres.read_scales``, rather than for caches.
    :param powers_of_two: scales that round nothing.
    :param rotary_dim: as in ``Cache``, for scales of keys; so are `rope_base` and `inv_freq`.
    """

    _new = _native.kvq_centres_trainer
    _destroy = _native.kvq_centres_trainer_destroy
    _add = _native.kvq_centres_trainer_add
    _run = _native.kvq_centres_trainer_run
    _result = _native.kvq_centres_trainer_result
    _made = Centres

    def __init__(
        self,
        context: Context,
        n_layers: int,
        kv_heads: int,
        head_dim: int,
        rope: Union[str, int] = "half",
        key_centres: int = 256,
        value_centres: int = 256,
        rounds: int = 0,
        seed: int = 1,
        model_id: int = 0,
        max_bytes: int = 0,
        note: str = "",
        key_scales: bool = False,
        value_scales: bool = False,
        fold: bool = False,
        powers_of_two: bool = False,
        rotary_dim: int = 0,
        rope_base: float = 10000.0,
        inv_freq: Any = None,
    ) -> None:
        options = initialised(_native.kvq_centres_trainer_options, n_layers=n_layers, kv_heads=kv_heads)
        assign(options, head_dim=head_dim, key_centres=key_centres, value_centres=value_centres, rounds=rounds)
        assign(options, seed=seed, model_id=model_id, max_bytes=max_bytes, note=encoded("note", note))
        assign(options, key_scales=int(key_scales), value_scales=int(value_scales), fold=int(fold))
        assign(options, powers_of_two=int(powers_of_two), rotary_dim=rotary_dim)
        options.rope, options.rope_base = value_of(_native.kvq_rope, "rope", rope), rope_base
        if inv_freq is not None:
            frequencies = dense_of("inv_freq", inv_freq, [(rotary_dim or head_dim) // 2], "f32", HOST)
            options.inv_freq = frequencies.address
        self._heads, self._head_dim = {"k": kv_heads, "v": kv_heads}, head_dim
        with Context._given("context", context)._shared() as pointer:
            self._create(context._hooks, _native.kvq_centres_trainer_create, pointer, byref(options))

    def add_queries(self, layer: int, q: Any, dtype: Optional[str] = None) -> None:
        """Count queries for a layer's scales of keys; only sums are kept.

        :param q: queries before RoPE ``[tokens, q_heads, head_dim]``, contiguous, in host memory.
        :param dtype: "bf16" where an array of uint16 holds bfloat16.
        """
        view = dense_of("q", q, (None, None, self._head_dim), None, HOST)
        tokens, q_heads = view.shape[:2]
        code = dtype_code("q", view, dtype)
        with self._alone() as trainer:
            self._call(_native.kvq_centres_trainer_add_queries, trainer, layer, tokens, q_heads, view.address, code)

    def add_weights(
        self,
        layer: int,
        q_heads: int,
        q_proj: Any = None,
        k_proj: Any = None,
        v_proj: Any = None,
        o_proj: Any = None,
        q_bias: Any = None,
        k_bias: Any = None,
        v_bias: Any = None,
        input_norm: Any = None,
        q_norm: Any = None,
        k_norm: Any = None,
        dtype: Optional[str] = None,
    ) -> None:
        """Take what a layer's weights say about its channels; replaces what earlier ones said.

        Arrays are contiguous, of one element type, in host memory; None where there is none.

        :param q_proj: as checkpoints have it, ``[q_heads * head_dim, hidden_size]``.
        :param k_proj: ``[kv_heads * head_dim, hidden_size]``; needed unless tokens are added. So is `v_proj`.
        :param o_proj: ``[hidden_size, q_heads * head_dim]``.
        :param q_bias: ``[q_heads * head_dim]``; `k_bias` and `v_bias`: ``[kv_heads * head_dim]``.
        :param input_norm: weights of the norm before the projections, ``[hidden_size]``.
        :param q_norm: weights of a norm of each head's queries, ``[head_dim]``; `k_norm`: of its keys.
        :param dtype: "bf16" where arrays of uint16 hold bfloat16.
        """
        queries, keys = q_heads * self._head_dim, self._heads["k"] * self._head_dim
        hidden: Optional[int] = None  # what the first array says
        weights = initialised(_native.kvq_attention_weights, q_heads=q_heads)
        codes, views = set(), []
        for name, x, rows in (("q_proj", q_proj, queries), ("k_proj", k_proj, keys), ("v_proj", v_proj, keys)):
            if x is not None:
                views.append((name, dense_of(name, x, (rows, hidden), None, HOST)))
                hidden = views[-1][1].shape[1]
        if o_proj is not None:
            views.append(("o_proj", dense_of("o_proj", o_proj, (hidden, queries), None, HOST)))
            hidden = views[-1][1].shape[0]
        for name, x, length in (
            ("q_bias", q_bias, queries),
            ("k_bias", k_bias, keys),
            ("v_bias", v_bias, keys),
            ("input_norm", input_norm, hidden),
            ("q_norm", q_norm, self._head_dim),
            ("k_norm", k_norm, self._head_dim),
        ):
            if x is not None:
                views.append((name, dense_of(name, x, (length,), None, HOST)))
        for name, view in views:
            codes.add(dtype_code(name, view, dtype))
            setattr(weights, name, view.address)
        if hidden is None or len(codes) != 1:
            raise KvqArgumentError("projections must be given, and all arrays must be of one element type")
        assign(weights, hidden_size=hidden)
        weights.dtype = codes.pop()
        with self._alone() as trainer:
            self._call(_native.kvq_centres_trainer_add_weights, trainer, layer, byref(weights))


class RouterTrainer(_Trainer[Router]):
    """Trains routers from queries, keys and values that an engine computed on some texts.

    For every text, for every layer: ``add``; then ``run`` and ``result``.

    The first parameters are those of the ``Cache`` that the routers are for.

    :param policy: with a router's experts, those with more bits first.
    :param method: "label" or "paper".
    :param sharing: successive layers that share decisions.
    :param epochs: passes over the keys; 0: the library's choice.
    :param mean_bits: for labels, which need it: the wanted mean of true bits of a scalar over routed pages.
    :param loss_weight: for the paper's method: weight of the model's loss against that of memory.
    :param max_bytes: limit on keys kept and work space; 0: only the context's.
    """

    _new = _native.kvq_router_trainer
    _destroy = _native.kvq_router_trainer_destroy
    _add = _native.kvq_router_trainer_add
    _run = _native.kvq_router_trainer_run
    _result = _native.kvq_router_trainer_result
    _made = Router

    def __init__(
        self,
        context: Context,
        n_layers: int,
        q_heads: int,
        kv_heads: int,
        head_dim: int,
        policy: Union[str, Policy],
        rope: Union[str, int] = "half",
        rotary_dim: int = 0,
        rope_base: float = 10000.0,
        inv_freq: Any = None,
        scale: float = 0.0,
        model_id: int = 0,
        codebook: Optional[Codebook] = None,
        method: Union[str, int] = "label",
        sharing: int = 3,
        epochs: int = 0,
        mean_bits: float = 0.0,
        loss_weight: float = 0.5,
        learning_rate: float = 3e-4,
        seed: int = 1,
        max_bytes: int = 0,
        note: str = "",
        centres: Optional[Centres] = None,
    ) -> None:
        heads = {"n_layers": n_layers, "q_heads": q_heads, "kv_heads": kv_heads, "head_dim": head_dim, "scale": scale}
        shape = cache_options(rope, inv_freq, **heads, rotary_dim=rotary_dim, rope_base=rope_base, model_id=model_id)
        options = initialised(_native.kvq_router_trainer_options, sharing=sharing, epochs=epochs, seed=seed)
        assign(options, method=value_of(_native.kvq_router_method, "method", method), max_bytes=max_bytes)
        assign(options, mean_bits=mean_bits, loss_weight=loss_weight, learning_rate=learning_rate)
        options.note = encoded("note", note)
        self._heads, self._head_dim = {"q": q_heads, "k": kv_heads, "v": kv_heads}, head_dim
        Context._given("context", context)
        used = Policy(context, policy) if isinstance(policy, str) else Policy._given("policy", policy)
        given = Codebook._given_or_none("codebook", codebook), Centres._given_or_none("centres", centres)
        with reading(context, *given, used) as (pointer, shape.codebook, shape.centres, formats):
            function = _native.kvq_router_trainer_create
            self._create(context._hooks, function, pointer, byref(shape), formats, byref(options))

    def add(self, layer: int, q: Any, k: Any, v: Any, dtype: Optional[str] = None) -> None:
        """Add one text to a layer. Every layer needs the same texts in the same order.

        :param q: queries before RoPE ``[tokens, q_heads, head_dim]``, contiguous, in host memory; None is allowed for
            the paper's method.
        :param k: keys before RoPE ``[tokens, kv_heads, head_dim]``.
        :param v: values; None is allowed for the paper's method.
        :param dtype: "bf16" where arrays of uint16 hold bfloat16.
        """
        self._add_text(layer, dtype, q, k, v)

    def run(self, loss: float = 0.0, progress: Optional[ProgressHook] = None) -> None:
        """Train the routers of all layers on the texts added, and drop them.

        :param loss: for the paper's method: the model's mean negative log-likelihood of a token of the texts.
        """
        self._train(loss, progress)
