"""QuaRot (arXiv 2404.00456), its KV cache: keys and values per token after a Hadamard rotation of each head.

The paper multiplies keys and queries by a Hadamard matrix after RoPE and folds that of the values into the weights;
here both are rotated as they are stored. Each token has one asymmetric scale per ``group_size`` channels, with its
range clipped a little.

Departures, with their KL divergence from full precision of tiny-omni on 24 held-out questions and 64 tokens of
each transcription (``benchmarks.drift --limit 24 --transcribe 64``; intervals are about a third of it) and measured
bits per packed value:

- the mean of the keys over the span is subtracted first (:mod:`kvmm.codecs.common.offset`), without which a model with
  key biases is lost; this model has none: 2.67 bits, .0201, and 2.62, .0163 with ``offset="none"``;
- ranges are clipped about their middle instead of towards zero, and zero points are not rounded to whole steps:
  ``zero_point="integer"`` is the authors' quantiser, which is nearer on a pretrained language model: SmolLM2-135M on
  1536 tokens of a novel, KL .0836 and .0529, and .2598 without the mean (docs/results.md);
- values are rotated as they are stored, not by the weights: the same up to rounding;
- sinks and the newest text stay exact, where the paper codes every token: a policy's choice, not the codec's.

Clipping itself is the paper's and pays: ``clip=1.0`` gives .0265.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import torch

from kvmm.codecs.affine import RotatedAffineCodec
from kvmm.codecs.base import EncodeContext, Packed, Stored, StoreShape
from kvmm.codecs.common.offset import OFFSET, add_offset, offset_fields, offset_scores, subtract_offset
from kvmm.codecs.spec import CodecSpec, Side, Site
from kvmm.errors import KVMMError
from kvmm.fields import Field
from kvmm.kernels.attention.format import PackedFormat
from kvmm.kernels.quantize import affine_parameters, cut_pages


class QuaRot(RotatedAffineCodec):
    """Per-token codes of rotated keys and values.

    Options:
        clip: the part of a group's range that the levels span; 0.95 is the paper's for the cache (section 5).
        offset: ``mean`` (stored once a span, for keys), or ``none`` as in the paper.
        zero_point: ``float`` (any number), or ``integer``, the authors' code: ranges hold zero and are clipped towards
            it, and the zero point is a whole number of steps.
    """

    name = "quarot"
    pages_stand_alone = True
    stored: ClassVar[Mapping[str, Stored]] = OFFSET
    options: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        **RotatedAffineCodec.options,
        "clip": (0.95,),
        "offset": ("mean", "none"),
        "zero_point": ("float", "integer"),
    }

    def __init__(self, spec: CodecSpec, side: Side, site: Site | None = None):
        super().__init__(spec, side, site)
        self.axis = "token"
        self.clip = self.option("clip")
        self.integer_zero = self.option("zero_point") == "integer"
        self.centred = side == "key" and self.option("offset") == "mean"
        self.absorbs_bias = self.option("offset") == "mean"
        self.static_encode = not self.centred

    @classmethod
    def check(cls, spec: CodecSpec) -> None:
        super().check(spec)
        clip = spec.option("clip", 0.95)
        if not isinstance(clip, (int, float)) or not 0 < clip <= 1:
            raise KVMMError(f"Codec {cls.name}: clip must be a part of the range, above 0 and up to 1, not {clip!r}.")

    def token_parameters(self, low: torch.Tensor, high: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if self.integer_zero:
            return super().token_parameters(low.clamp_max(0) * self.clip, high.clamp_min(0) * self.clip)
        cut = (high - low) * ((1 - self.clip) / 2)  # about the middle, so that equal elements stay exact
        return affine_parameters(low + cut, high - cut, self.spec.bits, dtype=self.parameter_dtype)

    def encode(self, x: torch.Tensor, context: EncodeContext) -> Packed:
        pages = self.rotated(cut_pages(x, context.page_size, context.valid))
        if not self.centred:
            return self.encode_pages(pages)
        pages, offset, group = subtract_offset(pages, x.shape[2], context, self.parameter_dtype)
        packed = self.encode_pages(pages)
        packed.tensors["offset"] = offset
        packed.page_group = group
        return packed

    def fields(self, store: StoreShape, tensors: Mapping[str, torch.Tensor]) -> dict[str, Field]:
        fields = super().fields(store, tensors)
        return fields | offset_fields(store, self.parameter_dtype) if self.centred else fields

    def decode(self, packed: Packed) -> torch.Tensor:
        pages = self.decode_pages(packed)
        if self.centred:
            pages = add_offset(pages, packed)
        return self.restored(pages).flatten(2, 3)

    def packed_format(self, packed: Packed) -> PackedFormat | None:
        digits = super().packed_format(packed)
        return replace(digits, mean=packed["offset"], page_group=packed.page_group) if self.centred else digits

    def scores(self, query: torch.Tensor, packed: Packed) -> torch.Tensor:
        scores = super().scores(query, packed)
        return scores.add_(offset_scores(query, packed["offset"], packed)) if self.centred else scores
