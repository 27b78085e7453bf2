"""Packed codes as floats for the products of a decode step, on the CPU in a workspace.

A decode step unpacks every page of every layer. Memory for that which is asked of the system and given back each time
costs about as much as the unpacking, and so does preparing views; both are kept, for each thread, from step to step.

Work is spread over cores by ranges of a tensor. A line of memory that another core touched last costs ten times as much
to write, so every head has its place in the workspace, whatever the shape: then the same core meets the same lines.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

import torch

from kvmm.kernels.quantize.reference import WORDS, plane_shifts

_LIMIT = 1 << 24  # bytes of floats up to which the workspace is kept; what is larger is allocated as usual
_STEP = 1 << 12
_PLANS = 256


@dataclass
class _Plan:
    """How the codes of one shape become floats, and where: in order, a shift, a mask, a conversion."""

    words: torch.dtype  # several bytes at a time: a code never leaves its byte, so one wide shift and mask do the same
    mask: int
    shifts: torch.Tensor
    ordered: torch.Tensor | None  # values: packed words, pages of a channel side by side ``[B H, D, P, words]``
    packed: torch.Tensor | None  # values: the same memory, to be met by all shifts
    expanded: torch.Tensor  # the codes as words
    codes: torch.Tensor  # the same memory as int8, in the shape of ``floats``
    floats: torch.Tensor
    result: torch.Tensor

    def unpack(self, words: torch.Tensor, center: int = 0) -> torch.Tensor:
        """All planes of ``words``, which have a dimension for them, less ``center``."""
        torch.bitwise_right_shift(words, self.shifts, out=self.expanded)
        self.expanded.bitwise_and_(self.mask)
        if center:
            self.codes.sub_(center)
        self.floats.copy_(self.codes)
        return self.result


class _Workspace(threading.local):
    def __init__(self) -> None:
        self.buffers: dict[tuple[str, int], torch.Tensor] = {}
        self.plans: dict[tuple, _Plan] = {}

    def take(self, name: str, heads: int, size: int) -> torch.Tensor:
        """uint8 ``[heads, size]``."""
        buffer = self.buffers.get((name, heads))
        if buffer is None or buffer.shape[1] < size:
            self.plans.clear()  # they hold the old one
            buffer = torch.empty(heads, -(-size // _STEP) * _STEP, dtype=torch.uint8)
            self.buffers[name, heads] = buffer
        return buffer[:, :size]


_workspace = _Workspace()


def unpack_keys(packed: torch.Tensor, bits: int) -> torch.Tensor:
    """The codes of keys for a product with queries.

    Args:
        packed: uint8 ``[B, H, P, N * bits / 8, D]``, packed along tokens (:func:`kvmm.kernels.quantize.pack_planes`).
        bits: 1, 2, 4 or 8.

    Returns:
        float32 ``[B, H, P, N, D]``. On the CPU it is valid until this thread unpacks again.
    """
    plan = _plan(packed, bits, True)
    if bits == 8:
        return plan.result.copy_(packed)
    return plan.unpack(packed.flatten(3).view(plan.words).unsqueeze(3))


def unpack_values(packed: torch.Tensor, bits: int, *, centered: bool = False) -> torch.Tensor:
    """The codes of values for a product with probabilities.

    Args:
        packed: uint8 ``[B, H, P, D, N * bits / 8]``, packed along tokens.
        bits: 1, 2, 4 or 8.
        centered: subtract :func:`code_center` from every code.

    Returns:
        float32 ``[B, H, D, S, P, N / S]`` for ``S = 8 / bits`` planes: token ``s * N / S + j`` of page ``p`` is
        ``[..., s, p, j]``. All tokens of a channel lie side by side, so that the values of a head are one matrix. On
        the CPU it is valid until this thread unpacks again.
    """
    plan = _plan(packed, bits, False)
    center = code_center(bits) if centered else 0
    if bits == 8:
        plan.result.squeeze(3).copy_(packed.transpose(2, 3))
        return plan.result.sub_(center) if centered else plan.result
    plan.ordered.copy_(packed.view(plan.words).transpose(2, 3))
    return plan.unpack(plan.packed, center)


def code_center(bits: int) -> int:
    """The code in the middle of those of ``bits`` bits."""
    return 2 ** (bits - 1)


def _plan(packed: torch.Tensor, bits: int, keys: bool) -> _Plan:
    if packed.device.type != "cpu" or torch.is_grad_enabled() or torch.compiler.is_compiling():
        return _make_plan(packed, bits, keys, False)  # autograd may keep what it saw
    key = (packed.shape, bits, keys, packed.storage_offset() % 8)
    plan = _workspace.plans.get(key)
    if plan is None:
        kept = 32 // bits * packed.numel() <= _LIMIT
        with torch.inference_mode(False):  # it may be written outside of the mode later, through its views too
            plan = _make_plan(packed, bits, keys, kept)
        if kept:
            if len(_workspace.plans) >= _PLANS:
                _workspace.plans.clear()
            _workspace.plans[key] = plan
    return plan


def _make_plan(packed: torch.Tensor, bits: int, keys: bool, kept: bool) -> _Plan:
    batch, heads, pages, *inner = packed.shape
    planes, device = 8 // bits, packed.device
    size = pages * inner[0] * inner[1]  # bytes of a head

    def take(name: str, nbytes: int) -> torch.Tensor:
        if kept:
            return _workspace.take(name, batch * heads, nbytes)
        return torch.empty(batch * heads, nbytes, dtype=torch.uint8, device=device)

    run = inner[0] * inner[1] if keys else inner[1]  # bytes that follow each other
    offset = packed.storage_offset()
    width, dtype = next(((w, t) for w, t in WORDS if run % w == 0 and offset % w == 0), (1, torch.uint8))
    mask = int.from_bytes(bytes([2**bits - 1] * width), "little")
    ordered = words = None
    if not keys and bits < 8:
        ordered = take("ordered", size).view(dtype).view(batch, heads, inner[0], pages, run // width)
        words = ordered.view(batch * heads, inner[0], 1, -1)
    codes, floats = take("codes", size * planes), take("floats", 4 * size * planes).view(torch.float32)
    if keys:
        expanded = codes.view(dtype).view(batch, heads, pages, planes, run // width)
        result = floats.view(batch, heads, pages, planes * inner[0], inner[1])
    else:
        expanded = codes.view(dtype).view(batch * heads, inner[0], planes, pages * run // width)
        result = floats.view(batch, heads, inner[0], planes, pages, run)
    codes = codes.view(torch.int8)  # of seven bits at most
    return _Plan(dtype, mask, plane_shifts(bits, 1, dtype, device), ordered, words, expanded, codes, floats, result)
