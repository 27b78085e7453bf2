"""CalibQuant: levels, one range for all values, and what reads them."""

from __future__ import annotations

import pytest
import torch

from kvmm.codecs import EncodeContext, build_codec
from kvmm.errors import KVMMError
from kvmm.modality import IMAGE, TEXT
from kvmm.policy import KVPolicy, KVSpec, get_policy, spec
from tests.cache.baselines import key_like
from tests.cache.harness import Harness, layout

EXACT = {"parameters": "float32"}
SHRINK = {"key": 0.5, "value": 0.3}
ONE_RANGE = KVSpec(spec("calibquant", 1, levels="code"), spec("calibquant", 1, levels="code", value_ranges="tensor"))


def by_hand(x: torch.Tensor, bits: int, shrink: float, per_channel: bool) -> torch.Tensor:
    """The authors' ``quant`` of one sequence ``[1, H, T, D]``: ranges of every channel, or of the whole tensor."""
    low, high = (x.amin(2, keepdim=True), x.amax(2, keepdim=True)) if per_channel else (x.min(), x.max())
    low, high = low * shrink, high * shrink
    step = (high - low) / (2**bits - 1)
    return ((x - low) / step).clamp(0, 2**bits - 1).round() * step + low


@pytest.mark.parametrize("bits", [1, 2, 4])
@pytest.mark.parametrize("side", ["key", "value"])
@pytest.mark.parametrize("ranges", ["channel", "tensor"])
@pytest.mark.parametrize("levels", ["paper", "code"])
def test_reconstruction_is_the_method_s(bits, side, ranges, levels):
    x = key_like(1, 2, 256, 64)
    shrink = SHRINK[side] if (levels, bits) == ("code", 1) else 1.0
    codec = build_codec(spec("calibquant", bits, levels=levels, value_ranges=ranges, **EXACT), side)
    decoded = codec.decode(codec.encode(x, EncodeContext(128)))
    expected = by_hand(x, bits, shrink, per_channel=side == "key" or ranges == "channel")
    # an element on a rounding edge may fall on the other side
    assert int(((decoded - expected).abs() > 1e-4).sum()) <= 4


def test_one_range_is_that_of_each_sequence_and_of_all_its_heads():
    x = key_like(2, 3, 128, 16)
    x[1] *= 7
    codec = build_codec(spec("calibquant", 2, value_ranges="tensor", **EXACT), "value")
    packed = codec.encode(x, EncodeContext(128))
    assert packed["scale"].shape == packed["zero_point"].shape == (2, 3, 1, 16)
    assert packed["scale"].is_contiguous() and packed["zero_point"].is_contiguous()
    for row in range(2):
        assert packed["zero_point"][row].unique().item() == pytest.approx(float(x[row].min()))
        assert packed["scale"][row].unique().item() == pytest.approx(float(x[row].max() - x[row].min()) / 3)


def test_padding_is_not_in_the_range():
    x = torch.rand(2, 1, 40, 16)
    valid = torch.ones(2, 40, dtype=torch.bool)
    valid[1, 30:] = False
    x[1, :, 30:] = x[1, :, :1]  # slots without a token copy one
    codec = build_codec(spec("calibquant", 2, value_ranges="tensor", **EXACT), "value")
    packed = codec.encode(x, EncodeContext(64, valid))
    assert packed["zero_point"][1].unique().item() == pytest.approx(float(x[1, :, :30].min()))


def test_attention_reads_one_range():
    """One query and several, with the backend that the device has, against SDPA of the decode."""
    for kv in (ONE_RANGE, KVSpec(spec("calibquant", 2), spec("calibquant", 2, value_ranges="tensor"))):
        h = Harness(KVPolicy("test", image=kv, residual_length=16, flush_length=32))
        h.feed([layout((TEXT, 5), (IMAGE, 300), (TEXT, 20))])
        h.feed([[TEXT]])
        assert h.compare(1) < 1e-4
        h.feed([[TEXT] * 9])
        assert h.compare(9) < 1e-4


def test_ranges_a_channel_are_closer_than_one_for_all():
    """The paper's table 4: values without ranges of their channels lose most where channels differ."""
    x = key_like(1, 2, 512, 64)
    error = {}
    for ranges in ("channel", "tensor"):
        codec = build_codec(spec("calibquant", 2, value_ranges=ranges), "value")
        error[ranges] = float((codec.decode(codec.encode(x, EncodeContext(128))) - x).square().mean())
    assert error["channel"] < 0.5 * error["tensor"]


def test_levels_that_are_fitted_to_channels_refuse_one_range():
    with pytest.raises(KVMMError, match="levels paper or code, not mean"):
        build_codec(spec("calibquant", 1, levels="mean", value_ranges="tensor"), "value")
    with pytest.raises(KVMMError, match="value_ranges must be channel or tensor"):
        build_codec(spec("calibquant", 1, value_ranges="head"), "value")


def test_the_preset_with_the_authors_levels():
    """Ranges shrunk to 0.5 for keys and 0.3 for values, at the bits of ``calibquant1``; closer than its levels
    where channels lie about zero."""
    shrunk, paper = (get_policy(name).image for name in ("calibquant1-shrunk", "calibquant1"))
    assert shrunk.key.bits == shrunk.value.bits == 1 and shrunk.key.option("calibration") == "file"
    x = torch.randn(1, 2, 512, 64, generator=torch.Generator().manual_seed(0))  # about zero, which ranges shrink to
    for side in ("key", "value"):
        decoded, error = {}, {}
        for name, kv in (("shrunk", shrunk), ("paper", paper)):
            codec = build_codec(getattr(kv, side), side)
            packed = codec.encode(x, EncodeContext(128))
            decoded[name] = codec.decode(packed)
            error[name] = float((decoded[name] - x).square().mean())
        width = [d.amax(2) - d.amin(2) for d in decoded.values()]
        torch.testing.assert_close(width[0], SHRINK[side] * width[1], rtol=2e-2, atol=1e-2)
        assert error["shrunk"] < error["paper"]
