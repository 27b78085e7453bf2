"""Heads that are rotated together, read tile by tile in Triton, against float32 pages: under the interpreter, on a GPU
natively; and how many launches a layer of such keys takes."""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch

from kvmm.cache.pages import PageStore
from kvmm.codecs import build_codec
from kvmm.kernels.hadamard import triton as rotation
from kvmm.kernels.quantize import DensePages, joint_kernels, triton_means, triton_statistics
from kvmm.kernels.quantize import triton as kernels
from kvmm.kernels.quantize.joint import JointPages
from kvmm.kernels.quantize.tiles import TilePages
from kvmm.policy import spec
from tests.kernels.test_pages import DEVICE, TIES, close, holes
from tests.kernels.test_pages_of_codecs import Recorder, Silent

ROOT = Path(__file__).parents[2]


def vectors(heads: int, dim: int, tokens: int, dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(dim)
    x = torch.randn(2, tokens, heads, dim, generator=generator) * (0.2 + torch.rand(dim, generator=generator) * 3)
    x += 4 * torch.randn(heads, dim, generator=generator)
    return x.to(DEVICE, dtype).transpose(1, 2)


def random_order(batch: int, groups: int, width: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(width)
    rows = [torch.randperm(width, generator=generator) for _ in range(batch * groups)]
    return torch.stack(rows).view(batch, groups, width).to(DEVICE)


@pytest.mark.parametrize(
    ("heads", "together", "dim", "group", "dtype"),
    [
        (4, 2, 64, 64, torch.bfloat16),
        (4, 4, 32, 128, torch.bfloat16),  # all channels in one group
        (2, 2, 80, 160, torch.float32),  # no power of two
        (4, 2, 32, 32, torch.float16),
        (2, 1, 64, 16, torch.bfloat16),
    ],
)
@pytest.mark.parametrize("kept", [0, 1, 3], ids=["all", "one vector in place of some", "a vector a page"])
def test_against_float32_pages(heads, together, dim, group, dtype, kept):
    """Sums, scales, zero points and codes, with an offset and with tokens that are replaced."""
    x, valid = holes(vectors(heads, dim, 40, dtype), 29)
    generator = torch.Generator().manual_seed(1)
    width = together * dim
    keep = (torch.rand(2, heads, 3, 16, generator=generator) > 0.2).to(DEVICE)
    substitute = torch.randn(2, heads, kept or 3, dim, generator=generator).to(DEVICE)
    order = random_order(2, heads // together, width)
    found = []
    for cut in (DensePages.cut, TilePages):
        pages = cut(x, 16, valid)
        if kept:
            pages = pages.replace(keep, substitute)
        pages = pages.subtract(x.float().mean(2) + 1)
        joined = pages.join_heads(together, width // group)
        assert isinstance(joined, DensePages if cut == DensePages.cut else JointPages)
        codes = joined.sort_channels(order).token_range_codes(
            width // group, 2, torch.float16, bool(kept), integer_zero=bool(kept)
        )
        found.append((*joined.channel_sums(), *codes))
    count, total, squares, codes, scale, zero_point = found[1]
    dense_count, dense_total, dense_squares, dense_codes, dense_scale, dense_zero_point = found[0]
    assert count.flatten().tolist() == dense_count.flatten().tolist() == [40, 29]
    close(total, dense_total, 5e-6)
    close(squares, dense_squares)
    assert float((codes != dense_codes).float().mean()) < 5 * TIES  # of bytes
    close(scale, dense_scale, 1e-3)
    close(zero_point, dense_zero_point, 1e-3)


@pytest.mark.parametrize("transposed", [False, True])
def test_zero_points_of_whole_steps(transposed):
    """Of single heads, in the kernel that makes the codes: what ranges, parameters and codes in turn give."""
    x = vectors(2, 64, 40, torch.bfloat16)
    x[0, 0, 3], x[0, 1, 5, 0], x[1, 0, 7, :2] = 2.0, 1e5, torch.tensor([1e-3, -1e-3])
    found, expected = (
        pages.token_range_codes(2, 2, torch.float16, transposed, integer_zero=True)
        for pages in (TilePages(x, 16), DensePages.cut(x, 16))
    )
    assert float((found[0] != expected[0]).float().mean()) < 5 * TIES
    for a, b in zip(found[1:], expected[1:], strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("order", ["spread", "mean"])
def test_wide_groups_go_through_runs_of_float32_pages(order, monkeypatch):
    """What no program can hold is stored as the reference has it."""
    x = vectors(4, 128, 40, torch.bfloat16)
    kv = spec("rotatekv", 2, None, head_group=4, order=order)
    stored = []
    for cut in (DensePages.cut, TilePages):
        monkeypatch.setattr("kvmm.codecs.rotatekv.cut_pages", cut)
        store = PageStore(build_codec(kv, "key"), 16)
        store.append(x[:, :, :16])
        stored.append(store.packed.tensors)
    assert not JointPages.takes(512, 1)
    for name, expected in stored[0].items():
        close(stored[1][name], expected, 1e-3)


@pytest.mark.parametrize(
    ("kv", "operations", "launched"),
    [
        (spec("rotatekv", 2, 128), 17, ("moments_kernel", "means_kernel", "joint_sums_kernel", "joint_token_kernel")),
        (
            spec("rotatekv", 2, 128, head_group=4, offset="none", order="mean", zero_point="integer"),
            5,
            ("moments_kernel", "means_kernel", "joint_token_kernel"),
        ),
    ],
    ids=["rotatekv2", "as in the paper"],
)
def test_launches_do_not_grow_with_the_tokens(kv, operations, launched, monkeypatch):
    monkeypatch.setattr("kvmm.codecs.rotatekv.cut_pages", TilePages)
    for module in (kernels, triton_statistics, joint_kernels, triton_means, rotation):
        for name in [name for name in vars(module) if name.endswith("_kernel")]:
            monkeypatch.setattr(module, name, Silent(name))
    counts = []
    for tokens in (128, 256, 4096):  # the first makes the matrices
        Silent.launches.clear()
        store = PageStore(build_codec(kv, "key"), 128)
        x = torch.zeros(1, 4, tokens, 128, dtype=torch.bfloat16, device=DEVICE)
        with Recorder() as recorder:
            store.append(x)
        assert Silent.launches - Counter({"_rotate_kernel": 1}) == Counter(launched)
        counts.append(sum(n for name, n in recorder.names.items() if not name.startswith(("empty", "new_empty"))))
    assert counts[1] == counts[2] <= operations, recorder.names


COMPILED = """
import torch
from kvmm.kernels.quantize.tiles import TilePages
from tests.kernels.compiled_launches import recorded, resources
for heads, kept in ((2, False), (4, True)):
    pages = TilePages(torch.empty(1, 4, 1024, 128, dtype=torch.bfloat16), 128)
    if kept:
        pages = pages.replace(torch.ones(1, 4, 8, 128, dtype=torch.bool), torch.zeros(1, 4, 8, 128))
    joined = pages.subtract(torch.zeros(1, 4, 128)).join_heads(heads, heads)
    order = torch.arange(heads * 128).expand(1, 4 // heads, -1)
    with recorded() as launches:
        joined.channel_sums()
        joined.sort_channels(order).token_range_codes(heads, 2, torch.float16, False, integer_zero=kept)
    for name, kernel in launches:
        found = resources(kernel)
        print(name, kernel.metadata.shared, found["stack"], found.get("LDL", 0), found.get("HGMMA", 0))
"""


def test_compiled_for_an_h100():
    """Two programs fit a multiprocessor's shared memory; nothing is spilled, and products are on the tensor cores."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    run = subprocess.run([sys.executable, "-c", COMPILED], env=environment, cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-2000:]
    lines = [line.split() for line in run.stdout.splitlines()]
    assert [line[0] for line in lines] == ["joint_sums_kernel", "joint_token_kernel"] * 2
    for _, shared, stack, local, products in lines:
        assert int(shared) <= 112 * 1024 and int(stack) == int(local) == 0 < int(products)


def test_shares_of_groups():
    """A program holds as many groups of channels as fit 128, and divides what there are."""
    assert [JointPages._share(n, size) for n, size in ((4, 128), (8, 32), (6, 32), (160, 1), (512, 1))] == [
        *(1, 4, 3, 80, 128)
    ]
