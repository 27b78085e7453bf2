"""Tokens that stay exact have 16 bits once the prompt is packed, whatever dtype the model computes in."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from kvmm import KVMMCache, KVMMError, get_policy, policies
from kvmm.cache import file as cache_file
from kvmm.kernels.attention.backends.cpu import kernel as native
from kvmm.kernels.attention.backends.torch import reference
from kvmm.kernels.exact import exact_dtype, to_exact
from kvmm.modality import IMAGE, PADDING, TEXT
from kvmm.policy import KVPolicy, spec
from tests.cache.harness import Harness, layout, uniform, with_scores_as_decoded
from tests.kernels.calls import attend_with
from tests.tiny_models import build, generate, inputs

FIELDS = {"residual_length": 16, "flush_length": 32, "num_sink_tokens": 2}
EXACT = ("values", "outlier")  # tensors of pages that hold tokens as they are


def fed(policy, batch=2, **fields):
    """A harness after a prompt and forty tokens more."""
    h = Harness(with_scores_as_decoded(get_policy(policy, **{**FIELDS, **fields})))
    rows = [
        layout((TEXT, 60), (IMAGE, 150), (TEXT, 60)),
        layout((PADDING, 30), (TEXT, 30), (IMAGE, 120), (TEXT, 90)),
    ]
    h.feed(rows[:batch])
    for _ in range(40):
        h.feed([[TEXT]] * batch)
    return h


def exact_tensors(layer):
    """Everything of a layer that holds tokens as they are."""
    pages = [t for p in layer.parts.values() for s in p.stores for n, t in s.buffers.items() if n.endswith(EXACT)]
    return [layer.dense_key, layer.dense_value, *pages]


@pytest.mark.parametrize(
    ("name", "model", "kept"),
    [
        *(("auto", torch.float32, torch.bfloat16), ("auto", torch.float16, torch.float16)),
        *(("auto", torch.bfloat16, torch.bfloat16), ("auto", torch.float64, torch.bfloat16)),
        *(("model", torch.float32, torch.float32), ("float16", torch.bfloat16, torch.float16)),
    ],
)
def test_which_dtype(name, model, kept):
    assert exact_dtype(name, model) == kept


def test_float16_has_no_infinity():
    x = torch.tensor([1e6, -1e6, 0.1])
    assert to_exact(x, torch.float16).tolist() == [65504.0, -65504.0, float(torch.tensor(0.1).half())]
    assert to_exact(x, None) is x


@pytest.mark.parametrize("policy", policies())
def test_exact_tokens_have_16_bits(policy):
    """Their bits are those of the exact ones, rounded once; the codes are those of the model's own numbers."""
    h, plain = fed(policy), fed(policy, exact_dtype="model")
    assert all(x.dtype == torch.bfloat16 for x in exact_tensors(h.layer))
    assert all(x.dtype == torch.float32 for x in exact_tensors(plain.layer))
    positions = h.cache.table.dense
    for found, given in ((h.layer.dense_key, h.keys), (h.layer.dense_value, h.values)):
        expected = given.gather(2, positions.clamp_min(0).long()[:, None, :, None].expand(-1, 2, -1, 64))
        real = (positions >= 0)[:, None, :, None].expand_as(expected)
        assert torch.equal(found[:, :, : h.layer.num_dense][real], expected.to(torch.bfloat16)[real])
    if (one := h.layer.parts.get(IMAGE)) is not None:  # packed from the prompt
        for store, other in zip(one.stores, plain.layer.parts[IMAGE].stores, strict=True):
            for name, tensor in store.packed.tensors.items():
                exact = other.packed.tensors[name]
                assert torch.equal(tensor, exact.to(torch.bfloat16) if name in EXACT else exact), name
    for count in (1, 3):
        h.feed([[TEXT] * count] * 2)
        assert h.compare(count, "full") < 1e-4
    dense = h.layer.dense()
    assert all(x.dtype == torch.float32 for x in dense)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_budget_s_stores(dtype):
    h = fed("bf16", batch=1, budget=10**9, exact_dtype=dtype)
    assert {x.dtype for x in exact_tensors(h.layer)} == {getattr(torch, dtype)}
    assert h.compare(1) < 1e-4


def test_operations_keep_the_dtype():
    h = fed("bf16")
    fork = h.cache.fork()
    h.cache.crop(-20)
    h.cache.batch_repeat_interleave(2)
    h.cache.reorder_cache(torch.tensor([3, 1, 2, 0]))
    for cache in (h.cache, fork):
        assert all(x.dtype == torch.bfloat16 for x in exact_tensors(cache.layers[0]))
        assert cache.layers[0].keys.dtype == torch.float32
    h.cache.reset()
    h.keys = h.values = h.valid = None
    key = h.feed([[TEXT] * 40])[0]
    assert key.dtype == torch.float32 and torch.equal(key, h.keys)  # a prompt is read as the model made it


