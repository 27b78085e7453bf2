"""``struct Arguments`` of the CUDA split kernel (``attention.cu``): what a launch hands it, in its order."""

from __future__ import annotations

import ctypes

import torch

from kvmm.kernels.attention.backends.cuda.inputs import DenseColumns, DenseSplits, Query, rows_of


class _Paged(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("batch", ctypes.c_longlong),
        ("head", ctypes.c_longlong),
        ("page", ctypes.c_longlong),
    ]


class Arguments(ctypes.Structure):  # struct Arguments of attention.cu
    _fields_ = [
        ("query", ctypes.c_void_p),
        ("query_weight", ctypes.c_void_p),
        ("query_zero", ctypes.c_void_p),
        ("key_scale", _Paged),
        ("key_zero", _Paged),
        ("digit_channel", ctypes.c_void_p),
        ("digit_place", ctypes.c_void_p),
        ("key_offset", ctypes.c_void_p),
        ("offset_head", ctypes.c_longlong),
        ("keys", _Paged * 2),
        ("values", _Paged * 2),
        ("key_norm", _Paged),
        ("value_norm", _Paged),
        ("value_scale", _Paged),
        ("value_zero", _Paged),
        ("bias", ctypes.c_void_p),
        ("adjust", ctypes.c_void_p),
        ("group_scale", ctypes.c_void_p),
        ("group_zero", ctypes.c_void_p),
        ("num_pages", ctypes.c_void_p),
        ("key_group", ctypes.c_void_p),
        ("value_group", ctypes.c_void_p),
        ("out_m", ctypes.c_void_p),
        ("out_l", ctypes.c_void_p),
        ("out_acc", ctypes.c_void_p),
        ("out_zero", ctypes.c_void_p),
        ("channel_lanes", ctypes.c_void_p),
        ("channel_weights", ctypes.c_void_p),
        ("channels", ctypes.c_int),
        ("terms", ctypes.c_int),
        ("bias_batch", ctypes.c_longlong),
        ("dense_query", ctypes.c_void_p),
        ("dense_keys", _Paged),
        ("dense_values", _Paged),
        ("dense_bias", ctypes.c_void_p),
        ("dense_length", ctypes.c_void_p),
        ("dense_m", ctypes.c_void_p),
        ("dense_l", ctypes.c_void_p),
        ("dense_acc", ctypes.c_void_p),
        ("dense_bias_batch", ctypes.c_longlong),
        ("dense_columns", ctypes.c_int),
        ("dense_splits", ctypes.c_int),
        ("dense_start", ctypes.c_int),
        ("dense_scaling", ctypes.c_float),
        ("pages", ctypes.c_int),
        ("heads", ctypes.c_int),
        ("rows", ctypes.c_int),
        ("splits", ctypes.c_int),
        ("key_groups", ctypes.c_int),
        ("value_groups", ctypes.c_int),
        ("query_width", ctypes.c_int),
        ("key_channels", ctypes.c_int),
        ("scaling", ctypes.c_float),
    ]


def _pointer(x: torch.Tensor | None) -> int | None:
    return None if x is None else x.data_ptr()


def _paged(x: torch.Tensor | None) -> _Paged:
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
    offset = query.offset
    return {
        "query": query.rows.data_ptr(),
        "key_groups": query.scale.shape[2],
        "key_scale": _paged(query.scale),
        "key_zero": _paged(query.zero_point),
        "digit_channel": _pointer(query.index),
        "digit_place": _pointer(query.place),
        "key_offset": _pointer(offset),
        "offset_head": 0 if offset is None or offset.shape[0] == 1 else offset.stride(0),
        "query_width": query.rows.shape[-1],
        "key_channels": query.scale.shape[-1],
        "scaling": query.scaling,
    }


def _dense_arguments(dense: DenseColumns | None, out: DenseSplits | None, splits: int) -> dict:
    """What ``struct Arguments`` has of the dense columns, next to ``splits`` of the pages."""
    if dense is None:
        return {}
    return {
        "dense_query": dense.query.data_ptr(),
        "dense_keys": _paged(dense.key),
        "dense_values": _paged(dense.value),
        "dense_bias": _pointer(dense.bias),
        "dense_bias_batch": 0 if dense.bias is None or dense.bias.shape[0] == 1 else dense.bias.stride(0),
        "dense_length": _pointer(dense.length),
        "dense_m": out.m.data_ptr(),
        "dense_l": out.l.data_ptr(),
        "dense_acc": out.acc.data_ptr(),
        "dense_columns": dense.key.shape[2],
        "dense_splits": out.m.shape[1],
        "dense_start": splits if out.apart else 0,
        "dense_scaling": dense.scaling,
    }


def arguments_of(
    query, qw, qz, keys, values, out_m, out_l, out_acc, num_pages, bias, out_z, dense=None, dense_out=None, adjust=None
) -> Arguments:
    heads, pages = keys.planes[0][0].shape[1:3]
    by_token = values.axis == "token"
    group_scale = None if by_token else values.scale
    arguments = Arguments(
        **_query_arguments(query, qw, qz),
        **_dense_arguments(dense, dense_out, out_m.shape[1]),
        key_norm=_paged(keys.norm),
        value_norm=_paged(values.norm),
        value_scale=_paged(values.scale if by_token else None),
        value_zero=_paged(values.zero_point if by_token else None),
        bias=_pointer(bias),
        adjust=_pointer(adjust),
        group_scale=_pointer(group_scale),
        group_zero=None if by_token else _pointer(values.zero_point),
        num_pages=_pointer(num_pages),
        key_group=_pointer(keys.group) if isinstance(keys.group, torch.Tensor) else None,
        value_group=_pointer(values.group) if isinstance(values.group, torch.Tensor) else None,
        out_m=out_m.data_ptr(),
        out_l=out_l.data_ptr(),
        out_acc=_pointer(out_acc),
        out_zero=_pointer(out_z),
        bias_batch=0 if bias is None or bias.shape[0] == 1 else bias.stride(0),
        pages=pages,
        heads=heads,
        rows=rows_of(query),
        splits=out_m.shape[1],
        value_groups=0 if group_scale is None else group_scale.shape[2],
    )
    if values.channels is not None:
        digits, places = values.channels
        arguments.channel_lanes, arguments.channel_weights = digits.data_ptr(), places.data_ptr()
        arguments.terms, arguments.channels = digits.shape
    for i, (codes, _) in enumerate(keys.planes):
        arguments.keys[i] = _paged(codes)
    for i, (codes, _) in enumerate(values.planes):
        arguments.values[i] = _paged(codes)
    return arguments
