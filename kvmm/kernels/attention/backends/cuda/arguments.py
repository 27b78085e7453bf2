"""What a launch hands the CUDA split kernel (``attention.cu``), and the header that declares it to the compiler."""

from __future__ import annotations

from typing import Any

import torch

from kvmm.kernels.attention.backends.cuda.compiled import Compiled
from kvmm.kernels.attention.backends.cuda.inputs import Query, ResidualInputs, ResidualSplits, rows_of
from kvmm.kernels.attention.format import MAX_PLANES, TENSORS
from kvmm.kernels.attention.structs import FLOAT, INT, LONG_LONG, Member, Struct, header, pointer

PAGED = Struct(
    "Paged",
    (
        Member("data", pointer("const Byte")),
        Member("batch", LONG_LONG),
        Member("head", LONG_LONG),
        Member("page", LONG_LONG, "below 2 ** 32"),
    ),
    "Page i of sequence b and head h starts at data + b * batch + h * head + i * page. Bytes.",
)


def _axes(name: str) -> str:
    """What a tensor of the format is, for a comment."""
    declared = TENSORS[name]
    forms = [declared.axes, *(axes for axes in (declared.by_token, declared.values_axes) if axes)]
    return f"{name} " + " or ".join(f"[{', '.join(axes.split())}]" for axes in forms)


# The order is that in which the kernel was measured: where a member lies shows in the machine code.
def residual_members() -> tuple[Member, ...]:
    """What ``struct Arguments`` has of residual tokens; :func:`residual_arguments` fills it."""
    return (
        Member(
            "residual_query",
            pointer("const Byte"),
            "with RESIDUAL, in the model's dtype: [B, H, rows, RESIDUAL_KEY_DIM]",
        ),
        Member("residual_keys", PAGED, "a page is a token"),
        Member("residual_values", PAGED),
        Member("residual_bias", pointer("const float"), "[B, residual_tokens]"),
        Member("residual_length", pointer("const int"), "tokens in use, or null: residual_tokens"),
        Member("residual_m", pointer("float")),
        Member("residual_l", pointer("float")),
        Member("residual_acc", pointer("float")),
        Member("residual_bias_batch", LONG_LONG),
        Member("residual_tokens", INT, "the capacity"),
        Member("num_residual_splits", INT),
        Member("residual_start", INT, "the first block that has some of them"),
        Member("residual_scaling", FLOAT),
    )


