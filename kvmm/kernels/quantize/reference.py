"""Affine quantisation and plane packing, the reference.

Codes are packed along tokens in planes. A page of ``T`` tokens at ``b`` bits is ``T * b / 8`` byte rows; plane ``s`` of
row ``j`` (bits ``s * b`` to ``s * b + b - 1``) is the code of token ``s * rows + j``. One shift and one mask of a
contiguous byte tile therefore give the codes of a contiguous run of tokens.
"""

from __future__ import annotations

from functools import lru_cache

import torch

BITS = (1, 2, 4, 8)  # code widths that fill a byte


# Half the distance between neighbouring levels, in standard deviations, of the best uniform quantiser of a Gaussian.
GAUSSIAN_HALF_STEP = {0: 0.0, 1: 0.798, 2: 0.498, 3: 0.293, 4: 0.168, 6: 0.052, 8: 0.0154}

REFITS = 2  # rounds of fit_levels

WORDS = ((8, torch.int64), (4, torch.int32), (2, torch.int16))  # bytes and type


@lru_cache(maxsize=512)
def gaussian_steps(bits: tuple[int, ...], device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Half steps of unit Gaussians and highest codes of channels, float32 ``[D]``; do not modify, they are shared."""
    with torch.inference_mode(False):  # they outlive the mode, and what is differentiated may save them
        half = torch.tensor([GAUSSIAN_HALF_STEP[b] for b in bits], dtype=torch.float32, device=device)
        return half, torch.tensor([2.0**b - 1 for b in bits], dtype=torch.float32, device=device)


@lru_cache(maxsize=64)
def plane_shifts(bits: int, tail: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """The shift of every plane, ``[8 / bits, 1, ...]`` with ``tail`` ones; do not modify, it is shared."""
    return torch.arange(0, 8, bits, device=device).to(dtype).reshape(-1, *[1] * tail)


def pack_planes(codes: torch.Tensor, bits: int, dim: int) -> torch.Tensor:
    """Pack codes into bytes along one dimension.

    Args:
        codes: uint8 ``[..., T, ...]`` below ``2 ** bits``; ``T`` (the size of ``dim``) a multiple of ``8 / bits``.
        bits: 1, 2, 4 or 8.
        dim: the token dimension, negative.

    Returns:
        uint8 with ``T * bits / 8`` in place of ``T``.
    """
    planes = 8 // bits
    if planes == 1:
        return codes.contiguous()
    shape = list(codes.shape)
    size = len(shape) + dim
    split = codes.reshape(*shape[:size], planes, shape[size] // planes, *shape[size + 1 :])
    packed = split.select(size, 0).clone()
    for plane in range(1, planes):
        packed |= split.select(size, plane) << (plane * bits)
    return packed


def unpack_planes(packed: torch.Tensor, bits: int, dim: int) -> torch.Tensor:
    """The inverse of :func:`pack_planes`: uint8 ``[..., rows, ...]`` to uint8 codes ``[..., rows * 8 / bits, ...]``."""
    planes = 8 // bits
    if planes == 1:
        return packed
    # Several bytes at a time: a code never leaves its byte, so one wide shift and one wide mask do the same.
    width, dtype = next(((w, t) for w, t in WORDS if packed.shape[-1] % w == 0), (1, torch.uint8))
    words = packed.view(dtype).unsqueeze(dim - 1) >> plane_shifts(bits, -dim, dtype, packed.device)
    mask = int.from_bytes(bytes([2**bits - 1] * width), "little")
    return words.bitwise_and_(mask).view(torch.uint8).flatten(dim - 1, dim)


def affine_parameters(
    low: torch.Tensor,
    high: torch.Tensor,
    bits: int | torch.Tensor,
    *,
    dtype: torch.dtype,
    integer_zero: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Scale and zero point of asymmetric min/max quantisation, rounded to the type they are stored in.

    Codes must be made from the returned, rounded values: then the rounding only moves the grid a little and does not
    add to the error of every element. That matters for keys with a large constant offset.

    Args:
        low, high: float ``[..., n]``, the range of each group.
        bits: bits a code; a tensor that broadcasts to ``low`` gives every group its own.
        dtype: type of the stored parameters.
        integer_zero: round the zero point to a whole number of steps, as OScaR's code does, instead of keeping the
            group's minimum in floating point (KIVI).

    Returns:
        ``(scale, zero_point)`` of ``dtype``, shaped like ``low``: ``x ~ code * scale + zero_point``. A group whose
        elements are all equal gets a scale of 0.
    """
    # torch divides by a number on a GPU as it multiplies by its reciprocal, and by a tensor as rounding asks for
    levels = high.new_full((), 2**bits - 1, dtype=torch.float32) if isinstance(bits, int) else 2**bits - 1
    limit = torch.finfo(dtype).max
    if integer_zero:
        # the range must hold 0 exactly on the grid, whatever the sign of low
        scale = ((high - low) / levels).to(dtype)
        step = torch.where(scale == 0, 1.0, scale.float())
        zero_point = torch.where(scale == 0, low, torch.round(low / step) * step)
        return scale, zero_point.clamp(-limit, limit).to(dtype)
    zero_point = low.clamp(-limit, limit).to(dtype)
    scale = ((high - zero_point.float()).clamp_min_(0) / levels).clamp_max_(limit).to(dtype)
    return scale, zero_point


def affine_codes(x: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor, bits: int) -> torch.Tensor:
    """Quantise with given parameters.

    Args:
        x: float ``[...]``.
        scale, zero_point: what :func:`affine_parameters` returned, broadcastable to ``x``.
        bits: bits a code.

    Returns:
        uint8 codes shaped like ``x``; 0 where the scale is 0.
    """
    step = scale.float()
    inverse = torch.where(step == 0, 0.0, 1.0 / step)
    return ((x - zero_point.float()) * inverse).round_().clamp_(0, 2**bits - 1).to(torch.uint8)


def fit_levels(
    x: torch.Tensor, weight: torch.Tensor | None, bits: torch.Tensor, *, refits: int = REFITS
) -> tuple[torch.Tensor, torch.Tensor]:
    """Least-squares scale and zero point a channel: the levels that suit the codes, the codes that suit the levels.

    Starts from the best uniform quantiser of a Gaussian. With one bit the two levels end as the channel's conditional
    means; without bits the level is the mean.

    Args:
        x: float32 ``[..., n, D]``.
        weight: float ``[..., n, 1]``, 0 at slots that hold no token, or None if all count.
        bits: int64 ``[D]``, bits of each channel, of those in ``GAUSSIAN_HALF_STEP``.
        refits: rounds of alternation.

    Returns:
        ``(scale, zero_point)`` float32 ``[..., 1, D]``; the scale is 0 where there are no bits or nothing varies.
    """
    half_step, levels = gaussian_steps(tuple(bits.tolist()), x.device)
    if weight is None:
        count = x.new_full((), x.shape[-2])
        mean = x.mean(-2, keepdim=True)
        centred = x - mean
    else:
        weight = weight.to(x)
        count = weight.sum(-2, keepdim=True).clamp_min(1)
        mean = (x * weight).sum(-2, keepdim=True) / count
        centred = (x - mean) * weight
    scale = 2 * half_step * ((centred * centred).sum(-2, keepdim=True) / count).sqrt()
    zero_point = mean - scale * levels / 2
    for _ in range(refits):
        codes = uniform_codes(x, scale, zero_point, levels)
        weighted = codes if weight is None else codes * weight
        code_mean = weighted.sum(-2, keepdim=True) / count
        code_variance = (codes * weighted).sum(-2, keepdim=True) / count - code_mean * code_mean
        fitted = (codes * centred).sum(-2, keepdim=True) / count / code_variance.clamp_min(1e-12)
        # a channel whose tokens share one code has nothing to fit
        scale = torch.where(code_variance > 1e-6, fitted, scale)
        zero_point = mean - scale * code_mean
    return scale, zero_point


def uniform_codes(x: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor, levels: torch.Tensor) -> torch.Tensor:
    """Codes of channels with bits of their own, in floating point: ``x`` float32 ``[..., n, D]``, the highest code
    ``levels`` ``[D]``; 0 where the scale is 0.
    """
    inverse = torch.where(scale == 0, 0.0, 1.0 / scale)
    return ((x - zero_point) * inverse).round_().clamp_min_(0).minimum(levels)
