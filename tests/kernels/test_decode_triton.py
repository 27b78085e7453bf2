"""The Triton path of decode attention against the reference, under the interpreter (on a GPU: natively)."""

import os

import pytest
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

from kvmm.cache.codecs import Site, build_codec
from kvmm.cache.pages import PageStore, Part
from kvmm.kernels.decode import driver, reference
from kvmm.policy import CodecSpec, spec
from tests.cache.harness import matrix_specs

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available() and not driver.interpreted(), reason="Triton was imported without its interpreter"
)
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def store(kv: CodecSpec, side: str, x: torch.Tensor, page_size: int, valid: torch.Tensor | None = None) -> PageStore:
    codec = build_codec(kv, side, Site())
    pages = PageStore.for_codec(codec, page_size)
    pages.append(x, valid)
    return pages


def make_parts(
    specs: list[tuple[CodecSpec, CodecSpec]],
    tokens: list[int],
    *,
    batch: int = 1,
    heads: int = 2,
    dim: int = 64,
    page_size: int = 128,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> list[Part]:
    generator = torch.Generator().manual_seed(seed)
    parts = []
    for (key, value), count in zip(specs, tokens, strict=True):
        shape = (batch, heads, count, dim)
        k, v = (torch.randn(shape, generator=generator).to(DEVICE, dtype) for _ in range(2))
        parts.append(Part(store(key, "key", k, page_size), store(value, "value", v, page_size)))
    return parts


def compare(
    parts: list[Part],
    *,
    batch: int = 1,
    heads: int = 2,
    ratio: int = 3,
    dim: int = 64,
    length: int = 1,
    dense: int = 40,
    dtype: torch.dtype = torch.float32,
    holes: float = 0.0,
    seed: int = 1,
) -> float:
    generator = torch.Generator().manual_seed(seed)
    query = torch.randn(batch, heads * ratio, length, dim, generator=generator).to(DEVICE, dtype)
    key, value = (torch.randn(batch, heads, dense, dim, generator=generator).to(DEVICE, dtype) for _ in range(2))
    slots = dense + sum(part.value.packed_slots() if hasattr(part.value, "packed_slots") else 0 for part in parts)
    slots = dense + sum(part.key.decode().shape[2] for part in parts)
    bias = None
    if holes:
        empty = torch.rand(batch, 1, length, slots, generator=generator) < holes
        bias = torch.where(empty, -1e30, 0.0).to(DEVICE)
    expected = reference.attend(query, parts, key, value, bias, dim**-0.5).double()
    found = driver.attend(query, parts, key, value, bias, dim**-0.5).double()
    assert found.isfinite().all()
    return float((found - expected).norm() / expected.norm())


@pytest.mark.parametrize("kv", matrix_specs(), ids=str)
def test_every_codec(kv: CodecSpec) -> None:
    parts = make_parts([(kv, kv)], [300])
    if not driver.supports(parts):
        pytest.skip("read by torch")
    assert compare(parts) < 2e-3
