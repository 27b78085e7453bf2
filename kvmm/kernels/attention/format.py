"""The packed format: what attention backends know of stored keys or values, whatever their codec.

An affine code is a sum over the *lanes* of bit planes: channel ``c`` of a transformed vector is ``sum over its lanes j:
code_j * plane_weight_j * scale_c + zero_point_c``, times the token's norm. A codec that fits returns a
:class:`PackedFormat` (one that keeps the model's own values a :class:`DenseFormat`, angle codes an
:class:`kvmm.kernels.angle.format.AngleFormat`) from ``Codec.packed_format`` and is read in place by the same kernels as
all others.

A field is declared once, here, with the axes and the dtypes of its tensor and the range of its values. From that
follow the check of a store before a kernel computes addresses from it (:func:`mismatch`), the sizes that kernels are
told (:func:`axis_sizes`), and the structure through which the CPU library gets it
(:mod:`kvmm.kernels.attention.backends.cpu.structs`). A new field is one line of :class:`PackedFormat`, the codec that
fills it and the backends that use it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from functools import lru_cache
from typing import Any

import torch

from kvmm.kernels.angle.format import AngleFormat

ALIGNMENT = 32  # lanes of one step of the int8 tensor cores
MAX_PLANES = 2
PLANE_BITS = (1, 2, 4, 8)
FLOATS = (torch.float32, torch.float16, torch.bfloat16)
FLOAT32, INT32, UINT8 = (torch.float32,), (torch.int32,), (torch.uint8,)

AXES = {
    "B": "sequences",
    "H": "KV heads",
    "P": "pages, the capacity",
    "N": "tokens a page",
    "G": "groups of tokens that have levels of their own",
    "C": "channels that have a scale",
    "D": "channels that have a zero point",
    "S": "groups of channels that have levels of their own for every token",
    "K": "lanes of the second plane whose channels each group names",
    "O": "groups of pages that have a centre of their own",
    "E": "tokens of a head that are kept as the model made them",
    "L": "lanes of all planes, each padded to ALIGNMENT",
    "M": "lanes that a channel is the sum of at most",
    "W": "channels that keys' transform leads to",
    "V": "channels that values' transform leads to",
    "1": "one for all",
}


def aligned(width: int) -> int:
    """``width`` rounded up to what the kernels' operands are padded to."""
    return -(-width // ALIGNMENT) * ALIGNMENT


@dataclass(frozen=True)
class TensorField:
    """How a tensor of the format is declared.

    Attributes:
        axes: letters of :data:`AXES`, separated by spaces; of ``B`` and ``H`` a tensor may have one for all.
        by_token: the axes where scales are by token, if they differ then.
        values_axes: the axes for values, if they differ from those for keys.
        dtypes: what the dtype may be.
        low, high: the smallest value, and axes whose sizes all values are below; -1 names the last one of the axis.
        cpu: whether the CPU library reads it.
    """

    axes: str
    by_token: str | None = None
    values_axes: str | None = None
    dtypes: tuple[torch.dtype, ...] = FLOATS
    low: int | None = None
    high: str = ""
    cpu: bool = True

    def axes_of(self, store: PackedFormat, key: bool) -> list[str]:
        """The axes in a store of keys or of values."""
        other = self.by_token if store.by_token else None
        if other is None and not key:
            other = self.values_axes
        return (other or self.axes).split()

    @property
    def strided(self) -> bool:
        """Whether sequences or heads have parts of their own, so that strides matter; else one pointer will do."""
        return bool({"B", "H"} & set(self.axes.split()))


def tensor(axes: str, **declaration: Any) -> dict[str, TensorField]:
    """The metadata of a dataclass field for a tensor; see :class:`TensorField`."""
    return {"tensor": TensorField(axes, **declaration)}


@dataclass(frozen=True)
class Plane:
    """A bit plane: codes of equal width, one a token and lane.

    Attributes:
        codes: uint8, keys ``[B, H, P, N * bits / 8, J]``, values ``[B, H, P, J, N * bits / 8]``, packed along tokens
            (:func:`kvmm.kernels.quantize.pack_planes`).
        bits: 1, 2, 4 or 8.
        width: ``J``, without lanes that only pad.
    """

    codes: torch.Tensor
    bits: int
    width: int


@dataclass(frozen=True)
class LogitCalibration:
    """What a store does to every row's logits before the softmax (CalibQuant, arXiv 2502.14882, section 3.3).

    Logits in ``[low, high]`` are taken linearly onto ``[low - low_shift, high - high_shift]``. Rows for which that line
    would not rise are left alone.
    """

    low_shift: float
    high_shift: float


@dataclass(frozen=True)
class PackedFormat:
    """Keys or values as bit planes with affine levels.

    Attributes:
        planes: none (nothing varies), one or two.
        pages: ``P``, the capacity in pages.
        page_size: ``N`` tokens.
        scale, zero_point: by channel, or by token and group of channels.
        by_token: which of the two.
        page_group: the group of each page (-1: the fallback levels, or the last group); None: see ``groups_per_page``.
        groups_per_page: without ``page_group``, how many groups each page has; 0 if all pages share one.
        norm: what multiplies a token, or None.
        high_norm: what multiplies a token in the channels of the second plane instead of ``norm``, or None.
        mean: by ``page_group``, added to vectors whose scales are by token, or None.
        lane_channel: the channel of each lane, planes one after the other; None if lane ``j`` is channel ``j``.
        plane_weight: what a step of each lane is worth in steps of its channel (0 where it pads), or None for 1.
        group_channel: the channels of the second plane's lanes where each group has its own, or None. Lane ``j`` of the
            first plane is channel ``j`` then, and the second plane's codes are the higher bits of its channels' codes.
        offset: added to every zero point, or None.
        fallback_scale, fallback_zero_point: levels of the group that no store holds, or None.
        channel_lanes, channel_weights: values only: the lanes that a channel is the sum of and their weights, 0 where
            it has fewer than ``M``.
        transform: what leads from queries to the channels of keys (``W`` at least ``D``, and without ``lane_channel``
            at least ``L``), or from the channels of values back; None: they are the model's.
        channel_order: the model's channel of each that ``transform`` begins with, or of values leads to; None: same.
        lane_transform: values with ``lane_channel`` only: the row of ``transform`` of every lane's channel, zeros where
            a lane only pads.
        logit_calibration: keys only, or None.
        centre, centre_group: keys only: what is added to vectors behind their norms, and of each page which (-1: the
            last); or None.
        head_group: keys by token only: how many heads a vector holds side by side; ``H`` counts such groups then, and
            ``D`` the channels of all, but for ``transform`` and ``lane_order``, and ``mean`` is that of each head.
        lane_order: keys by token only: the channel of each lane, of a group of heads side by side, or None.
        kept, kept_slot: tokens that the model's own vectors stand for, in the values' store as well, instead of what
            the pages have in these slots, which ascend; slots behind the pages in use hold none. Or None.
        bit_weights: where codes are no multiples of a step, as those of a symmetric code book: what each bit of a code
            adds to the zero point, in steps of the channel, from the lowest bit up, of codes of three bits besides what
            their parity adds. Of channels with a bit in the second plane, then of the others; each plane begins with
            channel 0. None: codes are multiples.
    """

    planes: tuple[Plane, ...]
    pages: int
    page_size: int
    scale: torch.Tensor = field(metadata=tensor("B H G C", by_token="B H P S N"))
    zero_point: torch.Tensor = field(metadata=tensor("B H G D", by_token="B H P S N"))
    by_token: bool = False
    page_group: torch.Tensor | None = field(default=None, metadata=tensor("P", dtypes=INT32, low=-1, high="G"))
    groups_per_page: int = 0
    norm: torch.Tensor | None = field(default=None, metadata=tensor("B H P N"))
    high_norm: torch.Tensor | None = field(default=None, metadata=tensor("B H P N", cpu=False))
    mean: torch.Tensor | None = field(default=None, metadata=tensor("B H G D"))
    lane_channel: torch.Tensor | None = field(default=None, metadata=tensor("L", dtypes=INT32, low=0, high="C D"))
    plane_weight: torch.Tensor | None = field(default=None, metadata=tensor("L", dtypes=FLOAT32))
    group_channel: torch.Tensor | None = field(
        default=None, metadata=tensor("B H G K", dtypes=UINT8, low=0, high="C D")
    )
    offset: torch.Tensor | None = field(default=None, metadata=tensor("H D", dtypes=FLOAT32))
    fallback_scale: torch.Tensor | None = field(default=None, metadata=tensor("1 H 1 C"))
    fallback_zero_point: torch.Tensor | None = field(default=None, metadata=tensor("1 H 1 D"))
    channel_lanes: torch.Tensor | None = field(
        default=None, metadata=tensor("M D", dtypes=INT32, low=0, high="L", cpu=False)
    )
    channel_weights: torch.Tensor | None = field(default=None, metadata=tensor("M D", dtypes=FLOAT32, cpu=False))
    transform: torch.Tensor | None = field(default=None, metadata=tensor("H D W", values_axes="H D V", dtypes=FLOAT32))
    channel_order: torch.Tensor | None = field(
        default=None, metadata=tensor("B H 1 D", dtypes=(torch.int16,), low=0, cpu=False)
    )
    lane_transform: torch.Tensor | None = field(default=None, metadata=tensor("H L V", dtypes=FLOAT32, cpu=False))
    logit_calibration: LogitCalibration | None = None
    centre: torch.Tensor | None = field(default=None, metadata=tensor("B H O D", cpu=False))
    centre_group: torch.Tensor | None = field(
        default=None, metadata=tensor("P", dtypes=INT32, low=-1, high="O", cpu=False)
    )
    head_group: int = 1
    lane_order: torch.Tensor | None = field(
        default=None, metadata=tensor("B H 1 D", dtypes=(torch.int16,), low=0, cpu=False)
    )
    kept: torch.Tensor | None = field(default=None, metadata=tensor("B H E D"))
    kept_slot: torch.Tensor | None = field(default=None, metadata=tensor("B H E", dtypes=INT32, low=0))
    bit_weights: tuple[tuple[float, ...], ...] | None = None

    @property
    def plain(self) -> bool:
        """Whether codes, scales, zero points and norms say all, as most kernels take for granted."""
        return self.kept is None and self.plain_codes

    @property
    def plain_codes(self) -> bool:
        """Whether they say all of the tokens that are not kept."""
        return self.bit_weights is self.centre is self.lane_order is self.channel_order is None and self.head_group == 1

    @property
    def lanes(self) -> int:
        """``L``: lanes of all planes with their padding."""
        return sum(aligned(plane.width) for plane in self.planes)

    @property
    def groups(self) -> int:
        """Groups of tokens with levels of their own, the fallback levels included."""
        if self.by_token:
            return 1 if self.mean is None else self.mean.shape[2]
        return self.scale.shape[2] + (self.fallback is not None)

    @property
    def fallback(self) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Scale and zero point of the group that no store holds, or None."""
        return None if self.fallback_scale is None else (self.fallback_scale, self.fallback_zero_point)

    def expand(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Scales by lane ``[B, H, groups, L]`` and zero points ``[B, H, groups, D]``, float32, everything folded in.

        For what cannot fold them into a query: one gather, no larger than the parameters themselves.
        """
        scale, zero = self.scale.float(), self.zero_point.float()
        if self.fallback is not None:
            levels = (x.float().expand(scale.shape[0], -1, -1, -1) for x in self.fallback)
            scale, zero = (torch.cat(pair, 2) for pair in zip((scale, zero), levels, strict=True))
        if self.lane_channel is not None:
            scale = scale.index_select(-1, self.lane_channel.clamp_max(scale.shape[-1] - 1))
        elif self.lanes > scale.shape[-1]:
            scale = torch.nn.functional.pad(scale, (0, self.lanes - scale.shape[-1]))
        if self.plane_weight is not None:
            scale = scale * self.plane_weight
        if self.offset is not None:
            zero = zero + self.offset[None, :, None]
        return scale, zero


@dataclass(frozen=True)
class DenseFormat:
    """Keys or values as the model made them: ``values`` ``[B, H, P, N, D]``."""

    values: torch.Tensor
    page_size: int

    @property
    def pages(self) -> int:
        """``P``, the capacity in pages."""
        return self.values.shape[2]


TENSORS: dict[str, TensorField] = {
    entry.name: entry.metadata["tensor"] for entry in fields(PackedFormat) if "tensor" in entry.metadata
}
"""The tensors of :class:`PackedFormat` in order."""


# -- sizes and checks --------------------------------------------------------------------------------------------------


def tensors_of(store: PackedFormat) -> Iterator[tuple[str, TensorField, torch.Tensor]]:
    """Name, declaration and tensor of every field that a store has."""
    for name, declared in TENSORS.items():
        x = getattr(store, name)
        if x is not None:
            yield name, declared, x


def axis_sizes(store: PackedFormat, key: bool) -> dict[str, int]:
    """The sizes of the axes that a store's tensors have, by letter of :data:`AXES`. Where tensors disagree, which
    :func:`mismatch` finds, the first counts.
    """
    sizes = {"P": store.pages, "N": store.page_size, "L": store.lanes}
    for _, declared, x in tensors_of(store):
        for axis, size in zip(declared.axes_of(store, key), x.shape, strict=False):
            sizes.setdefault(axis, size)
    if store.by_token:
        sizes.setdefault("D", store.planes[0].width)
    return sizes


def mismatch(
    store: PackedFormat | DenseFormat | AngleFormat, key: bool, batch: int, heads: int, dim: int
) -> str | None:
    """The first thing about a store that is not as declared, for a call of these sizes; None if all is.

    Kernels compute addresses from sizes and indices and compare nothing. Codecs make what is compared here, and files
    are compared with what codecs declare, so that nothing should ever be found.

    Args:
        store: keys or values.
        key: which of the two.
        batch, heads: ``B`` and ``H`` of the call.
        dim: channels of a query, or of the output.
    """
    if isinstance(store, AngleFormat):
        return None if store.fits(batch, heads, dim) else "codes"
    if isinstance(store, DenseFormat):
        shape = (batch, heads, store.pages, store.page_size, dim)
        return None if store.values.dtype in FLOATS and tuple(store.values.shape) == shape else "values"
    if heads % store.head_group:
        return "head_group"
    by_head = {"H": heads, "D": dim, "1": 1}
    by_head = dict.fromkeys(("transform", "lane_order", "kept", "kept_slot"), by_head) | {"mean": {"H": heads}}
    heads, dim = heads // store.head_group, dim * store.head_group
    sizes = {"B": batch, "H": heads, "P": store.pages, "N": store.page_size, "L": store.lanes, "1": 1}
    sizes |= {"D": dim} if key else {"D": dim, "V": dim}
    if (field_name := _planes(store, key, sizes)) is not None:
        return field_name
    for name, declared, x in tensors_of(store):
        axes = declared.axes_of(store, key)
        if x.dtype not in declared.dtypes or x.dim() != len(axes):
            return name
        own = by_head.get(name, {})
        for axis, size in zip(axes, x.shape, strict=True):
            if (own.get(axis) or sizes.setdefault(axis, size)) != size and not (size == 1 and axis in "BH"):
                return name
    if sizes.get("W", dim) < dim:
        return "transform"
    return _groups(store, sizes) or _values(store, sizes)


def _planes(store: PackedFormat, key: bool, sizes: dict[str, int]) -> str | None:
    if len(store.planes) > MAX_PLANES or store.page_size < 1 or store.page_size % 8:
        return "planes"
    for plane in store.planes:
        if plane.bits not in PLANE_BITS or plane.codes.dim() != 5 or plane.codes.dtype != torch.uint8:
            return "planes"
        batch, heads, pages, *page = plane.codes.shape
        rows, lanes = page if key else page[::-1]
        if batch not in (1, sizes["B"]) or heads not in (1, sizes["H"]) or pages != sizes["P"]:
            return "planes"
        if rows != store.page_size * plane.bits // 8 or lanes < plane.width:
            return "planes"
    return None


def _groups(store: PackedFormat, sizes: dict[str, int]) -> str | None:
    """Whether every page has a group."""
    if (store.fallback_scale is None) != (store.fallback_zero_point is None):
        return "fallback_scale"
    if (store.kept is None) != (store.kept_slot is None):
        return "kept"
    if (store.centre is None) != (store.centre_group is None) or not sizes.get("O", 1):
        return "centre"
    if store.by_token:
        if (store.mean is None) != (store.page_group is None) or not sizes.get("G", 1):
            return "mean"
        whole = sizes["S"] and all(plane.width == sizes["D"] for plane in store.planes) and not sizes["D"] % sizes["S"]
        return None if whole else "scale"
    groups = sizes["G"]
    if store.page_group is not None:
        return None if groups + (store.fallback is not None) else "page_group"
    if store.groups_per_page:
        enough = store.page_size % store.groups_per_page == 0 and groups >= store.pages * store.groups_per_page
        return None if enough else "groups_per_page"
    return None if groups else "scale"


def _values(store: PackedFormat, sizes: dict[str, int]) -> str | None:
    """Whether what is an index names something."""
    widths = [plane.width for plane in store.planes]
    if store.group_channel is not None:
        if len(widths) != 2 or sizes["K"] < widths[1]:
            return "group_channel"
        widths = widths[:1]
    if store.bit_weights is not None and max(widths) > sizes["D"]:
        return "planes"
    if store.high_norm is not None and (store.bit_weights is None or store.norm is None or len(widths) != 2):
        return "high_norm"
    if not store.by_token and store.lane_channel is None and store.bit_weights is None:
        most = min(sizes["C"], sizes["D"])
        if len(widths) > 1 or any(width > most for width in widths):
            return "lane_channel"
    for name, declared, x in tensors_of(store):
        if declared.low is None or not x.numel():
            continue
        if name == "kept_slot":
            limit = sizes["P"] * sizes["N"]
        elif name in ("lane_order", "channel_order"):
            limit = sizes["D"]
        else:
            limit = min(sizes[axis] for axis in declared.high.split())
        limit += declared.high == "G" and store.fallback is not None
        if int(x.min()) < declared.low or int(x.max()) >= limit:
            return name
    return None


# -- tables of lanes ---------------------------------------------------------------------------------------------------


@lru_cache(maxsize=256)
def plane_layout(
    planes: tuple[tuple[tuple[int, int, float], ...], ...], device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """``lane_channel`` and ``plane_weight`` of :class:`PackedFormat`.

    Args:
        planes: for every plane its runs ``(first channel, channels, weight)`` of consecutive channels.
        device: where to put them.

    Returns:
        int32 and float32 ``[L]``; lanes that pad have weight 0.
    """
    channel, weight = [], []
    for runs in planes:
        lanes = [(first + i, worth) for first, count, worth in runs for i in range(count)]
        lanes += [(0, 0.0)] * (aligned(len(lanes)) - len(lanes))
        channel += [c for c, _ in lanes]
        weight += [worth for _, worth in lanes]
    return torch.tensor(channel, dtype=torch.int32, device=device), torch.tensor(weight, device=device)


def lanes_by_channel(channel: torch.Tensor, weight: torch.Tensor, dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    """``channel_lanes`` and ``channel_weights`` of :class:`PackedFormat`, from ``lane_channel``, ``plane_weight`` and
    ``D``."""
    lanes: list[list[tuple[int, float]]] = [[] for _ in range(dim)]
    for lane, (c, worth) in enumerate(zip(channel.tolist(), weight.tolist(), strict=True)):
        if worth:
            lanes[c].append((lane, worth))
    most = max(1, max(map(len, lanes)))
    padded = [channel_lanes + [(0, 0.0)] * (most - len(channel_lanes)) for channel_lanes in lanes]
    numbers = torch.tensor(
        [[lane for lane, _ in channel_lanes] for channel_lanes in padded], dtype=torch.int32, device=channel.device
    )
    weights = torch.tensor([[weight for _, weight in channel_lanes] for channel_lanes in padded], device=channel.device)
    return numbers.T.contiguous(), weights.T.contiguous()


def pad_lanes(matrix: torch.Tensor) -> torch.Tensor:
    """``matrix`` ``[..., J]`` padded with zeros to ``ALIGNMENT`` columns, contiguous."""
    missing = aligned(matrix.shape[-1]) - matrix.shape[-1]
    return torch.nn.functional.pad(matrix, (0, missing)).contiguous()