@pytest.mark.parametrize("dtype", ["auto", "float16"])
def test_with_room(dtype):
    """Preallocated buffers have the dtype too, and are written a token at a time."""
    model = build("llama")
    caches = [KVMMCache.for_model(model, "kivi2", exact_dtype=dtype, **room) for room in ({}, {"max_length": 200})]
    tokens = [generate(model, inputs("llama", 2), past_key_values=c, max_new_tokens=20) for c in caches]
    for cache in caches:
        assert {x.dtype for x in exact_tensors(cache.layers[0])} == {exact_dtype(dtype, torch.float32)}
    assert torch.equal(*tokens)


@pytest.mark.parametrize("kept", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("asked", [torch.bfloat16, torch.float16, torch.float32])
def test_kernels_read_columns_of_another_dtype(asked, kept):
    """Outputs have the query's dtype; the C kernel agrees with the reference."""
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(2, 6, 1, 64, generator=generator).to(asked)
    key, value = (torch.randn(2, 2, 37, 64, generator=generator).to(kept) for _ in range(2))
    expected = attend_with(reference, query, [], key, value, None, 0.125)
    exact = torch.nn.functional.scaled_dot_product_attention(
        query.float(), *(x.float().repeat_interleave(3, 1) for x in (key, value)), scale=0.125
    )
    assert expected.dtype == asked
    tolerance = 4 * torch.finfo(asked).eps
    torch.testing.assert_close(expected.float(), exact, atol=tolerance, rtol=tolerance)
    if native.available():
        found = attend_with(native, query, [], key, value, None, 0.125)
        assert found.dtype == asked
        torch.testing.assert_close(found, expected, atol=tolerance, rtol=tolerance)


def test_files(tmp_path):
    """A cache comes back with its dtypes and answers with the same tokens."""
    model, arguments = build("qwen2_vl"), inputs("qwen2_vl", 1)
    cache = KVMMCache.for_model(model, "ott2", **FIELDS)
    ids = generate(model, arguments, past_key_values=cache, max_new_tokens=10)
    cache.save(tmp_path / "cache")
    loaded = KVMMCache.load(tmp_path / "cache", model)
    more = {"input_ids": torch.cat((ids, torch.full((1, 3), 7)), 1)}
    assert {x.dtype for x in exact_tensors(loaded.layers[0])} == {torch.bfloat16}
    assert loaded.layers[0].keys.dtype == torch.float32
    answers = [generate(model, more, past_key_values=c, max_new_tokens=10) for c in (cache, loaded)]
    assert torch.equal(*answers)


def test_files_from_before(tmp_path):
    """Files without the setting hold exact tokens in the model's dtype, and go on that way."""
    model, arguments = build("qwen2_vl"), inputs("qwen2_vl", 1)
    cache = KVMMCache.for_model(model, "bf16", exact_dtype="model", **FIELDS)
    ids = generate(model, arguments, past_key_values=cache, max_new_tokens=10)
    path = tmp_path / "cache"
    cache.save(path)
    with safe_open(path, "pt") as file:
        header, tensors = file.metadata(), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    state = json.loads(header["state"])
    del state["policy"]["exact_dtype"]
    for layer in state["layers"]:
        del layer["dtype"]
    header["state"] = json.dumps(state)
    save_file(tensors, path, header | {"checksum": cache_file._checksum(header["state"], tensors)})
    loaded = KVMMCache.load(path, model)
    assert loaded.policy.exact_dtype == "model"
    assert {x.dtype for x in exact_tensors(loaded.layers[0])} == {torch.float32}
    more = {"input_ids": torch.cat((ids, torch.full((1, 3), 7)), 1)}
    answers = [generate(model, more, past_key_values=c, max_new_tokens=10) for c in (cache, loaded)]
    assert torch.equal(*answers)


def test_the_setting(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("base: kivi2\nexact_dtype: float16\n")
    policy = get_policy(file)
    assert policy.exact_dtype == "float16" and KVPolicy.from_dict(policy.to_dict()) == policy
    assert get_policy(policy, exact_dtype="model").exact_dtype == "model"
    assert KVMMCache.for_model(build("llama"), file).policy.exact_dtype == "float16"
    for wrong in ("float32", 16):
        with pytest.raises(KVMMError, match="exact_dtype must be one of auto, bfloat16, float16, model"):
            get_policy("kivi2", exact_dtype=wrong)
    file.write_text("exact_dtype: int8\n")
    with pytest.raises(KVMMError, match=r"mine\.yaml: exact_dtype must be one of"):
        get_policy(file)
    assert uniform(spec("bf16")).exact_dtype == "auto"