ARGUMENTS = Struct(
    "Arguments",
    (
        Member("query", pointer("const Byte"), "int8 [B, H, G, 2 * rows, L]; QUERY_TYPE: [B, H, rows, query_width]"),
        Member("query_weight", pointer("const float"), "[B, H, G, rows], without QUERY_TYPE"),
        Member("query_zero", pointer("const float")),
        Member("key_scale", PAGED, f"with QUERY_TYPE: rows of KEY_SCALE, a page is a group; {_axes('scale')}"),
        Member("key_zero", PAGED, _axes("zero_point")),
        Member("lane_channel", pointer("const int"), f"{_axes('lane_channel')}, or null: lane j is channel j"),
        Member("plane_weight", pointer("const float"), f"{_axes('plane_weight')}, or null: 1"),
        Member("key_offset", pointer("const float"), f"{_axes('offset')}, or null"),
        Member("offset_head", LONG_LONG, "floats"),
        Member("keys", PAGED, "codes of the planes", MAX_PLANES),
        Member("values", PAGED, count=MAX_PLANES),
        Member("key_norm", PAGED, _axes("norm")),
        Member("value_norm", PAGED, _axes("norm")),
        Member("value_scale", PAGED, f"with VALUE_TOKEN or VALUE_HIGH_NORM; {_axes('scale')}"),
        Member("value_zero", PAGED, _axes("zero_point")),
        Member("bias", pointer("const float"), "[B, slots]"),
        Member(
            "calibration", pointer("const float"), "with CALIBRATED: [B, H, rows, 2], slope and shift of a row's logits"
        ),
        Member("group_scale", pointer("const float"), "with VALUE_GROUPS: [B, H, value_groups, VALUE_WIDTH]"),
        Member("group_zero", pointer("const float"), "[B, H, value_groups, VALUE_ZEROS]"),
        Member("num_pages", pointer("const int"), "pages in use, or null: all"),
        Member("key_group", pointer("const int"), f"{_axes('page_group')}, or null: the page's index"),
        Member("value_group", pointer("const int")),
        Member("out_m", pointer("float"), "[B, H, splits, rows]"),
        Member("out_l", pointer("float")),
        Member("out_acc", pointer("float"), "by lane, or with channel_lanes by channel"),
        Member("out_zero", pointer("float")),
        Member("channel_lanes", pointer("const int"), f"{_axes('channel_lanes')}, or null"),
        Member("channel_weights", pointer("const float"), _axes("channel_weights")),
        Member("channels", INT),
        Member("lanes_per_channel", INT, "M"),
        Member("bias_batch", LONG_LONG),
        *residual_members(),
        *(Member(name, INT) for name in ("pages", "heads", "rows", "num_kv_splits", "key_groups", "value_groups")),
        Member("query_width", INT),
        Member("key_channels", INT),
        Member("scaling", FLOAT),
        Member("key_point", PAGED, f"with KEY_TOKEN; {_axes('zero_point')}"),
        Member("key_mean", PAGED, f"with KEY_MEAN, a page is a group; {_axes('mean')}"),
        Member("group_channel", PAGED, f"with KEY_GATHER, a page is a group; {_axes('group_channel')}"),
        Member("lane_order", PAGED, f"with KEY_ORDER; {_axes('lane_order')}"),
        Member("kept_slot", PAGED, f"with KEPT; {_axes('kept_slot')}"),
        Member("kept", INT, "E"),
        Member("kept_keys", PAGED, "with RESIDUAL_KEPT, in the model's dtype, a page is a token"),
        Member("kept_values", PAGED),
        Member("value_weights", FLOAT, "with VALUE_BIT_LANES: of channels of both planes, of the others", count=8),
        Member("key_high_norm", PAGED, f"with KEY_HIGH_NORM; {_axes('high_norm')}"),
        Member("value_high_norm", PAGED, "with VALUE_HIGH_NORM"),
    ),
    "What a launch hands the kernel.",
)
Arguments = ARGUMENTS.ctype
_Paged = PAGED.ctype


def header_text(variant: Compiled, arguments: Struct = ARGUMENTS) -> str:
    """The header of a kernel's source: what it is compiled for, and the structures it is launched with."""
    lines = ["#ifndef KVMM_VARIANT", "#define KVMM_VARIANT", "typedef unsigned char Byte;", ""]
    lines += [f"#define {name} {value} // {comment}" for name, (value, comment) in variant.macros.items()]
    return "\n".join([*lines, "", header(arguments, cuda=True), "#endif", ""])


def pointer_to(x: torch.Tensor | None) -> int | None:
    return None if x is None else x.data_ptr()


def paged(x: torch.Tensor | None) -> Any:
    if x is None:
        return _Paged()
    batch, head, page = (
        0 if size == 1 else s * x.element_size() for size, s in zip(x.shape, x.stride()[:3], strict=False)
    )
    return _Paged(x.data_ptr(), batch, head, page)


def _query_arguments(query: torch.Tensor | Query, weight, zero) -> dict:
    """What ``struct Arguments`` has of the query."""
    if not isinstance(query, Query):
        pointers = {"query": query.data_ptr(), "query_weight": weight.data_ptr(), "query_zero": zero.data_ptr()}
        return pointers | {"key_groups": query.shape[2]}
    offset, scale, mean = query.offset, query.scale, query.mean
    return {
        "query": query.rows.data_ptr(),
        "key_groups": next((x.shape[2] for x in (mean, scale) if x is not None), 1),
        "key_scale": paged(scale),
        "key_zero": paged(query.zero_point),
        "key_mean": paged(mean),
        "group_channel": paged(query.group_channel),
        "lane_order": paged(query.lane_order),
        "lane_channel": pointer_to(query.lane_channel),
        "plane_weight": pointer_to(query.plane_weight),
        "key_offset": pointer_to(offset),
        "offset_head": 0 if offset is None or offset.shape[0] == 1 else offset.stride(0),
        "query_width": query.rows.shape[-1],
        "key_channels": query.rows.shape[-1] if scale is None else scale.shape[-1],
        "scaling": query.scaling,
    }


