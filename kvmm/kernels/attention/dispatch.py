"""Which backend reads which segment of a call.

The fastest one of the device is asked about every segment. Those that it does not read are read by torch, and cost only
themselves: the partial results are merged by their log-sum-exp. The residual tokens go with the fast backend.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType

import torch

from kvmm.kernels.attention.backends.cpu import kernel as cpu
from kvmm.kernels.attention.backends.torch import reference
from kvmm.kernels.attention.call import AttentionCall, KVSegment
from kvmm.kernels.attention.merge import merge_states


def fast_backend(device: torch.device) -> ModuleType | None:
    """The backend that kernels of a device are in, or None: then torch reads all.

    It has ``takes(call)``, ``supports(segment, call)``, ``attend(call, segments)`` for the whole call, and
    ``partial(call, segments)`` with the log-sum-exp.
    """
    if device.type == "cuda":
        from kvmm.kernels.attention import gpu  # needs Triton, which not every platform has

        return gpu
    return cpu if device.type == "cpu" else None


def attend(
    query: torch.Tensor,
    segments: Sequence[KVSegment],
    residual_key: torch.Tensor,
    residual_value: torch.Tensor,
    bias: torch.Tensor | None,
    scaling: float,
    residual_length: torch.Tensor | None = None,
) -> torch.Tensor:
    """Attention of new queries over packed segments and the residual tokens, which are kept in full precision.

    Buffers may be larger than what they hold: ``packed.num_pages`` and ``residual_length`` are then the lengths in use,
    on the device. Values beyond them may be anything finite.

    Args:
        query: ``[B, H_q, q, D]``.
        segments: in slot order; see :class:`KVSegment`.
        residual_key, residual_value, bias, scaling, residual_length: see :class:`AttentionCall`.

    Returns:
        ``[B, H_q, q, D]`` (the values' ``D``) in the query's dtype.
    """
    call = AttentionCall(query, residual_key, residual_value, bias, scaling, residual_length)
    return run(call, segments, fast_backend(query.device))


def run(call: AttentionCall, segments: Sequence[KVSegment], fast: ModuleType | None) -> torch.Tensor:
    """:func:`attend` with a backend besides torch, or None."""
    # who wants to see the probabilities of all slots needs all scores in one place
    whole = any(segment.key.observes and segment.key.observes_all for segment in segments)
    if fast is None or whole or not fast.takes(call):
        return reference.attend(call, segments)
    reads = [fast.supports(segment, call) for segment in segments]
    if all(reads):
        return fast.attend(call, segments)
    if not any(reads):
        return reference.attend(call, segments)
    chosen = {way: [s for s, read in zip(segments, reads, strict=True) if read == way] for way in (True, False)}
    calls = {True: call, False: call.without_residual()}
    if call.bias is not None:
        sizes = [segment.value.slots for segment in segments]
        *pieces, residual = call.bias.split((*sizes, call.residual_key.shape[2]), -1)
        for way, one in calls.items():
            kept = [piece for piece, read in zip(pieces, reads, strict=True) if read == way]
            calls[way] = one.with_bias([*kept, residual] if way else kept)
    states = [fast.partial(calls[True], chosen[True]), reference.partial(calls[False], chosen[False])]
    out = merge_states(states).out
    return out.reshape(*call.query.shape[:3], -1).to(call.query.dtype)
