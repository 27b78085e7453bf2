"""Attention of a prompt: the C library beside torch, what it takes, and that models use it."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from kvmm import KVMMCache
from kvmm.attention import _says
from kvmm.kernels import build
from kvmm.kernels.prompt_attention import native, prompt_attention, reference

ROOT = Path(__file__).parents[2]
compiled = pytest.mark.skipif(
    not native.dtypes(),
    reason="a C compiler, and a processor with AVX2 and no AVX512, or with dot products of bfloat16 and no matrix unit",
)
TAKEN = native.dtypes() or (torch.bfloat16,)  # one for the names of skipped tests
# sequences, heads, KV heads, queries, tokens, channels, causal
SHAPES = (
    (1, 4, 4, 391, 391, 64, False),
    (2, 9, 3, 300, 300, 64, True),
    (1, 2, 1, 64, 500, 128, True),
    (1, 2, 2, 77, 130, 80, False),
    (1, 2, 2, 512, 512, 96, True),
    (3, 3, 1, 65, 65, 32, True),
    (1, 2, 2, 64, 1, 64, False),
    (1, 2, 1, 255, 257, 64, True),
)


def inputs(batch, heads, kv_heads, queries, tokens, dim, size=1.0, dtype=torch.bfloat16):
    """Queries as models have them, heads behind tokens, and keys and values of a cache."""
    generator = torch.Generator().manual_seed(dim + queries)
    query = torch.randn(batch, queries, heads, dim, generator=generator).transpose(1, 2) * size
    key, value = (torch.randn(batch, kv_heads, tokens, dim, generator=generator) for _ in range(2))
    return tuple(x.to(dtype) for x in (query, key, value))


def exact(query, key, value, scaling, causal):
    """In float64."""
    key, value = (x.double().repeat_interleave(query.shape[1] // x.shape[1], 1) for x in (key, value))
    scores = query.double() @ key.transpose(-1, -2) * scaling
    if causal:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool).tril(key.shape[2] - query.shape[2])
        scores = scores.masked_fill(~seen, -torch.inf)
    return (scores.softmax(-1) @ value).transpose(1, 2)


def distance(x, y):
    return float((x.double() - y).norm() / y.norm())


@pytest.mark.parametrize("shape", SHAPES)
def test_the_reference_is_attention(shape):
    *sizes, causal = shape
    tensors = inputs(*sizes)
    assert distance(reference.prompt_attention(*tensors, 0.1, causal), exact(*tensors, 0.1, causal)) < 4e-3


@compiled
@pytest.mark.parametrize("dtype", TAKEN)
@pytest.mark.parametrize("threads", (1, 3))
@pytest.mark.parametrize("shape", SHAPES)
def test_the_library_is_as_near_as_torch(shape, threads, dtype):
    *sizes, causal = shape
    tensors = inputs(*sizes, dtype=dtype)
    expected, before = exact(*tensors, 0.1, causal), torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        assert native.takes(*tensors, causal)
        found = prompt_attention(*tensors, 0.1, causal)
    finally:
        torch.set_num_threads(before)
    assert found.is_contiguous() and found.dtype == dtype
    assert distance(found, expected) <= 1.2 * distance(reference.prompt_attention(*tensors, 0.1, causal), expected)


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="flags of an x86 compiler")
def test_float32_also_where_the_processor_has_wider_vectors(monkeypatch):
    """The library as a processor with AVX2 and no more would have it."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None or torch.backends.cpu.get_cpu_capability() not in ("AVX2", "AVX512"):
        pytest.skip("no C compiler, or no AVX2")
    found = native.functions(build.load(native.SOURCE, compiler, ("-mavx2", "-mfma")))
    monkeypatch.setattr(native, "library", lambda: found)
    assert native.dtypes() == (torch.float32,)
    for *sizes, causal in SHAPES:
        tensors = inputs(*sizes, dtype=torch.float32)
        assert distance(native.prompt_attention(*tensors, 0.1, causal), exact(*tensors, 0.1, causal)) < 1e-6


@compiled
@pytest.mark.parametrize("dtype", TAKEN)
def test_one_key_that_outweighs_all_others(dtype):
    tensors = inputs(1, 2, 1, 200, 200, 64, size=300.0, dtype=dtype)
    found, expected = prompt_attention(*tensors, 1.0, True), exact(*tensors, 1.0, True)
    assert found.isfinite().all() and distance(found, expected) < 1e-2


