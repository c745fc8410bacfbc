"""What the library tells about its objects.

Made by bindings/generate/generate.py from include/kvq.h; edit that instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Tuple

from . import _native
from ._text import name_of, text

__all__ = [
    "CacheInfo",
    "CentresInfo",
    "CentresLayerInfo",
    "CodebookInfo",
    "CodebookLayerInfo",
    "ContextInfo",
    "DeviceInfo",
    "LayerInfo",
    "MatrixInfo",
    "PolicyInfo",
    "RouterGroupInfo",
    "RouterInfo",
    "Usage",
]


@dataclass(frozen=True)
class ContextInfo:
    """What a context runs on and uses."""

    device: str
    n_threads: int
    """0 when the caller's ``parallel_for`` hook is used."""
    backend: str
    """"cpu" or "cuda"."""
    isa: str
    """Instruction set in use, for example "avx512vnni" or "sm_90"."""
    bytes: int
    """Allocated now."""
    peak_bytes: int
    """Largest value of ``bytes`` so far."""
    max_bytes: int
    """The limit, 0 if none."""

    @classmethod
    def _of(cls, it: _native.kvq_context_info) -> ContextInfo:
        return cls(
            device=name_of(_native.kvq_device, it.device),
            n_threads=it.n_threads,
            backend=text(it.backend),
            isa=text(it.isa),
            bytes=it.bytes,
            peak_bytes=it.peak_bytes,
            max_bytes=it.max_bytes,
        )


@dataclass(frozen=True)
class DeviceInfo:
    """A device that contexts can be created on."""

    n_devices: int
    """Devices of this kind."""
    name: str
    """For example "NVIDIA H100 80GB HBM3"."""
    compute_capability: int
    """90 for 9.0."""
    driver_version: int
    """Newest CUDA version that the driver supports, 13000 for 13.0."""
    memory_bytes: int
    """Of the device."""

    @classmethod
    def _of(cls, it: _native.kvq_device_info) -> DeviceInfo:
        return cls(
            n_devices=it.n_devices,
            name=text(it.name),
            compute_capability=it.compute_capability,
            driver_version=it.driver_version,
            memory_bytes=it.memory_bytes,
        )


@dataclass(frozen=True)
class PolicyInfo:
    """What a host has to know of a policy."""

    eviction_budget: int
    """Tokens of a KV head that ``kvq_compress`` keeps; INT32_MAX: a share; 0: it evicts none."""
    eviction_window: int
    """Newest tokens that it always keeps, of every head."""

    @classmethod
    def _of(cls, it: _native.kvq_policy_info) -> PolicyInfo:
        return cls(
            eviction_budget=it.eviction_budget,
            eviction_window=it.eviction_window,
        )


@dataclass(frozen=True)
class CodebookInfo:
    """What codebooks are made for and how well they do. Errors are ‖x̂ − x‖² / ‖x‖² of training, averaged over the
    layers that are present; 0 for a side without codes.
    """

    n_layers: int
    layers_present: int
    """Fewer than ``n_layers``: training was not finished; no cache takes such codebooks."""
    kv_heads: int
    head_dim: int
    rope: str
    """How channels of a key pair up: ``KVQ_ROPE_HALF`` or ``KVQ_ROPE_INTERLEAVED``."""
    key_stages: int
    """R, 0: no codes for keys."""
    key_codes: int
    """Nc, of a stage."""
    key_group: int
    """g, successive pairs that share their indices."""
    key_norms: str
    """What shares a norm."""
    value_bits: int
    """Code bits of a value scalar, 0: no codes for values."""
    value_scope: str
    """What shares a code."""
    key_true_bits: float
    """Bits of a key scalar, codes and norms."""
    value_true_bits: float
    """Bits of a value scalar, codes and scales."""
    key_error: float
    value_error: float
    tokens: int
    """Trained on, the fewest of any layer."""
    seed: int
    """Of everything random in training."""
    model_id: int
    """As in kvq_cache_options."""
    bytes: int
    """Of the numbers, in memory."""
    note: str
    """Where the codebooks come from, as their trainer said."""

    @classmethod
    def _of(cls, it: _native.kvq_codebook_info) -> CodebookInfo:
        return cls(
            n_layers=it.n_layers,
            layers_present=it.layers_present,
            kv_heads=it.kv_heads,
            head_dim=it.head_dim,
            rope=name_of(_native.kvq_rope, it.rope),
            key_stages=it.key_stages,
            key_codes=it.key_codes,
            key_group=it.key_group,
            key_norms=name_of(_native.kvq_scope, it.key_norms),
            value_bits=it.value_bits,
            value_scope=name_of(_native.kvq_scope, it.value_scope),
            key_true_bits=it.key_true_bits,
            value_true_bits=it.value_true_bits,
            key_error=it.key_error,
            value_error=it.value_error,
            tokens=it.tokens,
            seed=it.seed,
            model_id=it.model_id,
            bytes=it.bytes,
            note=text(it.note),
        )


