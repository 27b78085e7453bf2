"""TurboQuant (arXiv 2504.19874): a norm, a random rotation, and a scalar code book for every coordinate.

Every vector is split into its norm and its direction; a random rotation makes the coordinates of any direction alike,
with the density of one coordinate of a uniform unit vector, and each is coded with the scalar code book that is best
for that density (Lloyd-Max; section 3.1, algorithm 1, ``TurboQuant_mse``).

Fractional widths (section 4.3) code some channels, the *outliers*, with one bit more than the others. The paper splits
the vector before it rotates: outliers are channels of the keys and values as the model makes them, and both parts have
a norm and a rotation of their own. Its "2.5 bits" are 32 of 128 channels of 3 bits and 96 of 2, which is 2.25 here.
Its calibration for vLLM takes the channels with the largest sum of squares, once; so does ``outliers="magnitude"``,
over the first span (an image, a recording, a prompt) of a store, without a calibration file: what comes later is split
alike, so that one transform of the query serves all pages. ``outliers="first"`` splits behind one rotation of the whole
vector, where channels are alike and any half does.

``residual="qjl"`` is algorithm 2, ``TurboQuant_prod``: one bit less for the code book, and the signs of a Gaussian
projection of what it leaves, which make the estimate of ``q . k`` unbiased. It is off: see below.

Departures from the paper, and what they cost: KL divergence from full precision of tiny-omni (D = 64) on 24
held-out questions and 64 tokens of each transcription (``benchmarks.drift --limit 24 --transcribe 64``), and measured
bits per packed value.

- 2 bits: 2.40 stored, KL .0247; with ``offset="none"`` 2.36, .0249; with the sketch 2.53, .0506.
- 2.25 bits: the first channels 2.67, .0190; the strongest 2.97, .0135.
- 2.5 bits: the first channels 2.93, .0113; the strongest 3.23, .0051.
- 3 bits: 3.45, .0017; with the sketch 3.58, .0105. 4 bits: 4.50, .0004; with the sketch 4.63, .0018.

The sketch costs as a code does that has a bit less, and a norm more: attention minds its noise more than the constant
factor by which scores of a code book shrink. The strongest channels lose less at the same width, and their second norm
costs 16 / D bits, so at D = 64 the measured bits buy the same either way, also on SmolLM2-135M (docs/results.md): the
first half at 2.76 bits has KL .0188, the strongest quarter at 2.76 bits .0174, the strongest half at 3.01 bits .0107.
So the preset keeps the first half, which needs no second norm. The mean of the keys over the span, which is subtracted
first (:mod:`kvmm.codecs.common.offset`), is not in the paper: without it the norm of a model's key bias scales every
error.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from functools import lru_cache
from math import pi
from typing import Any, ClassVar, NamedTuple

import torch

from kvmm.codecs.base import Codec, EncodeContext, Packed, Stored, StoreShape
from kvmm.codecs.common.codebook import bit_weights, code_levels, lloyd_max
from kvmm.codecs.common.offset import OFFSET, add_offset, offset_fields, offset_scores, subtract_offset
from kvmm.codecs.spec import CodecSpec, Side, Site, spec
from kvmm.errors import KVMMError
from kvmm.fields import Field, check_fields
from kvmm.kernels.attention.format import PackedFormat, Plane, pad_lanes
from kvmm.kernels.quantize import DensePages, Pages, ScalarBook, cut_pages, pack_planes, unpack_planes

_MIN_SPLIT_DIM = 16  # channels of which a quarter still have a density to fit code books to


@lru_cache(maxsize=32)
def random_rotation(dim: int, seed: int, device: torch.device | str = "cpu") -> torch.Tensor:
    """A random orthogonal matrix, float32 ``[dim, dim]``, the same for equal arguments; do not modify, it is shared."""
    normal = torch.randn(dim, dim, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    q, r = torch.linalg.qr(normal)
    return (q * r.diagonal().sign()).to(device=device, dtype=torch.float32)


@lru_cache(maxsize=32)
def gaussian_projection(dim: int, seed: int, device: torch.device | str = "cpu") -> torch.Tensor:
    """Independent normal numbers, float32 ``[dim, dim]``, the same for equal arguments; do not modify, it is shared."""
    normal = torch.randn(dim, dim, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return normal.to(device=device, dtype=torch.float32)


@lru_cache(maxsize=32)
def _level_range(runs: tuple[Run, ...], device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Ones and the lowest level of every channel, float32 ``[1, 1, 1, D]``."""
    lowest = [float(lloyd_max(run.dim, run.bits)[0]) for run in runs for _ in range(run.start, run.stop)]
    return torch.ones(1, 1, 1, len(lowest), device=device), torch.tensor(lowest, device=device)[None, None, None]


