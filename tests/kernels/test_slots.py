"""Slots of codes: C against the reference in torch."""

from __future__ import annotations

import ctypes
import shutil
import subprocess

import pytest
import torch

from kvmm.kernels import build
from kvmm.kernels.slots import NativeSlots, Rows, SlotFormat, SlotSide, native, reference

COMPILER = shutil.which("cc") or shutil.which("gcc")
pytestmark = pytest.mark.skipif(COMPILER is None, reason="no C compiler")
HEADS = 2


def make_side(dim: int, widths: list[int], norm: bool, seed: int) -> SlotSide:
    """A random rotation, and levels that suit what it makes of unit normal vectors."""
    generator = torch.Generator().manual_seed(seed)
    rotation = torch.linalg.qr(torch.randn(HEADS, dim, dim, generator=generator))[0]
    bits = torch.tensor(widths)
    spread = dim**-0.5 if norm else 1.0
    steps = (4 * spread / 2**bits) * (0.8 + 0.4 * torch.rand(HEADS, len(widths), generator=generator))
    zero_point = torch.zeros(HEADS, dim)
    zero_point[:, : len(widths)] = -steps * (2**bits - 1) / 2
    offset = spread * 3 * torch.randn(HEADS, dim, generator=generator)
    return SlotSide(rotation, offset, zero_point, steps, bits, rotation.mT.contiguous(), norm)


def make_format(
    dim: int, widths: list[int], norms: tuple[bool, bool] = (False, True), block_size: int = 32, dtype=None
):
    sides = [
        make_side(dim, list(w), norm, seed)
        for seed, (w, norm) in enumerate(zip((widths, widths[::-1]), norms, strict=True))
    ]
    return SlotFormat(*sides, block_size, dtype or torch.float32)


