"""Agreement with what the methods' authors' own code reconstructs (tests/data/vectors)."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from kvmm.codecs import EncodeContext, build_codec
from kvmm.policy import spec

VECTORS = Path(__file__).parents[1] / "data" / "vectors" / "codecs_d64.safetensors"
EXACT = {"parameters": "float32"}
AUTHORS = {"norm_scope": "token", "zero_point": "integer", "parameters": "float32"}
CASES = {
    "kivi2_g32": spec("kivi", 2, 32, **EXACT),
    "kivi4_g32": spec("kivi", 4, 32, **EXACT),
    "oscar2_g32_l2_allheads": spec("oscar", 2, 32, norm="l2", **AUTHORS),
    "oscar2_g128_max_allheads": spec("oscar", 2, 128, norm="max", **AUTHORS),
    "calibquant1_paper": spec("calibquant", 1, levels="paper", **EXACT),
    "calibquant1_code": spec("calibquant", 1, levels="code", **EXACT),
    "calibquant2": spec("calibquant", 2, **EXACT),
    "kitty_12.5": spec("kitty", 2, 128, boost=0.125, **EXACT),
    "kitty_25": spec("kitty", 2, 128, boost=0.25, **EXACT),
}


@pytest.mark.parametrize("page_size", [128, 32])
@pytest.mark.parametrize("side", ["key", "value"])
@pytest.mark.parametrize("case", CASES)
def test_same_reconstruction(case, side, page_size):
    vectors = load_file(VECTORS)
    codec = build_codec(CASES[case], side)
    decoded = codec.decode(codec.encode(vectors[side[0]], EncodeContext(page_size)))
    expected = vectors["kitty_12.5.v" if (case, side) == ("kitty_25", "value") else f"{case}.{side[0]}"]
    difference = (decoded - expected).abs()
    # an element on a rounding edge may fall on the other side
    assert int((difference > 1e-4).sum()) <= 4


@pytest.mark.parametrize("side", ["key", "value"])
def test_mean_levels_are_far_closer_than_the_paper_s(side):
    x = load_file(VECTORS)[side[0]]
    error = {}
    for levels in ("paper", "mean"):
        codec = build_codec(spec("calibquant", 1, levels=levels), side)
        error[levels] = float((codec.decode(codec.encode(x, EncodeContext())) - x).pow(2).mean() / x.pow(2).mean())
    assert error["mean"] < 0.45
    assert error["paper"] > 2 * error["mean"]


def test_token_norms_help_and_a_norm_a_head_helps_more():
    """OScaR's scaling after rotation, and the one choice in which the paper and its code differ most."""
    key = load_file(VECTORS)["k"]

    def error(**options):
        codec = build_codec(spec("oscar", 2, 128, **options), "key")
        return float((codec.decode(codec.encode(key, EncodeContext())) - key).pow(2).mean())

    both = error()
    assert both < error(norm="none")
    assert both < error(norm_scope="token")


@pytest.mark.parametrize("group", [32, 128])
@pytest.mark.parametrize("norm", ["l2", "rsqrt", "max", "mean"])
def test_scaling_without_rotation_makes_outliers(norm, group):
    """A token's norm is that of its outlier channels: dividing by it makes the ordinary channels uneven."""
    generator = torch.Generator().manual_seed(0)
    key = torch.randn(1, 2, 512, 64, generator=generator)
    outliers = [3, 17]
    key[..., outliers] = 20 * torch.exp(0.8 * torch.randn(1, 2, 512, 2, generator=generator))
    ordinary = [channel for channel in range(64) if channel not in outliers]

    def error(**options):
        codec = build_codec(spec("oscar", 2, group, **options), "key")
        difference = codec.decode(codec.encode(key, EncodeContext())) - key
        return float(difference[..., ordinary].pow(2).mean()), float(difference.pow(2).mean())

    plain, scaled = error(rotation=False, norm="none"), error(rotation=False, norm=norm)
    rotated, both = error(norm="none"), error(norm=norm)
    assert scaled[0] > 1.5 * plain[0]
    assert both[1] < 0.5 * rotated[1]
