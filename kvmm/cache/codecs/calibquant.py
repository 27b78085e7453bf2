"""CalibQuant (arXiv 2502.14882): per-channel codes over the whole visual span, for keys and values.

One scale and zero point a sequence, KV head and channel serve the whole span of one modality, so the metadata all but
vanishes; post-scaling (section 3.2) folds the scale into the query. Tokens that come later form a span of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch

from kvmm.cache.codecs.affine import AffineCodec, TokenGroups
from kvmm.cache.codecs.base import Side, Site
from kvmm.errors import KVMMError
from kvmm.kernels.quantize import affine_codes, affine_parameters
from kvmm.policy import CodecSpec

# Half the distance between neighbouring levels, in standard deviations, of the best uniform quantiser of a Gaussian.
_GAUSSIAN_HALF_STEP = {1: 0.798, 2: 0.498, 4: 0.168, 8: 0.0154}
_SHRINK = {"key": 0.5, "value": 0.3}  # the authors' code at 1 bit
_REFITS = 2


class CalibQuant(AffineCodec):
    """Span-wide per-channel codes.

    Options:
        levels: ``paper`` (minimum and maximum are the outer levels), ``code`` (both shrunk about zero, by 0.5 for keys
            and 0.3 for values, as the authors' code does at 1 bit), or ``mean`` (least-squares levels: at 1 bit the two
            conditional means of the channel; same storage).
        calibration: ``(tau1, tau2)``: logits of the span, which lie in ``[gamma, delta]``, are mapped linearly onto
            ``[gamma - tau1, delta - tau2]`` before the softmax (section 3.3). Where that line would not rise
            (``delta - gamma <= tau2 - tau1``) it would turn the ranking of tokens around, so such rows are left alone.
    """

    name = "calibquant"
    options: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        **AffineCodec.options,
        "levels": ("paper", "code", "mean"),
        "calibration": (None,),
    }

    def __init__(self, spec: CodecSpec, side: Side, site: Site | None = None):
        super().__init__(spec, side, site)
        self.axis = "channel"
        self.levels = self.option("levels")
        self.tau = self.option("calibration")
        self.adjusts_scores = side == "key" and self.tau is not None

    @classmethod
    def check(cls, spec: CodecSpec) -> None:
        super().check(spec)
        tau: Any = spec.option("calibration")
        if tau is not None and not (
            isinstance(tau, tuple) and len(tau) == 2 and all(isinstance(t, (int, float)) and t >= 0 for t in tau)
        ):
            raise KVMMError(f"Codec calibquant: calibration must be None or (tau1, tau2), both >= 0, not {tau!r}.")

    def channel_parameters(
        self, x: torch.Tensor, groups: TokenGroups, weight: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if self.levels == "mean":
            return self._fitted(x, groups, weight)
        low, high = groups.minimum(x), groups.maximum(x)
        if self.levels == "code" and self.spec.bits == 1:
            low, high = low * _SHRINK[self.side], high * _SHRINK[self.side]
        return affine_parameters(low, high, self.spec.bits, dtype=self.parameter_dtype)

    def _fitted(
        self, x: torch.Tensor, groups: TokenGroups, weight: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Least-squares scale and offset given the codes, from a Gaussian start; fill has no weight."""
        bits, levels = self.spec.bits, 2**self.spec.bits - 1
        if weight is None:
            weight = x.new_ones(1, 1, *x.shape[2:4], 1)
        count = groups.sum(weight.to(x.device)).clamp_min(1)
        weight = weight.to(x.device)
        mean = groups.sum(x * weight) / count
        units = groups.split(x)
        centred = (units - groups.spread(mean)) * groups.split(weight)
        pages = centred.flatten(2, 3).unflatten(2, tuple(x.shape[2:4]))
        deviation = (groups.sum(pages * pages) / count).sqrt()
        scale = 2 * _GAUSSIAN_HALF_STEP[bits] * deviation
        zero_point = mean - scale * levels / 2
        for _ in range(_REFITS):
            codes = affine_codes(units, groups.spread(scale), groups.spread(zero_point), bits).float()
            codes = codes.flatten(2, 3).unflatten(2, tuple(x.shape[2:4]))
            code_mean = groups.sum(codes * weight) / count
            spread = groups.sum(codes * codes * weight) / count - code_mean**2
            fitted = groups.sum(codes * pages) / count / spread.clamp_min(1e-12)
            # a channel whose tokens share one code has nothing to fit
            scale = torch.where(spread > 1e-6, fitted, scale)
            zero_point = mean - scale * code_mean
        limit = torch.finfo(self.parameter_dtype).max
        return tuple(p.clamp(-limit, limit).to(self.parameter_dtype) for p in (scale, zero_point))

    def adjust_scores(self, scores: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        tau1, tau2 = self.tau
        seen = scores if bias is None else scores + bias
        delta = seen.amax(-1, keepdim=True)
        gamma = (scores if bias is None else torch.where(bias < -1e20, torch.inf, scores)).amin(-1, keepdim=True)
        span = delta - gamma
        slope = 1 + (tau1 - tau2) / span
        rises = (slope > 0) & (span > 0) & span.isfinite()
        mapped = (scores - gamma) * slope + (gamma - tau1)
        return torch.where(rises, mapped, scores)
