"""vLLM's interfaces: a spec of blocks, metadata of a step, and a layer's attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Optional

import torch
from vllm.config import VllmConfig, get_current_vllm_config
from vllm.platforms import current_platform
from vllm.v1.attention.backend import (
    AttentionBackend,
    AttentionCGSupport,
    AttentionImpl,
    AttentionMetadataBuilder,
    AttentionType,
    CommonAttentionMetadata,
    MultipleOf,
)
from vllm.v1.core.single_type_kv_cache_manager import FullAttentionManager
from vllm.v1.kv_cache_interface import AttentionSpec, FullAttentionSpec, KVCacheLayout, SlidingWindowSpec
from vllm.v1.kv_cache_spec_registry import register_kv_cache_spec

from ._model import Heads, Limits, Model, Unsupported
from ._settings import Settings
from ._steps import Step, Steps
from ._tails import PAGE


def _refuse(what: str) -> None:
    raise Unsupported("kvq-vllm does not support %s" % what)


@register_kv_cache_spec(manager_class=FullAttentionManager, uniform_type_base_spec=FullAttentionSpec)
@dataclass(frozen=True, kw_only=True)
class KvqSpec(FullAttentionSpec):
    """Blocks of opaque bytes: vLLM sees one state a block."""


class KvqBackend(AttentionBackend):
    forward_includes_kv_cache_update = True
    supported_dtypes: ClassVar[list[torch.dtype]] = [torch.float16, torch.bfloat16, torch.float32]
    supported_kv_cache_dtypes: ClassVar[list[str]] = ["auto", "float16", "bfloat16"]

    @staticmethod
    def get_name() -> str:
        # vLLM looks names up among those of its own backends.
        return "CPU_ATTN" if current_platform.is_cpu() else "CUSTOM"

    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec: Optional[AttentionSpec] = None) -> list[Any]:
        # A block of kvq's is not cut into smaller ones.
        return [MultipleOf(PAGE)] if kv_cache_spec is None else [kv_cache_spec.block_size]

    @classmethod
    def supports_head_size(cls, head_size: int) -> bool:
        return head_size % 8 == 0 and 8 <= head_size <= 512

    @classmethod
    def supported_kv_cache_layouts(cls) -> tuple[KVCacheLayout, ...]:
        return (KVCacheLayout.LBHNC,)

    @classmethod
    def supports_sliding_window(cls) -> bool:
        return True

    @classmethod
    def supports_sink(cls) -> bool:
        return True

    @classmethod
    def supports_kv_connector(cls) -> bool:
        return False

    @classmethod
    def customize_spec(cls, spec: AttentionSpec) -> AttentionSpec:
        model = Model.newest
        if isinstance(spec, KvqSpec) or model is None:
            return spec
        if not isinstance(spec, (FullAttentionSpec, SlidingWindowSpec)):
            _refuse("layers with a %s" % type(spec).__name__)
        return KvqSpec(
            block_size=model.block_tokens,
            num_kv_heads=spec.num_kv_heads,
            head_size=spec.head_size,
            dtype=torch.uint8,
            num_head_slots=1,
            tokens_per_state=model.block_tokens,
            state_content_bytes=model.block_bytes,
        )

    @staticmethod
    def get_impl_cls() -> type[KvqImpl]:
        return KvqImpl

    @staticmethod
    def get_builder_cls() -> type[KvqBuilder]:
        return KvqBuilder


class KvqBuilder(AttentionMetadataBuilder[Step]):
    # A step is planned outside of the graph, in memory that the graph reads.
    _cudagraph_support: ClassVar[AttentionCGSupport] = AttentionCGSupport.UNIFORM_SINGLE_TOKEN_DECODE

    def __init__(
        self, kv_cache_spec: AttentionSpec, layer_names: list[str], vllm_config: VllmConfig, device: torch.device
    ) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        modules = vllm_config.compilation_config.static_forward_context.values()
        layers = [module for module in modules if isinstance(getattr(module, "impl", None), KvqImpl)]
        model: Model = layers[0].impl.model
        if len(layer_names) != model.n_layers or len(layers) != model.n_layers:
            _refuse("models whose layers vLLM puts into several groups of blocks")
        self._steps = Steps(model, lambda: [layer.kv_cache for layer in layers], device)

    def build(
        self, common_prefix_len: int, common_attn_metadata: CommonAttentionMetadata, fast_build: bool = False
    ) -> Step:
        batch = common_attn_metadata
        if batch.causal is not True or batch.mm_req_doc_ranges or batch.rswa_prefix_lens is not None:
            _refuse("attention that is not causal, or has a prefix of its own")
        return self._steps.plan(batch)


class KvqImpl(AttentionImpl[Step]):
    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: Optional[int] = None,
        alibi_slopes: Optional[list[float]] = None,
        sliding_window: Optional[int] = None,
        kv_cache_dtype: str = "auto",
        logits_soft_cap: Optional[float] = None,
        attn_type: str = AttentionType.DECODER,
        kv_sharing_target_layer_name: Optional[str] = None,
        sinks: Optional[torch.Tensor] = None,
    ) -> None:
        self.num_heads, self.head_size, self.scale = num_heads, head_size, float(scale)
        self.num_kv_heads = num_kv_heads or num_heads
        self.kv_cache_dtype = kv_cache_dtype
        self.sinks = sinks
        config = get_current_vllm_config()
        if alibi_slopes is not None:
            _refuse("ALiBi")
        if attn_type != AttentionType.DECODER:
            _refuse("attention of the type %s" % getattr(attn_type, "value", attn_type))
        if kv_cache_dtype not in KvqBackend.supported_kv_cache_dtypes:
            _refuse("--kv-cache-dtype %s: KVQ_VLLM_POLICY chooses the format" % kv_cache_dtype)
        if kv_sharing_target_layer_name is not None:
            _refuse("layers that read the cache of another layer")
        self.sliding_window = sliding_window or 0
        self.logit_softcap = logits_soft_cap or 0.0
        self.model = model_of(config, Heads(num_heads, self.num_kv_heads, head_size, self.scale))
        self.index = self.model.add_layer()

    def process_weights_after_loading(self, act_dtype: torch.dtype) -> None:
        # Now, so that a GPU's memory counts as the model's when vLLM sizes its blocks.
        self.model.allocate(torch.device(current_platform.device_type))
        if self.sinks is not None:
            self.sinks = self.sinks.detach().float()

    def forward(
        self,
        layer: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        attn_metadata: Optional[Step],
        output: torch.Tensor,
        output_scale: Optional[torch.Tensor] = None,
        output_block_scale: Optional[torch.Tensor] = None,
    ) -> torch.Tensor:
        if attn_metadata is None:  # vLLM warms up, without blocks
            return output.fill_(0)
        attn_metadata.attend(self.index, query, key, value, output, self.sliding_window, self.logit_softcap, self.sinks)
        return output


def model_of(config: VllmConfig, heads: Heads) -> Model:
    """The model whose layers vLLM is making: the newest one, unless that is another engine's."""
    owner = config.compilation_config.static_forward_context
    model = Model.newest
    if model is not None and model.owner is owner:
        if model.heads != heads:
            _refuse("models whose layers differ in heads, channels or scale: %s after %s" % (heads, model.heads))
        return model
    _check(config)
    settings = Settings.of_environment()
    if settings is None:
        raise RuntimeError("KVQ_VLLM_POLICY was unset after vLLM had loaded kvq-vllm")
    scheduler = config.scheduler_config
    # Graphs have as many tokens as they were captured with.
    tokens = max(scheduler.max_num_batched_tokens, config.compilation_config.max_cudagraph_capture_size or 0)
    limits = Limits(scheduler.max_num_seqs, tokens, config.model_config.max_model_len)
    # One for each request, if vLLM numbers them; those found by their blocks need twice as many: see TailTable.
    n_tails = limits.sequences * (1 if config.use_v2_model_runner else 2)
    cache = config.cache_config
    model = Model.newest = Model(settings, heads, limits, n_tails, lambda: int(cache.block_size), owner)
    if cache.user_specified_block_size:  # else vLLM chooses it when it has made the layers
        _ = model.block_tokens
    return model


def _check(config: VllmConfig) -> None:
    """Refuse what changes a step in ways that kvq's calls do not follow."""
    parallel = config.parallel_config
    if config.speculative_config is not None:
        _refuse("speculative decoding")
    if config.kv_transfer_config is not None:
        _refuse("KV connectors")
    if parallel.decode_context_parallel_size > 1 or getattr(parallel, "prefill_context_parallel_size", 1) > 1:
        _refuse("context parallelism")
    if getattr(parallel, "enable_dbo", False) or getattr(parallel, "use_ubatching", False):
        _refuse("dual batch overlap")
