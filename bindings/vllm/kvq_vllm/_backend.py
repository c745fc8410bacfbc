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

from ._model import Layer, Limits, Model, Run, address, bytes_of_blocks
from ._settings import Settings
from ._tails import PAGE, TailTable

logger = init_logger("vllm.kvq")


class Unsupported(ValueError):
    """What this backend does not do; the message names it."""


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
        if isinstance(spec, KvqSpec) or model is None or not isinstance(spec, (FullAttentionSpec, SlidingWindowSpec)):
            return spec
        if isinstance(spec, SlidingWindowSpec) and spec.block_size == 1:
            return spec  # Asked for the size of a token, before blocks have theirs.
        block_tokens = model.block_tokens
        size = model.block_bytes(block_tokens)
        return KvqSpec(
            block_size=block_tokens,
            num_kv_heads=spec.num_kv_heads,
            head_size=spec.head_size,
            dtype=torch.uint8,
            num_head_slots=1,
            tokens_per_state=block_tokens,
            state_content_bytes=size,
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
        layers = vllm_config.compilation_config.static_forward_context
        self._layers = [layers[name] for name in layers if isinstance(getattr(layers[name], "impl", None), KvqImpl)]
        self._model: Model = self._layers[0].impl.model
        if len(layer_names) != len(self._layers):
            _refuse("models whose layers vLLM puts into several groups of blocks")
        self._block_tokens = int(kv_cache_spec.block_size)
        self._table = TailTable(self._model.n_tails, self._block_tokens)
        self._run: Optional[Run] = None
        self._address = 0

    def build(
        self, common_prefix_len: int, common_attn_metadata: CommonAttentionMetadata, fast_build: bool = False
    ) -> KvqMetadata:
        batch = common_attn_metadata
        if batch.causal is not True:
            _refuse("attention that is not causal")
        run = self._current_run()
        n = batch.num_reqs
        starts = batch.query_start_loc[: n + 1]
        run.plan.batch(
            starts,
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
        if batch.req_idx is not None:  # The newer runner tells which request each row is.
            return torch.from_numpy(batch.req_idx[:n].astype("int32")).to(self.device)
        lengths = batch.seq_lens[:n].tolist()
        query_starts = batch.query_start_loc_cpu[: n + 1].tolist()
        before = [length - (query_starts[i + 1] - query_starts[i]) for i, length in enumerate(lengths)]
        blocks = batch.block_table_tensor[:n].cpu().numpy()
        tails = self._table.assign(before, lengths, lambda row, place: int(blocks[row, place]))
        return torch.tensor(tails, dtype=torch.int32, device=self.device)

    def _current_run(self) -> Run:
        caches = [layer.kv_cache for layer in self._layers]
        if self._run is None or self._address != address(caches[0]):
            blocks = [
                None if layer.impl.layer.pages_of_layer is not None else bytes_of_blocks(cache)
                for layer, cache in zip(self._layers, caches, strict=True)
            ]
            tails = [layer.impl.tails for layer in self._layers]
            self._run = Run(self._model, self._block_tokens, blocks, tails, self.device)
            self._address = address(caches[0])
        return self._run


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
        context = config.compilation_config.static_forward_context
        self.model = model_of(config, context)
        self.layer = Layer(
            q_heads=num_heads,
            kv_heads=self.num_kv_heads,
            head_dim=head_size,
            scale=self.scale,
            sliding_window=sliding_window or 0,
            logit_softcap=logits_soft_cap or 0.0,
            pages_of_layer=(
                None if kv_sharing_target_layer_name is None else context[kv_sharing_target_layer_name].impl.index
            ),
        )
        self.index = self.model.add(self.layer)
        self.tails: Optional[torch.Tensor] = None

    def process_weights_after_loading(self, act_dtype: torch.dtype) -> None:
        # Now, so that a GPU's tails count as memory of the model when vLLM sizes its blocks.
        self.tails = self.model.new_tails(self.index, self.model.block_tokens, torch.device(current_platform.device_type))

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
        plan, n = attn_metadata.run.plan, attn_metadata.n_tokens
        options: dict[str, Any] = {
            "output": output[:n],
            "sliding_window": self.layer.sliding_window,
            "logit_softcap": self.layer.logit_softcap,
            "sinks": self.sinks,
        }
        if self.layer.pages_of_layer is None:
            plan.extend(self.index, key[:n], value[:n], query[:n], **options)
        else:
            plan.attend(self.index, query[:n], **options)
        return output


def model_of(config: VllmConfig, context: dict[str, Any]) -> Model:
    """The model whose layers vLLM is making: the newest one, unless that is another engine's."""
    model = Model.newest
    if model is not None and model.owner is context:
        return model
    _check(config)
    settings = Settings.of_environment()
    if settings is None:
        raise RuntimeError("KVQ_VLLM_POLICY was unset after vLLM had loaded kvq-vllm")
    scheduler = config.scheduler_config
    limits = Limits(scheduler.max_num_seqs, scheduler.max_num_batched_tokens, config.model_config.max_model_len)
    # Rows of requests that vLLM numbers need one each, those found by their blocks twice as many: see TailTable.
    n_tails = limits.sequences * (1 if config.use_v2_model_runner else 2)
    model = Model.newest = Model(settings, limits, n_tails, int(config.cache_config.block_size), context)
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
    block_tokens = config.cache_config.block_size
    if block_tokens % PAGE != 0:
        raise Unsupported(
            "kvq-vllm needs blocks of a multiple of %d tokens, --block-size is %d" % (PAGE, block_tokens)
        )
