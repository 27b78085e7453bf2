"""Names of cache dtypes and of the backend in vLLM's tables."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import torch

from kvmm.calibration.file import FILE_NAME
from kvmm.errors import KVMMError

_CPU = "kvmm.vllm.cpu_backend.KVMMCpuBackend"
_CUDA = "kvmm.vllm.cuda_backend.KVMMCudaBackend"


def register_names(dtypes: Sequence[str]) -> None:
    """Extend vLLM's tables; see :func:`kvmm.vllm.register`."""
    try:
        from pydantic.dataclasses import rebuild_dataclass
        from vllm.config import CacheConfig, cache
        from vllm.engine.arg_utils import EngineArgs
        from vllm.model_executor.layers.attention import Attention
        from vllm.model_executor.model_loader import default_loader
        from vllm.platforms import current_platform
        from vllm.utils.torch_utils import STR_DTYPE_TO_TORCH_DTYPE
        from vllm.v1.attention import selector
        from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend
        from vllm.v1.kv_cache_interface import FullAttentionSpec

        if not {"state_content_bytes", "head_size_v"} & {field.name for field in dataclasses.fields(FullAttentionSpec)}:
            raise ImportError("a layer cannot say how many bytes a slot has")
    except ImportError as error:
        raise KVMMError(f"kvmm's plug-in does not fit this vLLM ({error}); docs/vllm.md names those it fits.") from None
    if dtypes[0] in STR_DTYPE_TO_TORCH_DTYPE:
        return
    STR_DTYPE_TO_TORCH_DTYPE.update(dict.fromkeys(dtypes, torch.uint8))
    (field,) = (f for f in dataclasses.fields(CacheConfig) if f.name == "cache_dtype")
    names = Literal[(*get_args(field.type), *dtypes)]  # type: ignore[valid-type]
    cache.CacheDType = selector.CacheDType = names
    CacheConfig.__annotations__["cache_dtype"] = names
    field.type = names
    rebuild_dataclass(CacheConfig, force=True)
    for f in dataclasses.fields(EngineArgs):
        if f.name == "kv_cache_dtype":
            f.type = names
    register_backend(AttentionBackendEnum.CUSTOM, _CPU if current_platform.is_cpu() else _CUDA)
    if current_platform.is_cpu():
        # This platform takes one backend whatever is asked for; kvmm's is that one unless the dtype is kvmm's.
        register_backend(AttentionBackendEnum.CPU_ATTN, _CPU)
    _size_slots_by_layer(Attention)
    _leave_calibrations(default_loader)


def _size_slots_by_layer(attention: Any) -> None:
    """Let every layer's slots have the bytes that its calibration asks for: backends are asked without the layer."""
    given = attention.get_kv_cache_spec

    def get_kv_cache_spec(self: Any, vllm_config: Any) -> Any:
        from kvmm.vllm.layers import layer_spec

        return layer_spec(self, given(self, vllm_config), vllm_config)

    attention.get_kv_cache_spec = get_kv_cache_spec


def _leave_calibrations(loader: Any) -> None:
    """Let a calibration file lie in a model's folder: without an index all files of tensors there are weights."""
    given = loader.filter_duplicate_safetensors_files

    def filter_duplicate_safetensors_files(files: list[str], *arguments: Any) -> list[str]:
        return given([file for file in files if Path(file).name != FILE_NAME], *arguments)

    loader.filter_duplicate_safetensors_files = filter_duplicate_safetensors_files


__all__ = ["register_names"]
