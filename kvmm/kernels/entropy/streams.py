"""Streams of codes to bytes and back, in C where there is a compiler, else in numpy."""

from __future__ import annotations

import ctypes
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

from kvmm.errors import KVMMError
from kvmm.kernels import build
from kvmm.kernels.entropy import reference

SOURCE = build.Source("streams", Path(__file__).with_name("streams.c"))
_BATCH = 64  # streams that a thread takes at a time


@lru_cache(maxsize=1)
def library() -> Any:
    """The compiled function, or None where there is no compiler or it fails."""
    found = build.first_loaded(SOURCE)
    if found is None:
        return None
    function, pointer, number = found.kvmm_code_streams, ctypes.c_void_p, ctypes.c_int64
    numbers = (ctypes.c_int, pointer, pointer, pointer, number, number, pointer, pointer, pointer)
    function.argtypes = (*numbers, ctypes.c_int32, pointer, number, pointer)
    function.restype = number
    return function


def compiled() -> bool:
    """Whether this machine can code in C; numpy takes minutes for what C does in seconds."""
    return library() is not None


def encode_streams(codes: np.ndarray, bits: np.ndarray, like: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Code streams as few bytes.

    Args:
        codes: uint8 ``[L, T]``, the codes of a stream below ``2 ** bits``.
        bits: ``[L]``, 1 to 8.
        like: int ``[2, T]``: two tokens before each, 0 for the first, the same for all streams.

    Returns:
        the streams' bytes one after the other uint8 ``[n]``, and how many each has int64 ``[L]``.
    """
    codes, bits, like = _checked(codes, bits, like)
    done = _coded(codes, bits, like, None)
    return np.concatenate([data for data, _ in done]), np.concatenate([sizes for _, sizes in done])


def decode_streams(data: np.ndarray, sizes: np.ndarray, bits: np.ndarray, like: np.ndarray) -> np.ndarray:
    """The codes uint8 ``[L, T]`` of :func:`encode_streams`.

    Damaged bytes give other codes, below ``2 ** bits`` all the same.

    Raises:
        KVMMError: sizes are not those of the streams and the bytes, bits are not 1 to 8, or a token is like none
            before.
    """
    streams = len(bits)
    sizes = np.asarray(sizes, np.int64)
    if sizes.shape != (streams,) or (streams and sizes.min() < 0) or int(sizes.sum()) != data.size:
        raise KVMMError("sizes: are not those of the streams")
    codes, bits, like = _checked(np.zeros((streams, like.shape[-1]), np.uint8), bits, like)
    _coded(codes, bits, like, (np.ascontiguousarray(data, np.uint8), sizes))
    return codes


def _checked(codes: np.ndarray, bits: np.ndarray, like: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    codes, bits = np.ascontiguousarray(codes, np.uint8), np.ascontiguousarray(bits, np.uint8)
    like = np.ascontiguousarray(like, np.int32)
    tokens = codes.shape[1]
    if bits.shape != codes.shape[:1] or (len(bits) and not 1 <= int(bits.min()) <= int(bits.max()) <= 8):
        raise KVMMError("bits: must be 1 to 8 for every stream")
    if like.shape != (2, tokens) or (like < 0).any() or (like > np.maximum(np.arange(tokens) - 1, 0)).any():
        raise KVMMError("like: must be tokens before each")
    return codes, bits, like


def _coded(
    codes: np.ndarray, bits: np.ndarray, like: np.ndarray, given: tuple[np.ndarray, np.ndarray] | None
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Encode ``codes``, or fill them from ``given`` bytes and sizes; bytes and sizes by batch of streams."""
    ends = None if given is None else np.concatenate(([0], np.cumsum(given[1])))

    def work(first: int) -> tuple[np.ndarray, np.ndarray]:
        last = min(first + _BATCH, len(codes))
        part = None if given is None else (given[0][ends[first] : ends[last]], given[1][first:last])
        return (_by_reference if library() is None else _by_library)(codes[first:last], bits[first:last], like, part)

    batches = range(0, len(codes), _BATCH)
    if len(batches) < 2 or library() is None:
        done = [work(first) for first in batches]
    else:
        with ThreadPoolExecutor(min(len(batches), torch.get_num_threads())) as threads:
            done = list(threads.map(work, batches))
    return done or [(np.zeros(0, np.uint8), np.zeros(0, np.int64))]


def _by_library(
    codes: np.ndarray, bits: np.ndarray, like: np.ndarray, given: tuple[np.ndarray, np.ndarray] | None
) -> tuple[np.ndarray, np.ndarray]:
    streams, tokens = codes.shape
    # a bit that is predicted as badly as can be takes 11
    space = 0 if given else int(tokens) * int(bits.max()) * 11 // 8 + 16
    data, sizes = given or (np.empty(streams * space, np.uint8), np.empty(streams, np.int64))
    data, sizes = np.ascontiguousarray(data), np.ascontiguousarray(sizes)
    arrays = [array.ctypes.data for array in (codes, bits, like)]
    tables = [table.ctypes.data for table in reference.tables()]
    failed = library()(
        given is not None,
        *arrays,
        streams,
        tokens,
        *tables,
        reference.WEIGHT,
        data.ctypes.data,
        space,
        sizes.ctypes.data,
    )
    if failed:
        raise MemoryError("no memory for the tables of the entropy coder")
    if given is None:
        data = np.concatenate([data[n * space : n * space + size] for n, size in enumerate(sizes)])
    return data, sizes


def _by_reference(
    codes: np.ndarray, bits: np.ndarray, like: np.ndarray, given: tuple[np.ndarray, np.ndarray] | None
) -> tuple[np.ndarray, np.ndarray]:
    if given is not None:
        ends = np.concatenate(([0], np.cumsum(given[1])))
        streams = [given[0][a:b].tobytes() for a, b in pairwise(ends)]
    else:
        streams = [b""] * len(codes)
    for width in np.unique(bits).tolist():
        chosen = np.flatnonzero(bits == width)
        if given is not None:
            codes[chosen] = reference.decode([streams[n] for n in chosen], width, like)
            continue
        for n, own in zip(chosen, reference.encode(codes[chosen], width, like), strict=True):
            streams[n] = own
    if given is not None:
        return given
    return np.frombuffer(b"".join(streams), np.uint8), np.array([len(own) for own in streams], np.int64)


__all__ = ["SOURCE", "compiled", "decode_streams", "encode_streams", "library"]
