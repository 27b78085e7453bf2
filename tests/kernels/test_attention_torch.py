"""The folded products against plain dequantisation."""

import pytest
import torch

from kvmm.codecs import build_codec
from kvmm.codecs.base import EncodeContext
from kvmm.kernels.attention import (
    attend,
    scores_per_channel,
    scores_per_token,
    weighted_values_per_channel,
    weighted_values_per_token,
)
from kvmm.policy import spec

B, H, P, N, D = 2, 3, 5, 32, 64


def grouped(groups):
    """Group parameters, their page map, and the same parameters a token: [B, H, P * N, D]."""
    scale, zero = torch.rand(B, H, groups, D) + 0.1, torch.randn(B, H, groups, D)
    if groups == 1:
        return scale, zero, None, scale.expand(-1, -1, P * N, -1), zero.expand(-1, -1, P * N, -1)
    if groups < P:  # groups of whole pages
        pages = torch.arange(P, dtype=torch.int32) // -(-P // groups)
        spread = [x.index_select(2, pages).repeat_interleave(N, 2) for x in (scale, zero)]
        return scale, zero, pages, *spread
    spread = [x.repeat_interleave(P * N // groups, 2) for x in (scale, zero)]
    return scale, zero, None, *spread


@pytest.mark.parametrize("groups", [1, 2, P, 2 * P])
@pytest.mark.parametrize("rows", [1, 7, 100])
def test_per_channel(groups, rows):
    codes = torch.randint(0, 4, (B, H, P, N, D)).float()
    scale, zero, pages, all_scale, all_zero = grouped(groups)
    dense = codes.flatten(2, 3) * all_scale + all_zero
    query = torch.randn(B, H, rows, D)
    expected = query @ dense.transpose(-1, -2)
    torch.testing.assert_close(scores_per_channel(query, codes, scale, zero, pages), expected, atol=1e-3, rtol=1e-4)
    probabilities = torch.randn(B, H, rows, P * N).softmax(-1)
    mixed = weighted_values_per_channel(probabilities, codes.permute(0, 1, 4, 2, 3).unsqueeze(3), scale, zero, pages)
    torch.testing.assert_close(mixed, probabilities @ dense, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("rows", [1, 7])
def test_per_token(groups, rows):
    codes = torch.randint(0, 4, (B, H, P, N, D)).float()
    scale, zero = torch.rand(B, H, P, groups, N) + 0.1, torch.randn(B, H, P, groups, N)
    spread = [x.transpose(-1, -2).repeat_interleave(D // groups, -1) for x in (scale, zero)]
    dense = (codes * spread[0] + spread[1]).flatten(2, 3)
    query = torch.randn(B, H, rows, D)
    expected = query @ dense.transpose(-1, -2)
    torch.testing.assert_close(scores_per_token(query, codes, scale, zero), expected, atol=1e-3, rtol=1e-4)
    probabilities = torch.randn(B, H, rows, P * N).softmax(-1)
    mixed = weighted_values_per_token(probabilities, codes.permute(0, 1, 4, 2, 3).unsqueeze(3), scale, zero)
    torch.testing.assert_close(mixed, probabilities @ dense, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("kind", ["kivi", "calibquant"])  # scales per token, and per channel
def test_values_that_cancel(kind, bits):
    """Their mean is a hundredth of a zero point: sums of codes and of zero points would be rounded far above it."""
    codec = build_codec(spec(kind, bits, None), "value")
    values = torch.randn(1, 2, 4096, D, generator=torch.Generator().manual_seed(0))
    packed = codec.encode(values, EncodeContext())
    probabilities = torch.full((1, 2, 3, 4096), 1 / 4096)
    expected = probabilities.double() @ codec.decode(packed).double()
    found = codec.weighted_values(probabilities, packed).double()
    assert float((found - expected).norm() / expected.norm()) < 1e-6


@pytest.mark.parametrize("ratio", [1, 7])
def test_dense_columns_alone(ratio):
    query = torch.randn(B, H * ratio, 3, D)
    key, value = torch.randn(B, H, 40, D), torch.randn(B, H, 40, D)
    visible = torch.rand(B, 1, 3, 40) > 0.3
    output = attend(query, [], key, value, torch.where(visible, 0.0, -1e30), D**-0.5)
    expected = torch.nn.functional.scaled_dot_product_attention(
        query, key.repeat_interleave(ratio, 1), value.repeat_interleave(ratio, 1), attn_mask=visible
    )
    torch.testing.assert_close(output, expected, atol=1e-5, rtol=1e-4)
