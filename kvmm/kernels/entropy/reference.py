"""Adaptive coding of integer codes in numpy: the definition, and what runs where there is no compiler.

A *stream* is the codes of one channel of one head, token by token. It is coded by itself, bit by bit from the highest,
by a binary arithmetic coder (Rissanen and Langdon, 1981). Five tables predict a bit from its higher bits and what the
stream has at earlier tokens: the one before, and two that the token is *like*, which are the same for all streams. The
predictions are mixed in the logistic domain by weights that learn (Mahoney's PAQ). Tables and weights begin anew with
every stream, so that streams can be coded side by side, here by numpy and in C by threads. All arithmetic is of
integers.
"""

from __future__ import annotations

from decimal import Decimal, localcontext
from functools import cache

import numpy as np

MODELS = 5
CONTEXTS = 64
LIMIT = 60
LARGEST = 2047
LOW = 32
WEIGHT = 19661  # 0.3
_STEP = 256  # stretched units of a natural logit
_ALL = np.uint64(0xFFFFFFFF)
_TOP = np.uint64(0xFF000000)


@cache
def tables() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """``stretch`` int16 ``[4096]``, ``squash`` uint16 ``[4096]`` and ``rates`` int32 ``[LIMIT + 1]``.

    ``squash[d + 2048]`` is the probability in 65536ths whose logit is ``d / 256``; ``stretch`` inverts it for
    probabilities in 4096ths. Decimals make them the same on every machine.
    """
    with localcontext() as context:
        context.prec = 30
        odds = [(Decimal(d - 2048) / _STEP).exp() for d in range(4096)]
        squash = [int(65536 * x / (1 + x) + Decimal("0.5")) for x in odds]
    squash = np.clip(np.array(squash), LOW, 65536 - LOW)
    middle = np.arange(4096) * 16 + 8
    stretch = np.clip(np.searchsorted(squash, middle) - 2048, -LARGEST, LARGEST)
    rates = np.array([655360 // (10 * count + 16) for count in range(LIMIT + 1)])
    return stretch.astype(np.int16), squash.astype(np.uint16), rates.astype(np.int32)


class _Streams:
    """The models of several streams of as many bits each."""

    def __init__(self, streams: int, bits: int):
        self.bits = bits
        self.streams = np.arange(streams)[:, None]
        self.models = np.arange(MODELS)
        shape = streams, MODELS, 1 << bits, CONTEXTS
        self.p, self.counts = np.full(shape, 32768, np.int64), np.zeros(shape, np.int64)
        self.weights = np.full((8, streams, MODELS), WEIGHT, np.int64)

    def contexts(self, before: np.ndarray, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        """int64 ``[streams, MODELS]``, from codes ``[streams]``."""
        fine, coarse, width = max(0, self.bits - 4), max(0, self.bits - 2), min(self.bits, 2)
        both = ((before >> coarse) << width) | (first >> coarse)
        found = before >> fine, first >> fine, both, second >> fine, (both << width) | (second >> coarse)
        return np.stack(found, 1)

    def predict(self, level: int, node: np.ndarray, contexts: np.ndarray) -> np.ndarray:
        """The probability of a one in 65536ths, int64 ``[streams]``."""
        stretch, squash, _ = tables()
        self._at = self.streams, self.models, node[:, None], contexts
        self._stretched = stretch[self.p[self._at] >> 4].astype(np.int64)
        d = (self.weights[level] * self._stretched).sum(1) >> 16
        return squash[np.clip(d, -LARGEST, LARGEST) + 2048].astype(np.int64)

    def update(self, level: int, bit: np.ndarray, p: np.ndarray) -> None:
        """Learn from the bit ``[streams]`` that :meth:`predict` gave ``p``."""
        rates = tables()[2]
        error = ((bit << 16) - p)[:, None]
        self.weights[level] += (error * self._stretched * 5) >> 16
        known, count = self.p[self._at], self.counts[self._at]
        self.p[self._at] = known + (((bit * 65535)[:, None] - known) * rates[count] >> 16)
        self.counts[self._at] = np.minimum(count + 1, LIMIT)


def _split(x1: np.ndarray, x2: np.ndarray, p: np.ndarray) -> np.ndarray:
    extent, p = x2 - x1, p.astype(np.uint64)
    return x1 + (extent >> np.uint64(16)) * p + (((extent & np.uint64(0xFFFF)) * p) >> np.uint64(16))


def encode(codes: np.ndarray, bits: int, like: np.ndarray) -> list[bytes]:
    """Streams of as many bits as bytes.

    Args:
        codes: uint8 ``[streams, tokens]`` below ``2 ** bits``.
        bits: 1 to 8.
        like: int ``[2, tokens]``: of each token but the first two before it.
    """
    codes = codes.astype(np.int64)
    streams, tokens = codes.shape
    models, out = _Streams(streams, bits), [bytearray() for _ in range(streams)]
    x1, x2 = np.zeros(streams, np.uint64), np.full(streams, _ALL)
    for token in range(tokens):
        contexts = _contexts(models, codes, like, token)
        node = np.ones(streams, np.int64)
        for level in range(bits):
            bit = codes[:, token] >> (bits - 1 - level) & 1
            p = models.predict(level, node, contexts)
            middle = _split(x1, x2, p)
            x1, x2 = np.where(bit, x1, middle + np.uint64(1)), np.where(bit, middle, x2)
            models.update(level, bit, p)
            node = node << 1 | bit
            while (ready := np.flatnonzero(((x1 ^ x2) & _TOP) == 0)).size:
                for stream in ready:
                    out[stream].append(int(x2[stream]) >> 24)
                x1[ready] = (x1[ready] << np.uint64(8)) & _ALL
                x2[ready] = (x2[ready] << np.uint64(8)) & _ALL | np.uint64(255)
    return [bytes(done) + int(low).to_bytes(4, "big") for done, low in zip(out, x1, strict=True)]


def decode(data: list[bytes], bits: int, like: np.ndarray) -> np.ndarray:
    """The codes uint8 ``[streams, tokens]`` of :func:`encode`; what follows the end of damaged data is zeros."""
    streams, tokens = len(data), like.shape[1]
    codes, models = np.zeros((streams, tokens), np.int64), _Streams(streams, bits)
    longest = max(map(len, data), default=0)
    padded = np.frombuffer(b"".join(own.ljust(longest, b"\0") for own in data), np.uint8).reshape(streams, longest)
    padded = np.pad(padded, ((0, 0), (0, tokens * bits * 2 + 4))).astype(np.uint64)
    x1, x2, x = np.zeros(streams, np.uint64), np.full(streams, _ALL), np.zeros(streams, np.uint64)
    for k in range(4):
        x = x << np.uint64(8) | padded[:, k]
    at = np.full(streams, 4)
    for token in range(tokens):
        contexts = _contexts(models, codes, like, token)
        node = np.ones(streams, np.int64)
        for level in range(bits):
            p = models.predict(level, node, contexts)
            middle = _split(x1, x2, p)
            bit = (x <= middle).astype(np.int64)
            x1, x2 = np.where(bit, x1, middle + np.uint64(1)), np.where(bit, middle, x2)
            models.update(level, bit, p)
            node = node << 1 | bit
            while (ready := np.flatnonzero(((x1 ^ x2) & _TOP) == 0)).size:
                x1[ready] = (x1[ready] << np.uint64(8)) & _ALL
                x2[ready] = (x2[ready] << np.uint64(8)) & _ALL | np.uint64(255)
                x[ready] = (x[ready] << np.uint64(8)) & _ALL | padded[ready, at[ready]]
                at[ready] += 1
        codes[:, token] = node - (1 << bits)
    return codes.astype(np.uint8)


def _contexts(models: _Streams, codes: np.ndarray, like: np.ndarray, token: int) -> np.ndarray:
    if not token:
        return np.zeros((len(codes), MODELS), np.int64)
    return models.contexts(codes[:, token - 1], codes[:, like[0, token]], codes[:, like[1, token]])


__all__ = ["WEIGHT", "decode", "encode", "tables"]
