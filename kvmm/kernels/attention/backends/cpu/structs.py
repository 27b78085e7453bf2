"""The structures that the C library reads, and the header that declares them to it.

What describes a store follows from the fields of :class:`kvmm.kernels.attention.format.PackedFormat`. The header is
made when the library is compiled; :func:`header_text` is what is in it.
"""

from __future__ import annotations

import torch

from kvmm.kernels.attention.format import AXES, MAX_PLANES, TENSORS, DenseFormat, PackedFormat, axis_sizes, tensors_of
from kvmm.kernels.attention.structs import DOUBLE, FLOAT, INT64, Member, Struct, header, pointer

HEADER = "packed_format.h"
MAX_ROWS = 16  # rows of queries; for more, matrix products over unpacked codes are faster
MAX_CHANNELS = 512  # or lanes of a plane, the largest that the library supports
DTYPES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2, torch.uint8: 3, torch.int32: 4}
KINDS = {"NOTHING": 0, "PLANES": 1, "DENSE": 2, "LOGITS": 3}  # what a store is read as
# sizes of axes that tensors have and a call does not
SIZES = {
    "G": "groups",
    "C": "channels",
    "D": "dim",
    "S": "channel_groups",
    "K": "group_lanes",
    "W": "transform_width",
    "L": "lanes",
    "E": "kept_tokens",
}
_POINTERS = {torch.int32: "const int32_t", torch.float32: "const float", torch.uint8: "const uint8_t"}

ARRAY = Struct(
    "array_t",
    (
        Member("data", pointer("const void"), "NULL: there is none"),
        Member("batch", INT64, "strides in elements, 0 where there is one for all"),
        Member("head", INT64),
        Member("dtype", INT64),
    ),
    "A tensor [B, H, ...] or [H, ...] whose other dimensions follow each other.",
)
PLANE = Struct(
    "plane_t",
    (
        Member("codes", pointer("const uint8_t")),
        Member("batch", INT64, "strides in bytes"),
        Member("head", INT64),
        Member("bits", INT64),
        Member("width", INT64, "lanes"),
        Member("stored", INT64, "lanes, the padding included"),
    ),
    "A bit plane.",
)


def _tensor_members() -> tuple[Member, ...]:
    members = []
    for name, declared in TENSORS.items():
        if declared.cpu:
            kind = ARRAY if declared.strided else pointer(_POINTERS[declared.dtypes[0]])
            axes = [declared.axes, *(a for a in (declared.by_token, declared.values_axes) if a)]
            members.append(Member(name, kind, " or ".join(f"[{', '.join(a.split())}]" for a in axes)))
    return tuple(members)


FORMAT = Struct(
    "format_t",
    (
        Member("kind", INT64),
        Member("num_planes", INT64),
        Member("plane", PLANE, count=MAX_PLANES),
        Member("pages", INT64),
        Member("page_size", INT64),
        Member("by_token", INT64),
        Member("groups_per_page", INT64),
        *(Member(name, INT64, f"{axis}: {AXES[axis]}") for axis, name in SIZES.items()),
        Member("calibrates", INT64, "whether each row's logits are calibrated"),
        Member("low_shift", DOUBLE),
        Member("high_shift", DOUBLE),
        *_tensor_members(),
        Member("values", ARRAY, "DENSE: [B, H, P * N, D]; LOGITS: [B, H, rows, P * N], contiguous"),
    ),
    "Keys or values of one segment: kvmm.kernels.attention.format.PackedFormat.",
)
SEGMENT = Struct(
    "segment_t",
    (
        Member("key", FORMAT),
        Member("value", FORMAT),
        Member("slots", INT64, "capacity in tokens"),
        Member("used", pointer("const int32_t"), "pages in use; NULL: all"),
    ),
)
CALL = Struct(
    "call_t",
    (
        *(Member(name, INT64) for name in ("batch", "heads", "rows", "length", "dim", "value_dim", "num_segments")),
        Member("slots", INT64, "of all segments"),
        Member("num_residual", INT64, "capacity of the residual tokens"),
        Member("scaling", FLOAT),
        Member("query", pointer("const float"), "[B, H, rows, D]"),
        Member("bias", pointer("const float"), "[B, q or 1, slots + num_residual]"),
        Member("bias_batch", INT64),
        Member("bias_row", INT64),
        Member("residual_key", ARRAY, "[B, H, n, D]"),
        Member("residual_value", ARRAY),
        Member("out", pointer("float"), "[B, H, rows, value_dim]"),
        Member("lse", pointer("float"), "[B, H, rows], the log-sum-exp of the scores; NULL: not wanted"),
        Member("residual_length", pointer("const int32_t"), "residual tokens in use; NULL: all"),
        Member("segments", pointer("const segment_t")),
    ),
    "One call: the attention of some rows of queries a head over all segments and the residual tokens.",
)


