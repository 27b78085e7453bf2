"""The many small tensors of a file as one: a file of a document has hundreds, whose names alone take what a page takes.

Names, dtypes and shapes are deflated JSON. Bytes of small tensors, such as the token table, sizes of streams and levels
of channels, are deflated together, the first bytes of all elements before the second ones; what is coded already, or
large, follows as it is. A reader has all sizes, and has compared them with the bytes, before it inflates the tensors.
"""

from __future__ import annotations

import json
import math
import zlib

import torch

from kvmm.bounded_json import parse_json
from kvmm.errors import KVMMError, one_line

Tensors = dict[str, torch.Tensor]
INDEX, SMALL, LARGE = "bundle.index", "bundle.small", "bundle.large"
_DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
        *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
    )
}
_LARGE_BYTES = 1 << 20  # a tensor of as many is not small, nor
_LARGE_CODED_BYTES = 2048  # one of as many uint8, which a coder has made of other tensors
_INFLATION = 256  # bytes that a deflated byte may stand for, beside
_INFLATION_FREE_BYTES = 1 << 20
_MAX_ENTRIES = 100_000  # a cache has some dozens a layer
_MAX_INDEX_BYTES = 16 << 20
_MAX_SMALL_BYTES = 64 << 20  # of all small tensors together
_MAX_DIMENSIONS = 16


def encode_bundle(tensors: Tensors) -> Tensors:
    """Bytes, uint8 ``[n]`` each, in place of a file's tensors: ``bundle.index``, ``bundle.small``, ``bundle.large``.

    Tensors stay as they are where a reader could not tell so few bytes from made up ones, or a dtype is unusual.
    """
    index, small, large, room = [], [], [], _MAX_SMALL_BYTES
    for name, tensor in tensors.items():
        tensor = tensor.detach().cpu().contiguous()
        plain = tensor.nbytes >= _large(tensor.dtype) or tensor.nbytes > room
        room -= 0 if plain else tensor.nbytes
        index.append([name, str(tensor.dtype).removeprefix("torch."), list(tensor.shape), int(plain)])
        data = tensor.flatten().view(torch.uint8)
        (large if plain else small).append(data if plain else data.unflatten(0, (-1, tensor.itemsize)).T.flatten())
    if len(index) > _MAX_ENTRIES or any(kind not in _DTYPES for _, kind, _, _ in index):
        return tensors
    raw = _joined(small).numpy().tobytes()
    packed = zlib.compress(raw, 9)
    text = json.dumps(index, separators=(",", ":")).encode()
    header = zlib.compress(text, 9)
    if len(text) > _MAX_INDEX_BYTES or not (_plausible(len(raw), len(packed)) and _plausible(len(text), len(header))):
        return tensors
    return {INDEX: _bytes(header), SMALL: _bytes(packed), LARGE: _joined(large)}


def decode_bundle(tensors: Tensors) -> Tensors:
    """The tensors before :func:`encode_bundle`; those of a file without a bundle as they are.

    Raises:
        KVMMError: with the name of a tensor that is not as it must be.
    """
    if INDEX not in tensors:
        return tensors
    for name in (INDEX, SMALL, LARGE):
        if name not in tensors:
            raise KVMMError(f"{name}: is missing")
        if tensors[name].dtype != torch.uint8 or tensors[name].dim() != 1:
            raise KVMMError(f"{name}: must be bytes")
    found = {name: tensor for name, tensor in tensors.items() if name not in (INDEX, SMALL, LARGE)}
    entries, sizes = _entries(tensors[INDEX]), [0, 0]
    for _, kind, shape, plain in entries:
        size = math.prod(shape) * _DTYPES[kind].itemsize
        sizes[plain] += size
        if not plain and (size >= _large(_DTYPES[kind]) or sizes[plain] > _MAX_SMALL_BYTES):
            raise KVMMError(f"{INDEX}: is not that of the bytes, its small tensors are too large")
    if sizes[1] != tensors[LARGE].numel() or not _plausible(sizes[0], tensors[SMALL].numel()):
        raise KVMMError(f"{INDEX}: is not that of the bytes")
    small = _inflated(tensors[SMALL], sizes[0], SMALL)
    if len(small) != sizes[0]:
        raise KVMMError(f"{SMALL}: is less than the index says")
    raw, at = (_bytes(small), tensors[LARGE]), [0, 0]
    for name, kind, shape, plain in entries:
        dtype, count = _DTYPES[kind], math.prod(shape)
        end = at[plain] + count * dtype.itemsize
        if name in found:
            raise KVMMError(f"{INDEX}: is not that of the bytes, it has {one_line(name)} twice")
        data, at[plain] = raw[plain][at[plain] : end], end
        data = data if plain else data.unflatten(0, (dtype.itemsize, count)).T.flatten()
        if dtype == torch.bool and count and int(data.max()) > 1:
            raise KVMMError(f"{name}: must be truth values")
        found[name] = data.contiguous().clone().view(dtype).view(shape)
    return found


def _entries(index: torch.Tensor) -> list[tuple[str, str, list[int], int]]:
    try:
        most = min(_INFLATION * index.numel() + _INFLATION_FREE_BYTES, _MAX_INDEX_BYTES)
        text = _inflated(index, most, INDEX).decode()
    except UnicodeDecodeError:
        raise KVMMError(f"{INDEX}: is no text") from None
    if text.count("[") > 2 * _MAX_ENTRIES + 1:  # before lists are made of them: an entry is one, and its shape
        raise KVMMError(f"{INDEX}: has more than {_MAX_ENTRIES} entries")
    entries = parse_json(text, INDEX)
    for entry in entries if isinstance(entries, list) else [None]:
        match entry:
            case [str(), str(kind), list(shape), 0 | 1] if (
                kind in _DTYPES
                and len(shape) <= _MAX_DIMENSIONS
                and all(type(size) is int and 0 <= size < 2**40 for size in shape)
            ):
                continue
        raise KVMMError(f"{INDEX}: must be names, dtypes, shapes and places")
    return entries


def _inflated(data: torch.Tensor, most: int, name: str) -> bytes:
    """What bytes stand for, ``most`` bytes or fewer."""
    decoder = zlib.decompressobj()
    try:
        found = decoder.decompress(data.numpy().tobytes(), most + 1)
    except zlib.error as error:
        raise KVMMError(f"{name}: {error}") from None
    if len(found) > most or not decoder.eof or decoder.unused_data:
        raise KVMMError(f"{name}: is too much, or not whole")
    return found


def _large(dtype: torch.dtype) -> int:
    """Bytes from which on a tensor follows as it is."""
    return _LARGE_CODED_BYTES if dtype == torch.uint8 else _LARGE_BYTES


def _plausible(size: int, packed: int) -> bool:
    return size <= _INFLATION * packed + _INFLATION_FREE_BYTES


def _joined(parts: list[torch.Tensor]) -> torch.Tensor:
    return torch.cat([torch.zeros(0, dtype=torch.uint8), *parts])


def _bytes(data: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.zeros(0, dtype=torch.uint8)


__all__ = ["decode_bundle", "encode_bundle"]
