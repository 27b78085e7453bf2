"""Whether the C library may read a store: it computes addresses from these sizes and indices and compares nothing.

Codecs make what is compared here, and files are compared with what codecs declare, so that nothing should ever fail;
a store that does is read by the reference, which raises an error where C would read what is not there.
"""

from __future__ import annotations

import torch

from kvmm.kernels.attention.format import Dense, Digits

FLOATS = (torch.float32, torch.float16, torch.bfloat16)


def readable(store: Digits | Dense, key: bool, batch: int, heads: int, dim: int) -> bool:
    """Whether all that the library reads of a store lies inside its tensors.

    Args:
        store: keys or values.
        key: which of the two.
        batch, heads: of the step, ``B`` and ``H``.
        dim: channels of a query, or of the output.
    """
    if isinstance(store, Dense):
        shape = (batch, heads, store.pages, store.page_size, dim)
        return store.values.dtype in FLOATS and tuple(store.values.shape) == shape
    return (
        _planes(store, key, batch, heads)
        and (_by_token(store, key, dim, batch, heads) if store.by_token else _by_channel(store, key, dim, batch, heads))
        and _is(store.norm, FLOATS, (batch, heads, store.pages, store.page_size))
        and _is(store.offset, (torch.float32,), (heads, store.zero_point.shape[-1]))
        and _matrix(store, key, dim, heads)
    )


def _is(x: torch.Tensor | None, dtypes: tuple[torch.dtype, ...], shape: tuple[int, ...]) -> bool:
    """Whether a tensor that may be missing has a dtype and a shape; the first dimensions but the last two may be 1, of
    which the library makes one for all sequences or heads."""
    if x is None:
        return True
    if x.dtype not in dtypes or x.dim() != len(shape):
        return False
    shared = 2 if len(shape) > 2 else 1
    return all(
        size == wanted or (place < shared and size == 1)
        for place, (size, wanted) in enumerate(zip(x.shape, shape, strict=True))
    )


def _planes(store: Digits, key: bool, batch: int, heads: int) -> bool:
    if len(store.planes) > 2 or store.page_size < 1:
        return False
    for plane in store.planes:
        if plane.bits not in (1, 2, 4, 8) or store.page_size % 8 or plane.codes.dim() != 5:
            return False
        rows, stored = store.page_size * plane.bits // 8, plane.codes.shape[-1 if key else -2]
        shape = (batch, heads, store.pages, *((rows, stored) if key else (stored, rows)))
        if stored < plane.width or not _is(plane.codes, (torch.uint8,), shape):
            return False
    return True


def _by_token(store: Digits, key: bool, dim: int, batch: int, heads: int) -> bool:
    if store.scale.dim() != 5 or len(store.planes) != 1 or store.index is not None or store.place is not None:
        return False
    chunks, width = store.scale.shape[3], store.planes[0].width
    parameters = (batch, heads, store.pages, chunks, store.page_size)
    if not all(_is(x, FLOATS, parameters) for x in (store.scale, store.zero_point)) or width % max(chunks, 1):
        return False
    if not chunks or width != dim or (store.mean is None) != (store.page_group is None):
        return False
    if store.mean is None:
        return True
    groups = store.mean.shape[2] if store.mean.dim() == 4 else 0
    if not key or not _is(store.mean, FLOATS, (batch, heads, groups, dim)):
        return False
    return _pages(store.page_group, store.pages, groups)


def _by_channel(store: Digits, key: bool, dim: int, batch: int, heads: int) -> bool:
    if store.scale.dim() != 4 or store.zero_point.dim() != 4:
        return False
    groups, channels, width = store.zero_point.shape[2], store.scale.shape[3], store.zero_point.shape[3]
    if not _is(store.scale, FLOATS, (batch, heads, groups, channels)) or width != dim:
        return False
    if not _is(store.zero_point, FLOATS, (batch, heads, groups, width)):
        return False
    extra = store.extra is not None
    if extra:
        shapes = ((1, heads, 1, channels), (1, heads, 1, width))
        if not all(_is(x, FLOATS, shape) for x, shape in zip(store.extra, shapes, strict=True)):
            return False
    if store.page_group is not None:
        if not _pages(store.page_group, store.pages, groups + extra):
            return False
    elif store.inside:
        if store.page_size % store.inside or groups < store.pages * store.inside:
            return False
    elif not groups:
        return False
    return _channels(store, batch, heads, groups, channels, width)


def _pages(page_group: torch.Tensor, pages: int, groups: int) -> bool:
    """Whether every page has a group; -1 is the last one."""
    if page_group.dtype != torch.int32 or tuple(page_group.shape) != (pages,) or not groups:
        return False
    return not pages or (int(page_group.min()) >= -1 and int(page_group.max()) < groups)


def _channels(store: Digits, batch: int, heads: int, groups: int, channels: int, width: int) -> bool:
    """Whether every digit belongs to a channel that has a scale and a zero point."""
    most = min(channels, width)
    if not _is(store.place, (torch.float32,), (store.columns,)):
        return False
    planes = list(store.planes)
    if store.group_index is not None:
        if len(planes) != 2 or store.group_index.dim() != 4:
            return False
        boosted = store.group_index.shape[3]
        if not _is(store.group_index, (torch.uint8,), (batch, heads, groups, boosted)) or boosted < planes[1].width:
            return False
        if store.group_index.numel() and int(store.group_index.max()) >= most:
            return False
        planes = planes[:1]
    if store.index is None:
        return all(plane.width <= most for plane in planes) and len(planes) < 2
    if not _is(store.index, (torch.int32,), (store.columns,)):
        return False
    return not store.columns or not most or (int(store.index.min()) >= 0 and int(store.index.max()) < most)


def _matrix(store: Digits, key: bool, dim: int, heads: int) -> bool:
    width = store.planes[0].width if store.by_token and not key else dim
    if store.matrix is None:
        return width == dim
    if store.matrix.dim() != 3:
        return False
    columns = store.matrix.shape[-1]
    return _is(store.matrix, (torch.float32,), (heads, width, columns)) and (columns >= dim if key else columns == dim)


__all__ = ["FLOATS", "readable"]
