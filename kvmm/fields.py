"""What tensors of a file have to be: declared in one form for caches, calibration files and saved conversations.

A file may come from anybody. Kernels compute addresses from shapes, and read tables (which group a page belongs to,
which channel a code) as indices, so nothing of a file reaches them before it has been compared with its declaration.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from kvmm.errors import KVMMError

Size = int | str | tuple[int, ...]


@dataclass(frozen=True)
class Field:
    """One tensor.

    Attributes:
        dtypes: what its dtype may be.
        shape: of each dimension its size, several sizes that it may have, or a name: all dimensions of that name in
            one file have the same size.
        low, high: the smallest value, and what all values are below: a number, or the name of a dimension. None sets
            no limit.
        finite: for floating point, whether infinities and NaN are refused.
        required: whether it must be there.
    """

    dtypes: torch.dtype | tuple[torch.dtype, ...]
    shape: tuple[Size, ...]
    low: int | None = None
    high: int | str | None = None
    finite: bool = True
    required: bool = True


def check_fields(
    tensors: Mapping[str, torch.Tensor],
    fields: Mapping[str, Field],
    where: str = "",
    *,
    closed: bool = True,
    sizes: dict[str, int] | None = None,
) -> dict[str, int]:
    """Compare tensors with their declarations.

    Args:
        tensors: by name.
        fields: what they have to be, by the same names.
        where: what the names in messages begin with.
        closed: whether a tensor without a declaration is refused; else it is passed over.
        sizes: sizes of named dimensions that are known already.

    Returns:
        the sizes of all named dimensions.

    Raises:
        KVMMError: with the name of the first tensor that is missing, unknown, or not as declared.
    """
    sizes = dict(sizes or {})
    if closed:
        for name in tensors:
            if name not in fields:
                raise KVMMError(f"{where}{name}: no such tensor belongs here")
    for name, field in fields.items():
        if name not in tensors:
            if field.required:
                raise KVMMError(f"{where}{name}: is missing")
            continue
        _check_kind(tensors[name], field, where + name, sizes)
    for name, field in fields.items():
        if name in tensors:
            _check_values(tensors[name], field, where + name, sizes)
    return sizes


def _check_kind(tensor: torch.Tensor, field: Field, name: str, sizes: dict[str, int]) -> None:
    dtypes = field.dtypes if isinstance(field.dtypes, tuple) else (field.dtypes,)
    if tensor.dtype not in dtypes:
        words = " or ".join(_name(dtype) for dtype in dtypes)
        raise KVMMError(f"{name}: has dtype {_name(tensor.dtype)} instead of {words}")
    found = tuple(tensor.shape)
    fits = len(found) == len(field.shape)
    for size, wanted in zip(found, field.shape, strict=False):
        if isinstance(wanted, str):
            fits = fits and size == sizes.setdefault(wanted, size)
        else:
            fits = fits and (size in wanted if isinstance(wanted, tuple) else size == wanted)
    if not fits:
        raise KVMMError(f"{name}: has shape {list(found)} instead of {_shape(field.shape, sizes)}")


def _check_values(tensor: torch.Tensor, field: Field, name: str, sizes: Mapping[str, int]) -> None:
    if not tensor.numel():
        return
    if tensor.is_floating_point():
        if field.finite and not bool(tensor.isfinite().all()):
            raise KVMMError(f"{name}: holds values that are not finite")
        if field.low is not None and float(tensor.min()) < field.low:
            raise KVMMError(f"{name}: holds values below {field.low}")
        return
    if field.low is None and field.high is None:
        return
    low, high = (int(x) for x in tensor.aminmax())
    limit = sizes[field.high] if isinstance(field.high, str) else field.high
    if (field.low is not None and low < field.low) or (limit is not None and high >= limit):
        last = "" if limit is None else f" to {limit - 1}"
        raise KVMMError(f"{name}: holds {low if low < (field.low or 0) else high} and may hold {field.low}{last}")


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _shape(shape: tuple[Size, ...], sizes: Mapping[str, int]) -> str:
    words = []
    for size in shape:
        if isinstance(size, tuple):
            words.append(" or ".join(str(one) for one in size))
        else:
            words.append(str(sizes.get(size, size) if isinstance(size, str) else size))
    return f"[{', '.join(words)}]"


def whole_number(values: Any, name: str, low: int = 0, high: int = 2**62, where: str = "") -> int:
    """The whole number from ``low`` to ``high`` that JSON has under a name.

    Raises:
        KVMMError: with the name, if there is none.
    """
    value = values.get(name) if isinstance(values, Mapping) else None
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        limits = f"of at least {low}" if high == 2**62 else f"from {low} to {high}"
        raise KVMMError(f"{where}{name}: must be a whole number {limits}")
    return value


__all__ = ["Field", "check_fields", "whole_number"]
