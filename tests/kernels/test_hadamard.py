"""The rotation: orthonormal, its own inverse's inverse, and Sylvester's where the authors use Sylvester's."""

import pytest
import torch
from scipy.linalg import hadamard

from kvmm import KVMMError
from kvmm.kernels.hadamard import hadamard_matrix, rotate, unrotate


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