@dataclass(frozen=True)
class CodebookLayerInfo:
    """One layer of codebooks; see ``kvq_codebook_info``."""

    present: bool
    """If not, the layer is missing and everything below is 0."""
    tokens: int
    key_error: float
    value_error: float
    key_stage_errors: Tuple[float, ...]
    """The key error of a decoder that knows only the first stage, the first two, …: the last of ``key_stages`` is
    ``key_error``, then 0.
    """

    @classmethod
    def _of(cls, it: _native.kvq_codebook_layer_info) -> CodebookLayerInfo:
        return cls(
            present=it.present != 0,
            tokens=it.tokens,
            key_error=it.key_error,
            value_error=it.value_error,
            key_stage_errors=tuple(it.key_stage_errors),
        )


@dataclass(frozen=True)
class CentresInfo:
    """What centres are made for and how much they take away. Residuals are ‖x − c‖² / ‖x‖² of training, with the
    nearest centre c, averaged over the layers that are present; 0 for a side without centres.
    """

    n_layers: int
    layers_present: int
    """Fewer than ``n_layers``: training was not finished; no cache takes such centres."""
    kv_heads: int
    head_dim: int
    rope: str
    """Of the keys that follow; centres are before it."""
    key_centres: int
    """Of a head; 0: keys have none."""
    value_centres: int
    """Of a head; 0: values have none."""
    key_residual: float
    value_residual: float
    tokens: int
    """Trained on, the fewest of any layer."""
    seed: int
    """Of everything random in training."""
    model_id: int
    """As in kvq_cache_options."""
    bytes: int
    """Of the numbers, in memory."""
    note: str
    """Where the centres come from, as their trainer said."""

    @classmethod
    def _of(cls, it: _native.kvq_centres_info) -> CentresInfo:
        return cls(
            n_layers=it.n_layers,
            layers_present=it.layers_present,
            kv_heads=it.kv_heads,
            head_dim=it.head_dim,
            rope=name_of(_native.kvq_rope, it.rope),
            key_centres=it.key_centres,
            value_centres=it.value_centres,
            key_residual=it.key_residual,
            value_residual=it.value_residual,
            tokens=it.tokens,
            seed=it.seed,
            model_id=it.model_id,
            bytes=it.bytes,
            note=text(it.note),
        )


@dataclass(frozen=True)
class CentresLayerInfo:
    """One layer of centres; see ``kvq_centres_info``."""

    present: bool
    """If not, the layer is missing and everything below is 0."""
    tokens: int
    key_residual: float
    value_residual: float

    @classmethod
    def _of(cls, it: _native.kvq_centres_layer_info) -> CentresLayerInfo:
        return cls(
            present=it.present != 0,
            tokens=it.tokens,
            key_residual=it.key_residual,
            value_residual=it.value_residual,
        )


