"""What the backends of all devices share: a layer's slots, what vLLM is told of them, and what they cannot do."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from vllm.config import VllmConfig, get_current_vllm_config
from vllm.model_executor.models.utils import extract_layer_index
from vllm.v1.attention.backend import AttentionImpl, AttentionType
from vllm.v1.kv_cache_interface import FullAttentionSpec

from kvmm.calibration import read_calibration
from kvmm.calibration.file import FILE_NAME
from kvmm.errors import KVMMError
from kvmm.vllm.batch import has_drafter, sized
from kvmm.vllm.dtypes import BLOCK_SIZE, DTYPES, dtype_codec
from kvmm.vllm.slots import LayerSlots

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
    module.impl.take(slots)
    return sized(spec, slots.nbytes)


class SlotsImpl(AttentionImpl):
    """An attention layer over slots: what it refuses, and how it comes by its slots."""

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
        given |= {"shared layers": kv_sharing_target_layer_name, "learned sinks": sinks is not None}
        given["attention that is not a decoder's"] = attn_type if attn_type != AttentionType.DECODER else None
        self._config = get_current_vllm_config()
        given["speculative decoding with a drafter"] = has_drafter(self._config)
        for what, value in given.items():
            if value:
                raise KVMMError(f"{kv_cache_dtype}: {what} is not supported.")
        self.num_heads, self.head_size, self.num_kv_heads = num_heads, head_size, num_kv_heads
        self.scale, self.kv_cache_dtype = float(scale), kv_cache_dtype
        self._found: LayerSlots | None = None

    def take(self, slots: LayerSlots) -> None:
        """Use these slots from now on; vLLM asks for the bytes of a layer before it first runs it with a cache."""
        self._found = slots

    def slots_of(self, layer: Any) -> LayerSlots:
        """The slots of the layer."""
        if self._found is None:
            self.take(layer_slots(self._config, extract_layer_index(layer.layer_name)))
        assert self._found is not None
        return self._found


__all__ = ["SlotsImpl", "calibration_path", "layer_slots", "layer_spec"]
