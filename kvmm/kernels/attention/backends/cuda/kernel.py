"""The split kernel of decode attention in CUDA C++ (``attention.cu``), for NVIDIA GPUs from compute capability 8.0.

An optional fast path: :func:`supports` says whether it takes a case, and where it does not (another GPU, no NVRTC,
a layout without a variant) the Triton kernel with the same contract does. NVRTC, which comes with torch, compiles a
variant when it is first asked for; neither a compiler nor headers are needed.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from kvmm.errors import KVMMError
from kvmm.kernels.attention.backends.cuda import nvrtc
from kvmm.kernels.attention.backends.cuda.arguments import arguments_of, header_text
from kvmm.kernels.attention.backends.cuda.compiled import Compiled
from kvmm.kernels.attention.backends.cuda.inputs import Query, ResidualInputs, ResidualSplits, device_of
from kvmm.kernels.attention.backends.cuda.splits import grid_of
from kvmm.kernels.attention.backends.cuda.variant import Variant, variant_of

_SOURCE = Path(__file__).with_name("attention.cu")
_INCLUDED = ("device.cuh", "dense_columns.cuh", "half_products.cuh")
HEADER = "variant.cuh"


@lru_cache(maxsize=256)
def _fitted(variant: Variant, device: torch.device, units: int) -> Variant | None:
    return variant.fitted(*shared_memory(device), units / multiprocessors(device))


def multiprocessors(device: torch.device) -> int:
    """How many multiprocessors a GPU has."""
    return torch.cuda.get_device_properties(device).multi_processor_count


@lru_cache(maxsize=16)
def shared_memory(device: torch.device) -> tuple[int, int]:
    """Bytes of shared memory that a block may ask for and that a multiprocessor has."""
    properties = torch.cuda.get_device_properties(device)
    block = getattr(properties, "shared_memory_per_block_optin", 99 * 1024)
    return block, getattr(properties, "shared_memory_per_multiprocessor", block + 1024)


@lru_cache(maxsize=16)
def available(device: torch.device) -> bool:
    """Whether ``device`` is an NVIDIA GPU that the kernel runs on and NVRTC and the driver can be loaded."""
    if device.type != "cuda" or torch.version.hip is not None or torch.version.cuda is None:
        return False
    if torch.cuda.get_device_capability(device) < (8, 0):
        return False
    return nvrtc.nvrtc() is not None and nvrtc.driver() is not None


@lru_cache(maxsize=16)
def supports_pdl(device: torch.device) -> bool:
    """Whether kernels may start on ``device`` before those in front of them have ended (from Hopper on)."""
    if device.type != "cuda" or torch.version.hip is not None:
        return False
    return torch.cuda.get_device_capability(device) >= (9, 0) and nvrtc.supports_pdl()


def choose(
    query: torch.Tensor | Query,
    keys,
    values,
    bias: torch.Tensor | None = None,
    residual: ResidualInputs | None = None,
    calibrated: bool = False,
) -> Variant | None:
    """The variant that takes this case on this device, or None. Arguments as for :func:`split_kernel`.

    :func:`split_kernel` asks for it itself, unless it is given one.
    """
    if not available(device_of(query)):
        return None
    variant = variant_of(query, keys, values, bias, residual, calibrated)
    if variant is None:
        return None
    splits, heads, batch = grid_of(query, keys, variant, 1)
    return _fitted(variant, device_of(query), splits * heads * batch)


def supports(query: torch.Tensor | Query, keys, values, bias: torch.Tensor | None = None) -> bool:
    """Whether :func:`split_kernel` takes this case on this device. Arguments as there."""
    return choose(query, keys, values, bias) is not None


def split_kernel(
    query: torch.Tensor | Query,
    qw: torch.Tensor | None,
    qz: torch.Tensor | None,
    keys,
    values,
    out_m: torch.Tensor,
    out_l: torch.Tensor,
    out_acc: torch.Tensor | None,
    num_pages: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    out_z: torch.Tensor | None = None,
    *,
    residual: ResidualInputs | None = None,
    residual_out: ResidualSplits | None = None,
    calibration: torch.Tensor | None = None,
    variant: Variant | None = None,
    launch_pdl: bool = False,
) -> None:
    """Attention over the pages of one packed segment, in splits that a later kernel reduces.

    Token ``t`` of group ``g`` has the logit, in units of log 2,
    ``(qw[g, r] * (254 * high_r . c_t + low_r . c_t) + qz[g, r]) * norm[t] + bias[t] * log2(e)``. From a :class:`Query`
    the kernel makes the two parts, ``qw`` and ``qz`` (``scaling * z . (zero_point_g + offset)``) itself.

    Args:
        query: int8 ``[B, H, G, 2 * R, J]``, contiguous: rows ``2 r`` and ``2 r + 1`` are the high and the low part of
            query row ``r``, ``J`` the sum of the key planes' lanes, each rounded up to 32 (zeros there). Or a
            :class:`Query`.
        qw, qz: float32 ``[B, H, G, R]``, contiguous; None with a :class:`Query`.
        keys: :class:`KeyPlanes`.
        values: :class:`ValuePlanes`.
        out_m, out_l: float32 ``[B * H, S, R]``: each split's largest logit (-inf if it has no token) and sum of
            ``2 ** (x - m)``. Page ``i`` belongs to split ``i % S``.
        out_acc: float32 ``[B * H, S, R, JV]``: sums of ``2 ** (x - m)`` (times norm or scale) times the values' lanes;
            ``JV`` is the sum of the planes' lanes, each rounded up to 32, that of the first where bits are lanes, or
            ``D_v`` (``ValuePlanes.width``). None
            with a variant that is a first pass (:attr:`Variant.first_pass`): ``out_m`` and ``out_l`` are then each
            split's largest and smallest logit (-inf and inf without a token), and values are not read.
        num_pages: int32 ``[1]`` on the device, pages in use, or None for all.
        bias: float32 ``[B, slots]``, -1e30 at slots without a token, or None.
        out_z: sums for the zero points, float32. Axis ``"token"``: ``[B * H, S, R]``, of ``2 ** (x - m)`` times the
            tokens' zero points, or None with several groups of channels, whose zero points ``out_acc`` has in it.
            Values with norms, one group: ``[B * H, S, R]``, of ``2 ** (x - m)`` times the norms,
            or None. Several groups: ``[B * H, S, R, Dz]``, of ``2 ** (x - m)`` (times norms) times the groups' zero
            points.
        residual: residual tokens in the model's dtype, read by this kernel in splits of their own, or None.
        residual_out: the outputs of those splits, no more than of the pages unless they are apart.
        calibration: float32 ``[B * H, R, 2]``, slope and shift of each row's logits (before ``bias``), or None.
        variant: what :func:`choose` returned for these arguments, to save asking again.
        launch_pdl: programmatic dependent launch (:func:`supports_pdl`): the kernel that writes the query lets this one
            start before it ends.

    Raises:
        KVMMError: the case is not one that :func:`supports` accepts.
    """
    variant = variant or choose(query, keys, values, bias, residual, calibration is not None)
    if variant is None:
        raise KVMMError("this case has no CUDA kernel; ask supports() first and use the Triton kernel")
    device = device_of(query)
    function = function_of(variant, device.index, compile_variant)
    arguments = arguments_of(
        query, qw, qz, keys, values, out_m, out_l, out_acc, num_pages, bias, out_z, residual, residual_out, calibration
    )
    with torch.cuda.device(device):
        nvrtc.launch(
            function,
            grid_of(query, keys, variant, out_m.shape[1], residual_out),
            32 * variant.warps,
            variant.shared_bytes,
            torch.cuda.current_stream(device).cuda_stream,
            arguments,
            launch_pdl,
        )


def compile_variant(variant: Variant, capability: tuple[int, int]) -> tuple[bytes, str]:
    """Compile ``attention.cu`` for a GPU: the program and the compiler's log, as
    :func:`kvmm.kernels.attention.backends.cuda.nvrtc.compile_source` returns them.
    """
    return nvrtc.compile_source(source_of(_SOURCE.name), _SOURCE.name, headers_of(variant), capability)


def headers_of(variant: Variant) -> dict[str, bytes]:
    """What ``attention.cu`` includes, by name."""
    return {HEADER: header_text(variant).encode()} | {name: source_of(name) for name in _INCLUDED}


def source_of(name: str) -> bytes:
    """A file of CUDA C++ beside this one."""
    return _SOURCE.with_name(name).read_bytes()


_functions: dict[tuple[Compiled, int], ctypes.c_void_p] = {}
_lock = threading.Lock()


def function_of(
    variant: Compiled, device: int, compile_variant: Callable[[Any, tuple[int, int]], tuple[bytes, str]]
) -> ctypes.c_void_p:
    """The kernel of a variant on a device, compiled when it is first asked for."""
    key = (variant, device)
    function = _functions.get(key)
    if function is not None:
        return function
    with _lock, torch.cuda.device(device):
        if key not in _functions:
            torch.cuda.current_stream()  # makes the device's context
            program, _ = compile_variant(variant, torch.cuda.get_device_capability(device))
            _functions[key] = nvrtc.load_function(program, "split_kernel", variant.shared_bytes)
        return _functions[key]
