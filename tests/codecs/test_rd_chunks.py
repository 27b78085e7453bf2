"""Chunks of keys and values of all layers as bytes: what comes back, what they take, and what is refused."""

from __future__ import annotations

import random
import zlib

import numpy as np
import pytest
import torch
from transformers import DynamicCache

from kvmm import KVMMError
from kvmm.calibration import Calibration, read_calibration
from kvmm.codecs.rd import chunks
from kvmm.codecs.rd.chunks import ChunkCodec
from kvmm.codecs.rd.fixed_chunks import RUNGS, FixedChunkCodec
from kvmm.media import load_media
from kvmm.models import load_model
from kvmm.models.loading import assets_folder, default_model
from kvmm.models.prompting import encode_question

BITS, TOKENS = 2, 256


@pytest.fixture(scope="module")
def calibration() -> Calibration:
    return read_calibration(default_model() / "kvmm_calibration.safetensors")


@pytest.fixture(scope="module")
def kv() -> torch.Tensor:
    """The first tokens of a page, bfloat16 ``[2, L, T, H * D]``."""
    model, processor = load_model(device="cpu")
    page = load_media(assets_folder() / "samples" / "invoice.png")[0].data
    cache = DynamicCache()
    with torch.no_grad():
        model(**encode_question(model, processor, "What is the total?", [page]), past_key_values=cache)
    sides = [torch.stack([getattr(layer, name)[0] for layer in cache.layers]) for name in ("keys", "values")]
    return torch.stack(sides).transpose(2, 3).flatten(3)[:, :, :TOKENS].bfloat16().contiguous()


@pytest.fixture(scope="module")
def codec(calibration) -> ChunkCodec:
    return ChunkCodec(calibration, BITS, "image")


def error(x: torch.Tensor, y: torch.Tensor) -> float:
    return float((x.float() - y.float()).square().sum() / x.float().square().sum())


def test_codes_are_those_of_the_codec(calibration, codec, kv, monkeypatch):
    """What is decoded is what the codec decodes of its own pages."""
    monkeypatch.setattr(chunks, "_FAR", torch.inf)
    found = codec.decode(codec.encode(kv), kv.shape, kv.dtype)
    x = kv.view(2, codec.layers, TOKENS, codec.heads, codec.dim).transpose(2, 3).float()
    for layer, pair in enumerate(codec._sites):
        for side, site in enumerate(pair):
            packed = site.codec.encode(x[side, layer][None], chunks.EncodeContext(chunks.PAGE_SIZE))
            expected = site.codec.decode(packed)[0].transpose(0, 1).flatten(1).bfloat16()
            torch.testing.assert_close(found[side, layer], expected, rtol=0, atol=0)


@pytest.mark.parametrize("levels", ["span", "fixed"])
def test_more_bits_are_nearer_and_the_codes_take_fewer(calibration, kv, levels):
    sizes, errors = [], []
    for bits in (1, 2, 4):
        codec = ChunkCodec(calibration, bits, "image", levels)
        data = codec.encode(kv)
        assert len(data) <= codec.nbytes(kv.shape, 2)
        sizes.append(8 * len(data) / kv.numel())
        errors.append(error(kv, codec.decode(data, kv.shape, kv.dtype)))
    assert sizes[0] < 1.05 and sizes[1] < 1.9 and sizes[2] < 3.6  # bits per value, everything included
    assert errors[0] > 1.3 * errors[1] > 2 * 1.3 * errors[2]


@pytest.mark.parametrize("tokens", [1, 31, 128, 200])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_any_number_of_tokens(codec, kv, tokens, dtype):
    x = kv[:, :, :tokens].to(dtype)
    data = codec.encode(x)
    assert len(data) <= codec.nbytes(x.shape, dtype.itemsize)
    found = codec.decode(np.concatenate((data, np.full(50, 7, np.uint8))), x.shape, dtype)  # a longer buffer
    assert found.dtype == dtype and error(x, found) < 0.5


def test_tokens_far_from_all_others_are_exact(codec, kv):
    """Attention sinks have keys that nothing was calibrated on; they cost the others nothing either."""
    sink = kv.clone()
    sink[:, :, 5] = 400
    found = codec.decode(codec.encode(sink), kv.shape, kv.dtype)
    assert torch.equal(found[:, :, 5], sink[:, :, 5])
    others = torch.arange(TOKENS) != 5
    plain = codec.decode(codec.encode(kv), kv.shape, kv.dtype)
    assert error(kv[:, :, others], found[:, :, others]) < 1.05 * error(kv[:, :, others], plain[:, :, others])


def test_damage_is_refused(codec, kv):
    data, rng = codec.encode(kv), random.Random(0)
    for at in (*range(0, 60, 3), *(rng.randrange(60, len(data)) for _ in range(10))):
        broken = data.copy()
        broken[at] ^= 1 << rng.randrange(8)
        if at == 7:
            continue  # nothing is there
        with pytest.raises(KVMMError, match=r"^The (chunk|bytes)[^\n]*$"):
            codec.decode(broken, kv.shape, kv.dtype)
    for size in (0, 10, 60, len(data) - 1):
        with pytest.raises(KVMMError, match=r"no chunk|not complete"):
            codec.decode(data[:size], kv.shape, kv.dtype)


