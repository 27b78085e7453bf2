"""Spherical KV's Algorithm 1: a key as one length and ``d - 1`` recursive angles, each in a few bits.

:mod:`kvmm.kernels.angle.recursive` has the coordinates and how a query meets them without a key being rebuilt. What the
paper leaves to an implementation is kvmm's choice here, each with an option that undoes it: the levels of an angle are
the best for directions without a preference (``levels="uniform"``: equal cells), keys are those of the whole head
(``group``: of so many channels each), and the mean of the span is subtracted first, as in the other codes, without
which a model's key bias is all that the angles see.

Stored tensors: ``codes`` uint8 ``[B, H, P, N * bits / 8, J * (g - 1)]``; ``radius`` uint8 ``[B, H, P, N, J]`` and its
largest value ``scale`` ``[B, H, P]``; ``mean`` ``[B, H, G, D]`` of a span.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any, ClassVar

import torch

from kvmm.calibration.data import SiteSamples
from kvmm.codecs.base import Codec, Packed, StoreShape
from kvmm.codecs.spec import CodecSpec, Side, Site, spec
from kvmm.codecs.spherical.codec import Spherical
from kvmm.codecs.spherical.rates import Rate, check_factors, divisor, pack_indices, unpack_indices
from kvmm.errors import KVMMError
from kvmm.fields import Field
from kvmm.kernels.angle.format import LENGTHS, AngleFormat
from kvmm.kernels.angle.recursive import (
    angles_of,
    density_levels,
    quantize_angles,
    read_angles,
    scores_recursive,
    steps_of,
    uniform_levels,
    vectors_of,
)

_LOWER = {8: 6, 7: 6, 6: 4, 5: 4, 4: 3, 3: 2, 2: 1}  # bits per angle of the next tier


@lru_cache(maxsize=32)
def _levels_on(dim: int, bits: int, levels: str, device: str) -> torch.Tensor:
    """float32 ``[dim - 1, 2 ** bits]``; do not modify."""
    with torch.inference_mode(False):
        return (density_levels if levels == "density" else uniform_levels)(dim, bits).to(device)


@lru_cache(maxsize=32)
def _cosines_and_sines(dim: int, bits: int, levels: str, device: str) -> torch.Tensor:
    """float32 ``[1, dim - 1, 2 ** bits, 2]`` of the levels; do not modify."""
    found = _levels_on(dim, bits, levels, "cpu")
    with torch.inference_mode(False):
        return torch.stack((found.cos(), found.sin()), -1).unsqueeze(0).to(device)


class SphericalAngles(Spherical):
    """``bits`` bits per angle, and 8 for the length.

    Options:
        group: channels with a length of their own; None for the whole head.
        levels: ``density`` (Lloyd and Max for directions without a preference) or ``uniform`` (equal cells).
        gain: as in :class:`Spherical`.
        reconstruct: True reads keys by rebuilding them, for comparison with the recursion.
    """

    name = "spherical-angles"
    tiled = False
    bits = (1, 2, 3, 4, 5, 6, 7, 8)
    options: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "group": (None,),
        "levels": ("density", "uniform"),
        "gain": (1.0,),
        "reconstruct": (False, True),
    }

    def __init__(self, spec: CodecSpec, side: Side, site: Site | None = None):
        Codec.__init__(self, spec, side, site)
        self.rate = Rate(self.option("group") or 0, int(spec.bits), radius=True)
        self.reconstruct = self.option("reconstruct")
        self.gain = self.option("gain") if side == "key" else 1.0

    @classmethod
    def check(cls, spec: CodecSpec) -> None:
        super(Spherical, cls).check(spec)
        group = spec.option("group")
        if group is not None and (isinstance(group, bool) or not isinstance(group, int) or not 2 <= group <= 1024):
            raise KVMMError(f"Codec {cls.name}: group must be a number of channels from 2 to 1024, not {group!r}.")
        check_factors(spec)

    @classmethod
    def check_model(cls, spec: CodecSpec, head_dim: int) -> None:
        if head_dim < 2:
            raise KVMMError(f"Codec {cls.name}: a vector of {head_dim} channel has no angle.")

    @classmethod
    def matrix_specs(cls) -> list[CodecSpec]:
        """The specs that the shared tests run: the widths that matter, both levels, and the rebuilt keys."""
        return [
            *(spec(cls.name, bits) for bits in (2, 4)),
            spec(cls.name, 3, group=16),
            spec(cls.name, 8, levels="uniform", reconstruct=True),
        ]

    # -- nothing is fitted ------------------------------------------------------------------------------------------

    @classmethod
    def fit(cls, samples: SiteSamples) -> dict[str, torch.Tensor]:
        return {}

    @classmethod
    def check_fit(
        cls, tensors: Mapping[str, torch.Tensor], side: str, heads: int | str, dim: int | str, where: str
    ) -> None:
        """Nothing is fitted, so there is nothing to check."""

    def fitted(self, dim: int, device: torch.device) -> torch.Tensor | None:
        return None

    # -- encode and decode ------------------------------------------------------------------------------------------

    def _size(self, dim: int) -> int:
        """Channels with a length of their own."""
        return max(2, divisor(dim, self.rate.group)) if self.rate.group else dim

    def _levels(self, size: int, device: torch.device) -> torch.Tensor:
        return _levels_on(size, self.rate.index_bits, self.option("levels"), str(device))

    def _encode_pages(
        self, pages: torch.Tensor, span: Mapping[str, torch.Tensor], heads: torch.Tensor | None = None
    ) -> dict[str, torch.Tensor]:
        size = self._size(pages.shape[-1])
        split = (pages - span["mean"].float()).unflatten(-1, (-1, size))  # [B, H, P, N, J, g]
        codes = quantize_angles(angles_of(split), self._levels(size, pages.device))
        radius = torch.linalg.vector_norm(split, dim=-1)
        scale = radius.amax((3, 4)).clamp_max(torch.finfo(torch.float16).max).half()
        step = scale.float()[..., None, None] / LENGTHS
        steps = torch.where(step > 0, radius / step, 0.0).round_().clamp_(0, LENGTHS)
        return {
            "codes": pack_indices(codes.flatten(-2), self.rate.index_bits),
            "radius": steps.to(torch.uint8),
            "scale": scale,
        }

    def fields(self, store: StoreShape, tensors: Mapping[str, torch.Tensor]) -> dict[str, Field]:
        pages, spans = (store.batch, store.heads, store.pages), (store.batch, store.heads, "groups")
        size = self._size(store.dim)
        groups = store.dim // size
        rows = store.page_size * self.rate.index_bits // 8
        return {
            "page_group": Field(torch.int32, (store.pages,), 0, "groups"),
            "codes": Field(torch.uint8, (*pages, rows, groups * (size - 1))),
            "radius": Field(torch.uint8, (*pages, store.page_size, groups)),
            "scale": Field(torch.float16, pages),
            "mean": Field(torch.float16, (*spans, store.dim)),
        }

    def _coordinates(self, packed: Packed, gain: float) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Codes uint8 ``[B, H, P, N, J, g - 1]``, their levels, and lengths ``[B, H, P, N, J]``."""
        size = self._size(packed["mean"].shape[-1])
        codes = unpack_indices(packed["codes"], self.rate.index_bits).unflatten(-1, (-1, size - 1))
        step = packed["scale"].float()[..., None, None] * (gain / LENGTHS)
        return codes, self._levels(size, codes.device), packed["radius"].float() * step

    def _decode(self, packed: Packed, heads: torch.Tensor | None, source: bool = False) -> torch.Tensor:
        codes, levels, radius = self._coordinates(packed, 1.0 if source else self.gain)
        x = vectors_of(*read_angles(codes, levels), radius).flatten(-2)
        mean, _ = self._by_page(packed)
        return (x + mean.unsqueeze(3)).flatten(2, 3)

    def lower_tier(self) -> SphericalAngles | None:
        lower = _LOWER.get(self.rate.index_bits)
        return None if lower is None else type(self)(replace(self.spec, bits=lower), self.side, self.site)

    # -- attention --------------------------------------------------------------------------------------------------

    def packed_format(self, packed: Packed) -> AngleFormat | None:
        if self.side == "value" or self.reconstruct or self.rate.group:
            return None
        tensors = (packed[name] for name in ("codes", "radius", "scale", "mean"))
        bits, mean = self.rate.index_bits, packed["mean"]
        levels = _cosines_and_sines(mean.shape[-1], bits, self.option("levels"), str(mean.device))
        return AngleFormat(*tensors, packed.page_group, levels, bits, packed.page_size, True, self.gain)

    def _scores(self, query: torch.Tensor, packed: Packed, heads: torch.Tensor | None) -> torch.Tensor:
        own = query if heads is None else query.index_select(1, heads)
        if self.reconstruct:
            return own @ self._decode(packed, heads).transpose(-1, -2)
        codes, levels, radius = self._coordinates(packed, self.gain)
        codes, radius = (t.flatten(2, 3).movedim(3, 2) for t in (codes, radius))  # [B, H, J, n, g - 1], [B, H, J, n]
        split = own.unflatten(-1, (codes.shape[2], -1)).transpose(2, 3)  # [B, H, J, Q, g]
        scores = scores_recursive(split, steps_of(codes, levels), radius).sum(2)
        mean, _ = self._by_page(packed)
        offset = own @ mean.transpose(-1, -2)  # [B, H, Q, P]
        return scores.unflatten(-1, (offset.shape[-1], -1)).add(offset.unsqueeze(-1)).flatten(-2)

    def _mix(
        self, probabilities: torch.Tensor, packed: Packed, heads: torch.Tensor | None, num_heads: int
    ) -> torch.Tensor:
        mixed = probabilities @ self._decode(packed, heads)
        if heads is None:
            return mixed
        return mixed.new_zeros(1, num_heads, *mixed.shape[2:]).index_add_(1, heads, mixed)
