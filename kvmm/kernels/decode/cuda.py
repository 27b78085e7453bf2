"""The split kernel of decode attention in CUDA C++ (``digits.cu``), for NVIDIA GPUs from compute capability 8.0.

An optional fast path: :func:`supports` says whether it takes a case, and where it does not (another GPU, no NVRTC,
a layout without a variant) the Triton kernel with the same contract does. NVRTC, which comes with torch, compiles a
variant when it is first asked for; neither a compiler nor headers are needed.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import torch

from kvmm.errors import KVMMError
from kvmm.kernels.decode import nvrtc

PAGE_SIZES = (64, 128)
MAX_DIGITS = 256  # of all planes together: 254 * high + low has to fit 31 bits
MAX_ROWS = 8  # query rows a block takes; more rows are more blocks
_TYPES = {torch.float16: 1, torch.float32: 2}
_QUERY_TYPES = _TYPES | {torch.bfloat16: 3}
_DENSE_TYPES = {torch.float16: 1, torch.bfloat16: 3}
_SOURCE = Path(__file__).with_name("digits.cu")

Plane = tuple[torch.Tensor, int]  # packed codes and their bits


@dataclass(frozen=True)
class DigitKeys:
    """Keys of one store as the kernel reads them.

    Attributes:
        planes: one or two of ``(codes, bits)``: uint8 ``[B, H, P, N * bits / 8, J_i]``, packed along tokens
            (:func:`kvmm.kernels.quantize.pack_planes`), the last two dimensions contiguous.
        page_size: ``N``, tokens a page.
        group: the query's group a page uses: ``"span"`` (group 0), ``"page"`` (its own) or int32 ``[P]``, where
            negative numbers count from the last group.
        norm: float16 or float32 ``[B, H or 1, P, N]``, multiplied into the logits, or None.
    """

    planes: tuple[Plane, ...]
    page_size: int
    group: str | torch.Tensor = "span"
    norm: torch.Tensor | None = None


@dataclass(frozen=True)
class DigitValues:
    """Values of one store as the kernel reads them.

    Attributes:
        planes: one or two of ``(codes, bits)``: uint8 ``[B, H, P, J_i, N * bits / 8]``, packed along tokens, the last
            two dimensions contiguous.
        axis: ``"channel"`` or ``"token"``, what has a scale of its own.
        scale: axis ``"channel"``: float32 ``[B, H, G, JV]``, contiguous, already expanded to digits; with one group
            the caller applies it and the kernel ignores it. Axis ``"token"``: float16 or float32 ``[B, H, P, 1, N]``.
        zero_point: axis ``"token"``: like ``scale``. Axis ``"channel"``: float32 ``[B, H, G, Dz]``, contiguous, ``Dz``
            a multiple of 8; with one group the caller applies it (to ``l`` or the sums of norms).
        group: as in :class:`DigitKeys`, axis ``"channel"`` only.
        norm: float16 or float32 ``[B, H or 1, P, N]``, multiplied into the probabilities (axis ``"channel"``), or None.
        channels: int32 and float32 ``[K, D_v]``, contiguous: channel ``c`` is the sum of digits ``channels[0][k, c]``
            times ``channels[1][k, c]``, which is what is written then; or None for sums by digit.
    """

    planes: tuple[Plane, ...]
    axis: str = "channel"
    scale: torch.Tensor | None = None
    zero_point: torch.Tensor | None = None
    group: str | torch.Tensor = "span"
    norm: torch.Tensor | None = None
    channels: tuple[torch.Tensor, torch.Tensor] | None = None

    @property
    def width(self) -> int:
        """Columns of the sums."""
        return padded_digits(self.planes, -2) if self.channels is None else self.channels[0].shape[-1]


@dataclass(frozen=True)
class Query:
    """A query that the kernel multiplies by the keys' scales and splits into two int8 parts itself.

    Attributes:
        rows: float16, bfloat16 or float32 ``[B * H, R, W]``, contiguous, in the keys' basis, or as the model has it.
        scaling: what multiplies every logit.
        scale: float16 or float32 ``[B, H, G, C]``, a channel's in every group that :class:`DigitKeys` names.
        zero_point: of the same type ``[B, H, G, D]``.
        zero_column: where the channels that the zero points belong to begin in ``rows``.
        index: int32 ``[J]``, the channel of each digit, or None if digit ``j`` is channel ``j``.
        place: float32 ``[J]``, what a step of each digit is worth in steps of its channel, or None.
        offset: float32 ``[H or 1, D]``, added to every zero point, or None.
        gather: whether digit ``j`` multiplies channel ``index[j]`` of ``rows``, instead of column ``j``.
    """

    rows: torch.Tensor
    scaling: float
    scale: torch.Tensor
    zero_point: torch.Tensor
    zero_column: int = 0
    index: torch.Tensor | None = None
    place: torch.Tensor | None = None
    offset: torch.Tensor | None = None
    gather: bool = False


@dataclass(frozen=True)
class DenseColumns:
    """Columns in the model's dtype, which the kernel reads beside the pages, before it needs a transformed query.

    Attributes:
        query: float16 or bfloat16 ``[B * H, R, D]``, contiguous, as the model has it.
        key, value: ``[B, H, n, D]`` and ``[B, H, n, D_v]`` of the same dtype, the last dimension contiguous and
            columns aligned to 16 bytes.
        scaling: what multiplies every logit.
        bias: float32 ``[B, n]``, -1e30 at slots without a token, or None.
        length: int32 ``[1]`` on the device, columns in use, or None for all.
    """

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    scaling: float
    bias: torch.Tensor | None = None
    length: torch.Tensor | None = None


@dataclass(frozen=True)
class DenseSplits:
    """Where the splits of :class:`DenseColumns` go.

    Attributes:
        m, l: float32 ``[B * H, S, R]``, as of the pages' splits.
        acc: float32 ``[B * H, S, R, ceil32(D_v)]``, sums of ``2 ** (x - m)`` times the values, without what pads.
        apart: whether blocks without pages take them, instead of the first of those with pages.
    """

    m: torch.Tensor
    l: torch.Tensor
    acc: torch.Tensor
    apart: bool = False


def padded_digits(planes: Sequence[Plane], dim: int) -> int:
    """``sum ceil32(J_i)`` of the planes' dimension ``dim``: width of the expanded query (-1) or of the sums (-2)."""
    return sum(_ceil(codes.shape[dim], 32) for codes, _ in planes)


