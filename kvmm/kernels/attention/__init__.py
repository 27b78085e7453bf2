"""Attention of new queries over packed segments: kernels on a GPU, C on a CPU that has a compiler, torch elsewhere.

- ``format``: :class:`PackedFormat`, what is known of stored keys or values, every field declared once with its axes,
  dtypes and range; checks, C structures and headers follow from it (``structs``). Angle codes have a format of their
  own (:mod:`kvmm.kernels.angle.format`), which one CUDA kernel reads.
- ``dispatch``: asks the fastest backend of the device about every segment; the others are torch's.
- ``backends``: ``torch`` (the definition), ``cpu`` (C), ``triton`` and ``cuda``. A backend says what it takes:
  ``takes(call)`` and ``supports(segment, call)``; it reads all of a call, ``attend(call, segments)``, or some of it,
  ``partial(call, segments)``, which gives an output and its log-sum-exp. On a GPU ``gpu`` is asked: the CUDA kernel
  reads a segment where it has a variant, the Triton kernels any other, and one kernel reduces their splits.
- ``merge``: partial results are merged by their log-sum-exp.

A field that a codec needs is declared in ``format``, filled by ``Codec.packed_format`` and used by the backends that
know it; one that does not must not support stores that have it.
"""

from __future__ import annotations

from kvmm.kernels.attention.backends.torch.reference import (
    scores_per_channel,
    scores_per_token,
    scores_second_plane,
    weighted_values_per_channel,
    weighted_values_per_token,
)
from kvmm.kernels.attention.dispatch import attend

__all__ = [
    "attend",
    "scores_per_channel",
    "scores_per_token",
    "scores_second_plane",
    "weighted_values_per_channel",
    "weighted_values_per_token",
]
