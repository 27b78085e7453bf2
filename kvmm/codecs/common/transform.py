"""The linear transform of a site, before and after its codes: fitted offline, or a rotation."""

from __future__ import annotations

from collections.abc import Hashable
from functools import lru_cache
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from kvmm.errors import KVMMError
from kvmm.kernels.hadamard import hadamard_matrix
from kvmm.kernels.quantize.layout import PlaneLayout

if TYPE_CHECKING:
    from kvmm.calibration.data import Calibration


class Transform:
    """What one site's codec does to vectors before and after the codes.

    Attributes:
        forward: float32 ``[H or 1, D, D]``, ``z = forward x``.
        inverse: float32, its inverse.
        offset: float32 ``[H or 1, D]``, ``forward mean``.
        variance: float32 ``[D]``, what each channel costs without bits, summed over heads.
        deviation: float32 ``[H or 1, D]``, the standard deviation of each channel; None where it is not known.
        norm: whether calibration found that dividing out token norms pays.
        known: what the kernels made of ``forward``.
        layouts: where the bits of its channels lie, by what decides that beside the site.
    """

    def __deepcopy__(self, memo: dict) -> Transform:
        return self  # immutable, shared by all caches

    def __init__(
        self,
        forward: torch.Tensor,
        mean: torch.Tensor | None = None,
        deviation: torch.Tensor | None = None,
        variance: torch.Tensor | None = None,
        norm: bool = False,
        inverse: torch.Tensor | None = None,
    ):
        self.forward = forward.float()
        self.inverse = torch.linalg.inv(self.forward) if inverse is None else inverse
        dim = forward.shape[-1]
        self.offset = forward.new_zeros(1, dim) if mean is None else (self.forward @ mean.float()[..., None])[..., 0]
        self.deviation = None if deviation is None else deviation.float()
        self.variance = torch.ones(dim) if variance is None else variance.float()
        self.norm = norm
        self.known: dict[str, torch.Tensor] = {}
        self.layouts: dict[Hashable, PlaneLayout] = {}


# by tensors that were found to have one, since a calibration is checked more than once; None once somebody took it
_inverses = WeakTensorKeyDictionary()


def check_invertible(forward: torch.Tensor, name: str, *, keep: bool = False) -> None:
    """Raise :class:`KVMMError` with a name unless all matrices ``[..., D, D]`` have an inverse in float32.

    With ``keep`` the inverse stays for :func:`take_inverse`.
    """
    if forward in _inverses:
        return
    inverse, failed = torch.linalg.inv_ex(forward.float())
    if bool(failed.any()) or not bool(inverse.isfinite().all()):
        raise KVMMError(f"{name}: cannot be inverted")
    _inverses[forward] = inverse if keep else None


def take_inverse(forward: torch.Tensor) -> torch.Tensor | None:
    """The inverse that :func:`check_invertible` kept, once; float32 ``[..., D, D]``."""
    inverse = _inverses.get(forward)
    if inverse is not None:
        _inverses[forward] = None
    return inverse


@lru_cache(maxsize=32)
def rotation(name: str, dim: int, device: torch.device) -> Transform:
    """The transform without a fit: ``hadamard`` or ``identity``."""
    return Transform((hadamard_matrix(dim) if name == "hadamard" else torch.eye(dim))[None].to(device))


_offline_transforms: WeakKeyDictionary[Calibration, dict] = WeakKeyDictionary()


def offline_transform(
    calibration: Calibration, codec: str, layer: int, side: str, modality: int, device: torch.device
) -> Transform | None:
    """The transform that a calibration file has for a codec's site, or None if it has none."""
    known = _offline_transforms.setdefault(calibration, {})
    key = (codec, layer, side, modality, device)
    if key not in known:
        stored = calibration.site(codec, layer, side, modality)
        inverse = take_inverse(stored["transform"]) if stored else None
        # a GPU inverts by itself, and rounds in its own way
        inverse = calibration.own(inverse) if inverse is not None and device.type == "cpu" else None
        site = {n: t.to(device) for n, t in stored.items()}
        known[key] = None
        if site:
            variance = site["variance"].float()
            deviation = (variance / variance[:, :1].clamp_min(1e-30)).sqrt()
            own = (calibration.own(x) for x in (site["transform"], site["mean"], deviation))
            known[key] = Transform(*own, variance.sum(0), bool(site["norm"]), inverse)
    return known[key]
