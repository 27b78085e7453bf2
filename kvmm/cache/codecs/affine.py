"""Affine codes in pages: what KIVI, OScaR and CalibQuant have in common.

Two layouts. *Per channel*: one scale and zero point a channel and group of tokens; a group is a part of a page, one or
more pages, or the whole span of one modality. *Per token*: one scale and zero point a token and group of channels.

Stored tensors: ``codes`` uint8, keys ``[B, H, P, N * bits / 8, D]``, values transposed ``[B, H, P, D, N * bits / 8]``;
``scale`` and ``zero_point`` ``[B, H, G, D]`` (per channel) or ``[B, H, P, C, N]`` (per token).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any, ClassVar, Literal

import torch

from kvmm.cache.codecs.base import Codec, EncodeContext, Packed, Side, Site, paged
from kvmm.kernels.decode import mix_per_channel, mix_per_token, scores_per_channel, scores_per_token
from kvmm.kernels.hadamard import hadamard_matrix, rotate, unrotate
from kvmm.kernels.quantize import affine_codes, affine_parameters, pack_planes, unpack_planes
from kvmm.policy import CodecSpec

Axis = Literal["channel", "token"]


class TokenGroups:
    """The groups of tokens that share a scale: ``group_size`` tokens each, or all of a span if None.

    A *unit* is the part of a group inside one page; statistics are taken a unit, then joined over the pages of a group.
    """

    def __init__(self, pages: torch.Tensor, group_size: int | None):
        count, tokens = pages.shape[2:4]
        self.unit = tokens if group_size is None else min(group_size, tokens)
        self.pages_per_group = count if group_size is None else max(1, group_size // tokens)
        self.page_group: torch.Tensor | None = None
        if self.pages_per_group > 1 or group_size is None:
            self.page_group = torch.arange(count, dtype=torch.int32, device=pages.device) // self.pages_per_group
        self.pages = count

    def split(self, x: torch.Tensor) -> torch.Tensor:
        """``[B, H, P, N, ...]`` to units ``[B, H, U, unit, ...]``."""
        return x.flatten(2, 3).unflatten(2, (-1, self.unit))

    def reduce(self, units: torch.Tensor, join: Callable[[torch.Tensor], torch.Tensor], fill: bool) -> torch.Tensor:
        """Join statistics of units ``[B, H, U, D]`` into groups ``[B, H, G, D]``.

        ``fill`` says whether a last, short group may be filled with copies of its last page (minima and maxima) or must
        be filled with zeros (sums). ``join`` reduces dimension 3.
        """
        if self.pages_per_group == 1:
            return units
        missing = -units.shape[2] % self.pages_per_group
        if missing:
            last = units[:, :, -1:] if fill else torch.zeros_like(units[:, :, -1:])
            units = torch.cat((units, last.expand(-1, -1, missing, -1)), 2)
        return join(units.unflatten(2, (-1, self.pages_per_group)))

    def join(self, x: torch.Tensor) -> torch.Tensor:
        """``[B, H, P, N, ...]`` to whole groups ``[B, H, G, n, ...]``, a last, short one filled with zeros."""
        if self.pages_per_group == 1:
            return self.split(x)
        missing = -x.shape[2] % self.pages_per_group
        if missing:
            x = torch.cat((x, torch.zeros_like(x[:, :, :1]).expand(-1, -1, missing, *x.shape[3:])), 2)
        return x.unflatten(2, (-1, self.pages_per_group)).flatten(3, 4)

    def whole(self, x: torch.Tensor) -> bool:
        """Whether the pages ``[B, H, P, N, ...]`` fill every group."""
        return x.shape[2] % self.pages_per_group == 0

    def minimum(self, x: torch.Tensor) -> torch.Tensor:
        """``[B, H, P, N, D]`` to ``[B, H, G, D]``."""
        return self.reduce(self.split(x).amin(3), lambda u: u.amin(3), fill=True)

    def maximum(self, x: torch.Tensor) -> torch.Tensor:
        """``[B, H, P, N, D]`` to ``[B, H, G, D]``."""
        return self.reduce(self.split(x).amax(3), lambda u: u.amax(3), fill=True)

    def sum(self, x: torch.Tensor) -> torch.Tensor:
        """``[B, H, P, N, D]`` to ``[B, H, G, D]``."""
        return self.reduce(self.split(x).sum(3), lambda u: u.sum(3), fill=False)

    def spread(self, groups: torch.Tensor) -> torch.Tensor:
        """``[B, H, G, D]`` to ``[B, H, U, 1, D]``, the parameters of every unit."""
        if self.pages_per_group > 1:
            groups = groups.repeat_interleave(self.pages_per_group, dim=2)[:, :, : self.pages]
        return groups.unsqueeze(3)


class AffineCodec(Codec):
    """Min/max affine codes in one layout; subclasses choose it, and may normalise, rotate or refit.

    Options:
        parameters: ``float16`` or ``float32`` scales, zero points and norms. Half precision has ten bits of mantissa;
            bf16 would lose the zero point of keys with a large bias.
    """

    options: ClassVar[Mapping[str, tuple[Any, ...]]] = {"parameters": ("float16", "float32")}
    span_tensors = ("scale", "zero_point")
    integer_zero = False

    def __init__(self, spec: CodecSpec, side: Side, site: Site | None = None):
        super().__init__(spec, side, site)
        self.axis: Axis = "channel" if side == "key" else "token"
        self.parameter_dtype: torch.dtype = getattr(torch, self.option("parameters"))

    # -- parameters -------------------------------------------------------------------------------------------------

    def channel_parameters(
        self, x: torch.Tensor, groups: TokenGroups, weight: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Scale and zero point ``[B, H, G, D]`` of pages ``x`` ``[B, H, P, N, D]``.

        ``weight`` is float ``[B, 1, P, N, 1]``, 0 at slots without a token, or None if all are tokens.
        """
        return affine_parameters(
            groups.minimum(x),
            groups.maximum(x),
            self.spec.bits,
            dtype=self.parameter_dtype,
            integer_zero=self.integer_zero,
        )

    def token_parameters(self, split: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Scale and zero point ``[B, H, P, N, C]`` of pages in groups of channels ``[B, H, P, N, C, D / C]``."""
        return affine_parameters(
            split.amin(-1),
            split.amax(-1),
            self.spec.bits,
            dtype=self.parameter_dtype,
            integer_zero=self.integer_zero,
        )

    # -- encode and decode ------------------------------------------------------------------------------------------

    def encode(self, x: torch.Tensor, context: EncodeContext) -> Packed:
        return self.encode_pages(paged(x, context.page_size), page_weight(context, x.shape[2]))

    def encode_pages(self, pages: torch.Tensor, weight: torch.Tensor | None) -> Packed:
        """Encode float32 pages ``[B, H, P, N, D]``; ``weight`` as in :meth:`channel_parameters`."""
        page_size = pages.shape[3]
        if self.axis == "channel":
            groups = TokenGroups(pages, self.spec.group_size)
            scale, zero_point = self.channel_parameters(pages, groups, weight)
            units = affine_codes(groups.split(pages), groups.spread(scale), groups.spread(zero_point), self.spec.bits)
            codes = units.flatten(2, 3).unflatten(2, (-1, page_size))
            page_group = groups.page_group
        else:
            split = pages.unflatten(-1, (self.channel_groups(pages.shape[-1]), -1))  # [B, H, P, N, C, Dc]
            scale, zero_point = self.token_parameters(split)
            codes = affine_codes(split, scale.unsqueeze(-1), zero_point.unsqueeze(-1), self.spec.bits).flatten(-2)
            scale, zero_point = (p.transpose(-1, -2).contiguous() for p in (scale, zero_point))
            page_group = None
        if self.side == "key":
            packed = pack_planes(codes, self.spec.bits, -2)
        else:
            packed = pack_planes(codes.transpose(-1, -2).contiguous(), self.spec.bits, -1)
        return Packed({"codes": packed, "scale": scale, "zero_point": zero_point}, page_size, page_group)

    def channel_groups(self, head_dim: int) -> int:
        """Groups of channels of a per-token code."""
        size = self.spec.group_size
        return head_dim // size if size is not None and size < head_dim and head_dim % size == 0 else 1

    def codes(self, packed: Packed) -> torch.Tensor:
        """Unpacked codes, float32: keys ``[B, H, P, N, D]``, values ``[B, H, P, D, N]``."""
        return unpack_planes(packed["codes"], self.spec.bits, -2 if self.side == "key" else -1).float()

    def decode_pages(self, packed: Packed) -> torch.Tensor:
        """float32 pages ``[B, H, P, N, D]`` in the basis of the codes."""
        codes = self.codes(packed)
        if self.side == "value":
            codes = codes.transpose(-1, -2)
        scale, zero_point = packed["scale"].float(), packed["zero_point"].float()
        if self.axis == "channel":
            if packed.page_group is not None:
                scale, zero_point = (p.index_select(2, packed.page_group) for p in (scale, zero_point))
            units = codes.flatten(2, 3).unflatten(2, (scale.shape[2], -1))
            x = units * scale.unsqueeze(3) + zero_point.unsqueeze(3)
            return x.flatten(2, 3).unflatten(2, (-1, packed.page_size))
        split = codes.unflatten(-1, (scale.shape[3], -1))
        scale, zero_point = (p.transpose(-1, -2).unsqueeze(-1) for p in (scale, zero_point))
        return (split * scale + zero_point).flatten(-2)

    def decode(self, packed: Packed) -> torch.Tensor:
        return self.decode_pages(packed).flatten(2, 3)

    # -- attention --------------------------------------------------------------------------------------------------

    def scores(self, query: torch.Tensor, packed: Packed) -> torch.Tensor:
        codes, scale, zero_point = self.codes(packed), packed["scale"], packed["zero_point"]
        if self.axis == "channel":
            return scores_per_channel(query, codes, scale, zero_point, packed.page_group)
        return scores_per_token(query, codes, scale, zero_point)

    def mix(self, probabilities: torch.Tensor, packed: Packed) -> torch.Tensor:
        codes, scale, zero_point = self.codes(packed), packed["scale"], packed["zero_point"]
        if self.axis == "channel":
            return mix_per_channel(probabilities, codes, scale, zero_point, packed.page_group)
        return mix_per_token(probabilities, codes, scale, zero_point)


class RotatedAffineCodec(AffineCodec):
    """Affine codes of vectors that a Hadamard rotation of the head dimension has spread out."""

    rotation: bool = True

    @classmethod
    def check_model(cls, spec: CodecSpec, head_dim: int) -> None:
        if spec.option("rotation", True):
            hadamard_matrix(head_dim)

    @property
    def basis(self) -> Hashable:
        return "hadamard" if self.rotation else "identity"

    def transform_query(self, query: torch.Tensor) -> torch.Tensor:
        return rotate(query) if self.rotation else query

    def restore_output(self, output: torch.Tensor) -> torch.Tensor:
        return unrotate(output) if self.rotation else output

    def rotated(self, pages: torch.Tensor) -> torch.Tensor:
        """``[..., D]`` in the basis of the codes."""
        return rotate(pages) if self.rotation else pages

    def restored(self, pages: torch.Tensor) -> torch.Tensor:
        """The inverse of :meth:`rotated`."""
        return unrotate(pages) if self.rotation else pages


def page_weight(context: EncodeContext, tokens: int) -> torch.Tensor | None:
    """Weights float ``[B or 1, 1, P, N, 1]`` of the slots of pages: 1 for tokens, 0 for fill; None if no fill."""
    missing = -tokens % context.page_size
    if context.valid is None and not missing:
        return None
    weight = torch.ones(1, tokens) if context.valid is None else context.valid.float()
    return torch.nn.functional.pad(weight, (0, missing)).unflatten(1, (-1, context.page_size))[:, None, :, :, None]