def residual_arguments(residual: ResidualInputs | None, out: ResidualSplits | None, num_kv_splits: int) -> dict:
    """What ``struct Arguments`` has of the residual tokens, next to ``num_kv_splits`` of the pages."""
    if residual is None:
        return {}
    return {
        "residual_query": residual.query.data_ptr(),
        "residual_keys": paged(residual.key),
        "residual_values": paged(residual.value),
        "residual_bias": pointer_to(residual.bias),
        "residual_bias_batch": 0 if residual.bias is None or residual.bias.shape[0] == 1 else residual.bias.stride(0),
        "residual_length": pointer_to(residual.length),
        "residual_m": out.m.data_ptr(),
        "residual_l": out.l.data_ptr(),
        "residual_acc": out.acc.data_ptr(),
        "residual_tokens": residual.key.shape[2],
        "num_residual_splits": out.m.shape[1],
        "residual_start": num_kv_splits if out.apart else 0,
        "residual_scaling": residual.scaling,
    }


def arguments_of(
    query,
    qw,
    qz,
    keys,
    values,
    out_m,
    out_l,
    out_acc,
    num_pages,
    bias,
    out_z,
    residual=None,
    residual_out=None,
    calibration=None,
) -> Any:
    heads, pages = keys.planes[0][0].shape[1] * keys.heads_together, keys.planes[0][0].shape[2]
    by_token = values.axis == "token"
    in_sums = by_token or values.high_norm is not None
    group_scale = None if in_sums else values.scale
    arguments = Arguments(
        **_query_arguments(query, qw, qz),
        **residual_arguments(residual, residual_out, out_m.shape[1]),
        key_norm=paged(keys.norm),
        key_point=paged(keys.point),
        kept_slot=paged(keys.kept_slot),
        kept=0 if keys.kept_slot is None else keys.kept_slot.shape[-1],
        kept_keys=paged(None if residual is None else residual.kept_key),
        kept_values=paged(None if residual is None else residual.kept_value),
        value_norm=paged(values.norm),
        value_scale=paged(values.scale if in_sums else None),
        value_zero=paged(values.zero_point if in_sums else None),
        key_high_norm=paged(keys.high_norm),
        value_high_norm=paged(values.high_norm),
        bias=pointer_to(bias),
        calibration=pointer_to(calibration),
        group_scale=pointer_to(group_scale),
        group_zero=None if in_sums else pointer_to(values.zero_point),
        num_pages=pointer_to(num_pages),
        key_group=pointer_to(keys.group) if isinstance(keys.group, torch.Tensor) else None,
        value_group=pointer_to(values.group) if isinstance(values.group, torch.Tensor) else None,
        out_m=out_m.data_ptr(),
        out_l=out_l.data_ptr(),
        out_acc=pointer_to(out_acc),
        out_zero=pointer_to(out_z),
        bias_batch=0 if bias is None or bias.shape[0] == 1 else bias.stride(0),
        pages=pages,
        heads=heads,
        rows=rows_of(query),
        num_kv_splits=out_m.shape[1],
        value_groups=0 if group_scale is None else group_scale.shape[2],
    )
    if values.channels is not None:
        lanes, weights = values.channels
        arguments.channel_lanes, arguments.channel_weights = lanes.data_ptr(), weights.data_ptr()
        arguments.lanes_per_channel, arguments.channels = lanes.shape
    for first, weights in zip((4, 0) if len(values.planes) == 1 else (0, 4), values.bit_weights or (), strict=False):
        arguments.value_weights[first : first + len(weights)] = weights
    for i, (codes, _) in enumerate(keys.planes):
        arguments.keys[i] = paged(codes)
    for i, (codes, _) in enumerate(values.planes):
        arguments.values[i] = paged(codes)
    return arguments
