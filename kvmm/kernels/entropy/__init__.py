"""Entropy coding of codes, for pages at rest."""

from kvmm.kernels.entropy.likeness import MAX_DISTANCE, find_like
from kvmm.kernels.entropy.streams import compiled, decode_streams, encode_streams

__all__ = ["MAX_DISTANCE", "compiled", "decode_streams", "encode_streams", "find_like"]
