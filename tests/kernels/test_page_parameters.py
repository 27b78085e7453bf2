"""What kernels make of statistics of pages: scales, zero points and means. Under the interpreter, on a GPU natively."""

import pytest
import torch

from kvmm.kernels.quantize import triton_means
from kvmm.kernels.quantize.reference import affine_parameters
from kvmm.kernels.quantize.triton_parameters import launch
from tests.kernels.test_pages import DEVICE, both, close, same_parameters, vectors


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("bits", [1, 2, 8, "of each"])
def test_parameters_of_ranges_in_memory(bits, dtype):
    """In one launch, last bit for last bit; also of empty ranges, of none and of more than fp16 holds."""
    generator = torch.Generator().manual_seed(3)
    low = torch.randn(2, 3, 5, 50, generator=generator).to(DEVICE) * 4
    high = low + torch.rand(2, 3, 5, 50, generator=generator).to(DEVICE) * 9
    high[0] = low[0]
    low[1, 1, 0, 0] = high[1, 1, 0, 0] - 1e-6
    widths = torch.full_like(low, 2).scatter_(-1, torch.arange(7, device=DEVICE).expand(2, 3, 5, 7), 4)
    for integer_zero in (False, True):
        wide = widths if bits == "of each" else bits
        found = launch(low, high, wide, dtype, integer_zero)
        expected = affine_parameters(low, high, wide, dtype=dtype, integer_zero=integer_zero)
        for a, b in zip(found, expected, strict=True):
            same_parameters(a, b)
    low[1, 0, 0], high[1, 0, 0] = -1e5, 1e6
    for a, b in zip(launch(low, high, 2, dtype), affine_parameters(low, high, 2, dtype=dtype), strict=True):
        same_parameters(a, b)
    assert launch(low[:0], high[:0], 2, dtype)[0].shape == (0, 3, 5, 50)


def test_means_of_pages(monkeypatch):
    """Of the slots that are kept, and of all of them where a page keeps none."""
    monkeypatch.setattr(triton_means, "_UNITS", 2)
    dense, tiled = both(vectors(150, 80, torch.bfloat16), 32)
    keep = torch.rand(2, 2, 5, 32, generator=torch.Generator().manual_seed(4)) > 0.3
    keep[0, 1, 2], keep[1, 0, 4] = False, False
    expected = dense.page_means(keep.to(DEVICE))
    close(tiled.page_means(keep.to(DEVICE)), expected, 1e-5)
    kept = dense.values[0, 1][keep[0, 1].to(DEVICE)]
    close(expected[0, 1, 2], kept.mean(0), 1e-5)
