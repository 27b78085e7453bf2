"""Which tokens the levels of :class:`kvmm.codecs.rd.RD` miss most."""

from __future__ import annotations

import torch

from kvmm.codecs.base import EncodeContext
from kvmm.codecs.common.outliers import find_outliers
from kvmm.codecs.common.transform import Transform, offline_transform
from kvmm.codecs.spec import Side, Site

# Deviations from the mean within which a channel's levels lie; 1 bit ends at .8, 4 bits at 2.5, 8 bits at 3.9.
_REACH = 3.0
_EPSILON = 1e-6  # of norms


def outlier_slots(
    x: torch.Tensor, site: Site, side: Side, fitted: str | None, norm: str, count: int, context: EncodeContext
) -> torch.Tensor:
    """Slots int64 ``[B, H, count]`` of the tokens that stay in full precision, the same for keys and values.

    Args:
        x: what is to be stored, ``[B, H, T, D]``: keys, or values of keys that ``context`` has.
        site, side: whose they are.
        fitted: the codec whose fit of the keys is taken, if the calibration has one; None: none is.
        norm: option of the codec, whether token norms are divided out.
        count: how many.
    """
    keys, transform = x if side == "key" else context.keys, None
    if keys is not None and fitted is not None and site.calibration is not None:
        transform = offline_transform(site.calibration, fitted, site.layer, "key", site.modality, x.device)
    if keys is None or transform is None:
        return find_outliers(x, count, context)
    return find_clipped(keys, transform, transform.norm if norm == "auto" else norm == "l2", count, context)


def find_clipped(
    keys: torch.Tensor, transform: Transform, norm: bool, count: int, context: EncodeContext
) -> torch.Tensor:
    """Slots int64 ``[B, H, count]``, in order, of the tokens whose keys lie furthest beyond every channel's levels.

    Channels are of the transform, where errors of all channels cost the same, so what lies beyond the levels is added
    up as squares. A few such tokens in a thousand are what queries look for: patches by which "page 3" is found, or
    tokens with keys far shorter than all others, which language models attend to as to the first one.

    Args:
        keys: ``[B, H, T, D]`` as the model makes them.
        transform: of the keys of the site.
        norm: whether token norms are divided out.
        count: how many.
        context: says which tokens count.
    """
    x = keys.float()
    if norm:
        x = x / torch.linalg.vector_norm(x, dim=-1, keepdim=True).clamp_min(_EPSILON)
    z = x @ transform.forward[None].transpose(-1, -2)
    if context.valid is None:
        mean = z.mean(2, keepdim=True)
        deviation = (z - mean).square().mean(2, keepdim=True).sqrt()
    else:
        weight = context.valid[:, None, :, None].to(z)
        number = weight.sum(2, keepdim=True).clamp_min(1)
        mean = (z * weight).sum(2, keepdim=True) / number
        deviation = ((z - mean).square() * weight).sum(2, keepdim=True).div(number).sqrt()
    beyond = ((z - mean).abs() - _REACH * deviation).clamp_min(0).square().sum(-1)
    if context.valid is not None:
        beyond = beyond.masked_fill(~context.valid.unsqueeze(1).to(beyond.device), -1.0)
    return beyond.topk(count, -1).indices.sort(-1).values


__all__ = ["find_clipped", "outlier_slots"]
