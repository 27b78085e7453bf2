"""The rotation: orthonormal, its own inverse's inverse, and Sylvester's where the authors use Sylvester's."""

import pytest
import torch
from scipy.linalg import hadamard

from kvmm import KVMMError
from kvmm.kernels.hadamard import hadamard_matrix, rotate, rotate_norm, token_norm, unrotate


@pytest.mark.parametrize("n", [12, 16, 20, 28, 64, 80, 96, 128, 256])
def test_orthonormal(n):
    matrix = hadamard_matrix(n)
    torch.testing.assert_close(matrix @ matrix.T, torch.eye(n), atol=1e-5, rtol=0)
    torch.testing.assert_close(matrix.abs(), torch.full((n, n), n**-0.5))
    x = torch.randn(3, 5, n)
    torch.testing.assert_close(unrotate(rotate(x)), x, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("n", [64, 128])
def test_sylvester(n):
    torch.testing.assert_close(hadamard_matrix(n) * n**0.5, torch.tensor(hadamard(n)).float())


def test_unknown_order():
    with pytest.raises(KVMMError, match="order 6"):
        hadamard_matrix(6)


@pytest.mark.parametrize("norm", ["l2", "max", "mean", "sum"])
def test_norms(norm):
    """Of the rotated vectors, with them or alone; the l2 norm is that of the vectors themselves."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    x = torch.randn(2, 50, 3, 80, device=device).transpose(1, 2).half()
    rotated, found = rotate_norm(x, norm)
    expected = {
        "l2": x.float().norm(dim=-1),
        "max": rotated.abs().amax(-1),
        "mean": rotated.abs().mean(-1),
        "sum": rotated.abs().sum(-1),
    }[norm]
    torch.testing.assert_close(rotated, rotate(x))
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(token_norm(x, norm, rotation=True), expected)
    torch.testing.assert_close(token_norm(x, "max"), x.float().abs().amax(-1))
