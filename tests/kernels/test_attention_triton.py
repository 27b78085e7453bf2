"""The Triton path of decode attention against the reference, under the interpreter (on a GPU: natively)."""

import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

from kvmm.cache.pages import PageStore
from kvmm.cache.part import Part
from kvmm.calibration.file import _read
from kvmm.codecs import Codec, Site, build_codec
from kvmm.codecs.base import Packed
from kvmm.kernels.attention import gpu
from kvmm.kernels.attention.backends.torch import reference
from kvmm.kernels.attention.backends.triton import call as triton_call
from kvmm.kernels.attention.backends.triton import pages as triton_pages
from kvmm.kernels.attention.backends.triton import reduce as triton_reduce
from kvmm.kernels.attention.call import AttentionCall, PackedReader
from kvmm.modality import IMAGE
from kvmm.policy import CodecSpec, spec
from tests.cache.harness import matrix_specs
from tests.kernels.calls import attend_with

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available() and not triton_pages.interpreted(),
    reason="Triton was imported without its interpreter",
)
ROOT = Path(__file__).parents[2]
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def store(
    kv: CodecSpec,
    side: str,
    x: torch.Tensor,
    page_size: int,
    site: Site | None = None,
    keys: torch.Tensor | None = None,
) -> PageStore:
    codec = build_codec(kv, side, site or Site())
    pages = PageStore.for_codec(codec, page_size)
    pages.append(x, keys=keys)
    return pages


def likely(z: torch.Tensor, codec: Codec) -> torch.Tensor:
    """Vectors with the distribution that a calibrated codec expects, from normal ones ``[B, H, T, D]``."""
    transform = codec.transform(z.shape[-1], z.device)
    return (z * transform.deviation[None, :, None] + transform.offset[None, :, None]) @ transform.inverse.transpose(
        1, 2
    )


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
    more: int = 0,
    site: Site | None = None,
) -> list[Part]:
    generator = torch.Generator().manual_seed(seed)
    parts = []
    for (key, value), count in zip(specs, tokens, strict=True):
        shape = (batch, heads, count, dim)
        k, v = (torch.randn(shape, generator=generator) for _ in range(2))
        if site is not None:  # as calibration saw them
            k, v = (likely(x, build_codec(kv, side, site)) for x, kv, side in ((k, key, "key"), (v, value, "value")))
        k, v = k.to(DEVICE, dtype), v.to(DEVICE, dtype)
        part = Part(store(key, "key", k, page_size, site), store(value, "value", v, page_size, site, k))
        if more:  # tokens that came later, a group or a span of their own
            keys = None
            for pages in part.stores:
                x = torch.randn(batch, heads, more, dim, generator=generator)
                x = (x if site is None else likely(x, pages.codec)).to(DEVICE, dtype)
                pages.append(x, keys=keys)
                keys = x
        parts.append(part)
    return parts


def compare(
    parts: list[Part],
    *,
    batch: int = 1,
    heads: int = 2,
    ratio: int = 3,
    dim: int = 64,
    length: int = 1,
    residual: int = 40,
    dtype: torch.dtype = torch.float32,
    kept: torch.dtype | None = None,
    holes: float = 0.0,
    seed: int = 1,
) -> float:
    generator = torch.Generator().manual_seed(seed)
    query = torch.randn(batch, heads * ratio, length, dim, generator=generator).to(DEVICE, dtype)
    columns = torch.randn(2, batch, heads, residual, dim, generator=generator)
    key, value = columns.to(DEVICE, kept or dtype)
    slots = residual + sum(part.key.decode().shape[2] for part in parts)
    bias = None
    if holes:
        empty = torch.rand(batch, 1, length, slots, generator=generator) < holes
        bias = torch.where(empty, -1e30, 0.0).to(DEVICE)
    expected = attend_with(reference, query, parts, key, value, bias, dim**-0.5).double()
    found = attend_with(gpu, query, parts, key, value, bias, dim**-0.5)
    assert found.dtype == dtype
    found = found.double()
    assert found.isfinite().all()
    return float((found - expected).norm() / expected.norm())


@pytest.mark.parametrize("name", ["bf16", "kivi"])
@pytest.mark.parametrize(("dtype", "kept"), [(torch.float32, torch.bfloat16), (torch.float32, torch.float16)])
def test_exact_tokens_of_16_bits_for_queries_of_32(name, dtype, kept):
    """Neither the queries nor the probabilities are rounded to what the tokens are stored in."""
    parts = make_parts([(spec(name, 16, None),) * 2 if name == "bf16" else (spec(name, 4, 32),) * 2], [170], dtype=kept)
    assert compare(parts, dtype=dtype, kept=kept) < (1e-5 if name == "bf16" else 2e-3)
    if DEVICE.type == "cuda":  # the interpreter knows no bf16
        assert compare(parts, dtype=torch.bfloat16, kept=torch.float16) < 5e-3