@lru_cache(maxsize=32)
def _transform(runs: tuple[Run, ...] | None, dim: int, seed: int, device: torch.device, side: Side) -> torch.Tensor:
    """float32 ``[1, D, Q]`` from queries to rotated keys or ``[1, D, D]`` from rotated values back, of all channels or
    of each of ``runs``."""
    if runs is None:
        rotation = random_rotation(dim, seed, device)
    else:
        rotation = torch.block_diag(*(random_rotation(run.dim, seed, device) for run in runs))
    return pad_lanes(rotation.T)[None] if side == "key" else rotation.contiguous()[None]


@lru_cache(maxsize=32)
def _rotation_of_pages(dim: int, seed: int, device: torch.device) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """The rotation float32 ``[1, 1, D, D]`` and what kernels derive from it."""
    return random_rotation(dim, seed, device)[None, None], {}


@lru_cache(maxsize=32)
def _borders(dim: int, bits: int) -> tuple[float, ...]:
    """The borders between the codes of :func:`lloyd_max`, as float32 has them."""
    levels = lloyd_max(dim, bits).float()
    return tuple(((levels[1:] + levels[:-1]) / 2).tolist())


class Run(NamedTuple):
    """Neighbouring channels that are coded alike: from ``start`` to ``stop``, ``bits`` each, as coordinates of a unit
    vector of ``dim`` dimensions whose norm is stored as ``norm``."""

    start: int
    stop: int
    bits: int
    dim: int
    norm: str


@lru_cache(maxsize=32)
def _rotations(runs: tuple[Run, ...], seed: int, device: torch.device) -> torch.Tensor:
    """float32 ``[D, D]``, which turns every run by a rotation of its own; do not modify, it is shared."""
    return torch.block_diag(*(random_rotation(run.dim, seed, device) for run in runs))


