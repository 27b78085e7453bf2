"""The Karhunen-Loeve transform of vectors whose errors cost what an importance says, and what coding in it costs."""

from __future__ import annotations

import torch

from kvmm.codecs.common.waterfill import waterfill
from kvmm.kernels.quantize import fit_levels, uniform_codes

_SHRINKAGE = 0.05  # of the importance towards a multiple of the identity, for directions that calibration never saw


def klt(mean: torch.Tensor, covariance: torch.Tensor, importance: torch.Tensor | None) -> dict[str, torch.Tensor]:
    """The weighted Karhunen-Loeve transform of ``[..., D]`` vectors with ``covariance`` and ``importance``
    ``[..., D, D]`` (None: the identity), to channels in the order of falling variance and cost.
    """
    dim = covariance.shape[-1]
    identity = torch.eye(dim, device=covariance.device)
    covariance = covariance.float()
    if importance is None:
        root = identity
        weighted = covariance
    else:
        importance = importance.float()
        size = importance.diagonal(dim1=-2, dim2=-1).mean(-1)[..., None, None]
        size = torch.where(size > 0, size, 1.0)
        values, vectors = torch.linalg.eigh(importance / size * (1 - _SHRINKAGE) + _SHRINKAGE * identity)
        values = values.clamp_min(_SHRINKAGE / 2)
        root = (vectors * values.sqrt().unsqueeze(-2)) @ vectors.transpose(-1, -2)
        weighted = root @ covariance @ root
    variance, basis = torch.linalg.eigh(weighted)
    variance, basis = variance.flip(-1), basis.flip(-1)
    variance = variance.clamp_min(0)
    # the first channel gets unit variance, so that half precision suffices for transform and levels
    largest = torch.where(variance[..., :1] > 1e-12, variance[..., :1], 1.0)
    forward = basis.transpose(-1, -2) @ root / largest.sqrt().unsqueeze(-1)
    if importance is not None:
        variance = variance * size[..., 0]
    return {"transform": forward.to(torch.float16), "mean": mean.float(), "variance": variance}


def coding_loss(
    fitted: dict[str, torch.Tensor],
    x: torch.Tensor,
    length: torch.Tensor | None,
    importance: torch.Tensor | None,
    average: float,
) -> float:
    """Mean cost of coding ``[H, n, D]`` vectors (divided by ``length`` ``[H, n, 1]``) with a fit at some bits."""
    forward, bits = fitted["transform"].float(), waterfill(fitted["variance"].sum(0), average)
    z = x.float() @ forward.transpose(1, 2)
    scale, zero_point = fit_levels(z, None, bits)
    codes = uniform_codes(z, scale, zero_point, (2**bits - 1).to(z))
    missed = (z - codes * scale - zero_point) @ torch.linalg.inv(forward).transpose(1, 2)
    missed = missed if length is None else missed * length
    weighted = missed if importance is None else missed @ importance.float()
    return float((weighted * missed).sum(-1).mean())
