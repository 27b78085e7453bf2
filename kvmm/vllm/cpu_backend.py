"""vLLM's attention over slots of codes on a CPU: decoding in C where there is a compiler, everything else in torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from vllm.config import VllmConfig, get_current_vllm_config
from vllm.v1.attention.backend import AttentionMetadataBuilder, CommonAttentionMetadata
from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

from kvmm.kernels.slots import MAX_NEW, Rows
from kvmm.vllm.dtypes import BLOCK_SIZE, DTYPES
from kvmm.vllm.layers import SlotsImpl


@dataclass
class CpuMetadata:
    """One batch: ``query_start`` and ``lengths`` of the sequences on the host, their blocks int ``[n, m]``, and the
    ``rows`` of the sequences that have but a few new tokens."""

    query_start: list[int]
    lengths: list[int]
    blocks: torch.Tensor
    rows: Rows | None


class CpuMetadataBuilder(AttentionMetadataBuilder[CpuMetadata]):
    """What attention has to know of a batch."""

    def __init__(self, kv_cache_spec: Any, layer_names: list[str], vllm_config: VllmConfig, device: torch.device):
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)

    def build(
        self, common_prefix_len: int, common_attn_metadata: CommonAttentionMetadata, fast_build: bool = False
    ) -> CpuMetadata:
        """The metadata of a batch."""
        common = common_attn_metadata
        starts, lengths = common.query_start_loc.tolist(), common.seq_lens.tolist()
        return CpuMetadata(starts, lengths, common.block_table_tensor, Rows.of(starts, lengths))


class KVMMCpuImpl(SlotsImpl):
    """Writes slots, and attends to them.

    New tokens of a call are read exactly by one another; what is in slots is read from its codes.
    """

    def do_kv_cache_update(
        self, layer: Any, key: torch.Tensor, value: torch.Tensor, kv_cache: torch.Tensor, slot_mapping: torch.Tensor
    ) -> None:
        """Code new keys and values ``[T, H, D]`` into the slots ``slot_mapping`` int64 ``[T]``."""
        count = slot_mapping.shape[0]
        slots = self.slots_of(layer)
        slots.write(kv_cache.view(torch.uint8), slot_mapping.long(), key[:count], value[:count])

    def forward(
        self,
        layer: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        attn_metadata: CpuMetadata | None,
        output: torch.Tensor,
        output_scale: torch.Tensor | None = None,
        output_block_scale: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """``output`` ``[T, H_q, D]`` or ``[T, H_q * D]``, filled for the tokens of the batch."""
        if attn_metadata is None:
            return output
        slots, cache, out = (
            self.slots_of(layer),
            kv_cache.view(torch.uint8),
            output.view(-1, self.num_heads, self.head_size),
        )
        starts, rows = attn_metadata.query_start, attn_metadata.rows
        done = 0
        if rows is not None:
            found = slots.attend_rows(query, key, value, cache, attn_metadata.blocks, rows, self.scale)
            if found is not None:
                out[rows.token] = found.to(out.dtype)
                done = MAX_NEW
        for row, length in enumerate(attn_metadata.lengths):
            start, stop = starts[row], starts[row + 1]
            if stop - start <= done:
                continue
            past = length - (stop - start)
            blocks = attn_metadata.blocks[row, : -(-past // BLOCK_SIZE)].long()
            run = slice(start, stop)
            found = slots.attend(query[run], key[run], value[run], cache, blocks, past, self.scale)
            out[run] = found.to(out.dtype)
        return output


class KVMMCpuBackend(CPUAttentionBackend):
    """The backend of the CPU, which is vLLM's own unless the cache dtype is kvmm's."""

    supported_kv_cache_dtypes: ClassVar[list[str]] = [*CPUAttentionBackend.supported_kv_cache_dtypes, *DTYPES]

    @staticmethod
    def _asked() -> bool:
        return get_current_vllm_config().cache_config.cache_dtype in DTYPES

    @staticmethod
    def get_impl_cls() -> type:
        """The class that attends."""
        return KVMMCpuImpl if KVMMCpuBackend._asked() else CPUAttentionBackend.get_impl_cls()

    @staticmethod
    def get_builder_cls() -> type:
        """The class that describes a batch."""
        return CpuMetadataBuilder if KVMMCpuBackend._asked() else CPUAttentionBackend.get_builder_cls()


__all__ = ["KVMMCpuBackend", "KVMMCpuImpl"]
