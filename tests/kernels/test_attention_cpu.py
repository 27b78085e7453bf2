"""Decode attention in C against the same in float64."""

import copy
import ctypes
import shutil
import subprocess

import pytest
import torch

import kvmm.kernels.attention as decode
from kvmm.cache.pages import PageStore
from kvmm.cache.part import Part
from kvmm.codecs import build_codec
from kvmm.kernels import build
from kvmm.kernels.attention.backends.cpu import kernel as native
from kvmm.kernels.attention.backends.torch import reference
from kvmm.policy import CodecSpec, spec
from tests.cache.harness import matrix_specs
from tests.kernels.calls import attend_with

COMPILER = shutil.which("cc") or shutil.which("gcc")
pytestmark = pytest.mark.skipif(COMPILER is None, reason="no C compiler")

KINDS = {
    "oscar2": spec("oscar", 2, 128),
    "kivi2": spec("kivi", 2, 32),
    "kivi4": spec("kivi", 4, 32),
    "calibquant1": spec("calibquant", 1, None, levels="mean", calibration=(1, 2)),
    "kitty": spec("kitty", 2, 128, boost=0.25),
    "quarot": spec("quarot", 2, 32),
    "rd": spec("rd", 2),
    "bf16": CodecSpec(),
    "rd, outliers": spec("rd", 2, outliers=2),
    "ott": spec("ott", 2, 128),
}


def make_part(kv, tokens, *, batch=1, heads=2, dim=64, page_size=128, dtype=torch.float32, more=0):
    generator = torch.Generator().manual_seed(tokens)
    stores = []
    for side in ("key", "value"):
        stores.append(PageStore.for_codec(build_codec(kv, side), page_size))
        for count in (tokens, more):  # tokens that came later are a group or a span of their own
            if count:
                stores[-1].append(torch.randn(batch, heads, count, dim, generator=generator).to(dtype))
    return Part(*stores)


def inputs(parts, *, batch=1, heads=2, ratio=3, dim=64, length=1, dense=41, dtype=torch.float32, holes=0.0, seed=1):
    generator = torch.Generator().manual_seed(seed)
    query = torch.randn(batch, heads * ratio, length, dim, generator=generator).to(dtype)
    key, value = (torch.randn(batch, heads, dense + 3, dim, generator=generator).to(dtype) for _ in range(2))
    slots = dense + sum(part.key.decode().shape[2] for part in parts)
    bias = None
    if holes:
        bias = torch.where(torch.rand(batch, 1, length, slots, generator=generator) < holes, -1e30, 0.0)
    return query, parts, key[:, :, :dense], value[:, :, :dense], bias, dim**-0.5


def exact(query, parts, dense_key, dense_value, bias, scaling):
    """The attention in float64 over what the stores decode to, ``[B, H_q, q, D]``.

    The reference in float32 is itself several times as far from this as the kernel.
    """
    heads, ratio = dense_key.shape[1], query.shape[1] // dense_key.shape[1]
    grouped = query.double().unflatten(1, (heads, ratio)).flatten(2, 3)  # [B, H, R * q, D]
    bias = None if bias is None else bias.double().repeat(1, 1, ratio, 1)
    scores, start = [], 0
    for part in parts:
        x = grouped @ part.key.decode().double().transpose(2, 3) * scaling
        end = start + x.shape[-1]
        codec, own = part.key.codec, None if bias is None else bias[..., start:end]
        scores.append(codec.calibrate_logits(x, own) if codec.calibrates_logits else x)
        start = end
    scores = torch.cat((*scores, grouped @ dense_key.double().transpose(2, 3) * scaling), -1)
    probabilities = (scores if bias is None else scores + bias).softmax(-1)
    values = torch.cat((*(part.value.decode() for part in parts), dense_value), 2)
    return (probabilities @ values.double()).unflatten(2, (ratio, -1)).flatten(1, 2)


def distance(found, expected):
    return float((found.double() - expected).norm() / expected.norm())


def check(parts, rtol=5e-6, **settings):
    arguments = inputs(parts, **settings)
    expected, found = exact(*arguments), attend_with(native, *arguments)
    if found is None:
        stores = [part.value.codec.packed_format(part.value.packed) for part in parts]
        assert any(
            store is None or not getattr(store, "plain_codes", True) or getattr(store, "groups_per_page", 0) > 1
            for store in stores
        )
        pytest.skip("read by torch")
    query = arguments[0]
    assert found.dtype == query.dtype and found.shape == expected.shape
    assert distance(found, expected) < (rtol if found.dtype == torch.float32 else 5e-3)


