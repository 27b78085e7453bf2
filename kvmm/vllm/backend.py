"""vLLM's attention over slots of codes: decoding in C where there is a compiler, everything else in torch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

import torch
from vllm.config import VllmConfig, get_current_vllm_config
from vllm.model_executor.models.utils import extract_layer_index
from vllm.v1.attention.backend import (
    AttentionImpl,
    AttentionMetadataBuilder,
    AttentionType,
    CommonAttentionMetadata,
)
from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend
from vllm.v1.kv_cache_interface import FullAttentionSpec

from kvmm.calibration import read_calibration
from kvmm.calibration.file import FILE_NAME
from kvmm.errors import KVMMError
from kvmm.kernels.slots import MAX_NEW, Rows
from kvmm.vllm.dtypes import DTYPES, dtype_codec
from kvmm.vllm.slots import LayerSlots

BLOCK_SIZE = 128  # of the first token of each the slots keep an exact copy
OPTION = "kvmm_calibration"  # in --additional-config


def calibration_path(config: VllmConfig) -> Path:
    """The calibration file of the model that vLLM serves.

    Raises:
        KVMMError: if there is none.
    """
    named = (config.additional_config or {}).get(OPTION)
    path = Path(named) if named else Path(config.model_config.model) / FILE_NAME
    if not path.is_file():
        raise KVMMError(
            f"{config.cache_config.cache_dtype} needs a calibration file, and there is no {path}: make one with "
            f"`kvmm calibrate --model {config.model_config.model} --data FILE.txt --out {path}`, or name another in "
            f'--additional-config \'{{"{OPTION}": "FILE"}}\'.'
        )
    return path


@lru_cache(maxsize=1024)
def _slots(path: Path, changed: int, layer: int, codec: str, bits: float, dtype: torch.dtype) -> LayerSlots:
    return LayerSlots(read_calibration(path), layer, codec, bits, BLOCK_SIZE, dtype)


def layer_slots(config: VllmConfig, layer: int) -> LayerSlots:
    """The slots of a layer in the cache dtype that was asked for.

    Raises:
        KVMMError: there is no calibration, or it has no such layer.
    """
    path, codec = calibration_path(config), dtype_codec(config.cache_config.cache_dtype)
    assert codec is not None
    return _slots(path, path.stat().st_mtime_ns, layer, *codec, config.model_config.dtype)


def layer_spec(module: Any, spec: Any, config: VllmConfig) -> Any:
    """What vLLM is to know of an attention layer's cache; ``spec`` itself unless the dtype is kvmm's.

    Raises:
        KVMMError: for a layer that cannot be coded.
    """
    if spec is None or config.cache_config.cache_dtype not in DTYPES:
        return spec
    slots = layer_slots(config, extract_layer_index(module.layer_name))
    if not isinstance(spec, FullAttentionSpec):
        raise KVMMError(f"{config.cache_config.cache_dtype}: layers with a sliding window are not supported.")
    if (spec.num_kv_heads, spec.head_size) != (slots.key.heads, slots.key.dim):
        raise KVMMError(
            f"The calibration is of {slots.key.heads} heads of {slots.key.dim} channels and the model has "
            f"{spec.num_kv_heads} of {spec.head_size} in a process: make it for this model; tensor parallelism is not "
            "supported."
        )
    if spec.block_size != BLOCK_SIZE:
        raise KVMMError(f"{config.cache_config.cache_dtype} needs --block-size {BLOCK_SIZE}, not {spec.block_size}.")
    return replace(spec, state_content_bytes=slots.nbytes)


@dataclass
class KVMMMetadata:
    """One batch: ``query_start`` and ``lengths`` of the sequences on the host, their blocks int ``[n, m]``, and the
    ``rows`` of the sequences that have but a few new tokens."""

    query_start: list[int]
    lengths: list[int]
    blocks: torch.Tensor
    rows: Rows | None


class KVMMMetadataBuilder(AttentionMetadataBuilder[KVMMMetadata]):
    """What attention has to know of a batch."""

    def __init__(self, kv_cache_spec: Any, layer_names: list[str], vllm_config: VllmConfig, device: torch.device):
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)

    def build(
        self, common_prefix_len: int, common_attn_metadata: CommonAttentionMetadata, fast_build: bool = False
    ) -> KVMMMetadata:
        """The metadata of a batch."""
        common = common_attn_metadata
        starts, lengths = common.query_start_loc.tolist(), common.seq_lens.tolist()
        return KVMMMetadata(starts, lengths, common.block_table_tensor, Rows.of(starts, lengths))


class KVMMAttentionImpl(AttentionImpl):
    """Writes slots, and attends to them.

    New tokens of a call are read exactly by one another; what is in slots is read from its codes.
    """

    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int,
        alibi_slopes: list[float] | None = None,
        sliding_window: int | None = None,
        kv_cache_dtype: str = "auto",
        logits_soft_cap: float | None = None,
        attn_type: str = AttentionType.DECODER,
        kv_sharing_target_layer_name: str | None = None,
        sinks: torch.Tensor | None = None,
        **_: Any,
    ):
        given = {"alibi": alibi_slopes, "a sliding window": sliding_window, "a soft cap of logits": logits_soft_cap}
        given |= {"shared layers": kv_sharing_target_layer_name, "learned sinks": sinks}
        given["attention that is not a decoder's"] = attn_type if attn_type != AttentionType.DECODER else None
        for what, value in given.items():
            if value:
                raise KVMMError(f"{kv_cache_dtype}: {what} is not supported.")
        self.num_heads, self.head_size, self.num_kv_heads = num_heads, head_size, num_kv_heads
        self.scale, self.kv_cache_dtype = float(scale), kv_cache_dtype
        self._config = get_current_vllm_config()
        self._found: LayerSlots | None = None

    def _slots_of(self, layer: Any) -> LayerSlots:
        if self._found is None:
            self._found = layer_slots(self._config, extract_layer_index(layer.layer_name))
        return self._found

    def do_kv_cache_update(
        self, layer: Any, key: torch.Tensor, value: torch.Tensor, kv_cache: torch.Tensor, slot_mapping: torch.Tensor
    ) -> None:
        """Code new keys and values ``[T, H, D]`` into the slots ``slot_mapping`` int64 ``[T]``."""
        count = slot_mapping.shape[0]
        slots = self._slots_of(layer)
        slots.write(kv_cache.view(torch.uint8), slot_mapping.long(), key[:count], value[:count])

    def forward(
        self,
        layer: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        attn_metadata: KVMMMetadata | None,
        output: torch.Tensor,
        output_scale: torch.Tensor | None = None,
        output_block_scale: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """``output`` ``[T, H_q, D]`` or ``[T, H_q * D]``, filled for the tokens of the batch."""
        if attn_metadata is None:
            return output
        slots, cache, out = (
            self._slots_of(layer),
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


class KVMMAttentionBackend(CPUAttentionBackend):
    """The backend of the CPU, which is vLLM's own unless the cache dtype is kvmm's."""

    supported_kv_cache_dtypes: ClassVar[list[str]] = [*CPUAttentionBackend.supported_kv_cache_dtypes, *DTYPES]

    @staticmethod
    def _asked() -> bool:
        return get_current_vllm_config().cache_config.cache_dtype in DTYPES

    @staticmethod
    def get_impl_cls() -> type:
        """The class that attends."""
        return KVMMAttentionImpl if KVMMAttentionBackend._asked() else CPUAttentionBackend.get_impl_cls()

    @staticmethod
    def get_builder_cls() -> type:
        """The class that describes a batch."""
        return KVMMMetadataBuilder if KVMMAttentionBackend._asked() else CPUAttentionBackend.get_builder_cls()


__all__ = ["KVMMAttentionBackend", "KVMMAttentionImpl", "layer_spec"]