@pytest.mark.parametrize("dim", [16, 80])
@pytest.mark.parametrize("name", ["oscar", "kivi"])
def test_several_parts_of_vectors_that_are_padded(name, dim):
    """What is joined so far lies as the output does, not as sums padded to 32 columns."""
    parts = make_parts([(spec(name, 2, 32),) * 2] * 3, [70, 33, 40], dim=dim, page_size=32)
    assert compare(parts, dim=dim) < 2e-3


def small_call(batch: int = 1, length: int = 1) -> AttentionCall:
    """A call of the sizes of :func:`compare`."""
    query, residual = (torch.zeros(batch, heads, length, 64, device=DEVICE) for heads in (6, 2))
    return AttentionCall(query, residual, residual, None, 0.125)


@pytest.mark.parametrize("kv", matrix_specs(), ids=str)
def test_every_codec(kv: CodecSpec) -> None:
    parts = make_parts([(kv, kv)], [170])
    if not all(gpu.supports(part, small_call()) for part in parts):
        pytest.skip("read by torch")
    assert compare(parts) < 2e-3


@pytest.mark.parametrize("kv", {(kv.codec, kv.bits): kv for kv in matrix_specs()}.values(), ids=str)
def test_many_rows_and_holes(kv: CodecSpec) -> None:
    """A second turn or a draft: more rows than int8 takes, small pages, two sequences, slots without tokens."""
    parts = make_parts([(kv, kv)], [40], batch=2, heads=1, page_size=32, more=20)
    if not all(gpu.supports(part, small_call(batch=2, length=6)) for part in parts):
        pytest.skip("read by torch")
    assert compare(parts, batch=2, heads=1, length=6, holes=0.3) < 3e-3


KEPT = {"rd": spec("rd", 2, outliers=4), "ott": spec("ott", 2, 128, pool=6, window=128)}


@pytest.mark.parametrize("length", [1, 9])
@pytest.mark.parametrize("name", KEPT)
def test_tokens_kept_in_full_precision(name: str, length: int) -> None:
    """Left out of the pages that Triton reads, for few rows and for many, and read besides."""
    parts = make_parts([(KEPT[name],) * 2], [300], batch=2, heads=1, more=150)
    formats = [reader.format for part in parts for reader in (part.key, part.value)]
    assert all(each.kept.shape[2] >= 8 for each in formats)
    assert all(gpu.supports(part, small_call(batch=2, length=length)) for part in parts)
    assert compare(parts, batch=2, heads=1, length=length, holes=0.2) < 3e-3
    for each in formats:  # not as the codes have them
        each.kept.mul_(3)
    assert compare(parts, batch=2, heads=1, length=length) < 3e-3


KINDS = {
    "oscar2": spec("oscar", 2, 128),
    "calibquant1": spec("calibquant", 1, None, levels="mean"),
    "kitty": spec("kitty", 2, 128, boost=0.25),
    "rd": spec("rd", 2),
    "kivi2": spec("kivi", 2, 32),
    "bf16": CodecSpec(),
}


@pytest.mark.parametrize("ratio", [1, 7, 16])
@pytest.mark.parametrize("name", KINDS)
def test_heads(name: str, ratio: int) -> None:
    kv = KINDS[name]
    assert compare(make_parts([(kv, kv)], [140]), ratio=ratio) < 2e-3


@pytest.mark.parametrize("dim", [80, 96, 128, 256])
@pytest.mark.parametrize("name", KINDS)
def test_head_dims(name: str, dim: int) -> None:
    kv = KINDS[name]
    assert compare(make_parts([(kv, kv)], [140], dim=dim), dim=dim) < 2e-3


@pytest.mark.parametrize("name", KINDS)
def test_groups_that_came_later(name: str) -> None:
    kv = KINDS[name]
    assert compare(make_parts([(kv, kv)], [256], more=160, batch=2), batch=2, holes=0.2) < 2e-3


def test_several_parts_and_mixed_codecs() -> None:
    specs = [
        (KINDS["oscar2"], KINDS["kivi2"]),
        (spec("kivi", 4, 32), KINDS["calibquant1"]),
        (KINDS["rd"], KINDS["bf16"]),
        (KINDS["bf16"], KINDS["oscar2"]),
        (spec("spherical", 0.875), KINDS["oscar2"]),
    ]
    for page_size in (128, 64):
        assert compare(make_parts(specs, [130, 300, 64, 200, 100], page_size=page_size), holes=0.1) < 2e-3


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_model_dtypes(dtype: torch.dtype) -> None:
    specs = [(KINDS["rd"], KINDS["rd"]), (KINDS["bf16"], KINDS["bf16"])]
    assert compare(make_parts(specs, [200, 130], dtype=dtype), dtype=dtype) < 1e-2


