"""TurboQuant (arXiv 2504.19874), without its one-bit residual sketch (QJL).

Every vector is split into its norm and its direction; a random rotation makes the coordinates of any direction alike,
with the density of one coordinate of a uniform unit vector, and each is coded with the scalar code book that is best
for that density (Lloyd-Max; section 3.1). The paper's fractional widths give a fixed part of the rotated channels one
bit more. Not in the paper: the mean of the keys over the span is subtracted first (:mod:`kvmm.codecs.common.offset`),
as otherwise the norm of a model's key bias scales every error.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from functools import lru_cache
from typing import Any, ClassVar

import torch

from kvmm.codecs.base import Codec, EncodeContext, Packed, Stored, StoreShape
from kvmm.codecs.common.offset import OFFSET, add_offset, offset_fields, offset_scores, subtract_offset
from kvmm.codecs.spec import CodecSpec, Side, Site
from kvmm.errors import KVMMError
from kvmm.fields import Field
from kvmm.kernels.quantize import DensePages, pack_planes, paged, slot_weight, unpack_planes

_GRID = 20001
_ITERATIONS = 5000


@lru_cache(maxsize=32)
def lloyd_max(dim: int, bits: int) -> torch.Tensor:
    """The best ``2 ** bits`` levels for one coordinate of a random unit vector.

    Its density in ``dim`` dimensions is proportional to ``(1 - x ** 2) ** ((dim - 3) / 2)``, nearly a Gaussian of
    variance ``1 / dim``.

    Returns:
        float64 ``[2 ** bits]``, ascending and symmetric; do not modify, it is shared.
    """
    edge = min(1.0, 8 / dim**0.5)
    x = torch.linspace(-edge, edge, _GRID, dtype=torch.float64)
    density = (1 - x * x).clamp_min(0) ** ((dim - 3) / 2)
    # mass and first moment from the left edge to each point of the grid
    integrals = torch.stack([torch.cumulative_trapezoid(y, x) for y in (density, density * x)])
    integrals = torch.nn.functional.pad(integrals, (1, 0))
    count = 2**bits
    levels = (torch.arange(count, dtype=torch.float64) - (count - 1) / 2) * (4 / count / dim**0.5)
    for _ in range(_ITERATIONS):
        borders = (levels[1:] + levels[:-1]) / 2 + edge  # the best borders for the levels
        place = borders / (2 * edge / (_GRID - 1))
        left = place.long()
        between = torch.lerp(integrals[:, left], integrals[:, left + 1], place - left)
        cells = torch.cat((integrals[:, :1], between, integrals[:, -1:]), 1).diff(dim=1)
        moved = cells[1] / cells[0]  # the best levels for the borders
        done = float((moved - levels).abs().max()) < 1e-9
        levels = moved
        if done:
            break
    return (levels - levels.flip(0)) / 2


@lru_cache(maxsize=32)
def _polynomial(dim: int, bits: int) -> tuple[float, ...]:
    """Coefficients ``a`` with ``level = x * (a_0 + a_1 x^2 + ...)`` for ``x = 2 * code / (2 ** bits - 1) - 1``."""
    levels = lloyd_max(dim, bits)[2 ** (bits - 1) :]
    x = torch.arange(1, 2**bits, 2, dtype=torch.float64) / (2**bits - 1)
    powers = x[:, None] ** (2 * torch.arange(len(x), dtype=torch.float64))
    return tuple(torch.linalg.solve(powers, levels / x).tolist())


def code_levels(codes: torch.Tensor, dim: int, bits: int) -> torch.Tensor:
    """The levels of uint8 codes ``[...]``, float32.

    A symmetric code book is an odd polynomial of the code; up to eight levels that is exact in float32, and several
    times faster than looking them up.
    """
    if bits > 3:
        table = lloyd_max(dim, bits).to(codes.device, torch.float32)
        return table.index_select(0, codes.flatten().int()).view(codes.shape)
    x = codes.float().mul_(2 / (2**bits - 1)).sub_(1)
    square = x * x
    *rest, highest = _polynomial(dim, bits)
    factor = square * highest
    for coefficient in reversed(rest[1:]):
        factor.add_(coefficient).mul_(square)
    return x.mul_(factor.add_(rest[0]))


@lru_cache(maxsize=32)
def random_rotation(dim: int, seed: int, device: torch.device | str = "cpu") -> torch.Tensor:
    """A random orthogonal matrix, float32 ``[dim, dim]``, the same for equal arguments; do not modify, it is shared."""
    normal = torch.randn(dim, dim, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    q, r = torch.linalg.qr(normal)
    return (q * r.diagonal().sign()).to(device=device, dtype=torch.float32)


class TurboQuant(Codec):
    """Norm, random rotation, and a scalar code book for every coordinate.

    Stored: ``codes`` uint8, the first two bits of every coordinate in planes (keys ``[B, H, P, N / 4, D]``, values
    ``[B, H, P, D, N / 4]``); ``high_codes``, the rest: two bits (4), one bit (3), or one bit of the first half of the
    channels (2.5); ``norm`` ``[B, H, P, N]``; for keys ``offset``.

    Options:
        seed: of the rotation. One rotation serves all layers and heads.
        offset: ``mean`` (stored once a span, for keys), or ``none`` as in the paper.
        parameters: type of norms and offsets.
    """

    name = "turboquant"
    bits = (2, 2.5, 3, 4)
    pages_stand_alone = True
    stored: ClassVar[Mapping[str, Stored]] = OFFSET
    options: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "seed": (0,),
        "offset": ("mean", "none"),
        "parameters": ("float16", "float32"),
    }

    def __init__(self, spec: CodecSpec, side: Side, site: Site | None = None):
        super().__init__(spec, side, site)
        self.seed = self.option("seed")
        self.centred = side == "key" and self.option("offset") == "mean"
        self.parameter_dtype: torch.dtype = getattr(torch, self.option("parameters"))
        self.high_bits = {2: 0, 2.5: 1, 3: 1, 4: 2}[spec.bits]

    @classmethod
    def check(cls, spec: CodecSpec) -> None:
        super().check(spec)
        if spec.group_size is not None:
            raise KVMMError("Codec turboquant has one norm a token and no groups; leave group_size out.")
        seed = spec.option("seed", 0)
        if not isinstance(seed, int) or not 0 <= seed < 2**63:
            raise KVMMError(f"Codec turboquant: seed must be a whole number, 0 or more and below 2^63, not {seed!r}.")

    @classmethod
    def matrix_specs(cls) -> list[CodecSpec]:
        """The specs that tests cover."""
        return [CodecSpec(cls.name, bits) for bits in cls.bits]

    # -- basis --------------------------------------------------------------------------------------------------------

    @property
    def transform_id(self) -> Hashable:
        return (self.name, self.seed)

    def transform_query(self, query: torch.Tensor) -> torch.Tensor:
        return query @ random_rotation(query.shape[-1], self.seed, query.device).T

    def restore_output(self, output: torch.Tensor) -> torch.Tensor:
        return output @ random_rotation(output.shape[-1], self.seed, output.device)

    # -- codes --------------------------------------------------------------------------------------------------------

    def _split(self, dim: int) -> tuple[tuple[slice, int], ...]:
        """Runs of channels and their bits."""
        if self.spec.bits == 2.5:
            return (slice(0, dim // 2), 3), (slice(dim // 2, dim), 2)
        return ((slice(0, dim), 2 + self.high_bits),)

    def encode(self, x: torch.Tensor, context: EncodeContext) -> Packed:
        pages = self.transform_query(paged(x, context.page_size))
        tensors: dict[str, torch.Tensor] = {}
        group = None
        if self.centred:
            weight = slot_weight(context.valid, x.shape[2], context.page_size)
            centred, tensors["offset"], group = subtract_offset(
                DensePages(pages, weight), x.shape[2], context, self.parameter_dtype
            )
            pages = centred.values
        norm = torch.linalg.vector_norm(pages, dim=-1)
        norm = norm.clamp_max(torch.finfo(self.parameter_dtype).max).to(self.parameter_dtype)
        stored = norm.float().unsqueeze(-1)
        pages = pages * torch.where(stored == 0, 0.0, 1 / stored)
        if self.side == "value":
            pages = pages.transpose(-1, -2)
        codes = torch.empty_like(pages, dtype=torch.uint8, memory_format=torch.contiguous_format)
        channels, tokens = (-1, -2) if self.side == "key" else (-2, -1)
        dim = x.shape[-1]
        for run, bits in self._split(dim):
            levels = lloyd_max(dim, bits).to(pages)
            part = pages.narrow(channels, run.start, run.stop - run.start).contiguous()
            found = torch.bucketize(part, (levels[1:] + levels[:-1]) / 2, out_int32=True)
            codes.narrow(channels, run.start, run.stop - run.start).copy_(found)
        tensors |= {"codes": pack_planes(codes & 3, 2, tokens), "norm": norm}
        if self.high_bits:
            high = codes.narrow(channels, 0, self._split(dim)[0][0].stop) >> 2
            tensors["high_codes"] = pack_planes(high, self.high_bits, tokens)
        return Packed(tensors, context.page_size, group)

    def fields(self, store: StoreShape, tensors: Mapping[str, torch.Tensor]) -> dict[str, Field]:
        pages = (store.batch, store.heads, store.pages)

        def codes(bits: int, channels: int) -> Field:
            rows = store.page_size * bits // 8
            return Field(torch.uint8, (*pages, *((rows, channels) if self.side == "key" else (channels, rows))))

        fields = {"codes": codes(2, store.dim), "norm": Field(self.parameter_dtype, (*pages, store.page_size))}
        if self.high_bits:
            fields["high_codes"] = codes(self.high_bits, self._split(store.dim)[0][0].stop)
        return fields | offset_fields(store, self.parameter_dtype) if self.centred else fields

    def levels(self, packed: Packed) -> torch.Tensor:
        """The coded coordinates of the directions, float32: keys ``[B, H, P, N, D]``, values ``[B, H, P, D, N]``."""
        channels, tokens = (-1, -2) if self.side == "key" else (-2, -1)
        codes = unpack_planes(packed["codes"], 2, tokens)
        dim = codes.shape[channels]
        runs = self._split(dim)
        if self.high_bits:
            high = unpack_planes(packed["high_codes"], self.high_bits, tokens) << 2
            codes.narrow(channels, 0, high.shape[channels]).bitwise_or_(high)
        parts = [code_levels(codes.narrow(channels, run.start, run.stop - run.start), dim, bits) for run, bits in runs]
        return parts[0] if len(parts) == 1 else torch.cat(parts, channels)

    def decode(self, packed: Packed) -> torch.Tensor:
        levels = self.levels(packed)
        if self.side == "value":
            levels = levels.transpose(-1, -2)
        pages = levels * packed["norm"].float().unsqueeze(-1)
        if self.centred:
            pages = add_offset(pages, packed)
        return self.restore_output(pages).flatten(2, 3)

    def scores(self, query: torch.Tensor, packed: Packed) -> torch.Tensor:
        scores = query @ self.levels(packed).flatten(2, 3).transpose(-1, -2)
        scores = scores.mul_(packed["norm"].float().flatten(2).unsqueeze(2))
        return scores.add_(offset_scores(query, packed["offset"], packed)) if self.centred else scores

    def weighted_values(self, probabilities: torch.Tensor, packed: Packed) -> torch.Tensor:
        pages = probabilities.unflatten(-1, packed["norm"].shape[2:]) * packed["norm"].float().unsqueeze(2)
        return (pages.transpose(2, 3) @ self.levels(packed).transpose(-1, -2)).sum(2)