@dataclass(frozen=True)
class RouterInfo:
    """What routers are made for, and what they do on the pages that they were trained on."""

    n_layers: int
    kv_heads: int
    head_dim: int
    rope: str
    """Of the keys that follow; routers see them before."""
    sharing: int
    """Successive layers that share the decisions of the first of them."""
    groups: int
    """Of such layers; each has a network."""
    n_experts: int
    """Formats to choose among, 2 … ``KVQ_MAX_EXPERTS``."""
    method: str
    """It was trained with."""
    loss_weight: float
    """Of training by the paper's loss; 0 for labels."""
    mean_bits: float
    """True bits of a scalar, as pages are stored; the first and the open one not counted."""
    tolerance: float
    """Labels: the error of attention up to which a format was good enough for a page."""
    accuracy: float
    """Labels: the share of pages that get the format they were labelled with."""
    tokens: int
    """Trained on."""
    seed: int
    """Of everything random in training."""
    model_id: int
    """As in kvq_cache_options."""
    bytes: int
    """Of one network in a file."""
    experts: str
    """Names of the formats as in a policy, those with more bits first, separated by ", "."""
    note: str
    """Where the routers come from, as their trainer said."""

    @classmethod
    def _of(cls, it: _native.kvq_router_info) -> RouterInfo:
        return cls(
            n_layers=it.n_layers,
            kv_heads=it.kv_heads,
            head_dim=it.head_dim,
            rope=name_of(_native.kvq_rope, it.rope),
            sharing=it.sharing,
            groups=it.groups,
            n_experts=it.n_experts,
            method=name_of(_native.kvq_router_method, it.method),
            loss_weight=it.loss_weight,
            mean_bits=it.mean_bits,
            tolerance=it.tolerance,
            accuracy=it.accuracy,
            tokens=it.tokens,
            seed=it.seed,
            model_id=it.model_id,
            bytes=it.bytes,
            experts=text(it.experts),
            note=text(it.note),
        )


@dataclass(frozen=True)
class RouterGroupInfo:
    """One group of layers; see ``kvq_router_info``."""

    first_layer: int
    """Whose keys decide."""
    last_layer: int
    mean_bits: float
    """As in kvq_router_info, of these layers."""
    accuracy: float
    """As in kvq_router_info, of these layers."""
    shares: Tuple[float, ...]
    """Of the pages that each format gets; 0 beyond ``n_experts``."""

    @classmethod
    def _of(cls, it: _native.kvq_router_group_info) -> RouterGroupInfo:
        return cls(
            first_layer=it.first_layer,
            last_layer=it.last_layer,
            mean_bits=it.mean_bits,
            accuracy=it.accuracy,
            shares=tuple(it.shares),
        )


@dataclass(frozen=True)
class CacheInfo:
    """What a cache was made with, defaults filled in."""

    n_layers: int
    q_heads: int
    kv_heads: int
    head_dim: int
    rope: str
    rotary_dim: int
    """0 without RoPE."""
    scale: float
    sink: int
    """First pages of a list that stay FP16."""
    recent: int
    """Newest pages that stay FP16."""
    eviction_budget: int
    """As in kvq_policy_info."""
    eviction_window: int
    """As in kvq_policy_info."""
    max_bytes: int
    model_id: int

    @classmethod
    def _of(cls, it: _native.kvq_cache_info) -> CacheInfo:
        return cls(
            n_layers=it.n_layers,
            q_heads=it.q_heads,
            kv_heads=it.kv_heads,
            head_dim=it.head_dim,
            rope=name_of(_native.kvq_rope, it.rope),
            rotary_dim=it.rotary_dim,
            scale=it.scale,
            sink=it.sink,
            recent=it.recent,
            eviction_budget=it.eviction_budget,
            eviction_window=it.eviction_window,
            max_bytes=it.max_bytes,
            model_id=it.model_id,
        )


@dataclass(frozen=True)
class LayerInfo:
    """How a layer stores what is sealed."""

    n_formats: int
    """1, or those that a router chooses among."""
    formats: str
    """Their names, keys/values where these differ, separated by ", "."""

    @classmethod
    def _of(cls, it: _native.kvq_layer_info) -> LayerInfo:
        return cls(
            n_formats=it.n_formats,
            formats=text(it.formats),
        )


