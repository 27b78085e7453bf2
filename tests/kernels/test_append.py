"""Writing a token's keys and values at a column that the device knows: Triton against torch."""

from __future__ import annotations

import pytest
import torch

from kvmm.kernels.append import append_tokens, reference

triton_kernel = pytest.importorskip("kvmm.kernels.append.triton")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("key_dim", "value_dim"), [(64, 64), (80, 80), (128, 96)])
@pytest.mark.parametrize("view", [False, True])
def test_one_column(dtype, key_dim, value_dim, view):
    """Also of keys that are views, as models make them: ``[B, 1, H, D]`` transposed, or a slice of wider ones."""
    batch, heads, columns = 2, 3, 40
    buffers = [torch.randn(batch, heads, columns, dim).to(DEVICE, dtype) for dim in (key_dim, value_dim)]
    new = [torch.randn(batch, heads, 1, dim).to(DEVICE, dtype) for dim in (key_dim, value_dim)]
    if view:
        key = torch.randn(batch, 1, heads, key_dim).to(DEVICE, dtype).transpose(1, 2)
        wide = torch.randn(batch, heads, 1, 2 * value_dim).to(DEVICE, dtype)
        new = [key, wide[..., ::2]]
    expected = [b.clone() for b in buffers]
    for column in (0, 17, 39):
        position = torch.tensor([column], device=DEVICE)
        reference.append_tokens(*expected, *new, position)
        triton_kernel.append_tokens(*buffers, *new, position)
    for mine, theirs in zip(buffers, expected, strict=True):
        assert torch.equal(mine, theirs)
    assert torch.equal(expected[0][:, :, 17:18], new[0])


@pytest.mark.parametrize(("given", "kept"), [(torch.float32, torch.float16), (torch.bfloat16, torch.float16)])
def test_buffers_in_another_dtype(given, kept):
    """Rounded to nearest; beyond float16's range its largest number, not infinity."""
    new = [torch.randn(2, 3, 1, 64).to(DEVICE, given) for _ in range(2)]
    new[0][0, 0, 0, :2] = torch.tensor([1e5, -3e7])
    mine = [torch.zeros(2, 3, 4, 64, dtype=kept, device=DEVICE) for _ in range(2)]
    expected = [b.clone() for b in mine]
    position = torch.tensor([1], device=DEVICE)
    triton_kernel.append_tokens(*mine, *new, position)
    reference.append_tokens(*expected, *new, position)
    assert all(map(torch.equal, mine, expected))
    assert expected[0][0, 0, 1, :2].tolist() == [65504.0, -65504.0]
    assert torch.equal(expected[1][:, :, 1:2], new[1].to(kept))


def test_chooses_by_device():
    buffers = [torch.zeros(1, 2, 5, 16, device=DEVICE) for _ in range(2)]
    append_tokens(
        *buffers, *(torch.ones(1, 2, 1, 16, device=DEVICE) for _ in range(2)), torch.tensor([3], device=DEVICE)
    )
    assert all(torch.equal(b.sum((0, 1, 3)).cpu(), torch.tensor([0.0, 0, 0, 32, 0])) for b in buffers)


def test_more_rows():
    """Tensors of all kinds in one launch: bytes and numbers, views of longer ones, none in use, a number behind."""
    growing = pytest.importorskip("kvmm.kernels.append.grow")
    generator = torch.Generator().manual_seed(0)
    codes = torch.randint(0, 256, (2, 3, 9, 8, 20), dtype=torch.uint8, generator=generator).to(DEVICE)
    wide = torch.randn(2, 3, 40, 64, generator=generator).to(DEVICE, torch.bfloat16)
    tensors = [
        (codes[:, :, :7], 300, 0),
        (torch.randn(2, 3, 7, 1, 5, generator=generator).to(DEVICE, torch.float16), 11, 0),
        (torch.arange(18, dtype=torch.int32, device=DEVICE).view(2, 3, 3), 4, 5119),
        (torch.arange(18, dtype=torch.int16, device=DEVICE).view(2, 3, 1, 3)[:, :, :0], 1, 0),
        (wide[:, :, 3:20], 33, 0),
        (wide.transpose(2, 3), 64, 0),
        (torch.arange(5, dtype=torch.int32, device=DEVICE)[None, None], 8, 0),
        (codes[:, :, :0], 2, 0),
        (wide[..., :0], 50, 0),
    ]
    for found, expected in zip(growing.with_rows(tensors), reference.with_rows(tensors), strict=True):
        assert torch.equal(found, expected) and found.dtype == expected.dtype and found.is_contiguous()
    assert expected.shape == (2, 3, 50, 0)
    assert growing.with_rows([]) == []
