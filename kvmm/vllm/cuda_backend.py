"""vLLM's attention over slots of codes on CUDA: slots in Triton, prompts in FlashAttention.

Decoding steps run in CUDA graphs. The host reads nothing that is on the device, since what it has to know of a batch
vLLM has there already, but for two things: the lengths of sequences in a batch with prompts for which vLLM gives the
host no upper bound, and where sequences begin in prompts of float32, which FlashAttention does not read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from vllm.config import VllmConfig
from vllm.platforms import current_platform
from vllm.v1.attention.backend import (
    AttentionBackend,
    AttentionCGSupport,
    AttentionMetadataBuilder,
    CommonAttentionMetadata,
)
from vllm.v1.attention.backends import fa_utils
from vllm.v1.attention.backends.utils import split_decodes_and_prefills

from kvmm.errors import KVMMError
from kvmm.kernels.slots.triton import MAX_ROWS, TritonSlots
from kvmm.vllm.batch import Prompts, once, prompts
from kvmm.vllm.dtypes import BLOCK_SIZE, DTYPES
from kvmm.vllm.layers import SlotsImpl
from kvmm.vllm.slots import LayerSlots

_WORKSPACE = 16384  # tokens of decoded slots beside new ones, or what one sequence may have if that is more


def _workspace(config: VllmConfig) -> int:
    return max(_WORKSPACE, config.model_config.max_model_len)


@dataclass
class CudaMetadata:
    """One batch: first ``decodes`` sequences with one new token, then the prompts.

    Attributes:
        decodes: sequences.
        blocks: int32 ``[n, m]``, of each sequence in order.
        lengths: int32 ``[n]``, tokens with the new ones; 0 for a row without a sequence.
        prompts: the sequences after these.
    """

    decodes: int
    blocks: torch.Tensor
    lengths: torch.Tensor
    prompts: list[Prompts]


class CudaMetadataBuilder(AttentionMetadataBuilder[CudaMetadata]):
    """What attention has to know of a batch."""

    _cudagraph_support: ClassVar[AttentionCGSupport] = AttentionCGSupport.UNIFORM_SINGLE_TOKEN_DECODE

    def __init__(self, kv_cache_spec: Any, layer_names: list[str], vllm_config: VllmConfig, device: torch.device):
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        self._init_reorder_batch_threshold(1)
        self._limit = _workspace(vllm_config)

    def build(
        self, common_prefix_len: int, common_attn_metadata: CommonAttentionMetadata, fast_build: bool = False
    ) -> CudaMetadata:
        """The metadata of a batch; layers whose slots have other bytes ask for the same again."""
        return once(common_attn_metadata, self._build)

    def _build(self, common: CommonAttentionMetadata) -> CudaMetadata:
        decodes, others, *_ = split_decodes_and_prefills(common, decode_threshold=1)
        found: list[Prompts] = []
        if others:
            lengths = common.seq_lens_cpu_upper_bound
            lengths = common.seq_lens.cpu() if lengths is None else lengths
            found = prompts(
                common.query_start_loc_cpu.tolist(),
                lengths.tolist()[: common.num_reqs],
                common.query_start_loc,
                common.seq_lens,
                decodes,
                self._limit,
            )
        return CudaMetadata(decodes, common.block_table_tensor, common.seq_lens, found)

    def build_for_cudagraph_capture(self, common_attn_metadata: CommonAttentionMetadata) -> CudaMetadata:
        """The metadata of a batch of decoding steps that is captured, of short sequences so that it is quick."""
        made = self.build(0, common_attn_metadata)
        made.lengths.fill_(1)
        return made


class KVMMCudaImpl(SlotsImpl):
    """Writes slots, and attends to them.

    New tokens of a call are read exactly by one another; what is in slots is read from its codes.
    """

    _warm = False

    def __init__(self, *arguments: Any, **named: Any):
        super().__init__(*arguments, **named)
        if self.num_heads // self.num_kv_heads > MAX_ROWS:
            raise KVMMError(f"{self.kv_cache_dtype}: more than {MAX_ROWS} query heads a KV head are not supported.")
        self._triton: TritonSlots | None = None
        self._version = fa_utils.get_flash_attn_version(head_size=self.head_size)

    def take(self, slots: LayerSlots) -> None:
        """Use these slots from now on: their matrices go to the device, so that no graph has to make them."""
        if slots is self._found:
            return
        super().take(slots)
        self._triton = TritonSlots(slots.on(torch.device(current_platform.device_type, torch.cuda.current_device())))

    def _kernels(self, layer: Any) -> TritonSlots:
        if self._triton is None:
            self.slots_of(layer)
        assert self._triton is not None
        return self._triton

    def do_kv_cache_update(
        self, layer: Any, key: torch.Tensor, value: torch.Tensor, kv_cache: torch.Tensor, slot_mapping: torch.Tensor
    ) -> None:
        """Code new keys and values ``[T, H, D]`` into the slots ``slot_mapping`` int64 ``[T]``."""
        count = slot_mapping.shape[0]
        self._kernels(layer).write(kv_cache.view(torch.uint8), slot_mapping, key[:count], value[:count])

    def forward(
        self,
        layer: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        attn_metadata: CudaMetadata | None,
        output: torch.Tensor,
        output_scale: torch.Tensor | None = None,
        output_block_scale: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """``output`` ``[T, H_q, D]`` or ``[T, H_q * D]``, filled for the tokens of the batch."""
        out = output.view(-1, *query.shape[1:])
        self._warm_up(layer, query, key, value, kv_cache, out)
        if attn_metadata is None:  # while memory is measured, and when vLLM warms up
            if not kv_cache.numel():
                self._rows_of(_workspace(self._config), key, value)  # what prompts will need is measured too
            return output.fill_(0)
        kernels, cache = self._kernels(layer), kv_cache.view(torch.uint8)
        count = attn_metadata.decodes
        if count:
            kernels.attend(
                query[:count],
                key[:count],
                value[:count],
                cache,
                attn_metadata.blocks[:count],
                attn_metadata.lengths[:count],
                self.scale,
                out[:count],
            )
        for part in attn_metadata.prompts:
            new = part.tokens
            keys, values = key[new], value[new]
            if part.places is not None:
                blocks = attn_metadata.blocks[part.rows]
                keys, values = self._with_past(kernels, cache, blocks, part, keys, values)
            self._read(query[new], keys, values, part, out[new])
        return output

    def _warm_up(
        self,
        layer: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        out: torch.Tensor,
    ) -> None:
        """Compile the kernels in the first call with a cache, which vLLM makes before it serves."""
        if self._warm or not kv_cache.numel() or not len(query):
            return
        if query.is_cuda and torch.cuda.is_current_stream_capturing():
            return
        self._kernels(layer).warm_up(query, key, value, kv_cache.view(torch.uint8), self.scale, out)
        self._warm = True

    @staticmethod
    def _rows_of(count: int, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The workspace: so many rows ``[count, H, D]``, not filled, for keys and for values."""
        return key.new_empty(count, *key.shape[1:]), value.new_empty(count, *value.shape[1:])

    @staticmethod
    def _with_past(
        kernels: TritonSlots,
        cache: torch.Tensor,
        blocks: torch.Tensor,
        part: Prompts,
        key: torch.Tensor,
        value: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of whole sequences, ``[size, H, D]``: from slots, and behind those the new ones."""
        assert part.places is not None
        keys, values = KVMMCudaImpl._rows_of(part.size, key, value)
        kernels.decode(cache, blocks, part.past, part.key_starts, keys, values, part.max_past)
        keys.index_copy_(0, part.places, key)
        values.index_copy_(0, part.places, value)
        return keys, values

    def _read(
        self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, part: Prompts, out: torch.Tensor
    ) -> None:
        """Causal attention of the newest tokens of sequences, into ``out``."""
        if query.dtype != torch.float32 and hasattr(fa_utils, "flash_attn_varlen_func"):
            version = {} if self._version is None else {"fa_version": self._version}
            found = fa_utils.flash_attn_varlen_func(
                q=query,
                k=keys,
                v=values,
                max_seqlen_q=part.max_query,
                cu_seqlens_q=part.query_starts,
                max_seqlen_k=part.max_length,
                cu_seqlens_k=part.key_starts,
                softmax_scale=self.scale,
                causal=True,
                **version,
            )
            out.copy_(found)
            return
        # FlashAttention has no float32
        starts, ends = part.query_starts.tolist(), part.key_starts.tolist()
        for row in range(len(starts) - 1):
            news, all_of_it = slice(starts[row], starts[row + 1]), slice(ends[row], ends[row + 1])
            rows, columns = starts[row + 1] - starts[row], ends[row + 1] - ends[row]
            mask = torch.ones(rows, columns, dtype=torch.bool, device=query.device).tril(columns - rows)
            q, k, v = (x.transpose(0, 1)[None] for x in (query[news], keys[all_of_it], values[all_of_it]))
            found = torch.nn.functional.scaled_dot_product_attention(
                q, k, v, attn_mask=mask, scale=self.scale, enable_gqa=True
            )
            out[news] = found[0].transpose(0, 1)


class KVMMCudaBackend(AttentionBackend):
    """The backend of CUDA for kvmm's cache dtypes."""

    forward_includes_kv_cache_update: bool = False
    supported_dtypes: ClassVar[list[torch.dtype]] = [torch.float16, torch.bfloat16, torch.float32]
    supported_kv_cache_dtypes: ClassVar[list[str]] = list(DTYPES)

    @staticmethod
    def get_name() -> str:
        """Of vLLM's table."""
        return "CUSTOM"

    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec: Any = None) -> list[int]:
        """Tokens of a block."""
        return [BLOCK_SIZE]

    @classmethod
    def get_supported_head_sizes(cls) -> list[int]:
        """Channels of a head."""
        return [64, 128]

    @classmethod
    def supports_compute_capability(cls, capability: Any) -> bool:
        """From Ampere on."""
        return capability.major >= 8

    @staticmethod
    def get_kv_cache_shape(
        num_blocks: int, block_size: int, num_kv_heads: int, head_size: int, cache_dtype_str: str = "auto"
    ) -> tuple[int, ...]:
        """Of a layer's cache; ``head_size`` is a slot's bytes, as :func:`kvmm.vllm.batch.sized` has it."""
        return num_blocks, num_kv_heads, block_size, head_size

    @staticmethod
    def get_impl_cls() -> type[KVMMCudaImpl]:
        """The class that attends."""
        return KVMMCudaImpl

    @staticmethod
    def get_builder_cls() -> type[CudaMetadataBuilder]:
        """The class that describes a batch."""
        return CudaMetadataBuilder


__all__ = ["KVMMCudaBackend", "KVMMCudaImpl"]