@dataclass(frozen=True)
class Usage:
    """Where the bytes are. All sizes are bytes as allocated, padding and bookkeeping included."""

    scalars: int
    """Key and value scalars held: 2 · head_dim · slots over all layers and KV heads."""
    sealed_bytes: int
    """Pages in their final compressed format."""
    fp16_bytes: int
    """FP16 pages: open, recent, sink, or of an fp16 policy."""
    metadata_bytes: int
    """Page records, positions, page lists, the sequence objects."""
    workspace_bytes: int
    """Work space of kvq_attend and the cache object; 0 when asked for one sequence."""
    total_bytes: int
    """Sum of the four."""
    plain_fp16_bytes: int
    """2 · scalars: what an uncompressed FP16 cache needs."""
    sealed_pages: int
    fp16_pages: int
    shared_pages: int
    """Pages that more than one sequence holds. For one sequence they are counted in full."""
    bits_per_scalar: float
    """8 · (sealed + fp16 + metadata bytes) / scalars; 0 when empty."""

    @classmethod
    def _of(cls, it: _native.kvq_usage) -> Usage:
        return cls(
            scalars=it.scalars,
            sealed_bytes=it.sealed_bytes,
            fp16_bytes=it.fp16_bytes,
            metadata_bytes=it.metadata_bytes,
            workspace_bytes=it.workspace_bytes,
            total_bytes=it.total_bytes,
            plain_fp16_bytes=it.plain_fp16_bytes,
            sealed_pages=it.sealed_pages,
            fp16_pages=it.fp16_pages,
            shared_pages=it.shared_pages,
            bits_per_scalar=it.bits_per_scalar,
        )


@dataclass(frozen=True)
class MatrixInfo:
    """What a matrix is."""

    has_bias: bool
    rows: int
    columns: int
    bytes: int
    """Of codes, scales, signs and bias."""
    bits: float
    """8 · bytes / (rows · columns), without the bias: true bits of a weight."""
    error: float
    """‖Ŵ − W‖² / ‖W‖² when it was quantized; 0 for a matrix of zeros."""
    proxy_error: float
    """tr(E·H·Eᵀ) / tr(W·H·Wᵀ) with E = Ŵ − W and the Hessian as given; 0 without one."""
    scheme: str
    """As in qp_quantize_options."""

    @classmethod
    def _of(cls, it: _native.qp_matrix_info) -> MatrixInfo:
        return cls(
            has_bias=it.has_bias != 0,
            rows=it.rows,
            columns=it.columns,
            bytes=it.bytes,
            bits=it.bits,
            error=it.error,
            proxy_error=it.proxy_error,
            scheme=text(it.scheme),
        )


@dataclass(frozen=True)
class PlanFusionInfo:
    """How many groupings there are."""

    n_members: int
    n_groupings: int
    """0: no grouping has a time."""

    @classmethod
    def _of(cls, it: _native.kvq_plan_fusion_info) -> PlanFusionInfo:
        return cls(
            n_members=it.n_members,
            n_groupings=it.n_groupings,
        )


@dataclass(frozen=True)
class PlanGroupingInfo:
    """One grouping."""

    bytes: float
    seconds: float
    loss: float
    groups: Tuple[int, ...]
    """Of each member, the group that it is multiplied in; then 0."""
    schemes: Tuple[int, ...]
    """Of each member, the number of its scheme; then 0."""

    @classmethod
    def _of(cls, it: _native.kvq_plan_grouping_info) -> PlanGroupingInfo:
        return cls(
            bytes=it.bytes,
            seconds=it.seconds,
            loss=it.loss,
            groups=tuple(it.groups),
            schemes=tuple(it.schemes),
        )


@dataclass(frozen=True)
class PlanInfo:
    """What is in a plan."""

    n_matrices: int
    has_policy: bool
    bytes: float
    seconds: float
    loss: float
    note: str

    @classmethod
    def _of(cls, it: _native.kvq_plan_info) -> PlanInfo:
        return cls(
            n_matrices=it.n_matrices,
            has_policy=it.has_policy != 0,
            bytes=it.bytes,
            seconds=it.seconds,
            loss=it.loss,
            note=text(it.note),
        )


@dataclass(frozen=True)
class PlanMatrixInfo:
    """One matrix of a plan."""

    name: str
    scheme: str

    @classmethod
    def _of(cls, it: _native.kvq_plan_matrix_info) -> PlanMatrixInfo:
        return cls(
            name=text(it.name),
            scheme=text(it.scheme),
        )