@pytest.mark.parametrize(
    ("ratio", "dim", "residual"), [(1, 64, 17), (4, 128, 132), (7, 80, 40), (16, 256, 70), (8, 96, 0)]
)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", ["oscar2", "calibquant1", "kitty", "rd"])
def test_residual_tokens(name: str, dtype: torch.dtype, ratio: int, dim: int, residual: int) -> None:
    """Columns in the dtype of models, which the kernel of the first part may read as well."""
    if DEVICE.type == "cpu" and (name != "rd" or dim > 80):
        pytest.skip("slow without a GPU")
    kv = KINDS[name]
    parts = make_parts([(kv, kv)], [140], dim=dim, dtype=dtype, batch=2)
    error = compare(parts, ratio=ratio, dim=dim, dtype=dtype, residual=residual, batch=2, holes=0.2)
    assert error < (2e-3 if dtype == torch.float16 else 6e-3)  # the output is rounded to it


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("name", KINDS)
def test_many_sequences(name: str, wide: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of many sequences are joined together, whatever the size of what they are joined from."""
    monkeypatch.setattr(triton_call, "FEW_ROWS", 0)
    if wide:
        monkeypatch.setattr(triton_reduce, "_extent", lambda x: 2**31)
    kv = KINDS[name]
    assert compare(make_parts([(kv, kv)], [140], batch=3, more=0 if wide else 20), batch=3, ratio=7, holes=0.1) < 2e-3


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", ["oscar2", "calibquant1", "kitty", "rd"])
def test_replays(name: str) -> None:
    """A whole call in a graph, time after time bit for bit the same, and with other lengths what it is without one."""
    kv = KINDS[name]
    part = make_parts([(kv, kv)], [128 * 40], batch=3, heads=4, dim=128, dtype=torch.bfloat16)[0]
    part = SimpleNamespace(key=roomy(part.key, 5), value=roomy(part.value, 5))
    used = part.key.packed.num_pages
    part.value.packed = replace(part.value.packed, num_pages=used)
    query = torch.randn(3, 16, 1, 128, device=DEVICE, dtype=torch.bfloat16)
    key, value = torch.randn(2, 3, 4, 140, 128, device=DEVICE, dtype=torch.bfloat16)
    length = torch.tensor([132], dtype=torch.int32, device=DEVICE)

    def call() -> torch.Tensor:
        return attend_with(gpu, query, [part], key, value, None, 128**-0.5, length)

    call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = call()
    for pages, columns in ((40, 132), (7, 1), (1, 140), (40, 0)):
        used.fill_(pages)
        length.fill_(columns)
        expected = call()
        for _ in range(50):
            output.fill_(float("nan"))
            graph.replay()
            assert torch.equal(output, expected)


def test_calibrated_logits() -> None:
    kv = spec("calibquant", 1, None, levels="paper", calibration=(0, 3))
    for length in (1, 6):
        assert compare(make_parts([(kv, kv)], [300]), length=length, holes=0.2) < 3e-3


@pytest.mark.parametrize("layer", range(8))
def test_calibrated_transforms(layer: int) -> None:
    """Channels of 0 to 8 bits, layers without any, levels from the calibration file for short spans."""
    calibration = _read(ROOT / "assets/tiny-omni/kvmm_calibration.safetensors", 0)
    for bits, tokens, more in ((1, 200, 0), (2, 200, 60), (3, 100, 0)):
        kv = spec("rd", bits)
        parts = make_parts([(kv, kv)], [tokens], more=more, site=Site(layer, IMAGE, calibration, kv))
        assert compare(parts) < 2e-3
    assert compare(parts, length=8) < 3e-3


def roomy(pages: PageStore, room: int) -> PackedReader:
    """A store whose buffers are longer than what it holds."""
    packed = pages.packed
    count = pages.codec.packed_format(packed).pages
    tensors = {}
    for name, tensor in packed.tensors.items():
        missing = room * (tensor.shape[2] // count if tensor.shape[2] >= count else 1)
        garbage = tensor[:, :, :1].expand(-1, -1, missing, *tensor.shape[3:])
        garbage = torch.full_like(garbage, float("nan")) if garbage.is_floating_point() else garbage
        tensors[name] = torch.cat((tensor, garbage), 2).contiguous()
        if tensor.shape[2] < count:
            tensors[name] = tensor  # one row a group of the span, which no page that comes needs
    group = packed.page_group
    group = None if group is None else torch.cat((group, group.new_zeros(room)))
    held = torch.tensor([count], dtype=torch.int32, device=DEVICE)
    return PackedReader(pages.codec, Packed(tensors, packed.page_size, group, held))


@pytest.mark.parametrize("name", KINDS)
def test_lengths_on_the_device(name: str) -> None:
    """Buffers with room behind what they hold, poisoned, give what exact ones do."""
    kv = KINDS[name]
    exact = make_parts([(kv, kv)], [384])
    parts = [SimpleNamespace(key=roomy(part.key, 5), value=roomy(part.value, 5)) for part in exact]
    query = torch.randn(1, 6, 1, 64, device=DEVICE)
    key, value = torch.randn(2, 1, 2, 100, 64, device=DEVICE)
    expected = attend_with(gpu, query, exact, key[:, :, :30], value[:, :, :30], None, 0.125)
    length = torch.tensor([30], dtype=torch.int32, device=DEVICE)
    key[:, :, 30:] = value[:, :, 30:] = float("nan")
    found = attend_with(gpu, query, parts, key, value, None, 0.125, length)
    torch.testing.assert_close(found, expected, rtol=0, atol=2e-4)  # a low digit of the query may round differently


def test_no_parts() -> None:
    assert compare([]) < 1e-5