def tokens(form: SlotFormat, count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values about the means of the sides, every fifth token about zero."""
    generator = torch.Generator().manual_seed(seed)
    found = []
    for side in (form.key, form.value):
        channels = side.offset + side.steps.mean() * torch.randn(count, HEADS, side.dim, generator=generator)
        channels[3::5] -= side.offset
        x = torch.einsum("thc,hdc->thd", channels, side.inverse)
        found.append((x * 4 if side.norm else x).to(form.dtype))
    return found[0], found[1]


MIXED = [8, 6, 6, 4, 4, 4, 2, 2, 2, 2, 1, 1, 1, 1, 1]
CASES = {
    "mixed": (64, MIXED),
    "one bit": (64, [1] * 64),
    "two bits": (64, [2] * 64),
    "eight bits": (64, [8] * 64),
    "three bits of 128": (128, [3] * 120),
    "mixed of 128": (128, [*MIXED, *[2] * 70]),
    "an odd size": (80, [4] * 33),
}


def agree(form: SlotFormat, queries: int, pasts: list[int], new: int = 1) -> None:
    """Write sequences with both, check the bytes, and attend with both."""
    slots = NativeSlots(form)
    blocks = -(-max(pasts) // form.block_size) + 1
    table = torch.randperm(blocks * len(pasts), generator=torch.Generator().manual_seed(1)).view(len(pasts), -1)
    cache = torch.full((2 * table.numel(), HEADS, form.block_size, form.nbytes), 7, dtype=torch.uint8)[::2]
    expected = cache.clone()
    for number, past in enumerate(pasts):
        key, value = tokens(form, past + 1, number)
        places = torch.arange(past + 1)
        where = table[number][places // form.block_size] * form.block_size + places % form.block_size
        where[-1] = -1
        slots.write(cache, where, key, value)
        reference.write(form, expected, where, key, value)
    # sums of floats in another order: now and then another code
    assert (cache != expected).float().mean() < 2e-3
    cache.copy_(expected)
    count = new * len(pasts)
    key, value = tokens(form, count, 99)
    query = torch.randn(count, queries * HEADS, form.key.dim, generator=torch.Generator().manual_seed(5)).to(form.dtype)
    starts = list(range(0, count + 1, new))
    rows = Rows.of(starts, [past + new for past in pasts])
    assert rows is not None and slots.takes(cache, query, key, value)
    scaling = 0.5 * form.key.dim**-0.5
    found = slots.attend(query, key, value, cache, table, rows, scaling)
    for number, past in enumerate(pasts):
        part = slice(starts[number], starts[number + 1])
        wanted = reference.attend(form, query[part], key[part], value[part], cache, table[number], past, scaling)
        torch.testing.assert_close(found[part], wanted, rtol=1e-3, atol=1e-3 * float(wanted.abs().mean()))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("norms", [(False, False), (True, False), (False, True), (True, True)])
def test_c_agrees(case, norms):
    agree(make_format(*CASES[case], norms), 3, [0, 1, 31, 32, 33, 100])


@pytest.mark.parametrize("queries", [1, 2, 4, 5, 9])
def test_queries_a_head(queries):
    agree(make_format(64, MIXED), queries, [70, 3])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("block_size", [2, 16, 128])
def test_blocks_and_dtypes(block_size, dtype):
    agree(make_format(64, MIXED, block_size=block_size, dtype=dtype), 3, [300, 5], new=3)


def test_some_tokens_are_coded_about_zero():
    form = make_format(64, MIXED, norms=(False, False))
    key, _ = tokens(form, 50, 0)
    flag = int(form.key.widths.sum())
    set_ = reference.encode(form.key, key)[..., flag // 8] >> flag % 8 & 1
    assert float(set_[3::5].float().mean()) > float(set_[::5].float().mean())


def test_threads_take_parts(monkeypatch):
    monkeypatch.setattr(native, "_SHARED_WORK", 1)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    agree(make_format(64, MIXED), 3, [40, 7, 90])


def test_a_slot_that_the_cache_does_not_have():
    form = make_format(64, MIXED)
    slots, (key, value) = NativeSlots(form), tokens(form, 1, 0)
    cache = torch.zeros(2, HEADS, form.block_size, form.nbytes, dtype=torch.uint8)
    with pytest.raises(IndexError):
        slots.write(cache, torch.tensor([2 * form.block_size]), key, value)
    for block in (2, -1):
        with pytest.raises(IndexError):
            slots.attend(key, key, value, cache, torch.tensor([[block]]), Rows.of([0, 1], [5]), 1.0)
    assert not cache.any()


def test_what_c_does_not_take():
    form = make_format(64, MIXED)
    slots, (key, value) = NativeSlots(form), tokens(form, 1, 0)
    cache = torch.zeros(2, HEADS, form.block_size, form.nbytes, dtype=torch.uint8)
    assert slots.takes(cache, key, value)
    assert not slots.takes(cache, key.half(), value)
    assert not slots.takes(cache[..., :-1], key, value)
    assert Rows.of([0, 9, 9], [9, 4]) is None  # a prompt, and a sequence without new tokens


@pytest.mark.parametrize(
    "flags", [(), ("-march=haswell",), ("-march=native", "-fsanitize=undefined", "-fno-sanitize-recover")]
)
def test_other_processors(monkeypatch, tmp_path, flags):
    target = tmp_path / "slots.so"
    for name, text in native.SOURCE.headers().items():
        (tmp_path / name).write_text(text)
    command = [shutil.which("cc") or "gcc", *build.FLAGS, *flags, "-I", str(tmp_path), "-o", str(target)]
    if subprocess.run([*command[:1], *flags, "-E", "-x", "c", "/dev/null"], capture_output=True).returncode:
        pytest.skip("the compiler does not take these flags")
    subprocess.run([*command, str(native.SOURCE.path), "-lm"], check=True, capture_output=True)
    try:
        found = native.functions(ctypes.CDLL(str(target)))
    except OSError:
        pytest.skip("the library does not load")
    monkeypatch.setattr(native, "library", lambda: found)
    for norms in ((False, True), (True, False)):
        agree(make_format(*CASES["mixed"], norms), 5, [0, 1, 33, 100], new=2)