@pytest.mark.parametrize("kv", matrix_specs(), ids=str)
def test_every_codec(kv):
    part = make_part(kv, 170)
    check([part])
    arguments = inputs([part])
    assert distance(attend_with(reference, *arguments), exact(*arguments)) < 1e-5


@pytest.mark.parametrize("kv", matrix_specs(), ids=str)
def test_two_sequences_of_small_pages_with_holes(kv):
    check([make_part(kv, 70, batch=2, page_size=32, more=40)], batch=2, length=2, holes=0.3)


@pytest.mark.parametrize("ratio", [1, 2, 7, 16])
@pytest.mark.parametrize("name", KINDS)
def test_heads(name, ratio):
    check([make_part(KINDS[name], 140)], ratio=ratio, holes=0.1)


@pytest.mark.parametrize("dim", [80, 96, 128, 256])
@pytest.mark.parametrize("name", KINDS)
def test_head_dims(name, dim):
    check([make_part(KINDS[name], 140, dim=dim)], dim=dim)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_dtypes_of_the_model(dtype):
    check([make_part(KINDS[name], 140, dtype=dtype) for name in ("bf16", "oscar2", "rd")], dtype=dtype)


def test_long_parts_of_several_codecs():
    check([make_part(KINDS[name], 3000 + 128 * i, more=64) for i, name in enumerate(KINDS)], 1e-5, holes=0.2)


def test_no_parts_and_no_columns():
    check([], holes=0.3)
    check([make_part(KINDS["kivi2"], 100)], dense=0)


def test_heads_shared_among_threads(monkeypatch):
    monkeypatch.setattr(native, "_SHARED_WORK", 0)
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        check([make_part(KINDS["oscar2"], 300, batch=2, heads=4)], batch=2, heads=4)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("name", ["oscar2", "kivi2", "rd", "bf16"])
def test_buffers_with_room(name):
    """What lies behind the lengths on the device counts for nothing."""
    part = make_part(KINDS[name], 512)
    query, _, key, value, _, scaling = inputs([part])
    for store in part.stores:
        store.packed.num_pages = torch.tensor([3], dtype=torch.int32)
    length = torch.tensor([17], dtype=torch.int32)
    arguments = (query, [part], key, value, None, scaling, length)
    torch.testing.assert_close(
        attend_with(native, *arguments), attend_with(reference, *arguments), rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize(
    "flags", [(), ("-march=haswell",), ("-march=native", "-fsanitize=undefined", "-fno-sanitize-recover")]
)
def test_other_processors(monkeypatch, tmp_path, flags):
    """Narrower vectors than this machine may have, and nothing undefined."""
    target = tmp_path / "decode.so"
    for name, text in native.SOURCE.headers().items():
        (tmp_path / name).write_text(text)
    command = [shutil.which("cc") or "gcc", *build.FLAGS, *flags, "-I", str(tmp_path), "-o", str(target)]
    command += [str(native.SOURCE.path), "-lm"]
    if subprocess.run([*command[:1], *flags, "-E", "-x", "c", "/dev/null"], capture_output=True).returncode:
        pytest.skip("the compiler does not take these flags")
    subprocess.run(command, check=True)
    try:
        function = ctypes.CDLL(str(target)).kvmm_attend
    except OSError:
        pytest.skip("the library does not load")
    function.argtypes, function.restype = native.library().argtypes, ctypes.c_int
    monkeypatch.setattr(native, "library", lambda: function)
    for name, kv in KINDS.items():
        check([make_part(kv, 300, dim=80, page_size=64, more=40)], dim=80, ratio=5, holes=0.1)
        if name in ("oscar2", "rd"):
            check([make_part(kv, 300)], ratio=3)


def test_a_copy_reads_its_own_pages():
    part = make_part(KINDS["oscar2"], 200)
    arguments = inputs([part])
    before = attend_with(native, *arguments)
    twin = copy.deepcopy(part)
    for store in part.stores:
        for tensor in store.packed.tensors.values():
            tensor.zero_()
    assert torch.equal(attend_with(native, arguments[0], [twin], *arguments[2:]), before)


def test_what_the_kernel_does_not_take(monkeypatch):
    part = make_part(KINDS["oscar2"], 200)
    query, *rest = inputs([part])
    assert attend_with(native, query.double(), *rest) is None
    assert attend_with(native, query.clone().requires_grad_(), *rest) is None
    assert attend_with(native, *inputs([part], length=20)) is None
    monkeypatch.setattr(native, "library", lambda: None)
    assert attend_with(native, query, *rest) is None
    assert torch.equal(decode.attend(query, *rest), attend_with(reference, query, *rest))
