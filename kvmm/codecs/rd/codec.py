"""rd: rate-distortion transform coding of keys and values, kvmm's own codec.

An affine code of a linear transform, with the transform and the bits chosen for what an error costs:

1. *Transform.* With ``M`` the importance of a site (one layer's keys or values of one modality), an error ``e`` costs
   ``e^T M e``. ``z = U^T M^(1/2) (x - mean)``, with ``U`` the eigenvectors of the covariance of ``M^(1/2) x``, makes
   the channels uncorrelated and their errors cost the same (the Karhunen-Loeve transform of the weighted vector).
2. *Bits.* Reverse water-filling gives bits to channels of the whole model, keys and values together: a layer that does
   not matter for this modality gets next to none (:mod:`kvmm.codecs.common.waterfill`).
3. *Levels.* Least-squares scale and offset a channel over the whole span of a modality, so that metadata vanish and the
   scale folds into the query.

``M`` is the mean of ``g g^T`` over tokens, ``g`` being the gradient of the answers' loss with respect to a key or a
value (a Fisher matrix), from ``kvmm calibrate``; or, without gradients, ``E[q q^T]`` for keys and ``W_o^T W_o`` for
values. Without a calibration file the transform is a Hadamard rotation, or is fitted to the prompt (``fit="prompt"``).

Relatives: AATC (arXiv 2608.14191) is an attention-aware transform code with reverse water-filling, too; KVTC (arXiv
2511.01815) has one PCA for layers and heads together, of keys without RoPE, and DEFLATE, for caches at rest; NOVA-KV
(arXiv 2608.04074) has non-orthogonal transforms and vector codes. docs/calibration.md says how rd differs.

Stored tensors: ``codes`` uint8, two-bit digits, keys ``[B, H, P, N / 4, J2]``, values ``[B, H, P, J2, N / 4]``;
``codes_1bit`` uint8 in the same way with ``N / 8``; ``scale`` ``[B, H, G, C]`` of the channels that have bits;
``zero_point`` ``[B, H, G, D]``; ``norm`` ``[B, H, P, N]`` where norms are divided out; ``transform``
``[B, H, 1, D, D]`` and ``bits`` uint8 ``[B, H, 1, D]`` where they are fitted to the prompt.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from kvmm.codecs.base import PAGE_SIZE, Codec, EncodeContext, Packed, Stored, StoreShape
from kvmm.codecs.common.outliers import (
    OUTLIERS,
    outlier_fields,
    outlier_scores,
    put_back,
    split_probabilities,
    take_out,
)
from kvmm.codecs.common.transform import Transform, check_invertible, offline_transform, rotation
from kvmm.codecs.rd.clipped import outlier_slots
from kvmm.codecs.rd.fit import channel_bits, check_transform, fit_to_prompt, fit_transform
from kvmm.codecs.rd.levels import gaussian_levels, page_levels
from kvmm.codecs.rd.tables import lane_tables, no_codes, stored_layout
from kvmm.codecs.spec import CodecSpec, Side, Site
from kvmm.errors import KVMMError
from kvmm.fields import Field, check_fields
from kvmm.kernels.attention import scores_per_channel, weighted_values_per_channel
from kvmm.kernels.attention.format import PackedFormat, Plane
from kvmm.kernels.hadamard import hadamard_matrix
from kvmm.kernels.quantize import Pages, cut_pages, unpack_keys, unpack_values
from kvmm.kernels.quantize.layout import STORED_BITS, PlaneLayout, check_bits, merge_slots

if TYPE_CHECKING:
    from kvmm.calibration.data import SiteSamples

_STORED = {
    **dict.fromkeys(("scale", "zero_point"), Stored("group")),
    **dict.fromkeys(("transform", "bits"), Stored("span")),
}
SHORT_SPAN = 128  # tokens up to which levels of its own cost a span more than they gain


class RD(Codec):
    """Rate-distortion transform coding. ``bits`` is the average a channel, such as 1.5 or 2.25, codes only.

    Options:
        fit: ``auto`` (the calibration file if it has this site, else a rotation), ``offline`` (the file or an error),
            ``prompt`` (to the keys, values and queries of the prompt; the transform is stored with the pages), or
            ``none`` (a rotation).
        rotation: without a fit, ``hadamard`` or ``identity``.
        pool: who shares the bits: ``model`` (all layers, keys and values), ``side`` (all layers' keys, all layers'
            values), ``site`` (each layer's keys, each layer's values), or ``auto``: the widest for which costs have one
            unit, which is ``model`` if the importance comes from gradients and both sides ask for the same average.
        norm: divide token norms out first: ``auto`` (where calibration found that it pays), ``l2`` or ``none``.
        levels: ``span`` (fitted to what is packed at once) or ``fixed`` (those of the calibration file, for all tokens
            that ever come, so that a token's codes depend on that token alone; spans without a fit have their own).
        outliers: for every 128 tokens of a span, how many of it stay in full precision, keys and values alike: those
            whose keys lie furthest beyond the levels (:mod:`kvmm.codecs.rd.clipped`), without a fit those with the
            smallest keys, which language models attend to as they do to the first token. 0 or more, such as 0.5.
        parameters: ``float16`` or ``float32`` scales, zero points and norms.
    """

    name = "rd"
    wants_calibration = True
    stream_tensors = ("codes", "codes_1bit")
    options: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "fit": ("auto", "offline", "prompt", "none"),
        "rotation": ("hadamard", "identity"),
        "pool": ("auto", "model", "side", "site"),
        "norm": ("auto", "l2", "none"),
        "levels": ("span", "fixed"),
        "outliers": (0,),
        "parameters": ("float16", "float32"),
    }

    @property
    def stored(self) -> Mapping[str, Stored]:
        return _STORED | OUTLIERS if self.outliers else _STORED

    def __init__(self, spec: CodecSpec, side: Side, site: Site | None = None):
        super().__init__(spec, side, site)
        self.parameter_dtype: torch.dtype = getattr(torch, self.option("parameters"))
        self.fit_kind = self.option("fit")
        self.outliers: float = self.option("outliers")
        self.needs_queries = self.fit_kind == "prompt" and side == "key"
        self.opens_pages = self.transform_id not in ("identity", "hadamard")  # else levels come from a span's tokens
        self.static_encode = self.fit_kind != "prompt"  # where bits are stored with the pages
        self.token_dim = -2 if side == "key" else -1
        self._layouts: dict[int, PlaneLayout] = {}
        self._tables: dict[torch.device, tuple[torch.Tensor, ...]] = {}  # lane tables of the kernels
        self._gaussian: dict[torch.device, tuple[torch.Tensor, torch.Tensor]] = {}  # levels of short spans

    @classmethod
    def check(cls, spec: CodecSpec) -> None:
        if not isinstance(spec.bits, (int, float)) or not 0 < spec.bits <= 8:
            raise KVMMError(f"Codec rd stores an average of more than 0 and at most 8 bits, not {spec.bits!r}.")
        if spec.group_size is not None:
            raise KVMMError("Codec rd has no group_size: levels belong to the whole span of a modality.")
        outliers = spec.option("outliers", 0)
        if type(outliers) not in (int, float) or not 0 <= outliers <= PAGE_SIZE // 2:
            raise KVMMError(
                f"Codec rd: outliers must be a number of tokens in every {PAGE_SIZE}, at most {PAGE_SIZE // 2}, "
                f"not {outliers!r}."
            )
        cls.check_options(spec)

    @classmethod
    def check_model(cls, spec: CodecSpec, head_dim: int) -> None:
        if spec.option("rotation", "hadamard") == "hadamard":
            hadamard_matrix(head_dim)

    @classmethod
    def matrix_specs(cls) -> list[CodecSpec]:
        return [
            CodecSpec("rd", 1),
            CodecSpec("rd", 1.5, None, (("norm", "l2"),)),
            CodecSpec("rd", 2.25, None, (("fit", "prompt"),)),
            CodecSpec("rd", 3, None, (("rotation", "identity"),)),
            CodecSpec("rd", 2, None, (("outliers", 2),)),
            CodecSpec("rd", 8),
        ]

    # -- offline --------------------------------------------------------------------------------------------------

    @classmethod
    def fit(cls, samples: SiteSamples) -> dict[str, torch.Tensor]:
        """The transform of one site, its channels' deviations and costs, and whether token norms pay.

        ``transform`` float16 ``[H, D, D]`` maps to channels in the order of falling variance and cost; ``mean``
        float32 ``[H, D]``; ``variance`` float32 ``[H, D]``, the cost of a channel without bits; ``norm`` uint8 ``[1]``.
        """
        return fit_transform(samples)

    @classmethod
    def check_fit(
        cls, tensors: Mapping[str, torch.Tensor], side: str, heads: int | str, dim: int | str, where: str
    ) -> None:
        check_transform(tensors, heads, dim, where)

    # -- transform and bits -----------------------------------------------------------------------------------------

    def transform(self, dim: int, device: torch.device) -> Transform:
        """The transform of this site for vectors of ``dim`` channels, without the prompt."""
        fitted = None
        if self.fit_kind in ("auto", "offline") and self.site.calibration is not None:
            site = self.site
            fitted = offline_transform(site.calibration, self.name, site.layer, self.side, site.modality, device)
        if fitted is None and self.fit_kind == "offline":
            raise KVMMError(
                "Codec rd with fit='offline' needs a calibration file with this layer and modality; make one with "
                "`kvmm calibrate`, or use fit='auto'."
            )
        return rotation(self.option("rotation"), dim, device) if fitted is None else fitted

    def uses_norm(self, transform: Transform) -> bool:
        """Whether token norms are divided out."""
        norm = self.option("norm")
        return transform.norm if norm == "auto" else norm == "l2"

    def layout(self, dim: int, transform: Transform) -> PlaneLayout:
        """The bits of this site's channels."""
        if dim not in self._layouts:
            sibling = self.site.sibling
            same = sibling is not None and (sibling.codec, sibling.bits) == (self.name, self.spec.bits)
            pool = self.option("pool") if self.fit_kind in ("auto", "offline") else None
            key = (float(self.spec.bits), pool, same)
            if key not in transform.layouts:
                bits = channel_bits(self.name, self.side, self.site, transform, key[0], pool, same)
                transform.layouts[key] = PlaneLayout(bits)
            self._layouts[dim] = transform.layouts[key]
        return self._layouts[dim]

    # -- encode and decode ------------------------------------------------------------------------------------------

    def encode(self, x: torch.Tensor, context: EncodeContext) -> Packed:
        pages = cut_pages(x, context.page_size, context.valid)
        dim, tensors = pages.shape[-1], {}
        transform = self.transform(dim, x.device)
        if self.uses_norm(transform):
            tensors["norm"] = pages.divisors(self.parameter_dtype)
            pages = pages.divide(tensors["norm"])
        slots = None
        if self.outliers:
            slots = outlier_slots(x, self.site, self.side, self.fit_kind, self.option("norm"), self.outliers, context)
        if self.fit_kind == "prompt":
            if context.previous is None:
                moment = context.query_moment if self.side == "key" else None
                usual = pages if slots is None else take_out(x, pages, slots, context)[0]
                tensors |= fit_to_prompt(usual, moment, float(self.spec.bits))
            forward = (context.previous or tensors)["transform"][:, :, 0].float()
            pages = pages.transform(forward)
            layout = stored_layout(tensors, context.previous)
        else:
            pages = pages.transform(transform.forward[None], transform.known).subtract(transform.offset[None])
            layout = self.layout(dim, transform)
        if slots is not None:
            pages, kept = take_out(x, pages, slots, context, sample=True)
            tensors |= kept
        scale, zero_point, group = self._levels(pages, layout, transform, context)
        padded_widths = layout.padded_widths(x.device, context.previous and context.previous.tensors, self.token_dim)
        tensors |= pages.plane_codes(scale, zero_point, layout, self.side == "value", padded_widths)
        if group is None:
            tensors |= {"scale": scale, "zero_point": zero_point}
        elif context.previous is None:
            tensors |= {"scale": scale[:, :, :0], "zero_point": zero_point[:, :, :0]}
        page_group = torch.full((pages.shape[2],), group or 0, dtype=torch.int32, device=x.device)
        return Packed(tensors, context.page_size, page_group, shared_group=group or 0)

    def _levels(
        self, pages: Pages, layout: PlaneLayout, transform: Transform, context: EncodeContext
    ) -> tuple[torch.Tensor, torch.Tensor, int | None]:
        """Scale ``[B, H, 1, C]``, zero point ``[B, H, 1, D]`` and which group they are; None is a new one."""
        held = 0 if context.previous is None else context.previous["scale"].shape[2]
        batch, heads, count, page_size, _ = pages.shape
        fixed = self.option("levels") == "fixed" and transform.deviation is not None and self.fit_kind != "prompt"
        if fixed or count * page_size <= SHORT_SPAN:
            if held and not fixed:  # also what keeps the pages of an answer in one group, which kernels read fastest
                previous = context.previous
                return previous["scale"][:, :, -1:], previous["zero_point"][:, :, -1:], -1
            if transform.deviation is not None and self.fit_kind != "prompt":
                scale, zero_point = self._offline_levels(layout, transform)
                shape = (batch, heads, 1, -1)
                return scale.expand(shape), zero_point.expand(shape), -1
        sample = pages.sample()
        return *sample.fit_levels(layout.bits, sample.groups(None), self.parameter_dtype, layout.coded), None

    def _offline_levels(self, layout: PlaneLayout, transform: Transform) -> tuple[torch.Tensor, torch.Tensor]:
        """Scale ``[1, H, 1, C]`` and zero point ``[1, H, 1, D]`` of a Gaussian with the calibrated deviations."""
        device = transform.forward.device
        if device not in self._gaussian:
            self._gaussian[device] = gaussian_levels(layout, transform.deviation, self.parameter_dtype)
        return self._gaussian[device]

    def _parameters(self, packed: Packed, transform: Transform, layout: PlaneLayout) -> tuple[Any, Any, Any]:
        """Scale and zero point ``[B, H, G, ...]`` float32 with the transform's offset, and each page's group."""
        if self.fit_kind == "prompt":
            return page_levels(packed, None, None)
        offline = None if transform.deviation is None else self._offline_levels(layout, transform)
        return page_levels(packed, offline, transform.offset)

    def merge_pages(
        self, old: Mapping[str, torch.Tensor], new: Mapping[str, torch.Tensor], slots: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        return {
            name: merge_slots(old[name], x, slots, self.token_dim, STORED_BITS.get(name)) for name, x in new.items()
        }

    def fields(self, store: StoreShape, tensors: Mapping[str, torch.Tensor]) -> dict[str, Field]:
        batch, heads, pages, dim = store.batch, store.heads, store.pages, store.dim
        transform, fields = self.transform(dim, store.device), {}
        if self.fit_kind == "prompt":
            fields["transform"] = Field(torch.float16, (batch, heads, 1, dim, dim))
            fields["bits"] = Field(torch.uint8, (batch, heads, 1, dim), 0, 9)
            check_fields(tensors, fields, closed=False)
            check_bits(tensors["bits"])
            check_invertible(tensors["transform"], "transform")
            layout = stored_layout(tensors)
        else:
            layout = self.layout(dim, transform)
        extra = transform.deviation is not None and self.fit_kind != "prompt"  # levels that no store holds
        fields["page_group"] = Field(torch.int32, (pages,), -1 if extra else 0, "groups")
        fields["scale"] = Field(self.parameter_dtype, (batch, heads, "groups", layout.coded))
        fields["zero_point"] = Field(self.parameter_dtype, (batch, heads, "groups", dim))
        if self.uses_norm(transform):
            fields["norm"] = Field(self.parameter_dtype, (batch, heads, pages, store.page_size))
        if self.outliers:
            fields |= outlier_fields(store)
        for name, widths in layout.stored_widths().items():
            rows = store.page_size * STORED_BITS[name] // 8
            shape = (rows, widths) if self.side == "key" else (widths, rows)
            fields[name] = Field(torch.uint8, (batch, heads, pages, *shape))
        return fields

    def decode(self, packed: Packed) -> torch.Tensor:
        transform, layout, codes = self._unpacked(packed)
        if self.side == "value":
            codes = codes.transpose(-1, -2)
        scale, zero_point, group = self._parameters(packed, transform, layout)
        if group is not None:
            scale, zero_point = (p.index_select(2, group) for p in (scale, zero_point))
        pages = zero_point.unsqueeze(3).expand(-1, -1, codes.shape[2], codes.shape[3], -1).clone()
        pages[..., : layout.coded] += codes * scale.unsqueeze(3)
        inverse = self._inverse(packed, transform)
        x = pages.flatten(2, 3) @ inverse.transpose(-1, -2)
        x = x * packed["norm"].float().flatten(2).unsqueeze(-1) if "norm" in packed.tensors else x
        return put_back(x, packed) if self.outliers else x

    def _layout_of(self, packed: Packed) -> tuple[Transform, PlaneLayout]:
        dim = packed["zero_point"].shape[-1]
        transform = self.transform(dim, packed["zero_point"].device)
        return transform, stored_layout(packed.tensors) if self.fit_kind == "prompt" else self.layout(dim, transform)

    def _unpacked(self, packed: Packed) -> tuple[Transform, PlaneLayout, torch.Tensor]:
        transform, layout = self._layout_of(packed)
        if not layout.coded:
            return transform, layout, no_codes(packed, self.token_dim)
        return transform, layout, layout.unpack(packed.tensors, self.token_dim)

    def _inverse(self, packed: Packed, transform: Transform) -> torch.Tensor:
        """``[B or 1, H or 1, D, D]``."""
        own = self.fit_kind == "prompt"
        return torch.linalg.inv(packed["transform"][:, :, 0].float()) if own else transform.inverse[None]

    # -- files ------------------------------------------------------------------------------------------------------

    def stream_bits(self, dim: int) -> torch.Tensor | None:
        if self.fit_kind == "prompt":
            return None  # bits are stored with the pages
        layout = self.layout(dim, self.transform(dim, torch.device("cpu")))
        return layout.bits[: layout.coded].to(torch.uint8)

    def streams(self, packed: Packed) -> torch.Tensor:
        codes = self._unpacked(packed)[2].to(torch.uint8)
        return (codes.transpose(-1, -2) if self.side == "value" else codes).flatten(2, 3)

    def from_streams(self, codes: torch.Tensor, page_size: int, device: torch.device) -> dict[str, torch.Tensor]:
        layout = next(iter(self._layouts.values()))
        widths = layout.padded_widths(device, None, self.token_dim)
        return layout.pack(codes.unflatten(2, (-1, page_size)), self.token_dim, widths)

    # -- attention --------------------------------------------------------------------------------------------------

    @property
    def transform_id(self) -> Hashable:
        if self.fit_kind == "prompt":
            return "identity"
        if self.fit_kind != "none" and self.site.calibration is not None:
            return (self.name, self.fit_kind, self.site.layer, self.side, self.site.modality)
        return "hadamard" if self.option("rotation") == "hadamard" else "identity"

    def packed_format(self, packed: Packed) -> PackedFormat | None:
        if self.fit_kind == "prompt":
            return None  # every sequence has a transform of its own
        zero_point = packed["zero_point"]
        dim, device = zero_point.shape[-1], zero_point.device
        transform = self.transform(dim, device)
        layout = self.layout(dim, transform)
        fallback = None if transform.deviation is None else self._offline_levels(layout, transform)
        page_group = packed.page_group
        if fallback is None and zero_point.shape[2] == 1:
            page_group = None
        elif packed.only_group == 0:
            page_group, fallback = None, None
        fallback_scale, fallback_zero_point = fallback or (None, None)
        channel, weight, *by_channel, matrix, lane_transform = self._lane_tables(layout, transform)
        keeps = self.outliers and packed["outlier"].shape[2]
        return PackedFormat(
            tuple(Plane(packed[n], STORED_BITS[n], w) for n, w in layout.widths.items() if n in packed.tensors),
            len(packed.page_group),
            packed.page_size,
            packed["scale"],
            zero_point,
            page_group=page_group,
            norm=packed.tensors.get("norm"),
            lane_channel=channel,
            plane_weight=weight,
            offset=transform.offset,
            fallback_scale=fallback_scale,
            fallback_zero_point=fallback_zero_point,
            channel_lanes=by_channel[0],
            channel_weights=by_channel[1],
            transform=matrix,
            lane_transform=lane_transform,
            kept=packed["outlier"] if keeps else None,
            kept_slot=packed["outlier_slot"] if keeps else None,
        )

    def _lane_tables(self, layout: PlaneLayout, transform: Transform) -> tuple[torch.Tensor, ...]:
        """``lane_channel``, ``plane_weight`` and all the tables that follow from them, of :class:`PackedFormat`."""
        device = transform.forward.device
        if device not in self._tables:
            self._tables[device] = lane_tables(layout, transform, self.side)
        return self._tables[device]

    def transform_query(self, query: torch.Tensor) -> torch.Tensor:
        return query if self.fit_kind == "prompt" else query @ self.transform(query.shape[-1], query.device).inverse

    def restore_output(self, output: torch.Tensor) -> torch.Tensor:
        if self.fit_kind == "prompt":
            return output
        return output @ self.transform(output.shape[-1], output.device).inverse.transpose(-1, -2)

    def scores(self, query: torch.Tensor, packed: Packed) -> torch.Tensor:
        transform, layout = self._layout_of(packed)
        scale, zero_point, group = self._parameters(packed, transform, layout)
        asked = query
        if self.fit_kind == "prompt":
            query = query @ self._inverse(packed, transform)
        scores = query @ zero_point.transpose(-1, -2)  # [B, H, Q, G]
        if group is not None:
            scores = scores.index_select(-1, group).repeat_interleave(packed.page_size, -1)
        for name, bits, channel, plane_weight in layout.planes(query.device):
            codes = unpack_keys(packed[name], bits)[..., : len(channel)]
            steps = scale.index_select(-1, channel) * plane_weight
            scores = scores_per_channel(query.index_select(-1, channel), codes, steps, None, group).add_(scores)
        if not layout.coded and group is None:
            # of their own: kept tokens' scores are written into them
            scores = scores.expand(-1, -1, -1, len(packed.page_group) * packed.page_size).contiguous()
        scores = scores * packed["norm"].flatten(2).unsqueeze(2) if "norm" in packed.tensors else scores
        return outlier_scores(scores, asked, packed, self._kept(packed, transform)) if self.outliers else scores

    def weighted_values(self, probabilities: torch.Tensor, packed: Packed) -> torch.Tensor:
        transform, layout = self._layout_of(packed)
        scale, zero_point, group = self._parameters(packed, transform, layout)
        probabilities, kept = split_probabilities(probabilities, packed) if self.outliers else (probabilities, None)
        if "norm" in packed.tensors:
            probabilities = probabilities * packed["norm"].flatten(2).unsqueeze(2)
        if group is None:
            output = probabilities.sum(-1, keepdim=True) * zero_point
        else:
            by_page = probabilities.unflatten(-1, (-1, packed.page_size)).sum(-1)  # [B, H, Q, P]
            output = by_page @ zero_point.index_select(2, group)
        for name, bits, channel, plane_weight in layout.planes(probabilities.device):
            codes = unpack_values(packed[name], bits)[:, :, : len(channel)]
            steps = scale.index_select(-1, channel) * plane_weight
            weighted_lanes = weighted_values_per_channel(probabilities, codes, steps, None, group)
            output = output.scatter_add(-1, channel.expand(weighted_lanes.shape), weighted_lanes)
        if self.fit_kind == "prompt":
            output = output @ self._inverse(packed, transform).transpose(-1, -2)
        return output if kept is None else output + kept @ self._kept(packed, transform)

    def _kept(self, packed: Packed, transform: Transform) -> torch.Tensor:
        """The tokens in full precision in the basis of the queries, float32 ``[B, H, n, D]``."""
        kept = packed["outlier"].float()
        return kept if self.fit_kind == "prompt" else kept @ transform.forward[None].transpose(-1, -2)
