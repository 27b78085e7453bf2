"""Presets of papers whose formats are the hardest to read, on an NVIDIA GPU: pivot tokens of keys rotated over four
heads, and channels of their own with a bit and a norm more; and presets at other head dimensions. Whole calls against
torch, and under a graph."""

import pytest
import torch

from benchmarks.decode_attention import Inputs, Shape, _by_torch, distance, pack, queries
from benchmarks.synthetic import random_vectors
from kvmm import get_policy
from kvmm.kernels.attention.call import AttentionCall
from tests.kernels.test_backend_of_presets import OTHER_DIMS

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
PRESETS = ("paper-rotatekv2", "paper-turboquant2.5")
TOKENS, RESIDUAL = 1280, 45


def inputs_of(name: str, shape: Shape) -> Inputs:
    """Ten pages, or a little less, and residual tokens, as the benchmark of decode attention has them."""
    torch.manual_seed(0)
    size = (shape.batch, shape.heads, shape.tokens + RESIDUAL, shape.dim)
    key, value = (random_vectors(size, "cuda", torch.bfloat16) for _ in range(2))
    query = queries(shape, key, "cuda")
    parts = [pack(get_policy(name), key[:, :, : shape.tokens], value[:, :, : shape.tokens])]
    return Inputs(query, parts, *(x[:, :, shape.tokens :].clone() for x in (key, value)))


def check_backend(inputs: Inputs) -> None:
    """The CUDA kernel reads the pages, no other backend."""
    from kvmm.kernels.attention import gpu
    from kvmm.kernels.attention.backends.cuda import pages as cuda_pages

    call = AttentionCall(inputs.query, inputs.dense_key, inputs.dense_value, None, inputs.query.shape[-1] ** -0.5)
    for segment in inputs._views:
        assert gpu.supports(segment, call)
        assert cuda_pages.reads(gpu._decode_call(call), segment.key.format, segment.value.format, None)


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 7, 8, 12, 16])
@pytest.mark.parametrize("dim", [64, 128])
@pytest.mark.parametrize("name", PRESETS)
def test_calls(name: str, dim: int, rows: int) -> None:
    inputs = inputs_of(name, Shape(2, TOKENS, heads=4, rows=rows, dim=dim))
    check_backend(inputs)
    assert distance(inputs) < 6e-3  # the output is rounded to bf16


@pytest.mark.parametrize("rows", [1, 4, 7, 16])
@pytest.mark.parametrize(("dim", "name"), [(dim, name) for dim, names in OTHER_DIMS.items() for name in names])
def test_other_dims(dim: int, name: str, rows: int) -> None:
    inputs = inputs_of(name, Shape(2, TOKENS, heads=4, rows=rows, dim=dim))
    check_backend(inputs)
    assert distance(inputs) < 6e-3


@pytest.mark.parametrize("heads", [1, 2, 8])
@pytest.mark.parametrize("name", PRESETS)
def test_heads(name: str, heads: int) -> None:
    """Also of a model whose heads are no group of four; the last page is not full."""
    inputs = inputs_of(name, Shape(1, TOKENS - 50, heads=heads))
    check_backend(inputs)
    assert distance(inputs) < 6e-3


@pytest.mark.parametrize("dim", [64, 128])
@pytest.mark.parametrize("name", PRESETS)
def test_graphs(name: str, dim: int) -> None:
    """Replayed with more and with fewer pages in use than were captured."""
    inputs = inputs_of(name, Shape(2, TOKENS, heads=4, dim=dim)).with_room(TOKENS)
    check_backend(inputs)
    pages, residual = inputs.in_use
    inputs.attend()
    pages.fill_(5)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = inputs.attend()
    for used, columns in ((10, RESIDUAL), (4, 3), (1, RESIDUAL), (10, 1)):
        pages.fill_(used)
        residual.fill_(columns)
        out.fill_(float("nan"))
        graph.replay()
        expected = inputs.attend(_by_torch).float()
        assert float((out.float() - expected).norm() / expected.norm()) < 6e-3
