"""Codebooks of the product and angle codes: fitted to a model, or one of isotropic vectors that serves all."""

from __future__ import annotations

from functools import lru_cache

import torch

from kvmm.calibration.data import SiteSamples
from kvmm.codecs.spherical.rates import RATES, divisor
from kvmm.kernels.angle import kmeans

_FIT_TOKENS = 3072
_FIT_ROUNDS = 8
_FIT_LEAST = 4  # vectors a codeword


def fit_books(samples: SiteSamples) -> dict[str, torch.Tensor]:
    """Codebooks of one site: all rates for keys, the product codes for values.

    Codewords are int8 ``[H_kv, J, K, g]`` with one ``scale`` ``[H_kv, J]``: the rounding is far below the error of
    any code. Directions weigh by the square of their length, since that is what their error costs. A rate with too
    few vectors a codeword gets none: memorised vectors would be worse than the universal codebook.
    """
    vectors = samples.vectors[:, :: max(1, samples.vectors.shape[1] // _FIT_TOKENS)][:, :_FIT_TOKENS]
    centred = vectors.float() - samples.mean.float().unsqueeze(1)
    heads, count, dim = centred.shape
    found = {}
    for rate in RATES.values():
        if rate.radius and samples.side == "value":
            continue
        if count < _FIT_LEAST * 2**rate.index_bits:
            continue
        size = divisor(dim, rate.group)
        x = centred
        if not rate.radius:
            x = x / x.square().mean((1, 2), keepdim=True).sqrt().clamp_min(1e-12)
        x = x.unflatten(-1, (-1, size)).transpose(1, 2).flatten(0, 1)
        weight = torch.linalg.vector_norm(x, dim=-1) if rate.radius else None
        book = kmeans(x, 2**rate.index_bits, weight=weight, unit=rate.radius, iterations=_FIT_ROUNDS)
        book = book.unflatten(0, (heads, -1))
        scale = book.abs().amax((2, 3)).clamp_min(1e-12) / 127
        found[f"{rate.name}.words"] = (book / scale[..., None, None]).round().to(torch.int8)
        found[f"{rate.name}.scale"] = scale
    return found


@lru_cache(maxsize=16)
def universal_book(group: int, index_bits: int, unit: bool, device: str) -> torch.Tensor:
    """float32 ``[1, 1, K, g]``: k-means of isotropic vectors, or of their directions.

    In double precision and rounded, so that every machine gets the same codewords for what another one packed.
    """
    words = 2**index_bits
    generator = torch.Generator().manual_seed(group * 16 + index_bits)
    x = torch.randn(1, max(2048, 48 * words), group, generator=generator, dtype=torch.float64)
    if unit:
        x = torch.nn.functional.normalize(x, dim=-1)
    book = kmeans(x, words, unit=unit)
    return (book * 4096).round().div(4096).float().unsqueeze(0).to(device)


__all__ = ["fit_books", "universal_book"]
