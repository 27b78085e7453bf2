"""Codes at rest: streams to bytes and back, the same bytes from numpy and from C."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from kvmm import KVMMError
from kvmm.kernels.entropy import MAX_DISTANCE, decode_streams, encode_streams, find_like, streams


def walk(count: int, tokens: int, bits: int, seed: int = 0) -> np.ndarray:
    """Streams whose neighbours are alike, uint8 ``[count, tokens]``."""
    steps = np.random.default_rng(seed).normal(size=(count, tokens)) * 2**bits / 12
    return np.clip(np.cumsum(steps, 1) + 2**bits / 2, 0, 2**bits - 1).astype(np.uint8)


def any_like(tokens: int, seed: int = 0) -> np.ndarray:
    distance = np.random.default_rng(seed).integers(1, 20, (2, tokens))
    return np.maximum(np.arange(tokens) - distance, 0)


@pytest.fixture(params=["numpy", "c"])
def backend(request, monkeypatch):
    if request.param == "numpy":
        monkeypatch.setattr(streams, "library", lambda: None)
    elif streams.library() is None:
        pytest.skip("no C compiler")
    return request.param


@pytest.mark.parametrize("tokens", [1, 2, 130])
def test_what_is_decoded_is_what_was_encoded(backend, tokens):
    bits = np.arange(1, 9).repeat(3)
    codes = np.concatenate([walk(3, tokens, b, seed=b) for b in range(1, 9)])
    like = any_like(tokens)
    data, sizes = encode_streams(codes, bits, like)
    assert sizes.sum() == data.size and (sizes >= 4).all()
    assert np.array_equal(decode_streams(data, sizes, bits, like), codes)


def test_numpy_and_c_write_the_same_bytes(monkeypatch):
    if streams.library() is None:
        pytest.skip("no C compiler")
    rng = np.random.default_rng(1)
    bits = rng.integers(1, 9, 150)  # several batches
    codes = np.stack([walk(1, 90, b, seed=i)[0] if i % 3 else rng.integers(0, 2**b, 90) for i, b in enumerate(bits)])
    like = any_like(90)
    data, sizes = encode_streams(codes, bits, like)
    monkeypatch.setattr(streams, "library", lambda: None)
    other, theirs = encode_streams(codes, bits, like)
    assert np.array_equal(data, other) and np.array_equal(sizes, theirs)


def test_noise_costs_its_bits_and_repetition_next_to_none():
    rng, tokens = np.random.default_rng(2), 3000
    noise = rng.integers(0, 4, (4, tokens)).astype(np.uint8)
    like = any_like(tokens)
    data, _ = encode_streams(noise, np.full(4, 2), like)
    assert 1.0 <= data.size * 8 / (2 * noise.size) < 1.03
    # each token is a copy of one long before, which says nothing of the one just before
    again = noise.copy()
    source = np.maximum(np.arange(tokens) - rng.integers(200, 400, tokens), 0)
    for token in range(400, tokens):
        again[:, token] = again[:, source[token]]
    data, _ = encode_streams(again, np.full(4, 2), np.stack([source, source]))
    assert data.size * 8 / (2 * noise.size) < 0.2


def test_steps_of_a_gaussian_process_come_near_their_entropy():
    """A first-order chain, whose entropy rate is known."""
    rng, tokens = np.random.default_rng(3), 8000
    stay = 0.9
    codes, state = np.zeros((2, tokens), np.uint8), rng.integers(0, 4, 2)
    for token in range(tokens):
        move = rng.random(2) > stay
        state = np.where(move, (state + rng.integers(1, 4, 2)) % 4, state)
        codes[:, token] = state
    rate = -(stay * np.log2(stay) + (1 - stay) * np.log2((1 - stay) / 3))
    data, _ = encode_streams(codes, np.full(2, 2), any_like(tokens))
    assert rate < data.size * 8 / codes.size < 1.1 * rate


def test_damaged_bytes_give_codes_within_their_bits(backend):
    bits, like = np.array([1, 2, 4, 8]), any_like(120)
    codes = np.concatenate([walk(1, 120, b) for b in bits])
    data, sizes = encode_streams(codes, bits, like)
    rng = np.random.default_rng(4)
    for _ in range(20):
        broken = rng.integers(0, 256, data.size).astype(np.uint8)
        found = decode_streams(broken, sizes, bits, like)
        assert (found < 2 ** bits[:, None]).all()
    short = np.minimum(sizes, 2)
    assert decode_streams(data[: short.sum()], short, bits, like).shape == codes.shape


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sizes": [3, 3]}, "sizes"),
        ({"sizes": [-1, 9]}, "sizes"),
        ({"bits": [0, 2]}, "bits"),
        ({"bits": [9, 2]}, "bits"),
        ({"like": np.full((2, 5), 4)}, "like"),
        ({"like": np.full((2, 5), -1)}, "like"),
    ],
)
def test_wrong_input_is_refused(change, message):
    given = {"sizes": [4, 4], "bits": [1, 2], "like": np.zeros((2, 5), int)} | change
    with pytest.raises(KVMMError, match=message):
        decode_streams(np.zeros(8, np.uint8), np.array(given["sizes"]), np.array(given["bits"]), given["like"])


def test_no_streams_and_no_tokens():
    data, sizes = encode_streams(np.zeros((0, 7), np.uint8), np.zeros(0, int), any_like(7))
    assert not data.size and decode_streams(data, sizes, np.zeros(0, int), any_like(7)).shape == (0, 7)


def test_the_nearest_earlier_tokens():
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(1400, 6, generator=generator)
    like = find_like(features)
    distance = torch.cdist(features, features)
    for token in (1, 2, 255, 256, 257, 900, 1399):
        first = max(0, token - MAX_DISTANCE)
        nearest = (distance[token, first:token].argsort()[:2] + first).tolist()
        assert like[:, token].tolist() == (nearest if len(nearest) == 2 else nearest * 2)
    assert like[:, 0].tolist() == [0, 0]
    assert find_like(features[:1]).tolist() == [[0], [0]]
