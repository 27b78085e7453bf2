"""Spherical KV's Algorithm 1: recursive angles, what they cost, and the product with a query by the recursion."""

import math

import pytest
import torch

from kvmm import KVMMError
from kvmm.codecs import EncodeContext, build_codec, check_spec
from kvmm.codecs.tiers import lower_tiers
from kvmm.kernels.angle.recursive import (
    angles_of,
    density_levels,
    quantize_angles,
    scores_recursive,
    uniform_levels,
    vectors_of,
)
from kvmm.policy import KVSpec, spec

CONTEXT = EncodeContext(page_size=128)


def encode(x, bits, **options):
    codec = build_codec(spec("spherical-angles", bits, **options), "key")
    return codec, codec.encode(x, CONTEXT)


def relative_error(x, bits, **options):
    codec, packed = encode(x, bits, **options)
    centred = x - x.mean(2, keepdim=True)
    return float((codec.decode(packed) - x).square().sum() / centred.square().sum())


@pytest.mark.parametrize("dim", [2, 3, 64])
def test_angles_and_length_are_the_vector(dim):
    x = torch.randn(50, dim, dtype=torch.float64)
    angles = angles_of(x)
    assert angles.shape == (50, dim - 1)
    assert float(angles[:, :-1].min() if dim > 2 else 0) >= 0 and float(angles.max()) <= math.pi
    radius = x.norm(dim=-1)
    torch.testing.assert_close(vectors_of(angles.cos(), angles.sin(), radius), x)
    query = torch.randn(4, dim, dtype=torch.float64)
    torch.testing.assert_close(
        scores_recursive(
            query, reversed(list(zip(angles.cos().unbind(-1), angles.sin().unbind(-1), strict=True))), radius
        ),
        query @ x.T,
    )


def test_the_angles_of_three_channels_by_hand():
    x = torch.tensor([[0.0, 0.0, 2.0], [1.0, 0.0, 0.0], [0.0, -1.0, 0.0]])
    expected = torch.tensor([[math.pi / 2, math.pi / 2], [0.0, 0.0], [math.pi / 2, math.pi]])
    torch.testing.assert_close(angles_of(x), expected)


@pytest.mark.parametrize("bits", [1, 3, 8])
def test_codes_are_the_nearest_levels(bits):
    angles = angles_of(torch.randn(40, 8))
    for levels in (density_levels(8, bits), uniform_levels(8, bits)):
        assert bool((levels.diff(dim=-1) > 0).all())
        codes = quantize_angles(angles, levels).long()
        nearest = (angles.unsqueeze(-1) - levels).abs().argmin(-1)
        assert torch.equal(codes, nearest)


@pytest.mark.parametrize(("bits", "dim"), [(2, 64), (3, 128), (8, 64)])
def test_one_length_and_an_angle_less_than_channels(bits, dim):
    _, packed = encode(torch.randn(1, 2, 256, dim), bits)
    keys = 2 * 256
    assert packed["codes"].nbytes * 8 / keys == (dim - 1) * bits
    assert packed["radius"].nbytes / keys == 1


def test_errors_are_those_of_a_good_scalar_code():
    """Lloyd and Max on a normal variable leave 0.363, 0.118 and 0.034; angles for equal cells are far behind."""
    x = torch.randn(1, 2, 512, 64, generator=torch.Generator().manual_seed(0))
    found = [relative_error(x, bits) for bits in (1, 2, 3)]
    assert found[0] < 0.5 and found[1] < 0.14 and found[2] < 0.04
    assert relative_error(x, 2, levels="uniform") > 5 * found[1]
    assert relative_error(x, 2, group=16) < 0.16


def test_the_recursion_reads_what_rebuilding_reads():
    """Ablation A1 on the recursive codes."""
    x = 3 * torch.randn(2, 2, 200, 64) + 20 * torch.randn(2, 2, 1, 64)
    query = torch.randn(2, 2, 6, 64)
    for options in ({}, {"group": 16}, {"gain": 1.2}):
        codec, packed = encode(x, 3, **options)
        rebuilt = build_codec(spec("spherical-angles", 3, reconstruct=True, **options), "key")
        expected = rebuilt.scores(query, packed)
        assert float((codec.scores(query, packed) - expected).abs().max()) < 1e-4 * float(expected.abs().max())


def test_a_gain_is_for_queries_and_not_for_the_next_tier():
    x = torch.randn(1, 2, 128, 64)
    plain, packed = encode(x, 4)
    louder, same = encode(x, 4, gain=1.5)
    assert all(torch.equal(packed[name], same[name]) for name in packed.tensors)
    mean = x.mean(2, keepdim=True).half().float()
    torch.testing.assert_close(louder.decode(same) - mean, 1.5 * (plain.decode(packed) - mean), atol=1e-4, rtol=1e-4)
    heads = torch.arange(2)
    torch.testing.assert_close(louder.page_source(same, heads), plain.decode(packed))


def test_tiers_of_a_policy():
    codec = build_codec(spec("spherical-angles", 4), "key")
    assert [tier.spec.bits for tier in lower_tiers(codec, None)] == [3, 2, 1]
    mixed = lower_tiers(
        codec, [KVSpec(spec("spherical", 0.75), spec("bf16")), KVSpec(spec("kivi", 2, 32), spec("bf16"))]
    )
    assert [tier.name for tier in mixed] == ["spherical", "kivi"]
    exact = build_codec(spec("bf16"), "key")
    below = lower_tiers(
        exact, [KVSpec(spec("spherical-angles", 4), spec("bf16")), KVSpec(spec("spherical", 0.75), spec("bf16"))]
    )
    assert [tier.name for tier in below] == ["spherical-angles", "spherical"]
    for bad, message in (
        (KVSpec(spec("oscar", 2, 32), spec("bf16")), "need one transform"),
        (KVSpec(spec("bf16"), spec("bf16")), "cannot come below"),
        (KVSpec(spec("spherical", 2), spec("bf16")), "takes deviation from the first tier that has a span"),
        (KVSpec(spec("rotatekv", 2, 128), spec("bf16")), "not read one by one"),
    ):
        with pytest.raises(KVMMError, match=message):
            lower_tiers(codec, [bad])


@pytest.mark.parametrize(
    ("options", "message"),
    [({"group": 1}, "from 2 to"), ({"gain": 0}, "above 0"), ({"levels": "best"}, "levels must be")],
)
def test_wrong_options(options, message):
    with pytest.raises(KVMMError, match=message):
        check_spec(spec("spherical-angles", 4, **options))
