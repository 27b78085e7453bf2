"""Where the smallest numbers are: Triton, under the interpreter or on a GPU, against torch."""

import pytest
import torch

from kvmm.kernels.smallest import reference

kernel = pytest.importorskip("kvmm.kernels.smallest.triton")
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.mark.parametrize("held", [1 << 15, 512], ids=["kept", "read again"])
@pytest.mark.parametrize(("tokens", "count"), [(1300, 20), (5000, 3), (40, 40), (700, 0)])
def test_against_torch(tokens, count, held, monkeypatch):
    """Also rows of any length, zeros, infinities, and slots that hold nothing."""
    monkeypatch.setattr(kernel, "_HELD", held)
    x = torch.randn(2, 3, tokens, generator=torch.Generator().manual_seed(tokens)).abs().to(DEVICE) * 100
    x[0, 0, 5], x[0, 1, 7], x[1, 2, 9] = 0.0, float("inf"), 1e-30
    valid = torch.ones(2, tokens, dtype=torch.bool, device=DEVICE)
    valid[1, : tokens // 2] = False
    for mask in (None, valid):
        found, expected = kernel.smallest_slots(x, count, mask), reference.smallest_slots(x, count, mask)
        assert found.dtype == expected.dtype
        assert found.shape == expected.shape == (2, 3, count)
        if count < tokens // 2:  # else slots that hold nothing are taken, any of them
            assert torch.equal(found, expected)
        else:
            assert torch.equal(found, torch.arange(tokens, device=DEVICE).expand(2, 3, -1))


def test_equal_numbers():
    """As many as are asked for, the first of those that tie."""
    x = torch.tensor([3.0, 1.0, 2.0, 2.0, 2.0, 0.0, 2.0, 9.0], device=DEVICE).repeat(5)[None, None]
    found = kernel.smallest_slots(x, 13).flatten().tolist()
    ones_and_zeros = [i for i in range(40) if i % 8 in (1, 5)]
    twos = [i for i in range(40) if i % 8 in (2, 3, 4, 6)][:3]
    assert found == sorted(ones_and_zeros + twos)
    assert kernel.smallest_slots(torch.zeros(1, 1, 9, device=DEVICE), 4).flatten().tolist() == [0, 1, 2, 3]
