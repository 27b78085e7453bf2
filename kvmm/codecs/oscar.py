"""OScaR (arXiv 2605.19660): canalized rotation, then omni-token scaling, then per-channel codes.

Keys: ``K_h = H k / sqrt(D)``; the token's norm ``n`` is divided out, ``K_h / n`` is coded per channel over
``group_size`` tokens, and the logit is ``((H q / sqrt(D)) . decoded) * n``. The order matters: dividing the norm out
before rotating makes new outliers. Values are rotated, then coded per token over ``group_size`` channels.

Where the paper, the authors' code and this codec differ is an option. What each costs at 2 bits and groups of 128, as
KL divergence from full precision of tiny-omni (two KV heads of 64 channels) on 24 held-out questions and 64
tokens of each transcription (``benchmarks.drift --limit 24 --transcribe 64``), with measured bits per packed value.
Intervals are about a third of the KL, so what is closer than that is equal:

- the defaults, a norm per head: 2.66 bits, KL .0228; ``norm="max"`` .0299, ``norm="mean"`` .0210;
- ``norm_scope="token"``: 2.60 bits, .0312; ``zero_point="integer"`` .0160; both, the authors' code: 2.60 bits, .0209;
- ``norm="none"`` (rotation alone): 2.53 bits, .0211; ``rotation=False`` (scaling alone): .0490.

Scaling gains nothing on this model, unlike on a pretrained one: SmolLM2-135M on 1536 tokens of a novel
(docs/results.md) has KL .0520, with ``norm="none"`` .0708, ``rotation=False`` .1382, ``norm="max"`` .0582,
``norm="mean"`` .0586, ``norm_scope="token"`` .0556, and as in the authors' code .0698.
:mod:`kvmm.analysis.errors.bounds` says where it gains. Zero keys, which the authors divide by 1e-8, get a norm of 1
here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch

from kvmm.codecs.affine import RotatedAffineCodec
from kvmm.codecs.base import EncodeContext, Packed, StoreShape
from kvmm.codecs.spec import CodecSpec, Side, Site
from kvmm.fields import Field
from kvmm.kernels.quantize import Pages, cut_pages


class OScaR(RotatedAffineCodec):
    """OScaR, with the choices in which the paper and its code differ as options.

    Options:
        norm_scope: ``head`` (one norm a token and KV head, the paper's text) or ``token`` (one a token, shared by all
            KV heads, the authors' code).
        norm: ``l2``; ``rsqrt``, the same factor under the authors' name for it; ``max`` (largest magnitude), ``mean``
            (mean magnitude), or ``none`` for the ablation without scaling.
        rotation: False for the ablation without rotation.
        value_rotation: ``online`` (values are rotated as they are stored, and the output back), or ``fused``: the
            model's weights do it (:func:`kvmm.cache.fuse.fuse_value_rotation`, the authors' way), so values are stored
            as they come.
        zero_point: ``float`` (the group's minimum) or ``integer`` (rounded to whole steps, the authors' code).
    """

    name = "oscar"
    pages_stand_alone = True
    static_encode = True
    options: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        **RotatedAffineCodec.options,
        "norm_scope": ("head", "token"),
        "norm": ("l2", "rsqrt", "max", "mean", "none"),
        "rotation": (True, False),
        "value_rotation": ("online", "fused"),
        "zero_point": ("float", "integer"),
    }

    def __init__(self, spec: CodecSpec, side: Side, site: Site | None = None):
        super().__init__(spec, side, site)
        self.rotation = self.option("rotation") and not (side == "value" and self.option("value_rotation") == "fused")
        self.norm = self.option("norm") if side == "key" else "none"
        self.norm_scope = self.option("norm_scope")
        self.integer_zero = self.option("zero_point") == "integer"

    def token_norm(self, pages: Pages) -> torch.Tensor:
        """The factor of every token: ``[B, H or 1, P, N]`` as it is stored."""
        kind = "l2" if self.norm == "rsqrt" else self.norm
        if (kind, self.norm_scope, self.parameter_dtype) == ("l2", "head", torch.float16):
            return pages.divisors(self.parameter_dtype)  # the same in one kernel
        norm = pages.token_norms(kind, shared=self.norm_scope == "token")
        norm = norm.clamp_max(torch.finfo(self.parameter_dtype).max).to(self.parameter_dtype)
        # a zero key has no direction; any norm does
        return torch.where(norm == 0, torch.ones_like(norm), norm)

    def encode(self, x: torch.Tensor, context: EncodeContext) -> Packed:
        pages = self.rotated(cut_pages(x, context.page_size, context.valid))
        norm = None
        if self.norm != "none":
            norm = self.token_norm(pages)
            pages = pages.divide(norm)
        packed = self.encode_pages(pages)
        if norm is not None:
            packed.tensors["norm"] = norm
        return packed

    def fields(self, store: StoreShape, tensors: Mapping[str, torch.Tensor]) -> dict[str, Field]:
        fields = super().fields(store, tensors)
        if self.norm != "none":
            heads = 1 if self.norm_scope == "token" else store.heads
            fields["norm"] = Field(self.parameter_dtype, (store.batch, heads, store.pages, store.page_size))
        return fields

    def decode(self, packed: Packed) -> torch.Tensor:
        pages = self.decode_pages(packed)
        if "norm" in packed.tensors:
            pages = pages * packed["norm"].float().unsqueeze(-1)
        return self.restored(pages).flatten(2, 3)
