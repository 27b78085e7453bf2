"""Packing and affine codes."""

import pytest
import torch

from kvmm.kernels.quantize import (
    BITS,
    affine_codes,
    affine_parameters,
    code_center,
    pack_planes,
    unpack_keys,
    unpack_planes,
    unpack_values,
)


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("tokens", [32, 64, 128])
@pytest.mark.parametrize("dim", [20, 64, 80])
def test_planes_round_trip(bits, tokens, dim):
    codes = torch.randint(0, 2**bits, (2, 3, tokens, dim), dtype=torch.uint8)
    packed = pack_planes(codes, bits, -2)
    assert packed.shape == (2, 3, tokens * bits // 8, dim)
    assert torch.equal(unpack_planes(packed, bits, -2), codes)
    turned = codes.transpose(-1, -2).contiguous()
    packed = pack_planes(turned, bits, -1)
    assert packed.shape == (2, 3, dim, tokens * bits // 8)
    assert torch.equal(unpack_planes(packed, bits, -1), turned)


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("dim", [5, 64])
@pytest.mark.parametrize("grad", [False, True])
def test_unpacking_for_products(bits, dim, grad):
    """Shapes of different sizes take turns in the workspace, in buffers with room behind the pages."""
    for tokens, pages in ((32, 5), (128, 2), (32, 4)):
        codes = torch.randint(0, 2**bits, (2, 3, pages + 1, tokens, dim), dtype=torch.uint8)
        with torch.set_grad_enabled(grad):
            keys = unpack_keys(pack_planes(codes, bits, -2)[:, :, :pages], bits)
            assert torch.equal(keys, codes[:, :, :pages].float())
            turned = codes.transpose(-1, -2).contiguous()
            for center in (0, code_center(bits)):
                values = unpack_values(pack_planes(turned, bits, -1)[:, :, :pages], bits, centered=center > 0)
                in_order = values.permute(0, 1, 4, 2, 3, 5).flatten(4)
                assert torch.equal(in_order, turned[:, :, :pages].float() - center)


@pytest.mark.parametrize("bits", BITS)
def test_what_inference_mode_unpacked_is_unpacked_outside_of_it(bits):
    codes = torch.randint(0, 2**bits, (1, 7, 3, 32, 9), dtype=torch.uint8)
    keys, values = pack_planes(codes, bits, -2), pack_planes(codes.transpose(-1, -2).contiguous(), bits, -1)
    for mode in (torch.inference_mode, torch.no_grad):
        with mode():
            assert torch.equal(unpack_keys(keys, bits), codes.float())
            unpacked = unpack_values(values, bits).permute(0, 1, 4, 2, 3, 5).flatten(4)
            assert torch.equal(unpacked, codes.transpose(-1, -2).float())


def test_plane_layout():
    """Bits 2s and 2s + 1 of row j are the code of token s * rows + j."""
    codes = torch.randint(0, 4, (128, 64), dtype=torch.uint8)
    packed = pack_planes(codes, 2, -2)
    for plane in range(4):
        assert torch.equal((packed >> (2 * plane)) & 3, codes[32 * plane : 32 * plane + 32])


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_error_is_at_most_half_a_step(bits, dtype):
    x = torch.randn(64, 128) * torch.logspace(-2, 2, 64)[:, None] + 50
    scale, zero = affine_parameters(x.amin(1, keepdim=True), x.amax(1, keepdim=True), bits, dtype=dtype)
    decoded = affine_codes(x, scale, zero, bits) * scale.float() + zero.float()
    # a stored parameter that was rounded costs at most its own rounding
    rounding = 2 * torch.finfo(dtype).eps * x.abs().amax(1, keepdim=True)
    assert ((decoded - x).abs() <= 0.5001 * scale.float() + rounding).all()


def test_equal_elements_need_no_scale():
    x = torch.full((1, 32), 3.5)
    for integer_zero in (False, True):
        scale, zero = affine_parameters(x[:, :1], x[:, :1], 2, dtype=torch.float16, integer_zero=integer_zero)
        codes = affine_codes(x, scale, zero, 2)
        assert torch.equal(codes * scale.float() + zero.float(), x)


def test_out_of_range_values_stay_finite():
    x = torch.tensor([[-1e6, 0.0, 1e6]])
    scale, zero = affine_parameters(x[:, :1], x[:, 2:], 2, dtype=torch.float16)
    assert torch.isfinite(affine_codes(x, scale, zero, 2) * scale.float() + zero.float()).all()