def forged(data: np.ndarray, change) -> np.ndarray:
    """A body with changes and a checksum that fits."""
    fields, body = (
        list(chunks._HEADER.unpack(data[: chunks._HEADER.size].tobytes())),
        bytearray(data[chunks._HEADER.size :].tobytes()),
    )
    change(fields, body)
    fields[4], fields[5] = len(body), zlib.crc32(bytes(body))
    return np.frombuffer(chunks._HEADER.pack(*fields) + bytes(body), np.uint8)


def test_made_up_bodies_are_refused_or_are_codes(codec, kv):
    """With a checksum that fits: numbers that are not as they must be are named, other codes are codes."""
    data, rng = codec.encode(kv), random.Random(1)
    streams = len(list(codec._groups()))

    def sized(fields, body):
        body[:4] = b"\xff" * 4

    def liked(fields, body):
        at = 4 * streams + fields[-2] * (4 + 2 * codec.layers * codec.heads * codec.dim * 2)
        body[at + 2 : at + 4] = b"\xff\xff"

    def counted(fields, body):
        fields[-2] = TOKENS

    def cut(fields, body):
        del body[200:]

    for change, message in (
        (sized, "not of the sizes"),
        (liked, "like none before"),
        (counted, "counts"),
        (cut, "not complete"),
    ):
        with pytest.raises(KVMMError, match=message):
            codec.decode(forged(data, change), kv.shape, kv.dtype)
    for _ in range(20):

        def scrambled(fields, body):
            for _ in range(rng.choice((1, 30))):
                body[rng.randrange(len(body))] = rng.randrange(256)

        try:
            found = codec.decode(forged(data, scrambled), kv.shape, kv.dtype)
            assert found.shape == kv.shape
        except KVMMError as refusal:
            assert "\n" not in str(refusal)


def test_what_is_not_its_own_is_refused(calibration, codec, kv):
    data = codec.encode(kv)
    for other in (ChunkCodec(calibration, 3, "image"), ChunkCodec(calibration, BITS, "text")):
        with pytest.raises(KVMMError, match="another calibration file, modality, levels or bits"):
            other.decode(data, kv.shape, kv.dtype)
    with pytest.raises(KVMMError, match="another dtype than float16"):
        codec.decode(data, kv.shape, torch.float16)
    with pytest.raises(KVMMError, match=r"\[8, 256, 2, 64\], not \[8, 100, 2, 64\]"):
        codec.decode(data, kv[:, :, :100].shape, kv.dtype)
    for shape in ((2, 8, 256, 64), (2, 7, 256, 128), (1, 8, 256, 128), (2, 8, 0, 128), (256, 128)):
        with pytest.raises(KVMMError, match="all layers and heads of the model"):
            codec.encode(torch.zeros(shape, dtype=torch.bfloat16))
    with pytest.raises(KVMMError, match="not finite"):
        codec.encode(torch.where(torch.arange(TOKENS)[:, None] == 9, torch.nan, kv))
    with pytest.raises(KVMMError, match="not of float64"):
        codec.encode(kv.double())
    with pytest.raises(KVMMError, match="no fit of rd to text"):
        ChunkCodec(Calibration("x", {}), 2)
    with pytest.raises(KVMMError, match="modality: must be one of"):
        ChunkCodec(calibration, 2, "smell")
    with pytest.raises(KVMMError, match="not 9"):
        ChunkCodec(calibration, 9)


def test_chunks_of_one_size(calibration, kv):
    """As many bits as fit; the next chunk begins where this one ended."""
    codec = FixedChunkCodec(calibration, 10, "image")
    errors = []
    for _ in range(4):
        data = codec.encode(kv)
        assert len(data) == codec.nbytes(kv.shape, 2) == kv.nbytes // 10
        errors.append(error(kv, codec.decode(data, kv.shape, kv.dtype)))
    assert errors[-1] <= errors[0]
    bits = ChunkCodec.bits_of(data)
    above = RUNGS[RUNGS.index(bits) + 1]
    assert bits >= 1.75  # which codes of as many bits would not leave room for
    assert len(ChunkCodec(calibration, above, "image").encode(kv)) > 0.88 * len(data)
    noise = torch.randn(kv.shape, generator=torch.Generator().manual_seed(0)).bfloat16() * kv.float().std()
    assert len(codec.encode(noise.bfloat16())) == len(data)  # with fewer bits, since noise is like nothing before
    other = FixedChunkCodec(calibration, 10, "image")
    assert torch.equal(other.decode(data, kv.shape, kv.dtype), codec.decode(data, kv.shape, kv.dtype))
    with pytest.raises(KVMMError, match="does not fit"):
        FixedChunkCodec(calibration, 24, "image").encode(kv[:, :, :1].contiguous())
    with pytest.raises(KVMMError, match="no chunk"):
        codec.decode(np.zeros(len(data), np.uint8), kv.shape, kv.dtype)
    with pytest.raises(KVMMError, match=r"ratio: must be 2.5 to 24"):
        FixedChunkCodec(calibration, 100)