class TurboQuant(Codec):
    """Norm, random rotation, and a scalar code book for every coordinate.

    Stored: ``codes`` uint8, the first bits (two, or one) of every coordinate in planes (keys ``[B, H, P, N / 4, D]``,
    values ``[B, H, P, D, N / 4]``); ``high_codes``, the rest, of all channels or of the first ``M``; ``norm``
    ``[B, H, P, N]``; for keys ``offset`` ``[B, H, G, D]``. With outliers by magnitude, which then are the first ``M``
    channels: ``high_norm`` ``[B, H, P, N]`` and ``channel_order`` int16 ``[B, H, G, D]``, the channels in the order of
    the codes, alike for all groups: those of the first span, so that a later one with other strong channels is coded
    worse than by its own.
    With a residual: ``sketch`` uint8 ``[B, H, P, N / 8, D]`` (signs) and ``residual_norm`` ``[B, H, P, N]``.

    Options:
        outliers: which channels get a bit more at 2.25 (a quarter of them) and 2.5 (half): ``first``, those after one
            rotation of all, or ``magnitude``, the strongest of the unrotated ones.
        residual: ``none``, or ``qjl``: the last bit of keys is a sketch of the residual. Values have none, since the
            sketch serves inner products.
        seed: of the rotation. One rotation serves all layers and heads.
        offset: ``mean`` (stored once a span, for keys), or ``none`` as in the paper.
        parameters: type of norms and offsets.
    """

    name = "turboquant"
    bits = (2, 2.25, 2.5, 3, 4)
    pages_stand_alone = True
    stored: ClassVar[Mapping[str, Stored]] = {**OFFSET, "channel_order": Stored("group")}
    options: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "outliers": ("first", "magnitude"),
        "residual": ("none", "qjl"),
        "seed": (0,),
        "offset": ("mean", "none"),
        "parameters": ("float16", "float32"),
    }

    def __init__(self, spec: CodecSpec, side: Side, site: Site | None = None):
        super().__init__(spec, side, site)
        self.seed = self.option("seed")
        self.centred = side == "key" and self.option("offset") == "mean"
        self.absorbs_bias = self.option("offset") == "mean"
        self.sketched = side == "key" and self.option("residual") == "qjl"
        self.parameter_dtype: torch.dtype = getattr(torch, self.option("parameters"))
        self.share = spec.bits % 1  # of the channels that get a bit more
        self.chooses = bool(self.share) and self.option("outliers") == "magnitude"

    @classmethod
    def check(cls, spec: CodecSpec) -> None:
        super().check(spec)
        if spec.group_size is not None:
            raise KVMMError("Codec turboquant has one norm a token and no groups; leave group_size out.")
        seed = spec.option("seed", 0)
        if not isinstance(seed, int) or not 0 <= seed < 2**63:
            raise KVMMError(f"Codec turboquant: seed must be a whole number, 0 or more and below 2^63, not {seed!r}.")

    @classmethod
    def check_model(cls, spec: CodecSpec, head_dim: int) -> None:
        if spec.bits % 1 and spec.option("outliers") == "magnitude" and head_dim < _MIN_SPLIT_DIM:
            raise KVMMError(
                f"Codec turboquant splits heads of {_MIN_SPLIT_DIM} channels and more by magnitude, and this model's "
                f"have {head_dim}; use outliers='first' or a whole number of bits."
            )

    @classmethod
    def matrix_specs(cls) -> list[CodecSpec]:
        """The specs that tests cover."""
        chosen = [spec(cls.name, bits, outliers="magnitude") for bits in (2.25, 2.5)]
        return [*(CodecSpec(cls.name, bits) for bits in cls.bits), *chosen, spec(cls.name, 3, residual="qjl")]

    # -- basis --------------------------------------------------------------------------------------------------------

    @property
    def transform_id(self) -> Hashable:
        # chosen channels are those of a store, and turned in scores and weighted_values
        return "identity" if self.chooses else (self.name, self.seed)

    def transform_query(self, query: torch.Tensor) -> torch.Tensor:
        return query if self.chooses else query @ random_rotation(query.shape[-1], self.seed, query.device).T

    def restore_output(self, output: torch.Tensor) -> torch.Tensor:
        return output if self.chooses else output @ random_rotation(output.shape[-1], self.seed, output.device)

    def _high_count(self, dim: int) -> int:
        """How many channels get a bit more."""
        return round(dim * self.share)

    def _runs(self, dim: int) -> tuple[Run, ...]:
        """The channels of a stored vector."""
        bits, high = int(self.spec.bits) - self.sketched, self._high_count(dim)
        if not high:
            return (Run(0, dim, bits, dim, "norm"),)
        if self.chooses:
            return Run(0, high, bits + 1, high, "high_norm"), Run(high, dim, bits, dim - high, "norm")
        return Run(0, high, bits + 1, dim, "norm"), Run(high, dim, bits, dim, "norm")

    def _planes(self, dim: int) -> tuple[int, int, int]:
        """Bits of ``codes``, and bits and channels of ``high_codes`` (0 and 0 if there are none)."""
        runs = self._runs(dim)
        low = min(2, min(run.bits for run in runs))
        return low, runs[0].bits - low, runs[0].stop if runs[0].bits > low else 0

    def _norm_runs(self, dim: int) -> list[tuple[str, slice]]:
        """The stored norms, and the channels that each scales."""
        runs = self._runs(dim)
        return [(run.norm, slice(run.start, run.stop)) for run in runs] if self.chooses else [("norm", slice(0, dim))]

    # -- channels in the order of a store: outliers, then the others, each turned by a rotation of its own -----------

    def _turn(self, x: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
        """Vectors ``[B, H, n, m, D]`` into the basis of the codes, with the order ``[B, H, G, D]`` of channels."""
        x = x.gather(-1, order[:, :, :1].long().unsqueeze(3).expand_as(x))
        return torch.cat([x[..., r.start : r.stop] @ self._rotation(r, x).T for r in self._runs(x.shape[-1])], -1)

    def _turn_matrix(self, order: torch.Tensor) -> torch.Tensor:
        """float32 ``[B, H, D, D]``: :meth:`_turn` as a matrix, with the order ``[B, H, 1, D]`` of channels."""
        order = order[:, :, 0].long()
        ordered = _rotations(self._runs(order.shape[-1]), self.seed, order.device).expand(*order.shape, -1)
        return torch.empty_like(ordered).scatter_(-1, order.unsqueeze(2).expand_as(ordered), ordered)

    def _turn_back(self, x: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
        """The inverse of :meth:`_turn`."""
        x = torch.cat([x[..., r.start : r.stop] @ self._rotation(r, x) for r in self._runs(x.shape[-1])], -1)
        return torch.empty_like(x).scatter_(-1, order[:, :, :1].long().unsqueeze(3).expand_as(x), x)

    def _rotation(self, run: Run, x: torch.Tensor) -> torch.Tensor:
        return random_rotation(run.dim, self.seed, x.device)

    def _choose(
        self, pages: Pages, tokens: int, context: EncodeContext, group: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The channels in the order of the codes: first those with the largest sums of squares over the first span.

        Args:
            pages: with fill, which does not count.
            tokens: slots without the fill of the last page.
            context: what the codec was told.
            group: the offset of each page (:func:`subtract_offset`), or None without offsets.

        Returns:
            ``channel_order`` int16 ``[B, H, 1, D]`` for ``pages``, the same or ``[B, H, 0, D]`` to be stored, and
            ``page_group`` int32 ``[P]``. A span that has an offset of its own has a row of the order, too.
        """
        last = None if context.previous is None else context.previous["channel_order"][:, :, :1]
        if group is None:
            new = last is None
            group = torch.full((pages.shape[2],), 0 if new else -1, dtype=torch.int32, device=pages.device)
        else:
            new = last is None or bool(group[0] >= 0)
        if last is not None:
            return last, last if new else last[:, :, :0], group
        mean, variance = pages.moments()
        energy = variance + mean.square()
        strongest = energy.topk(self._high_count(pages.shape[-1]), -1).indices
        marks = torch.zeros_like(energy, dtype=torch.uint8).scatter_(-1, strongest, 1)
        order = marks.argsort(dim=-1, descending=True, stable=True).to(torch.int16).unsqueeze(2)
        return order, order, group

    # -- as kernels read it -------------------------------------------------------------------------------------------

    def packed_format(self, packed: Packed) -> PackedFormat | None:
        codes = packed["codes"]
        dim = codes.shape[-1 if self.side == "key" else -2]
        low, high, count = self._planes(dim)
        if self.sketched or low != 2 or high > 1:
            return None
        planes = (Plane(codes, low, dim),)
        if high:
            planes += (Plane(packed["high_codes"], high, count),)
        runs = self._runs(dim)
        ones, lowest = (x.expand(*codes.shape[:2], -1, -1) for x in _level_range(runs, codes.device))
        centre, order = packed["offset"] if self.centred else None, None
        if self.chooses:
            order = packed["channel_order"][:, :, :1]
            centre = None if centre is None else self._turn(centre.float().unsqueeze(3), order).squeeze(3)
        return PackedFormat(
            planes,
            codes.shape[2],
            packed.page_size,
            ones,
            lowest,
            norm=packed["norm"],
            high_norm=packed["high_norm"] if self.chooses else None,
            transform=_transform(runs if self.chooses else None, dim, self.seed, codes.device, self.side),
            channel_order=order,
            centre=centre,
            centre_group=packed.page_group if self.centred else None,
            bit_weights=tuple(bit_weights(run.dim, run.bits) for run in runs),
        )

    # -- codes --------------------------------------------------------------------------------------------------------

    def encode(self, x: torch.Tensor, context: EncodeContext) -> Packed:
        # what a sketch is taken from has to exist
        pages = (DensePages.cut if self.sketched else cut_pages)(x, context.page_size, context.valid)
        tensors: dict[str, torch.Tensor] = {}
        group = None
        matrix, parts = _rotation_of_pages(x.shape[-1], self.seed, x.device)
        if self.centred:
            pages, tensors["offset"], group = subtract_offset(
                pages, x.shape[2], context, self.parameter_dtype, None if self.chooses else matrix[0, 0]
            )
        if self.chooses:
            order, tensors["channel_order"], group = self._choose(pages, x.shape[2], context, group)
            matrix, parts = self._turn_matrix(order), None
        pages = pages.transform(matrix, parts)
        tensors["codes"], high, lengths = pages.book_codes(
            self._book(x.shape[-1]), self.parameter_dtype, self.side == "value"
        )
        tensors |= {name: length for (name, _), length in zip(self._norm_runs(x.shape[-1]), lengths, strict=True)}
        if high is not None:
            tensors["high_codes"] = high
        packed = Packed(tensors, context.page_size, group)
        if self.sketched:
            coded = self.levels(packed) * tensors["norm"].float().unsqueeze(-1)
            packed.tensors |= self._sketch(pages.values - coded)
        return packed

    def _book(self, dim: int) -> ScalarBook:
        runs = tuple((run.stop - run.start, _borders(run.dim, run.bits)) for run in self._runs(dim))
        return ScalarBook(runs, *self._planes(dim), split=self.chooses)

    def _norm(self, x: torch.Tensor) -> torch.Tensor:
        """Lengths of vectors ``[..., D]`` as they are stored."""
        norm = torch.linalg.vector_norm(x, dim=-1)
        return norm.clamp_max(torch.finfo(self.parameter_dtype).max).to(self.parameter_dtype)

    def _sketch(self, residual: torch.Tensor) -> dict[str, torch.Tensor]:
        """The QJL sketch of residuals ``[B, H, P, N, D]``: signs of a projection, and lengths (definition 1)."""
        projected = residual @ gaussian_projection(residual.shape[-1], self.seed, residual.device).T
        signs = pack_planes((projected >= 0).to(torch.uint8), 1, -2)
        return {"sketch": signs, "residual_norm": self._norm(residual)}

    def _signs(self, packed: Packed) -> torch.Tensor:
        """float32 ``[B, H, P, N, D]``: the signs of the sketch, with the factor that makes them an estimate."""
        signs = unpack_planes(packed["sketch"], 1, -2).float().mul_(2).sub_(1)
        return signs.mul_(packed["residual_norm"].float().unsqueeze(-1) * ((pi / 2) ** 0.5 / signs.shape[-1]))

    def fields(self, store: StoreShape, tensors: Mapping[str, torch.Tensor]) -> dict[str, Field]:
        pages = (store.batch, store.heads, store.pages)

        def codes(bits: int, channels: int) -> Field:
            rows = store.page_size * bits // 8
            return Field(torch.uint8, (*pages, *((rows, channels) if self.side == "key" else (channels, rows))))

        low, high, count = self._planes(store.dim)
        norm = Field(self.parameter_dtype, (*pages, store.page_size))
        fields = {"codes": codes(low, store.dim), **{name: norm for name, _ in self._norm_runs(store.dim)}}
        if high:
            fields["high_codes"] = codes(high, count)
        if self.sketched:
            fields |= {"sketch": codes(1, store.dim), "residual_norm": norm}
        if self.centred:
            fields |= offset_fields(store, self.parameter_dtype)
        if self.chooses:
            order = Field(torch.int16, (store.batch, store.heads, "groups", store.dim), 0, store.dim)
            check_fields(tensors, {"channel_order": order}, closed=False)
            found = tensors["channel_order"].long()
            if not bool((found.sort(-1).values == torch.arange(store.dim, device=found.device)).all()):
                raise KVMMError("channel_order: does not name every channel once")
            if not bool((found == found[:, :, :1]).all()):
                raise KVMMError("channel_order: differs from group to group")
            fields |= {"channel_order": order, "page_group": Field(torch.int32, (store.pages,), 0, "groups")}
        return fields

    def levels(self, packed: Packed) -> torch.Tensor:
        """The coded coordinates of the directions, float32: keys ``[B, H, P, N, D]``, values ``[B, H, P, D, N]``."""
        channels, tokens = (-1, -2) if self.side == "key" else (-2, -1)
        dim = packed["codes"].shape[channels]
        low, high, count = self._planes(dim)
        codes = unpack_planes(packed["codes"], low, tokens)
        if high:
            rest = unpack_planes(packed["high_codes"], high, tokens) << low
            codes.narrow(channels, 0, count).bitwise_or_(rest)
        runs = self._runs(dim)
        parts = [code_levels(codes.narrow(channels, r.start, r.stop - r.start), r.dim, r.bits) for r in runs]
        return parts[0] if len(parts) == 1 else torch.cat(parts, channels)

    def decode(self, packed: Packed) -> torch.Tensor:
        pages = self.levels(packed)
        if self.side == "value":
            pages = pages.transpose(-1, -2)
        for name, channels in self._norm_runs(pages.shape[-1]):
            pages[..., channels] *= packed[name].float().unsqueeze(-1)
        if self.sketched:
            pages = pages + self._signs(packed) @ gaussian_projection(pages.shape[-1], self.seed, pages.device)
        if self.chooses:
            pages = self._turn_back(pages, packed["channel_order"])
        if self.centred:
            pages = add_offset(pages, packed)
        return self.restore_output(pages).flatten(2, 3)

    def scores(self, query: torch.Tensor, packed: Packed) -> torch.Tensor:
        levels = self.levels(packed)
        turned = self._turned_query(query, packed)
        scores = 0.0
        for name, channels in self._norm_runs(query.shape[-1]):
            product = _by_page(turned[..., channels], levels[..., channels])
            scores = product.mul_(packed[name].float().flatten(2).unsqueeze(2)) + scores
        if self.sketched:
            projection = gaussian_projection(query.shape[-1], self.seed, query.device)
            scores = scores + _by_page(turned @ projection.T, self._signs(packed))
        return scores + offset_scores(query, packed["offset"], packed) if self.centred else scores

    def _turned_query(self, query: torch.Tensor, packed: Packed) -> torch.Tensor:
        """Queries ``[B, H, Q, D]`` in the basis of the codes: ``[B, H, 1, Q, D]``."""
        query = query.unsqueeze(2)
        return self._turn(query, packed["channel_order"]) if self.chooses else query

    def weighted_values(self, probabilities: torch.Tensor, packed: Packed) -> torch.Tensor:
        split = probabilities.unflatten(-1, packed["norm"].shape[2:]).transpose(2, 3)  # [B, H, P, Q, N]
        levels = self.levels(packed)
        parts = []
        for name, channels in self._norm_runs(levels.shape[-2]):
            weights = split * packed[name].float().unsqueeze(3)
            parts.append(weights @ levels[..., channels, :].transpose(-1, -2))
        mixed = (parts[0] if len(parts) == 1 else torch.cat(parts, -1)).sum(2, keepdim=True)  # [B, H, 1, Q, D]
        return (self._turn_back(mixed, packed["channel_order"]) if self.chooses else mixed).squeeze(2)


def _by_page(query: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """``q . k``: ``[B, H, 1, Q, n]`` and ``[B, H, P, N, n]`` to ``[B, H, Q, P * N]``."""
    return query[:, :, 0] @ keys.flatten(2, 3).transpose(-1, -2)
