"""Steps and their reciprocals are exact: torch and kernels code alike what lies halfway between two levels."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from kvmm.kernels.quantize import affine_parameters
from kvmm.kernels.quantize.triton import nearest_codes
from kvmm.kernels.slots.write_kernels import _codes as slot_codes

ROOT = Path(__file__).parents[2]
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@triton.jit
def _codes_kernel(x, scale, zero_point, out, N: tl.constexpr):
    at = tl.arange(0, N)
    codes = nearest_codes(tl.load(x + at), tl.load(scale + at), tl.load(zero_point + at), 3.0)
    tl.store(out + at, codes)


@triton.jit
def _slots_kernel(x, scale, zero_point, out, N: tl.constexpr):
    at = tl.arange(0, N)
    both = at[:, None] * N + at[None, :]
    codes, _ = slot_codes(tl.load(x + both), tl.load(zero_point + at), tl.load(scale + at), 3.0 + 0.0 * at)
    tl.store(out + both, codes)


def assembly(name: str) -> str:
    """PTX of a kernel for Hopper, in a process whose Triton was imported without its interpreter."""
    signature = {"x": "*fp32", "scale": "*fp32", "zero_point": "*fp32", "out": "*fp32", "N": "constexpr"}
    source = ASTSource(globals()[name], signature, constexprs={"N": 32})
    return triton.compile(source, target=GPUTarget("cuda", 90, 32)).asm["ptx"]


@pytest.mark.parametrize("name", ["_codes_kernel", "_slots_kernel"])
def test_kernels_divide_exactly(name):
    code = f"from tests.kernels.test_exact_division import assembly; print(assembly({name!r}))"
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "div.rn.f32" in done.stdout
    assert not any(name in done.stdout for name in ("div.full", "div.approx", "rcp.approx"))


@pytest.mark.parametrize("bits", [2, 4])
def test_scales_are_divided_exactly(bits):
    low, high = torch.zeros(4096, device=DEVICE), torch.rand(4096, device=DEVICE) + 0.1
    for given in (bits, torch.full((1,), bits, device=DEVICE)):
        scale, _ = affine_parameters(low, high, given, dtype=torch.float32)
        assert torch.equal(scale, (high.double() / (2**bits - 1)).float())