def _ceil(x: int, n: int) -> int:
    return -(-x // n) * n


@dataclass(frozen=True)
class Variant:
    """What ``digits.cu`` has to know to be compiled; the names in upper case are its macros."""

    page: int
    row_tiles: int  # tiles of four query rows a block takes
    key_digits: tuple[int, int]
    key_bits: tuple[int, int]
    value_digits: tuple[int, int]
    value_bits: tuple[int, int]
    key_groups: bool = False
    value_groups: bool = False
    value_zeros: int = 0  # zero points a group of values
    key_norm: int = 0  # 0: none, 1: float16, 2: float32
    value_norm: int = 0
    value_token: int = 0
    query_type: int = 0  # 0: int8 with the scales in it, 1: float16, 2: float32, 3: bfloat16
    key_scale: int = 0  # with a query type, of scales and zero points: 1: float16, 2: float32
    key_zeros: int = 0
    bias: int = 0  # 0: none, 1: any, 2: aligned to 16 bytes
    dense: int = 0  # 0: no dense columns, 1: float16, 3: bfloat16
    dense_keys: int = 0  # channels
    dense_values: int = 0
    warps: int = 8
    stages: int = 1
    blocks: int = 2  # a multiprocessor

    @property
    def stage_bytes(self) -> int:
        """Shared memory of a stage of keys and one of values: a page's codes and what belongs to them."""
        tokens, columns = self.page, 8 * self.row_tiles
        keys = sum(tokens * b // 8 * j for b, j in zip(self.key_bits, self.key_digits, strict=True))
        keys += tokens * 2 * self.key_norm + (self.bias == 2) * tokens * 4
        keys += self.key_groups * (4 * self.key_scale if self.query_type else columns) * self._key_width
        values = sum(tokens * b // 8 * j for b, j in zip(self.value_bits, self.value_digits, strict=True))
        values += (self.value_groups * self._value_width + self.value_zeros) * 4
        return _ceil(keys + 16, 128) + _ceil(values, 128)

    @property
    def _key_width(self) -> int:
        return sum(_ceil(digits, 32) for digits in self.key_digits)

    @property
    def _value_width(self) -> int:
        return sum(_ceil(digits, 32) for digits in self.value_digits)

    @property
    def warp_bytes(self) -> int:
        """Shared memory of a warp: its stages, the page's probabilities, factors of values; at the end its sums."""
        stages = self.stages * self.stage_bytes + 8 * self.row_tiles * (self.page + 16)
        stages += (self.stages + 1) * self.page * 2 * (self.value_norm + 2 * self.value_token)
        sums = 4 * self.row_tiles * (self._value_width + self.value_zeros + 8) * 4
        return _ceil(max(stages, sums), 128)

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block."""
        rows = 4 * self.row_tiles
        folded = ((rows + 1) * self._key_width + self.key_zeros + rows) * 4 if self.query_type else 0
        return self.warps * (self.warp_bytes + 3 * 4 * rows) + folded

    @property
    def macros(self) -> dict[str, int]:
        pairs = ("key_digits", "key_bits", "value_digits", "value_bits")
        singles = (
            "page row_tiles key_groups value_groups value_zeros key_norm value_norm value_token query_type key_scale "
            "key_zeros bias dense dense_keys dense_values warps stages blocks warp_bytes"
        )
        macros = {f"{name.upper()}_{i}": getattr(self, name)[i] for name in pairs for i in (0, 1)}
        return macros | {name.upper(): int(getattr(self, name)) for name in singles.split()}

    def fitted(self, shared_block: int, shared_total: int) -> Variant | None:
        """The variant with as many warps and stages as a multiprocessor's shared memory and registers allow.

        Args:
            shared_block, shared_total: bytes that a block may ask for and that a multiprocessor has.
        """
        # what a lane holds throughout: scores, sums of values and the query
        held = self.row_tiles * (self.page // 4 + (sum(self.value_digits) + self.value_zeros) // 8)
        held += self.row_tiles * sum(self.key_digits) // 16
        before = self.dense_keys // 8 + self.dense_values // 4  # the dense columns' query and sums, before the pages
        most = 16 if max(held, before) <= 64 else 8
        deep = replace(self, stages=1).stage_bytes >= 8192
        for warps, stages, blocks in PLANS:
            if warps * blocks > most or (stages > 1 and not deep):
                continue
            fitted = replace(self, warps=warps, stages=stages, blocks=blocks)
            block = fitted.shared_bytes
            if block <= shared_block and blocks * (block + 1024) <= shared_total:  # 1 KB of each block is the driver's
                return fitted
        return None


# (warps a block, stages, blocks a multiprocessor), best first, as measured on an H200. Large pages are worth two
# stages; where many registers are held, eight warps with all they want are faster than more that spill.
PLANS = ((6, 2, 2), (8, 1, 2), (6, 1, 2), (4, 1, 2), (4, 1, 1), (3, 1, 1), (2, 1, 1), (1, 1, 1))


def _aligned(*tensors: torch.Tensor | None, inner: int) -> bool:
    """Whether every page of the tensors is 16-byte aligned and its ``inner`` last dimensions are contiguous."""
    for x in tensors:
        if x is None:
            continue
        outer = x.dim() - inner
        steps = [s * x.element_size() for s, size in zip(x.stride()[:outer], x.shape[:outer], strict=True) if size > 1]
        if x.data_ptr() % 16 or any(step % 16 for step in steps):
            return False
        expected = 1
        for size, stride in zip(reversed(x.shape[-inner:]), reversed(x.stride()[-inner:]), strict=True):
            if size != 1 and stride != expected:
                return False
            expected *= size
    return True


def _planes_fit(planes: Sequence[Plane], dim: int, page_size: int) -> bool:
    if not 1 <= len(planes) <= 2 or padded_digits(planes, dim) > MAX_DIGITS:
        return False
    for codes, bits in planes:
        rows, digits = codes.shape[-3 - dim], codes.shape[dim]
        if bits not in (1, 2, 4, 8) or rows != page_size * bits // 8 or rows < 16 or digits % 16 or digits == 0:
            return False
    return all(codes.dtype == torch.uint8 and _aligned(codes, inner=2) for codes, _ in planes)


def _near(*tensors: torch.Tensor | None) -> bool:
    """Whether pages are less than 4 GiB apart: the kernel multiplies 32 bits by 32 bits."""
    return all(x is None or x.stride(2) * x.element_size() < 2**32 for x in tensors)


def _typed(*tensors: torch.Tensor | None) -> bool:
    return all(x is None or x.dtype in _TYPES for x in tensors)


def _groups(group: str | torch.Tensor, count: int) -> bool:
    """Whether pages have groups of their own."""
    return not (isinstance(group, str) and group == "span") and count > 1


def _bias_mode(bias: torch.Tensor | None) -> int:
    if bias is None:
        return 0
    return 2 if _aligned(bias, inner=1) else 1


def _rows(query: torch.Tensor | Query) -> int:
    """``R``, query rows a sequence and KV head."""
    return query.rows.shape[1] if isinstance(query, Query) else query.shape[3] // 2


def _device(query: torch.Tensor | Query) -> torch.device:
    return query.rows.device if isinstance(query, Query) else query.device


def _folds(query: Query, keys: DigitKeys, columns: int) -> bool:
    """Whether the kernel can fold the scales of ``keys``, of ``columns`` digits, into the query."""
    scale, zero_point = query.scale, query.zero_point
    if query.rows.dtype not in _QUERY_TYPES or not query.rows.is_contiguous():
        return False
    if scale.dtype not in _TYPES or scale.dtype != zero_point.dtype or zero_point.shape[-1] > MAX_DIGITS:
        return False
    if not _groups(keys.group, scale.shape[2]):
        return all(x.stride(-1) == 1 or x.shape[-1] == 1 for x in (scale, zero_point))
    # scales of a page as they are in memory, next to a query whose columns are the channels
    plain = query.index is query.place is query.offset is None and query.zero_column == 0
    if not plain or scale.shape[-1] != columns or zero_point.shape[-1] != columns or query.rows.shape[-1] < columns:
        return False
    return _aligned(scale, zero_point, inner=1) and _near(scale, zero_point)


def _dense_fits(dense: DenseColumns) -> bool:
    query, key, value = dense.query, dense.key, dense.value
    if query.dtype not in _DENSE_TYPES or {key.dtype, value.dtype} != {query.dtype} or key.shape[2] == 0:
        return False
    if any(x.shape[-1] % 8 or x.shape[-1] > MAX_DIGITS for x in (key, value)):
        return False
    if dense.bias is not None and (dense.bias.dtype != torch.float32 or dense.bias.stride(-1) != 1):
        return False
    return _aligned(query, inner=3) and _aligned(key, value, inner=1) and _near(key, value)


def variant_of(
    query: torch.Tensor | Query,
    keys,
    values,
    bias: torch.Tensor | None = None,
    dense: DenseColumns | None = None,
) -> Variant | None:
    """The variant of ``digits.cu`` for a case, without warps and stages, or None if there is none.

    Args:
        query: int8 ``[B, H, G, 2 * R, J]``, or :class:`Query`.
        keys: :class:`DigitKeys`.
        values: :class:`DigitValues`.
        bias: float32 ``[B, slots]`` or None.
        dense: :class:`DenseColumns` or None.
    """
    page = keys.page_size
    if page not in PAGE_SIZES:
        return None
    if not (_planes_fit(keys.planes, -1, page) and _planes_fit(values.planes, -2, page)):
        return None
    columns = padded_digits(keys.planes, -1)
    if isinstance(query, Query):
        if not _folds(query, keys, columns):
            return None
        fold = {
            "query_type": _QUERY_TYPES[query.rows.dtype],
            "key_scale": _TYPES[query.scale.dtype],
            "key_zeros": query.zero_point.shape[-1],
            "key_groups": _groups(keys.group, query.scale.shape[2]),
        }
    elif query.dtype != torch.int8 or not _aligned(query, inner=5) or query.shape[-1] != columns:
        return None
    else:
        fold = {"key_groups": _groups(keys.group, query.shape[2])}
    by_token = values.axis == "token"
    norms = [keys.norm, values.norm, *((values.scale, values.zero_point) if by_token else ())]
    if not _typed(*norms) or not _aligned(keys.norm, values.norm, inner=1):
        return None
    if not _near(*norms, *(codes for codes, _ in (*keys.planes, *values.planes))):
        return None
    value_groups, value_zeros = False, 0
    if by_token:
        scale, zero_point = values.scale, values.zero_point
        if values.norm is not None or scale is None or zero_point is None or scale.dtype != zero_point.dtype:
            return None
        if scale.shape[3] != 1 or zero_point.shape[3] != 1 or not _aligned(scale, zero_point, inner=2):
            return None
    elif values.scale is not None and _groups(values.group, values.scale.shape[2]):
        zero_point = values.zero_point
        for x in (values.scale, zero_point):
            if x is None or x.dtype != torch.float32 or x.shape[-1] % 8 or not _aligned(x, inner=4):
                return None
        if zero_point.shape[-1] > MAX_DIGITS:
            return None
        value_zeros = zero_point.shape[-1]
        value_groups = True
    if bias is not None and (bias.dtype != torch.float32 or bias.stride(-1) != 1):
        return None
    if dense is not None:
        if not _dense_fits(dense):
            return None
        fold |= {
            "dense": _DENSE_TYPES[dense.query.dtype],
            "dense_keys": dense.key.shape[-1],
            "dense_values": dense.value.shape[-1],
        }

    def pair(numbers: list[int]) -> tuple[int, int]:
        return (numbers[0], numbers[1] if len(numbers) > 1 else 0)

    return Variant(
        page=page,
        row_tiles=1 if _rows(query) <= 4 else 2,
        key_digits=pair([codes.shape[-1] for codes, _ in keys.planes]),
        key_bits=pair([bits for _, bits in keys.planes]),
        value_digits=pair([codes.shape[-2] for codes, _ in values.planes]),
        value_bits=pair([bits for _, bits in values.planes]),
        value_groups=value_groups,
        value_zeros=value_zeros,
        key_norm=0 if keys.norm is None else _TYPES[keys.norm.dtype],
        value_norm=0 if values.norm is None else _TYPES[values.norm.dtype],
        value_token=_TYPES[values.scale.dtype] if by_token else 0,
        bias=_bias_mode(bias),
        **fold,
    )


@lru_cache(maxsize=256)
def _fitted(variant: Variant, device: torch.device) -> Variant | None:
    properties = torch.cuda.get_device_properties(device)
    block = getattr(properties, "shared_memory_per_block_optin", 99 * 1024)
    return variant.fitted(block, getattr(properties, "shared_memory_per_multiprocessor", block + 1024))


@lru_cache(maxsize=16)
def available(device: torch.device) -> bool:
    """Whether ``device`` is an NVIDIA GPU that the kernel runs on and NVRTC and the driver can be loaded."""
    if device.type != "cuda" or torch.version.hip is not None or torch.version.cuda is None:
        return False
    if torch.cuda.get_device_capability(device) < (8, 0):
        return False
    return nvrtc.nvrtc() is not None and nvrtc.driver() is not None


@lru_cache(maxsize=16)
def overlaps(device: torch.device) -> bool:
    """Whether kernels may start on ``device`` before those in front of them have ended (from Hopper on)."""
    if device.type != "cuda" or torch.version.hip is not None:
        return False
    return torch.cuda.get_device_capability(device) >= (9, 0) and nvrtc.launches_early()


def choose(
    query: torch.Tensor | Query,
    keys,
    values,
    bias: torch.Tensor | None = None,
    dense: DenseColumns | None = None,
) -> Variant | None:
    """The variant that takes this case on this device, or None. Arguments as for :func:`split_digits`.

    :func:`num_splits` and :func:`split_digits` ask for it themselves, unless they are given one.
    """
    if not available(_device(query)):
        return None
    variant = variant_of(query, keys, values, bias, dense)
    return None if variant is None else _fitted(variant, _device(query))


def supports(query: torch.Tensor | Query, keys, values, bias: torch.Tensor | None = None) -> bool:
    """Whether :func:`split_digits` takes this case on this device. Arguments as there."""
    return choose(query, keys, values, bias) is not None


def num_splits(
    query: torch.Tensor | Query,
    keys,
    values,
    bias: torch.Tensor | None = None,
    dense: DenseColumns | None = None,
    *,
    variant: Variant | None = None,
) -> int:
    """How many splits fill the GPU best for the pages that ``keys`` has room for. Arguments as in :func:`choose`."""
    variant = variant or choose(query, keys, values, bias, dense)
    pages, columns = keys.planes[0][0].shape[2], 0 if dense is None else dense.key.shape[2]
    return best_splits(_units(query, keys, variant), pages, _slots(query, variant), variant.warps, columns)


def num_dense_splits(
    query: torch.Tensor | Query, keys, dense: DenseColumns, splits: int, *, variant: Variant
) -> tuple[int, bool]:
    """Splits of the dense columns and :attr:`DenseSplits.apart`, next to ``splits`` of the pages."""
    return best_dense_splits(
        _units(query, keys, variant), dense.key.shape[2], _slots(query, variant), variant.warps, splits
    )


def _units(query: torch.Tensor | Query, keys, variant: Variant) -> int:
    """Sequences times heads times what one block takes of a head's rows."""
    batch, heads = keys.planes[0][0].shape[:2]
    return batch * heads * -(-_rows(query) // (4 * variant.row_tiles))


def _slots(query: torch.Tensor | Query, variant: Variant) -> int:
    """Blocks that the GPU runs at once."""
    return torch.cuda.get_device_properties(_device(query)).multi_processor_count * variant.blocks


def best_dense_splits(units: int, columns: int, slots: int, warps: int, splits: int) -> tuple[int, bool]:
    """Splits of dense columns, each warp taking 16 at a time, and whether multiprocessors have room for them that
    blocks with pages leave; these otherwise have some of them while they wait for the transformed query.
    """
    wanted = -(-columns // (16 * warps))
    left = slots // units - splits
    return (min(wanted, left), True) if left > 0 else (min(wanted, splits), False)


def best_splits(units: int, pages: int, slots: int, warps: int, columns: int = 0) -> int:
    """Splits that end first: ``units`` of ``pages`` pages, and ``columns`` dense columns each, on ``slots`` blocks of
    ``warps`` warps at once."""
    most = max(1, min(-(-pages // warps), -(-4 * slots // units)))
    start, dense = 2, 2  # what a block costs beside its pages, and with dense columns besides, in pages of a warp

    def cost(splits: int) -> float:
        rounds = -(-units * splits // slots)
        share = -(-pages // splits)  # pages of the largest split
        inside = columns > 0 and not best_dense_splits(units, columns, slots, warps, splits)[1]
        return rounds * (start + (share / warps + -(-share // warps)) / 2) + dense * inside

    return min(range(1, most + 1), key=cost)


class _Paged(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("batch", ctypes.c_longlong),
        ("head", ctypes.c_longlong),
        ("page", ctypes.c_longlong),
    ]


class _Arguments(ctypes.Structure):  # struct Arguments of digits.cu
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
        ("group_scale", ctypes.c_void_p),
        ("group_zero", ctypes.c_void_p),
        ("num_pages", ctypes.c_void_p),
        ("key_group", ctypes.c_void_p),
        ("value_group", ctypes.c_void_p),
        ("out_m", ctypes.c_void_p),
        ("out_l", ctypes.c_void_p),
        ("out_acc", ctypes.c_void_p),
        ("out_zero", ctypes.c_void_p),
        ("channel_digits", ctypes.c_void_p),
        ("channel_places", ctypes.c_void_p),
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
        ("zero_column", ctypes.c_int),
        ("key_channels", ctypes.c_int),
        ("gathers", ctypes.c_int),
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
        "zero_column": query.zero_column,
        "key_channels": query.scale.shape[-1],
        "gathers": int(query.gather),
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


def _arguments(
    query, qw, qz, keys, values, out_m, out_l, out_acc, num_pages, bias, out_z, dense=None, dense_out=None
) -> _Arguments:
    heads, pages = keys.planes[0][0].shape[1:3]
    by_token = values.axis == "token"
    group_scale = None if by_token else values.scale
    arguments = _Arguments(
        **_query_arguments(query, qw, qz),
        **_dense_arguments(dense, dense_out, out_m.shape[1]),
        key_norm=_paged(keys.norm),
        value_norm=_paged(values.norm),
        value_scale=_paged(values.scale if by_token else None),
        value_zero=_paged(values.zero_point if by_token else None),
        bias=_pointer(bias),
        group_scale=_pointer(group_scale),
        group_zero=None if by_token else _pointer(values.zero_point),
        num_pages=_pointer(num_pages),
        key_group=_pointer(keys.group) if isinstance(keys.group, torch.Tensor) else None,
        value_group=_pointer(values.group) if isinstance(values.group, torch.Tensor) else None,
        out_m=out_m.data_ptr(),
        out_l=out_l.data_ptr(),
        out_acc=out_acc.data_ptr(),
        out_zero=_pointer(out_z),
        bias_batch=0 if bias is None or bias.shape[0] == 1 else bias.stride(0),
        pages=pages,
        heads=heads,
        rows=_rows(query),
        splits=out_m.shape[1],
        value_groups=0 if group_scale is None else group_scale.shape[2],
    )
    if values.channels is not None:
        digits, places = values.channels
        arguments.channel_digits, arguments.channel_places = digits.data_ptr(), places.data_ptr()
        arguments.terms, arguments.channels = digits.shape
    for i, (codes, _) in enumerate(keys.planes):
        arguments.keys[i] = _paged(codes)
    for i, (codes, _) in enumerate(values.planes):
        arguments.values[i] = _paged(codes)
    return arguments


def _grid(
    query: torch.Tensor | Query, keys, variant: Variant, splits: int, dense_out: DenseSplits | None = None
) -> tuple[int, int, int]:
    batch, heads = keys.planes[0][0].shape[:2]
    splits += dense_out.m.shape[1] if dense_out is not None and dense_out.apart else 0
    return splits, heads * -(-_rows(query) // (4 * variant.row_tiles)), batch


def split_digits(
    query: torch.Tensor | Query,
    qw: torch.Tensor | None,
    qz: torch.Tensor | None,
    keys,
    values,
    out_m: torch.Tensor,
    out_l: torch.Tensor,
    out_acc: torch.Tensor,
    num_pages: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    out_z: torch.Tensor | None = None,
    *,
    dense: DenseColumns | None = None,
    dense_out: DenseSplits | None = None,
    variant: Variant | None = None,
    early: bool = False,
) -> None:
    """Attention over the pages of one packed store, in splits that a later kernel joins.

    Token ``t`` of group ``g`` has the logit, in units of log 2,
    ``(qw[g, r] * (254 * high_r . c_t + low_r . c_t) + qz[g, r]) * norm[t] + bias[t] * log2(e)``. From a :class:`Query`
    the kernel makes the two parts, ``qw`` and ``qz`` (``scaling * z . (zero_point_g + offset)``) itself.

    Args:
        query: int8 ``[B, H, G, 2 * R, J]``, contiguous: rows ``2 r`` and ``2 r + 1`` are the high and the low part of
            query row ``r``, ``J`` the sum of the key planes' digits, each rounded up to 32 (zeros there). Or a
            :class:`Query`.
        qw, qz: float32 ``[B, H, G, R]``, contiguous; None with a :class:`Query`.
        keys: :class:`DigitKeys`.
        values: :class:`DigitValues`.
        out_m, out_l: float32 ``[B * H, S, R]``: each split's largest logit (-inf if it has no token) and sum of
            ``2 ** (x - m)``. Page ``i`` belongs to split ``i % S``.
        out_acc: float32 ``[B * H, S, R, JV]``: sums of ``2 ** (x - m)`` (times norm or scale) times the values' digits;
            ``JV`` is the sum of the planes' digits, each rounded up to 32, or ``D_v`` (``DigitValues.width``).
        num_pages: int32 ``[1]`` on the device, pages in use, or None for all.
        bias: float32 ``[B, slots]``, -1e30 at slots without a token, or None.
        out_z: sums for the zero points, float32. Axis ``"token"``: ``[B * H, S, R]``, of ``2 ** (x - m)`` times the
            tokens' zero points. Values with norms, one group: ``[B * H, S, R]``, of ``2 ** (x - m)`` times the norms,
            or None. Several groups: ``[B * H, S, R, Dz]``, of ``2 ** (x - m)`` (times norms) times the groups' zero
            points.
        dense: columns in the model's dtype, which this kernel reads as well, to splits of their own, or None.
        dense_out: where those go. There are no more of them than of the pages, unless they are apart.
        variant: what :func:`choose` returned for these arguments, to save asking again.
        early: the kernel in front, which writes the query, lets this one start before it ends (:func:`overlaps`).

    Raises:
        KVMMError: the case is not one that :func:`supports` accepts.
    """
    variant = variant or choose(query, keys, values, bias, dense)
    if variant is None:
        raise KVMMError("this case has no CUDA kernel; ask supports() first and use the Triton kernel")
    device = _device(query)
    function = _function(variant, device.index)
    arguments = _arguments(query, qw, qz, keys, values, out_m, out_l, out_acc, num_pages, bias, out_z, dense, dense_out)
    with torch.cuda.device(device):
        nvrtc.launch(
            function,
            _grid(query, keys, variant, out_m.shape[1], dense_out),
            32 * variant.warps,
            variant.shared_bytes,
            torch.cuda.current_stream(device).cuda_stream,
            arguments,
            early,
        )


def compile_variant(variant: Variant, capability: tuple[int, int]) -> tuple[bytes, str]:
    """Compile ``digits.cu`` for a GPU: the program and the compiler's log, as
    :func:`kvmm.kernels.decode.nvrtc.compile_source` returns them.
    """
    return nvrtc.compile_source(_SOURCE.read_bytes(), _SOURCE.name, variant.macros, capability)


_functions: dict[tuple[Variant, int], ctypes.c_void_p] = {}
_lock = threading.Lock()


def _function(variant: Variant, device: int) -> ctypes.c_void_p:
    key = (variant, device)
    function = _functions.get(key)
    if function is not None:
        return function
    with _lock, torch.cuda.device(device):
        if key not in _functions:
            torch.cuda.current_stream()  # makes the device's context
            program, _ = compile_variant(variant, torch.cuda.get_device_capability(device))
            _functions[key] = nvrtc.load_function(program, "split_digits", variant.shared_bytes)
        return _functions[key]
