"""Floats of 16 bits in files: their upper bytes, which hold sign and exponent, are much alike and are deflated.

Exact tokens, scales and norms are most of what a coded file (:mod:`kvmm.cache.file_codes`) still holds as it is. The
lower bytes of a mantissa have nothing to gain and stay.
"""

from __future__ import annotations

import zlib

import torch

from kvmm.errors import KVMMError
from kvmm.fields import Field, check_fields

Tensors = dict[str, torch.Tensor]
_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}
_LOW, _HIGH = "low", "high"
_SMALLEST = 1024  # elements, below which the tables of a deflated block take what it saves


def encode_floats(tensors: Tensors) -> Tensors:
    """Replace tensors of 16-bit floats by ``{name}.{dtype}.low`` uint8 of their shape and ``{name}.{dtype}.high`` uint8
    ``[n]``, where that is smaller."""
    found: Tensors = {}
    for name, tensor in tensors.items():
        kind = str(tensor.dtype).removeprefix("torch.")
        if kind not in _DTYPES or tensor.numel() < _SMALLEST:
            found[name] = tensor
            continue
        low, high = tensor.detach().cpu().contiguous().view(torch.uint8).unflatten(-1, (-1, 2)).unbind(-1)
        data = high.contiguous().numpy().tobytes()
        # as many equal bytes in a row where a buffer is padded, and else bytes of some frequency
        packed = min((_deflated(data, s) for s in (zlib.Z_DEFAULT_STRATEGY, zlib.Z_HUFFMAN_ONLY)), key=len)
        if len(packed) >= len(data):
            found[name] = tensor
            continue
        found[f"{name}.{kind}.{_LOW}"] = low.contiguous()
        found[f"{name}.{kind}.{_HIGH}"] = torch.frombuffer(bytearray(packed), dtype=torch.uint8)
    return found


def decode_floats(tensors: Tensors) -> Tensors:
    """The tensors before :func:`encode_floats`.

    Raises:
        KVMMError: with the name of a tensor that is not as it must be.
    """
    found: Tensors = {}
    for name, tensor in tensors.items():
        start, _, which = name.rpartition(".")
        base, _, kind = start.rpartition(".")
        if kind not in _DTYPES or which not in (_LOW, _HIGH) or name.startswith("metadata."):  # names of the user's own
            found[name] = tensor
            continue
        other = f"{start}.{_HIGH if which == _LOW else _LOW}"
        if other not in tensors or base in tensors:
            raise KVMMError(f"{name}: {other} is missing, or {base} is there besides")
        if which == _HIGH:
            continue
        check_fields({other: tensors[other]}, {other: Field(torch.uint8, ("n",))})
        if tensor.dtype != torch.uint8 or not tensor.dim():
            raise KVMMError(f"{name}: must be bytes of a tensor")
        high = torch.frombuffer(bytearray(_inflated(tensors[other], tensor.numel(), other)), dtype=torch.uint8)
        pairs = torch.stack((tensor, high.view(tensor.shape)), -1)
        found[base] = pairs.flatten(-2).view(_DTYPES[kind])
    return found


def _deflated(data: bytes, strategy: int) -> bytes:
    coder = zlib.compressobj(9, zlib.DEFLATED, -15, 9, strategy)
    return coder.compress(data) + coder.flush()


def _inflated(data: torch.Tensor, count: int, name: str) -> bytes:
    """``count`` bytes, never more."""
    decoder = zlib.decompressobj(-15)
    try:
        found = decoder.decompress(data.numpy().tobytes(), count + 1)
    except zlib.error as error:
        raise KVMMError(f"{name}: {error}") from None
    if len(found) != count or not decoder.eof or decoder.unused_data:
        raise KVMMError(f"{name}: holds not as many bytes as there are floats")
    return found


__all__ = ["decode_floats", "encode_floats"]
