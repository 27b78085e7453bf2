"""CalibQuant (arXiv 2502.14882): per-channel codes over the whole visual span, for keys and values.

One scale and zero point a sequence, KV head and channel serve the whole span of one modality (all images of a prompt
together, all its recordings together), so the metadata all but vanishes; post-scaling (section 3.2) folds the scale
into the query. Tokens that come later form a span of their own.

Departures from the authors' code: it shifts logits by ``(0, 3)`` at 1 and 2 bits whatever the model, here the shifts
are given, or searched for a model on the paper's grid; it takes the ends of the logits' range over all queries of a
head, here every query has its own (the same while one token at a time is generated); and it has no guard against a
line that falls. What the shifts and one range for all values cost is in docs/results.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import torch

from kvmm.codecs.affine import AffineCodec
from kvmm.codecs.base import Packed
from kvmm.codecs.spec import CodecSpec, Side, Site
from kvmm.errors import KVMMError
from kvmm.kernels.attention.format import LogitCalibration, PackedFormat
from kvmm.kernels.quantize import Pages, TokenGroups, affine_parameters

TAU = "calibquant_tau"  # in a calibration file's metadata: {"levels-bits": [tau1, tau2]}; "levels" alone: at one bit
TAU_GRID = (0, 1, 2, 3)
# the levels and bits that `kvmm calibrate` searches: those that the authors calibrate, in all kinds of levels
TAU_SEARCHED = (("paper", 1), ("code", 1), ("mean", 1), ("paper", 2), ("mean", 2))
_SHRINK = {"key": 0.5, "value": 0.3}  # the authors' code at 1 bit


def _is_shift(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 1e6


def tau_name(levels: str, bits: float) -> str:
    """What the shifts that were searched for such codes are called in a calibration file."""
    # ranges are shrunk at 1 bit only, so that "code" is "paper" above
    return f"{'paper' if levels == 'code' and bits > 1 else levels}-{bits:g}"


class CalibQuant(AffineCodec):
    """Span-wide per-channel codes.

    Options:
        levels: ``paper`` (minimum and maximum are the outer levels), ``code`` (both shrunk about zero, by 0.5 for keys
            and 0.3 for values, as the authors' code does at 1 bit), or ``mean`` (least-squares levels: at 1 bit the two
            conditional means of the channel; same storage).
        calibration: ``(tau1, tau2)``: logits of the span, which lie in ``[gamma, delta]``, are mapped linearly onto
            ``[gamma - tau1, delta - tau2]`` before the softmax (section 3.3). Where that line would not rise
            (``delta - gamma <= tau2 - tau1``) it would turn the ranking of tokens around, so such rows are left alone.
            ``file`` takes what ``kvmm calibrate`` found best for the model on the paper's grid, for these levels and
            bits of keys (:data:`TAU_SEARCHED`); others, and models without a file, are not calibrated.
        value_ranges: ``channel``, or ``tensor``: one minimum and maximum for all channels and KV heads of the values of
            a sequence and span (the paper's ablation of channel-wise values, Table 4; the authors' code with
            ``per_channel_v`` off). It is stored for every channel, as all kernels read it. Not with ``mean`` levels.
    """

    name = "calibquant"
    pages_stand_alone = True
    static_encode = True
    options: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        **AffineCodec.options,
        "levels": ("paper", "code", "mean"),
        "calibration": (None,),  # or "file", or a pair
        "value_ranges": ("channel", "tensor"),
    }

    def __init__(self, spec: CodecSpec, side: Side, site: Site | None = None):
        super().__init__(spec, side, site)
        self.axis = "channel"
        self.levels = self.option("levels")
        # ranges that shrink about zero take a constant along, so that visual logits move against those of text
        self.absorbs_bias = not self._shrinks
        self.one_range = side == "value" and self.option("value_ranges") == "tensor"
        self.tau = self.option("calibration")
        if self.tau == "file":
            self.tau = self.searched_tau()
        # (0, 0) maps logits onto themselves, which costs kernels a second pass for nothing
        self.calibrates_logits = side == "key" and self.tau is not None and any(self.tau)

    @property
    def _shrinks(self) -> bool:
        return self.levels == "code" and self.spec.bits == 1

    def searched_tau(self) -> tuple[float, float] | None:
        """``(tau1, tau2)`` of the model's calibration file for these levels and bits; None if it has none."""
        found = {} if self.site.calibration is None else self.site.calibration.metadata.get(TAU, {})
        names = [tau_name(self.levels, self.spec.bits)]
        if self.spec.bits == 1:
            names.append(self.levels)  # files of before widths were searched apart
        return next((tuple(found[name]) for name in names if name in found), None)

    @classmethod
    def check(cls, spec: CodecSpec) -> None:
        super().check(spec)
        if spec.option("value_ranges") == "tensor" and spec.option("levels") == "mean":
            raise KVMMError("Codec calibquant: value_ranges tensor takes levels paper or code, not mean.")
        tau: Any = spec.option("calibration")
        if tau not in (None, "file") and not (isinstance(tau, tuple) and len(tau) == 2 and all(map(_is_shift, tau))):
            raise KVMMError(f"Codec calibquant: calibration is None, 'file' or (tau1, tau2), both >= 0, not {tau!r}.")

    @classmethod
    def reads_calibration(cls, spec: CodecSpec) -> bool:
        return spec.option("calibration") == "file"

    @classmethod
    def check_metadata(cls, metadata: Mapping[str, Any]) -> None:
        found = metadata.get(TAU, {})
        pairs = found.values() if isinstance(found, Mapping) else [None]
        for pair in pairs:
            if not isinstance(pair, (list, tuple)) or len(pair) != 2 or not all(map(_is_shift, pair)):
                raise KVMMError(f"{TAU}: must have two numbers of at least 0 per kind of levels and bits")

    def channel_parameters(self, pages: Pages, groups: TokenGroups) -> tuple[torch.Tensor, torch.Tensor]:
        if self.levels == "mean":
            bits = torch.full((pages.shape[-1],), self.spec.bits)
            return pages.fit_levels(bits, groups, self.parameter_dtype)
        low, high = pages.channel_ranges(groups)
        if self.one_range:
            low = low.amin((1, 3), keepdim=True).expand_as(low).contiguous()
            high = high.amax((1, 3), keepdim=True).expand_as(high).contiguous()
        if self._shrinks:
            low, high = low * _SHRINK[self.side], high * _SHRINK[self.side]
        return affine_parameters(low, high, self.spec.bits, dtype=self.parameter_dtype)

    def packed_format(self, packed: Packed) -> PackedFormat:
        store = super().packed_format(packed)
        return replace(store, logit_calibration=LogitCalibration(*self.tau)) if self.calibrates_logits else store

    def calibrate_logits(self, scores: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        tau1, tau2 = self.tau
        seen = scores if bias is None else scores + bias
        delta = seen.amax(-1, keepdim=True)
        gamma = (scores if bias is None else torch.where(bias < -1e20, torch.inf, scores)).amin(-1, keepdim=True)
        span = delta - gamma
        slope = 1 + (tau1 - tau2) / span
        rises = (slope > 0) & (span > 0) & span.isfinite()
        mapped = (scores - gamma) * slope + (gamma - tau1)
        return torch.where(rises, mapped, scores)