def dtypes_text() -> str:
    """The C declaration of :data:`DTYPES`."""
    names = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.uint8: "U8", torch.int32: "I32"}
    return f"enum {{ {', '.join(f'{names[dtype]} = {number}' for dtype, number in DTYPES.items())} }};"


def header_text() -> str:
    """The C header of the library."""
    numbers = {"MAX_ROWS": MAX_ROWS, "MAX_CHANNELS": MAX_CHANNELS}
    kinds = ", ".join(f"{name} = {number}" for name, number in KINDS.items())
    lines = [
        "/* Made by kvmm.kernels.attention.backends.cpu.structs from the declaration of the packed format. */",
        "#include <stddef.h>",
        "#include <stdint.h>",
        "",
        *(f"#define {name} {number}" for name, number in numbers.items()),
        dtypes_text(),
        f"enum {{ {kinds} }};",
        "",
        header(SEGMENT, CALL),
    ]
    return "\n".join(lines)


class Unsupported(Exception):
    """The library does not take this case."""


def array(x: torch.Tensor | None, inner: int, keep_alive: list) -> ARRAY.ctype:
    """``x`` ``[B, H, ...]`` or ``[H, ...]`` whose last ``inner`` dimensions follow each other.

    Args:
        x: or None.
        inner: dimensions behind sequences and heads.
        keep_alive: collects the tensors that are pointed to.

    Raises:
        Unsupported: they do not.
    """
    if x is None or not x.numel():
        return ARRAY.ctype()
    size = 1
    for n, stride in zip(reversed(x.shape[-inner:]), reversed(x.stride()[-inner:]), strict=True):
        if n != 1 and stride != size:
            raise Unsupported
        size *= n
    keep_alive.append(x)
    batch = x.stride(0) if x.dim() == inner + 2 and x.shape[0] > 1 else 0
    head = x.stride(-inner - 1) if x.shape[-inner - 1] > 1 else 0
    return ARRAY.ctype(x.data_ptr(), batch, head, DTYPES[x.dtype])


def describe(store: PackedFormat | DenseFormat, key: bool, keep_alive: list) -> FORMAT.ctype:
    """A store as the library reads it, which :func:`kvmm.kernels.attention.format.mismatch` has found as declared.

    Args:
        store: keys or values.
        key: which of the two.
        keep_alive: collects the tensors that are pointed to.

    Raises:
        Unsupported: the library does not read it.
    """
    if isinstance(store, DenseFormat):
        values = array(store.values, 3, keep_alive)
        return FORMAT.ctype(KINDS["DENSE"], pages=store.pages, page_size=store.page_size, values=values)
    sizes = axis_sizes(store, key)
    struct = FORMAT.ctype(KINDS["PLANES"], len(store.planes))
    for number, plane in enumerate(store.planes):
        codes, stored = array(plane.codes, 3, keep_alive), plane.codes.shape[-1 if key else -2]
        struct.plane[number] = PLANE.ctype(codes.data, codes.batch, codes.head, plane.bits, plane.width, stored)
    for name in ("pages", "page_size", "by_token", "groups_per_page"):
        setattr(struct, name, getattr(store, name))
    for axis, name in SIZES.items():
        setattr(struct, name, sizes.get(axis, 0))
    if store.logit_calibration is not None:
        struct.calibrates = 1
        struct.low_shift, struct.high_shift = store.logit_calibration.low_shift, store.logit_calibration.high_shift
    for name, declared, x in tensors_of(store):
        if not declared.cpu:
            continue
        if declared.strided:
            axes = declared.axes_of(store, key)
            setattr(struct, name, array(x, len(axes) - sum(axis in "BH1" for axis in axes[:2]), keep_alive))
        else:
            keep_alive.append(x.contiguous())
            setattr(struct, name, keep_alive[-1].data_ptr())
    if max(struct.dim, struct.channels, *(plane.width for plane in store.planes)) > MAX_CHANNELS:
        raise Unsupported
    return struct
