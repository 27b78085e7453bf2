"""Pages of tokens on their way into codes, the reference: float32 pages that exist.

A codec states what is to be coded as a chain (``rotate``, ``divide``, ``subtract``, ...), then asks for statistics and
for packed codes. Here every step makes a float32 copy, as torch does; :mod:`kvmm.kernels.quantize.tiles` answers the
same questions a tile at a time and keeps nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import torch

from kvmm.kernels.hadamard import vector_norm
from kvmm.kernels.hadamard.reference import rotate
from kvmm.kernels.quantize.books import ScalarBook, borders_on
from kvmm.kernels.quantize.groups import TokenGroups
from kvmm.kernels.quantize.reference import affine_codes, affine_parameters, fit_levels, pack_planes, uniform_codes

if TYPE_CHECKING:
    from kvmm.kernels.quantize.layout import PlaneLayout


def paged(x: torch.Tensor, page_size: int) -> torch.Tensor:
    """``[B, H, T, D]`` as float32 pages ``[B, H, P, page_size, D]``, filled up with copies of the last token.

    A copy instead of zeros keeps the fill out of minima and maxima.
    """
    batch, heads, tokens, dim = x.shape
    if x.dtype == torch.float32 and tokens % page_size == 0:
        return x.unflatten(2, (-1, page_size))
    # one copy, where joining and converting are two
    filled = x.new_empty(batch, heads, tokens + -tokens % page_size, dim, dtype=torch.float32)
    filled[:, :, :tokens] = x
    filled[:, :, tokens:] = x[:, :, -1:]
    return filled.unflatten(2, (-1, page_size))


SAMPLED = 8192  # tokens of a long span, at least, that its statistics are taken of


def sampled_pages(pages: int, page_size: int) -> int:
    """``k``, where statistics of a span are those of every ``k``-th page."""
    return max(1, pages * page_size // SAMPLED)


def slot_weight(valid: torch.Tensor | None, tokens: int, page_size: int) -> torch.Tensor | None:
    """Weights float ``[B or 1, 1, P, N, 1]`` of the slots of pages: 1 for tokens, 0 for fill; None if no fill.

    ``valid`` is bool ``[B, T]``, False at slots that hold no token, or None.
    """
    missing = -tokens % page_size
    if valid is None and not missing:
        return None
    weight = torch.ones(1, tokens) if valid is None else valid.float()
    return torch.nn.functional.pad(weight, (0, missing)).unflatten(1, (-1, page_size))[:, None, :, :, None]


def _span_mean(total: torch.Tensor, number: torch.Tensor) -> torch.Tensor:
    """``[B, H, 1, D]`` from the sums ``[B, H, P, D]`` and counts ``[B, H, P, 1]`` of pages."""
    return total.sum(2, keepdim=True) / number.sum(2, keepdim=True).clamp_min(1)


class DensePages:
    """Float32 pages ``[B, H, P, N, D]`` and the weights of their slots (:func:`slot_weight`)."""

    def __init__(self, values: torch.Tensor, weight: torch.Tensor | None = None):
        self.values = values
        self.weight = None if weight is None else weight.to(values.device)
        self.shape = values.shape
        self.page_size = values.shape[3]
        self.device = values.device
        self.every = 1

    @classmethod
    def cut(cls, x: torch.Tensor, page_size: int, valid: torch.Tensor | None = None) -> DensePages:
        """``x`` ``[B, H, T, D]`` cut into pages; ``valid`` as in :func:`slot_weight`."""
        return cls(paged(x, page_size), slot_weight(valid, x.shape[2], page_size))

    def groups(self, group_size: int | None) -> TokenGroups:
        """The groups of tokens that share a scale."""
        return TokenGroups(self.shape[2], self.page_size, group_size, self.device)

    def sample(self) -> DensePages:
        """Every ``k``-th page, for statistics of a span of at least twice :data:`SAMPLED` tokens: for :meth:`mean`,
        :meth:`kept_mean` and :meth:`fit_levels`. A shorter span is its own sample.
        """
        every = sampled_pages(self.shape[2], self.page_size)
        if every == 1:
            return self
        weight = None if self.weight is None else self.weight[:, :, ::every]
        twin = self._of(self.values[:, :, ::every], weight)
        twin.every = every
        return twin

    # -- what is coded ----------------------------------------------------------------------------------------------

    @classmethod
    def _of(cls, values: torch.Tensor, weight: torch.Tensor | None) -> DensePages:
        return cls(values, weight)

    def _with(self, values: torch.Tensor) -> DensePages:
        return self._of(values, self.weight)

    def rotate(self) -> DensePages:
        """Every vector times the orthonormal Hadamard matrix."""
        return self._with(rotate(self.values))

    def transform(self, matrix: torch.Tensor, cache: dict[str, torch.Tensor] | None = None) -> DensePages:
        """Every vector times ``matrix`` float32 ``[B or 1, H or 1, D, D]``; ``cache`` keeps what
        kernels derive from it for later calls."""
        turned = matrix.transpose(-1, -2)
        # a product a head, or one where one matrix serves all: torch copies a matrix for each product of a batch
        tokens = self.values.flatten(2, 3) @ (turned[0, 0] if turned.shape[:2] == (1, 1) else turned)
        return self._with(tokens.unflatten(2, (-1, self.page_size)))

    def divide(self, norm: torch.Tensor) -> DensePages:
        """Every vector divided by its factor ``norm`` ``[B, H or 1, P, N]``."""
        return self._with(self.values / norm.float().unsqueeze(-1))

    def subtract(self, offset: torch.Tensor) -> DensePages:
        """Every vector without ``offset`` ``[B or 1, H or 1, D]``."""
        return self._with(self.values - offset.float()[:, :, None, None])

    def replace(self, keep: torch.Tensor, substitute: torch.Tensor) -> DensePages:
        """``substitute`` ``[B, H, P or 1, D]`` in place of the vectors of slots where ``keep`` bool ``[B, H, P, N]`` is
        False."""
        return self._with(torch.where(keep.unsqueeze(-1), self.values, substitute.unsqueeze(3)))

    def join_heads(self, heads: int, channel_groups: int) -> DensePages | None:
        """The vectors of every ``heads`` heads side by side, rotated by one Hadamard matrix: ``[B, H / heads, P, N,
        heads * D]``, of which :meth:`sort_channels`, :meth:`channel_sums` and :meth:`token_range_codes` of
        ``channel_groups`` are asked. None where a kernel does not take them; :meth:`parts` then do."""
        wide = self.values.unflatten(1, (-1, heads)).movedim(2, -2).flatten(-2)
        return self._with(rotate(wide))

    def sort_channels(self, order: torch.Tensor) -> DensePages:
        """The channels in the order int64 ``[B, H, D]``."""
        return self._with(self.values.gather(-1, order[:, :, None, None].expand_as(self.values)))

    # -- statistics -------------------------------------------------------------------------------------------------

    def channel_sums(self) -> tuple[torch.Tensor | float, torch.Tensor, torch.Tensor]:
        """Over all tokens, their number, broadcastable to ``[B, H, D]``, and the sum and the sum of squares of every
        channel, float32 ``[B, H, D]``."""
        weight = self.values.new_ones(1, 1, *self.shape[2:4], 1) if self.weight is None else self.weight
        weighted = self.values * weight
        return weight.sum((2, 3)), weighted.sum((2, 3)), (weighted * self.values).sum((2, 3))

    def token_norms(self, norm: str, shared: bool = False) -> torch.Tensor:
        """Norms (:func:`kvmm.kernels.hadamard.vector_norm`) of all vectors, float32 ``[B, H, P, N]``, or
        ``[B, 1, P, N]`` of all heads' together if ``shared``."""
        return vector_norm(self.values, norm, (1, -1) if shared else -1, keepdim=True).squeeze(-1)

    def divisors(self, dtype: torch.dtype) -> torch.Tensor:
        """Euclidean norms ``[B, H, P, N]`` as they are stored, to be divided by: at most what fp16 holds, 1 instead of
        0."""
        norm = self.token_norms("l2").clamp_max(65504.0).to(dtype)
        return torch.where(norm == 0, torch.ones_like(norm), norm)

    def mean(self) -> torch.Tensor:
        """The mean over the tokens, float32 ``[B, H, D]``."""
        if self.weight is None:
            return self.values.mean((2, 3))
        return (self.values * self.weight).sum((2, 3)) / self.weight.sum((2, 3)).clamp_min(1)

    def moments(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Mean and variance over the tokens, float32 ``[B, H, D]`` each."""
        mean = self.mean()
        apart = (self.values - mean[:, :, None, None]).square()
        if self.weight is None:
            return mean, apart.mean((2, 3))
        return mean, (apart * self.weight).sum((2, 3)) / self.weight.sum((2, 3)).clamp_min(1)

    def token_excess(self, reach: float) -> torch.Tensor:
        """How far vectors lie outside of what is usual: of every slot ``[B, H, P, N]``, the squares by which its
        channels are further than ``reach`` standard deviations from their means over the tokens (of a
        :meth:`sample`), added up."""
        mean, variance = (found[:, :, None, None] for found in self.sample().moments())
        return ((self.values - mean).abs() - reach * variance.sqrt()).clamp_min(0).square().sum(-1)

    def _page_sums(self, keep: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Of the slots where ``keep`` bool ``[B, H, P, N]``: sums ``[B, H, P, D]`` and counts ``[B, H, P, 1]``.

        ``keep`` is of all pages, also for a :meth:`sample`, whose pages ``P`` then are.
        """
        keep = keep[:, :, :: self.every].float().unsqueeze(-1)
        return (self.values * keep).sum(3), keep.sum(3)

    def page_means(self, keep: torch.Tensor) -> torch.Tensor:
        """The means ``[B, H, P, D]`` of the slots of every page where ``keep`` bool ``[B, H, P, N]`` is True; that of
        all such slots for a page without any."""
        total, number = self._page_sums(keep)
        return torch.where(number > 0, total / number.clamp_min(1), _span_mean(total, number))

    def kept_mean(self, keep: torch.Tensor) -> torch.Tensor:
        """The mean ``[B, H, 1, D]`` over the slots of all pages (of a :meth:`sample`: its pages) where ``keep`` bool
        ``[B, H, P, N]`` is True, which is of all pages also for a sample."""
        return _span_mean(*self._page_sums(keep))

    def channel_ranges(self, groups: TokenGroups) -> tuple[torch.Tensor, torch.Tensor]:
        """Minimum and maximum of every channel and group, ``[B, H, G, D]``."""
        units = groups.split(self.values)
        return groups.minimum(units.amin(3)), groups.maximum(units.amax(3))

    def channel_magnitudes(self, groups: TokenGroups) -> torch.Tensor:
        """The sum of ``|x|`` over the tokens of a group, ``[B, H, G, D]``."""
        magnitude = self.values.abs()
        if self.weight is not None:
            magnitude = magnitude * self.weight
        return groups.sum(groups.split(magnitude).sum(3))

    def channel_extent(self, groups: TokenGroups) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """:meth:`channel_ranges` and :meth:`channel_magnitudes`, in one pass where there is a kernel."""
        return *self.channel_ranges(groups), self.channel_magnitudes(groups)

    def channel_range_parameters(
        self, groups: TokenGroups, bits: int, dtype: torch.dtype
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Scale and zero point ``[B, H, G, D]`` in ``dtype`` of :meth:`channel_ranges`
        (:func:`~kvmm.kernels.quantize.affine_parameters`)."""
        return affine_parameters(*self.channel_ranges(groups), bits, dtype=dtype)

    def token_ranges(self, channel_groups: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Minimum and maximum of every token and group of channels, ``[B, H, P, C, N]``."""
        split = self.values.unflatten(-1, (channel_groups, -1))
        return split.amin(-1).transpose(-1, -2), split.amax(-1).transpose(-1, -2)

    def fit_levels(
        self,
        bits: torch.Tensor,
        groups: TokenGroups,
        dtype: torch.dtype = torch.float32,
        coded: int | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """:func:`~kvmm.kernels.quantize.fit_levels` of every group, ``bits`` int64 ``[D]``.

        Returns:
            Scale ``[B, H, G, C]`` of the first ``coded`` channels (all if None) and zero point ``[B, H, G, D]``, within
            the range of ``dtype``.
        """
        x = groups.merge_pages(self.values)
        scale, zero_point = (p.squeeze(3) for p in fit_levels(x, self.group_weights(groups), bits))
        return self.stored_levels(scale, zero_point, dtype, coded)

    def group_weights(self, groups: TokenGroups) -> torch.Tensor | None:
        """Weights ``[B or 1, 1, G, n, 1]`` of the slots of groups; None if no slot is fill."""
        weight = self.weight
        if weight is None and not groups.whole:
            weight = self.values.new_ones(1, 1, *self.shape[2:4], 1)
        return None if weight is None else groups.merge_pages(weight)

    @staticmethod
    def stored_levels(
        scale: torch.Tensor, zero_point: torch.Tensor, dtype: torch.dtype, coded: int | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Levels float32 ``[B, H, G, D]`` as :meth:`fit_levels` returns them."""
        limit = torch.finfo(dtype).max
        scale, zero_point = (p.clamp(-limit, limit).to(dtype) for p in (scale, zero_point))
        return scale[..., :coded].contiguous(), zero_point

    # -- codes ------------------------------------------------------------------------------------------------------

    def channel_codes(
        self, scale: torch.Tensor, zero_point: torch.Tensor, groups: TokenGroups, bits: int, transposed: bool
    ) -> torch.Tensor:
        """Packed codes with one scale and zero point ``[B, H, G, D]`` a channel and group.

        Returns:
            uint8 ``[B, H, P, N * bits / 8, D]``, or ``[B, H, P, D, N * bits / 8]`` if ``transposed``.
        """
        codes = affine_codes(
            groups.split(self.values), groups.expand_groups(scale), groups.expand_groups(zero_point), bits
        )
        return _packed(codes.flatten(2, 3).unflatten(2, (-1, self.page_size)), bits, transposed)

    def two_plane_codes(
        self, scale: torch.Tensor, zero_point: torch.Tensor, groups: TokenGroups, wide: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Four-bit codes of the channels ``wide`` int64 ``[B, H, G, K]``, two-bit codes of the others.

        Returns:
            the low two-bit plane of all channels ``[B, H, P, N / 4, D]`` and the high plane of the wide ones
            ``[B, H, U, unit / 4, K]``, packed uint8.
        """
        codes = affine_codes(
            groups.split(self.values), groups.expand_groups(scale), groups.expand_groups(zero_point), 4
        )
        codes = torch.minimum(codes, groups.expand_groups(highest_codes(scale, wide)))  # [B, H, U, n, D]
        picked = groups.expand_groups(wide).expand(-1, -1, -1, groups.unit, -1)
        low = (codes & 3).flatten(2, 3).unflatten(2, (-1, self.page_size))
        return pack_planes(low, 2, -2), pack_planes(codes.gather(-1, picked) >> 2, 2, -2)

    def token_codes(self, scale: torch.Tensor, zero_point: torch.Tensor, bits: int, transposed: bool) -> torch.Tensor:
        """Packed codes, as of :meth:`channel_codes`, with a scale and zero point a token and group of channels, both
        ``[B, H, P, C, N]``."""
        split = self.values.unflatten(-1, (scale.shape[3], -1))
        scale, zero_point = (p.transpose(-1, -2).unsqueeze(-1) for p in (scale, zero_point))
        return _packed(affine_codes(split, scale, zero_point, bits).flatten(-2), bits, transposed)

    def token_range_codes(
        self, channel_groups: int, bits: int, dtype: torch.dtype, transposed: bool, integer_zero: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """:meth:`token_codes` with the scale and zero point, in ``dtype``, of :meth:`token_ranges`
        (:func:`~kvmm.kernels.quantize.affine_parameters`); and these two."""
        parameters = affine_parameters(*self.token_ranges(channel_groups), bits, dtype=dtype, integer_zero=integer_zero)
        scale, zero_point = (p.contiguous() for p in parameters)
        return self.token_codes(scale, zero_point, bits, transposed), scale, zero_point

    def plane_codes(
        self,
        scale: torch.Tensor,
        zero_point: torch.Tensor,
        layout: PlaneLayout,
        transposed: bool,
        padded_widths: Mapping[str, int] | None = None,
    ) -> dict[str, torch.Tensor]:
        """Packed bit planes of channels with a number of bits each.

        Args:
            scale: ``[B, H, 1, C]`` of the channels that have bits, the first of all.
            zero_point: ``[B, H, 1, D]``.
            layout: where the bits of the channels lie.
            transposed: as in :meth:`channel_codes`.
            padded_widths: as in :meth:`PlaneLayout.pack`.

        Returns:
            ``codes`` and ``codes_1bit``, or one of them, or none, as of :meth:`PlaneLayout.pack`.
        """
        flat, coded = self.values.flatten(2, 3), layout.coded
        levels = layout.levels(flat.device)[:coded]
        codes = uniform_codes(flat[..., :coded], scale.float(), zero_point[..., :coded].float(), levels)
        codes = codes.to(torch.uint8).unflatten(2, (-1, self.page_size))
        return layout.pack(codes, -1 if transposed else -2, padded_widths)

    def book_codes(
        self, book: ScalarBook, dtype: torch.dtype, transposed: bool
    ) -> tuple[torch.Tensor, torch.Tensor | None, list[torch.Tensor]]:
        """Codes of directions, and lengths.

        Args:
            book: the borders between codes, and in which planes they are stored.
            dtype: of the lengths, which are what it holds at most.
            transposed: as in :meth:`channel_codes`.

        Returns:
            the packed planes ``[B, H, P, N * bits / 8, channels]`` of the low bits and of the high bits (or None), for
            ``transposed`` ``[B, H, P, channels, N * bits / 8]``, and ``[B, H, P, N]`` in ``dtype`` for each length.
        """
        lengths = self.lengths(book, dtype)
        codes = torch.empty(self.values.mT.shape if transposed else self.shape, dtype=torch.uint8, device=self.device)
        channels, tokens = (-2, -1) if transposed else (-1, -2)
        start = 0
        for number, (count, borders) in enumerate(book.runs):
            length = lengths[number if book.split else 0].float().unsqueeze(-1)
            unit = self.values[..., start : start + count] * torch.where(length == 0, 0.0, 1 / length)
            unit = unit.mT.contiguous() if transposed else unit.contiguous()
            found = torch.bucketize(unit, borders_on(borders, self.device), out_int32=True)
            codes.narrow(channels, start, count).copy_(found)
            start += count
        low = pack_planes(codes & (2**book.low_bits - 1), book.low_bits, tokens)
        if not book.high_bits:
            return low, None, lengths
        high = codes.narrow(channels, 0, book.high_channels) >> book.low_bits
        return low, pack_planes(high, book.high_bits, tokens), lengths

    def lengths(self, book: ScalarBook, dtype: torch.dtype) -> list[torch.Tensor]:
        """Each length of a vector ``[B, H, P, N]``, at most what ``dtype`` holds."""
        limit = torch.finfo(dtype).max
        return [vector_norm(self.values[..., part], "l2").clamp_max(limit).to(dtype) for part in book.parts]

    def parts(self) -> Iterator[DensePages]:
        """Runs of dense pages, for what needs them."""
        yield self


def highest_codes(scale: torch.Tensor, wide: torch.Tensor) -> torch.Tensor:
    """uint8 like ``scale`` ``[B, H, G, D]``: 15 for channels ``wide`` int64 ``[B, H, G, K]``, 3 for the others."""
    return torch.full_like(scale, 3, dtype=torch.uint8).scatter_(-1, wide, 15)


def _packed(codes: torch.Tensor, bits: int, transposed: bool) -> torch.Tensor:
    if transposed:
        return pack_planes(codes.transpose(-1, -2).contiguous(), bits, -1)
    return pack_planes(codes, bits, -2)
