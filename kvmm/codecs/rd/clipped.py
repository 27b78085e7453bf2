"""Which tokens the levels of :class:`kvmm.codecs.rd.RD` miss most."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any

import torch

from kvmm.codecs.base import PAGE_SIZE, EncodeContext
from kvmm.codecs.common.outliers import find_outliers, num_outliers
from kvmm.codecs.common.transform import Transform, offline_transform
from kvmm.codecs.spec import Side, Site
from kvmm.kernels.quantize import cut_pages

# Deviations from the mean within which a channel's levels lie; 1 bit ends at .8, 4 bits at 2.5, 8 bits at 3.9.
REACH = 3.0


class _Last(threading.local):
    """What was found in the keys that were stored last: their values come next, and keep the same tokens."""

    keys: Callable[[], torch.Tensor | None] | None = None
    told: tuple[Any, ...] = ()
    slots: torch.Tensor | None = None


_last = _Last()


def outlier_slots(
    x: torch.Tensor, site: Site, side: Side, fit: str, norm: str, share: float, context: EncodeContext
) -> torch.Tensor:
    """Slots int64 ``[B, H, n]`` of the tokens that stay in full precision, the same for keys and values.

    Args:
        x: what is to be stored, ``[B, H, T, D]``: keys, or values of keys that ``context`` has.
        site, side: whose they are.
        fit, norm: options of the codec; only a fit of the calibration file is taken.
        share: how many of every page of 128 tokens.
        context: what the codec was told.
    """
    count = num_outliers(x.shape[2], share, PAGE_SIZE, context)
    keys, transform = x if side == "key" else context.keys, None
    if keys is not None and fit in ("auto", "offline") and site.calibration is not None:
        transform = offline_transform(site.calibration, "rd", site.layer, "key", site.modality, x.device)
    if keys is None or transform is None:
        return find_outliers(x, count, context)
    divided = transform.norm if norm == "auto" else norm == "l2"
    told = (count, context.page_size, id(transform), divided, id(context.valid))
    if side == "value" and _last.keys is not None and _last.keys() is keys and _last.told == told:
        slots, _last.keys, _last.slots = _last.slots, None, None
        return slots
    slots = find_clipped(keys, transform, divided, count, context)
    _last.keys, _last.told, _last.slots = (weakref.ref(keys) if side == "key" else None), told, slots
    return slots


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
    pages = cut_pages(keys, context.page_size, context.valid)
    if norm:
        pages = pages.divide(pages.divisors(torch.float32))
    pages = pages.transform(transform.forward[None], transform.known)
    beyond = pages.token_excess(REACH).flatten(2)[:, :, : keys.shape[2]]
    if context.valid is not None:
        beyond = beyond.masked_fill(~context.valid.unsqueeze(1).to(beyond.device), -1.0)
    return beyond.topk(count, -1).indices.sort(-1).values


__all__ = ["REACH", "find_clipped", "outlier_slots"]