@compiled
@pytest.mark.parametrize("dtype", TAKEN)
def test_what_it_leaves_to_torch(dtype):
    query, key, value = inputs(1, 4, 2, 128, 128, 64, dtype=dtype)
    assert native.takes(query, key, value, True)
    wide = torch.zeros(1, 4, 128, 48, dtype=dtype)
    others = {torch.bfloat16, torch.float16, torch.float32} - set(native.dtypes())
    for other in (
        *((query.to(one), key.to(one), value.to(one), True) for one in others),
        (query, key.half(), value, True),
        (query[:, :, :8], key, value, True),
        (query, key[:, :, :100], value[:, :, :100], True),  # the first queries would see nothing
        (query, key[:, :, :0], value[:, :, :0], False),
        (query[:, :3], key, value, True),
        (query, key.transpose(2, 3).contiguous().transpose(2, 3), value, True),
        (wide, wide, wide, True),
        (query, key, value[..., :32], True),
    ):
        assert not native.takes(*other)
    with torch.enable_grad():
        assert not native.takes(query.clone().requires_grad_(), key, value, True)
    with torch.autocast("cpu", torch.bfloat16):
        assert not native.takes(query, key, value, True)


@pytest.fixture(params=TAKEN)
def model(request):
    sizes = {"num_hidden_layers": 2, "hidden_size": 128, "intermediate_size": 64, "vocab_size": 64, "head_dim": 32}
    torch.manual_seed(0)
    config = Qwen3Config(**sizes, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=1024)
    return Qwen3ForCausalLM(config).to(request.param).eval()


@compiled
@torch.no_grad()
def test_a_models_prompt_goes_through_it(model, monkeypatch):
    """Whole, and in pieces, whose mask is that of a prompt that goes on; not with padding in front."""
    ids, calls = torch.randint(64, (1, 260), generator=torch.Generator().manual_seed(1)), []
    expected = model(ids).logits.float()  # no cache of kvmm has been made for this call, or it is exact anyway
    kernel = native.prompt_attention
    monkeypatch.setattr(native, "prompt_attention", lambda *a: calls.append(a[0].shape[2]) or kernel(*a))

    cache = KVMMCache.for_model(model, "bf16")
    whole = model(ids, past_key_values=cache).logits.float()
    assert calls == [260, 260] and (whole - expected).abs().max() < 0.05 * expected.abs().max()
    calls.clear()
    cache, parts = KVMMCache.for_model(model, "bf16"), []
    for piece in ids.split(130, 1):
        parts.append(model(piece, past_key_values=cache).logits.float())
    assert calls == [130] * 4 and (torch.cat(parts, 1) - expected).abs().max() < 0.05 * expected.abs().max()
    calls.clear()
    mask = torch.ones_like(ids)
    mask[:, :3] = 0
    model(ids, attention_mask=mask, past_key_values=KVMMCache.for_model(model, "bf16"))
    assert calls == []


def test_which_masks_are_causal():
    query, key = torch.zeros(1, 2, 64, 32), torch.zeros(1, 2, 100, 32)
    mask = torch.ones(1, 1, 64, 100, dtype=torch.bool).tril(36)
    assert _says(mask, query, key, True) and _says(mask, query, key, True)
    mask[0, 0, 0, 99] = True  # a token behind, as of an image that is read in both directions
    assert not _says(mask, query, key, True)
    assert not _says(None, query, key, True) and _says(None, query, key, False) and _says(None, query, query, True)
    assert not _says(mask.float(), query, key, True) and not _says(mask[..., :90], query, key, True)


WITH_SANITIZERS = """
from kvmm.kernels.prompt_attention import native, prompt_attention
from tests.kernels.test_prompt_attention import SHAPES, inputs
assert native.dtypes()
for dtype in native.dtypes():
    for *sizes, causal in SHAPES:
        assert prompt_attention(*inputs(*sizes, dtype=dtype), 0.1, causal).isfinite().all()
"""


@compiled
def test_it_stays_inside_of_its_tensors():
    try:
        environment = os.environ | build.sanitized_environment() | {"OMP_NUM_THREADS": "1"}
    except OSError as error:
        pytest.skip(str(error))
    probe = "from kvmm.kernels.prompt_attention import native; assert native.dtypes()"
    run = {"env": environment, "cwd": ROOT, "capture_output": True, "text": True, "timeout": 300}
    if subprocess.run([sys.executable, "-c", probe], **run).returncode:
        pytest.skip("the sanitizers do not work here")
    done = subprocess.run([sys.executable, "-c", WITH_SANITIZERS], **run)
    assert done.returncode == 0, done.stderr[-2000:]
