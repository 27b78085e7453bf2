"""What tests leave out of Triton's interpreter changes no result."""

import os

import pytest
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

import triton
import triton.language as tl
from triton.runtime import interpreter

from kvmm.kernels.attention.backends.triton.pages import interpreted

pytestmark = pytest.mark.skipif(not interpreted(), reason="Triton was imported without its interpreter")


@triton.jit
def _row_sum(X, i, N: tl.constexpr):
    return tl.sum(tl.load(X + i * N + tl.arange(0, N)), 0)


@triton.jit
def _sums(X, Y, N: tl.constexpr):
    for i in tl.static_range(N):
        tl.store(Y + i, _row_sum(X, i, N))


def test_a_kernel_patches_the_language_once_and_restores_it(monkeypatch):
    """For the names that a kernel sees and for those that Triton's own functions see; not for every call of one."""
    patched = []
    once = interpreter._patch_lang
    monkeypatch.setattr(once, "_patch", lambda fn, patch=once._patch: patched.append(fn) or patch(fn))
    names = [(module, name, getattr(module, name)) for module in (tl, tl.core) for name in ("load", "reduce", "range")]
    x, y = torch.arange(64).reshape(8, 8), torch.zeros(8, dtype=torch.int64)
    for launches in (1, 2):
        y.zero_()
        _sums[1,](x, y, N=8)
        assert y.equal(x.sum(1)) and len(patched) == 2 * launches
        assert all(getattr(module, name) is before for module, name, before in names)
