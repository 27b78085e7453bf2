"""Where the transforms of :class:`kvmm.codecs.rd.RD` and the bits of their channels come from."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING

import torch

from kvmm.codecs.common.klt import coding_loss, klt
from kvmm.codecs.common.transform import check_invertible
from kvmm.codecs.common.waterfill import waterfill
from kvmm.fields import Field, check_fields
from kvmm.kernels.quantize import Pages

if TYPE_CHECKING:
    from kvmm.calibration.data import Calibration, SiteSamples
    from kvmm.codecs.common.transform import Transform
    from kvmm.codecs.spec import Side, Site

_TRIAL_BITS = 2.0  # at which calibration tries whether token norms pay
_NORM_BITS = 16  # what a stored norm costs a token and head


def fit_transform(samples: SiteSamples) -> dict[str, torch.Tensor]:
    """The tensors of a site's calibration, as :meth:`kvmm.codecs.rd.RD.fit` describes them."""
    importance = samples.importance if samples.importance is not None else samples.query_moment
    plain = klt(samples.mean, samples.covariance, importance)
    length = torch.linalg.vector_norm(samples.vectors.float(), dim=-1, keepdim=True).clamp_min(1e-6)
    unit = samples.vectors.float() / length
    mean = unit.mean(1)
    covariance = (unit.transpose(1, 2) @ unit) / unit.shape[1] - mean[:, :, None] * mean[:, None, :]
    weight = None if importance is None else importance * length.square().mean(1, keepdim=True)
    normed = klt(mean, covariance, weight)
    # at equal bits: what a norm costs is taken from the codes
    less = _TRIAL_BITS - _NORM_BITS / unit.shape[-1]
    loss = coding_loss(plain, samples.vectors, None, importance, _TRIAL_BITS)
    found = normed if coding_loss(normed, unit, length, importance, less) < loss else plain
    return found | {"norm": torch.tensor([found is normed], dtype=torch.uint8)}


def check_transform(tensors: Mapping[str, torch.Tensor], heads: int | str, dim: int | str, where: str) -> None:
    """Raise :class:`KVMMError` unless tensors are those of :func:`fit_transform`, of finite inverse."""
    fields = {
        "transform": Field(torch.float16, (heads, dim, dim)),
        "mean": Field(torch.float32, (heads, dim)),
        "variance": Field(torch.float32, (heads, dim), 0),
        "norm": Field(torch.uint8, (1,), 0, 2),
    }
    check_fields(tensors, fields, where, closed=False)
    check_invertible(tensors["transform"], f"{where}transform", keep=True)


def fit_to_prompt(pages: Pages, query_moment: torch.Tensor | None, average: float) -> dict[str, torch.Tensor]:
    """A transform fitted to the first span of a prompt; later spans use the same.

    Args:
        pages: of the span ``[B, H, P, N, D]``.
        query_moment: float32 ``[B, H, D, D]`` of the queries that meet them (keys), or None.
        average: bits a channel.

    Returns:
        ``transform`` float16 ``[B, H, 1, D, D]`` and ``bits`` uint8 ``[B, H, 1, D]``, to be stored.
    """
    mean = pages.mean()
    total, count = 0.0, 0.0
    for part in pages.parts():
        centred = part.values.flatten(2, 3) - mean.unsqueeze(2)
        if part.weight is None:
            count = count + centred.shape[2]
        else:
            share = part.weight.flatten(2, 3)
            centred = centred * share
            count = count + share.sum(2, keepdim=True)
        total = total + centred.transpose(-1, -2) @ centred
    if isinstance(count, torch.Tensor):
        count = count.clamp_min(1)
    fitted = klt(mean, total / count, query_moment)
    bits = waterfill(fitted["variance"].sum((0, 1)).cpu(), average)
    return {
        "transform": fitted["transform"].unsqueeze(2),
        "bits": bits.to(mean.device, torch.uint8).expand(*mean.shape[:2], 1, -1).contiguous(),
    }


@lru_cache(maxsize=32)
def pooled_bits(
    calibration: Calibration, codec: str, modality: int, average: float, side: str | None
) -> dict[tuple[int, str], torch.Tensor]:
    """Bits of every site of a modality that share one budget: ``{(layer, side): int64 [D]}``."""
    sites = {}
    for layer, other in calibration.sites(codec, modality):
        if side in (None, other):
            sites[layer, other] = calibration.site(codec, layer, other, modality)["variance"].sum(0)
    bits = waterfill(torch.cat(list(sites.values())), average)
    return dict(zip(sites, bits.split([len(v) for v in sites.values()]), strict=True))


def comparable_bits(
    calibration: Calibration, codec: str, modality: int, average: float
) -> dict[tuple[int, str], torch.Tensor]:
    """Bits of every site where keys and values ask for the same average: ``{(layer, side): int64 [D]}``.

    One budget for all sites if their costs have one unit, as those of gradients have, else one for each.
    """
    if costs_are_comparable(calibration):
        return pooled_bits(calibration, codec, modality, average, None)
    return {
        (layer, side): waterfill(calibration.site(codec, layer, side, modality)["variance"].sum(0), average)
        for layer, side in calibration.sites(codec, modality)
    }


def costs_are_comparable(calibration: Calibration) -> bool:
    """Whether the costs of channels have one unit for all layers, keys and values."""
    return calibration.metadata.get("importance") == "gradient"


def channel_bits(
    codec: str, side: Side, site: Site, transform: Transform, average: float, pool: str | None, same: bool
) -> torch.Tensor:
    """Bits int64 ``[D]`` of a site's channels.

    Args:
        codec: name under which the calibration has the site.
        side, site: whose channels they are.
        transform: of the site, with the costs of its channels.
        average: bits a channel.
        pool: option of the codec; None: the site's own costs, without the calibration.
        same: the other side asks for the same average.
    """
    calibration = site.calibration
    if transform.deviation is None or pool is None:
        return waterfill(transform.variance, average)
    if pool == "auto":
        pool = "site" if not costs_are_comparable(calibration) else "model" if same else "side"
    if pool == "site":
        return waterfill(transform.variance, average)
    shared = pooled_bits(calibration, codec, site.modality, average, None if pool == "model" else side)
    return shared[site.layer, side]


__all__ = [
    "channel_bits",
    "check_transform",
    "comparable_bits",
    "costs_are_comparable",
    "fit_to_prompt",
    "fit_transform",
    "pooled_bits",
]
