"""vLLM's interfaces: a spec of blocks, metadata of a step, and a layer's attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Optional

import torch
from vllm.config import VllmConfig, get_current_vllm_config
from vllm.logger import init_logger
from vllm.platforms import current_platform
from vllm.v1.attention.backend import (
    AttentionBackend,
    AttentionImpl,
    AttentionMetadataBuilder,
    AttentionType,
    CommonAttentionMetadata,
    MultipleOf,
)
from vllm.v1.core.single_type_kv_cache_manager import FullAttentionManager
from vllm.v1.kv_cache_interface import AttentionSpec, FullAttentionSpec, KVCacheLayout, SlidingWindowSpec
from vllm.v1.kv_cache_spec_registry import register_kv_cache_spec

from ._model import Heads, Limits, Model, Run, Unsupported, bytes_of_blocks
from ._settings import Settings
from ._tails import PAGE, TailTable

logger = init_logger("vllm.kvq")


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


@dataclass
class KvqMetadata:
    """A step: its batch is planned in `run`."""

    run: Run
    n_tokens: int


class KvqBuilder(AttentionMetadataBuilder[KvqMetadata]):
    def __init__(
        self, kv_cache_spec: AttentionSpec, layer_names: list[str], vllm_config: VllmConfig, device: torch.device
    ) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        modules = vllm_config.compilation_config.static_forward_context.values()
        self._layers = [module for module in modules if isinstance(getattr(module, "impl", None), KvqImpl)]
        self._model: Model = self._layers[0].impl.model
        if len(layer_names) != self._model.n_layers or len(self._layers) != self._model.n_layers:
            _refuse("models whose layers vLLM puts into several groups of blocks")
        self._table = TailTable(self._model.n_tails, self._model.block_tokens)
        self._run: Optional[Run] = None
        self._first: Optional[torch.Tensor] = None

    def build(
        self, common_prefix_len: int, common_attn_metadata: CommonAttentionMetadata, fast_build: bool = False
    ) -> KvqMetadata:
        batch = common_attn_metadata
        if batch.causal is not True or batch.mm_req_doc_ranges or batch.rswa_prefix_lens is not None:
            _refuse("attention that is not causal, or has a prefix of its own")
        run = self._current_run()
        run.follow_stream()
        n = batch.num_reqs
        run.plan.batch(
            batch.query_start_loc[: n + 1],
            batch.seq_lens[:n],
            batch.block_table_tensor[:n],
            self._tails(batch) if run.has_tails else None,
            n_tokens=batch.num_actual_tokens,
            max_queries=batch.max_query_len,
            max_length=batch.max_seq_len,
        )
        return KvqMetadata(run, batch.num_actual_tokens)

    def _tails(self, batch: CommonAttentionMetadata) -> torch.Tensor:
        n = batch.num_reqs
        if batch.req_idx is not None:  # The newer runner numbers requests, from when they start until they stop.
            return torch.from_numpy(batch.req_idx[:n].astype("int32")).to(self.device)
        lengths = batch.seq_lens[:n].tolist()
        ends = batch.query_start_loc_cpu[: n + 1].tolist()
        starts = [length - (ends[i + 1] - ends[i]) for i, length in enumerate(lengths)]
        blocks = batch.block_table_tensor[:n].cpu().numpy()
        tails = self._table.assign(starts, lengths, lambda row, place: int(blocks[row, place]))
        return torch.tensor(tails, dtype=torch.int32, device=self.device)

    def _current_run(self) -> Run:
        """The pool over the blocks that the layers have now."""
        first = self._layers[0].kv_cache
        if self._run is None or first is not self._first:
            blocks = [bytes_of_blocks(layer.kv_cache) for layer in self._layers]
            self._run = Run(self._model, blocks, [layer.impl.tails for layer in self._layers], self.device)
            self._first = first
            self._report(len(blocks[0]))
        return self._run

    def _report(self, n_blocks: int) -> None:
        model = self._model
        tails = model.n_tails * model.tail_bytes
        logger.info(
            "kvq: %s, %d blocks of %d tokens, %d bytes a layer; besides them %d tails of %.1f MiB in all",
            model.settings.name,
            n_blocks,
            model.block_tokens,
            model.block_bytes,
            model.n_tails if tails else 0,
            tails / 2**20,
        )
        unused = sum(model.block_bytes - layout.block_bytes for layout in model.layouts)
        if unused > 0:
            share = 100 * unused / (model.block_bytes * model.n_layers)
            logger.warning("kvq: %.0f %% of the blocks is empty, since vLLM gives all layers the same", share)


class KvqImpl(AttentionImpl[KvqMetadata]):
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
        self.tails: Optional[torch.Tensor] = None

    def process_weights_after_loading(self, act_dtype: torch.dtype) -> None:
        # Now, so that a GPU's tails count as memory of the model when vLLM sizes its blocks.
        self.tails = self.model.new_tails(self.index, torch.device(current_platform.device_type))

    def forward(
        self,
        layer: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        attn_metadata: Optional[KvqMetadata],
        output: torch.Tensor,
        output_scale: Optional[torch.Tensor] = None,
        output_block_scale: Optional[torch.Tensor] = None,
    ) -> torch.Tensor:
        if attn_metadata is None:  # vLLM warms up, without blocks
            return output
        n = attn_metadata.n_tokens
        attn_metadata.run.plan.extend(
            self.index,
            key[:n],
            value[:n],
            query[:n],
            output=output[:n],
            sliding_window=self.sliding_window,
            logit_softcap=self.logit_softcap,
            sinks=self.sinks,
        )
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
    limits = Limits(scheduler.max_num_seqs, scheduler.max_num_batched_tokens, config.model_config.max_model_len)
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
    if getattr(parallel, "enable_dbo", False):
        _refuse("dual batch overlap")
