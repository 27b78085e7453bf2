"""OTT, outlier token tracing (Su et al., ACL 2025): KIVI with a few outlier tokens in full precision.

Keys are even along a channel except for a handful of tokens with very small keys. These stay in full precision, keys
and values alike, and do not enter the scales; the rest is KIVI.

Departures from the paper, with the KL divergence from full precision of tiny-omni on 24 held-out questions and
64 tokens of each transcription (``benchmarks.drift --limit 24 --transcribe 64``; intervals are about a quarter of it)
and measured bits per packed value. The preset has 2.96 bits, .0418.

- The paper traces the smallest tokens over the windows of a running cache, in a pool of fixed size; here a span (an
  image, a recording, a prompt) is packed at once, so its smallest are known, and every span has a pool. A pool for
  every group (``window=128``): 3.26 bits, .0408.
- Outliers in a pool of 3 tokens: 2.79 bits, .0424; none at all, which is KIVI: 2.53 bits, .0429. This model has few
  outlier tokens, so they gain little here.
- On SmolLM2-135M and 1536 tokens of a novel (docs/results.md): five tokens 2.43 bits, KL .1680; three 2.41, .1662; none
  2.38, .1738; a pool for every 128 tokens 3.02, .1976; groups of 32, as in OScaR's comparison, 3.06, .0853.
- Every layer has a pool; pages of an answer add nothing to it.
- Sinks stay exact besides. Without them nothing changes here, since the text before a page is short and stays exact.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import torch

from kvmm.codecs.affine import AffineCodec
from kvmm.codecs.base import EncodeContext, Packed, Stored, StoreShape
from kvmm.codecs.common.outliers import (
    OUTLIERS,
    find_outliers,
    num_outliers,
    outlier_fields,
    outlier_scores,
    put_back,
    split_probabilities,
    take_out,
)
from kvmm.codecs.spec import CodecSpec, Side, Site
from kvmm.errors import KVMMError
from kvmm.fields import Field
from kvmm.kernels.attention.format import PackedFormat
from kvmm.kernels.quantize import cut_pages


class OTT(AffineCodec):
    """KIVI besides a pool of full-precision tokens.

    Options:
        pool: tokens kept.
        window: tokens of which ``pool`` are kept, such as the group; None: the span.
    """

    name = "ott"
    options: ClassVar[Mapping[str, tuple[Any, ...]]] = {**AffineCodec.options, "pool": (5,), "window": (None,)}

    def __init__(self, spec: CodecSpec, side: Side, site: Site | None = None):
        super().__init__(spec, side, site)
        self.pool, self.window = self.option("pool"), self.option("window")

    @property
    def stored(self) -> Mapping[str, Stored]:
        return super().stored | OUTLIERS

    @classmethod
    def check(cls, spec: CodecSpec) -> None:
        super().check(spec)
        pool, window = spec.option("pool", 5), spec.option("window")
        if not isinstance(pool, int) or pool < 0:
            raise KVMMError(f"Codec ott: pool must be a number of tokens, 0 or more, not {pool!r}.")
        if window is not None and (not isinstance(window, int) or window < max(pool, 1)):
            raise KVMMError(f"Codec ott: window must be None or a number of tokens of at least pool, not {window!r}.")

    def encode(self, x: torch.Tensor, context: EncodeContext) -> Packed:
        slots = find_outliers(x, num_outliers(x.shape[2], self.pool, self.window, context), context)
        pages, kept = take_out(x, cut_pages(x, context.page_size, context.valid), slots, context)
        packed = self.encode_pages(pages)
        packed.tensors |= kept
        return packed

    def fields(self, store: StoreShape, tensors: Mapping[str, torch.Tensor]) -> dict[str, Field]:
        return super().fields(store, tensors) | outlier_fields(store)

    def decode(self, packed: Packed) -> torch.Tensor:
        return put_back(super().decode(packed), packed)

    def packed_format(self, packed: Packed) -> PackedFormat | None:
        store = super().packed_format(packed)
        return None if store is None else replace(store, kept=packed["outlier"], kept_slot=packed["outlier_slot"])

    def scores(self, query: torch.Tensor, packed: Packed) -> torch.Tensor:
        return outlier_scores(super().scores(query, packed), query, packed, packed["outlier"])

    def weighted_values(self, probabilities: torch.Tensor, packed: Packed) -> torch.Tensor:
        rest, kept = split_probabilities(probabilities, packed)
        return super().weighted_values(rest, packed) + kept @ packed["outlier"].float()
