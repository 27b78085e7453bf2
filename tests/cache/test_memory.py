"""``memory()`` shows the bytes of the tensors that exist."""

from __future__ import annotations

import json

import pytest
import torch

from kvmm import KVMMCache, policies
from kvmm.cache.memory import storages as memory_storages
from kvmm.calibration import Calibration
from kvmm.codecs import Codec
from kvmm.modality import AUDIO, IMAGE, PADDING, TEXT
from kvmm.policy import get_policy, spec
from tests.cache.harness import Harness, layout, uniform
from tests.tiny_models import build, generate, inputs


def storages(root: object) -> dict[int, int]:
    """Bytes of every tensor storage reachable from an object.

    Codecs and calibrations are left out: what they hold follows from the model and the policy, not from the tokens.
    """
    found: dict[int, int] = {}
    seen: set[int] = set()
    todo = [root]
    while todo:
        x = todo.pop()
        if id(x) in seen or isinstance(x, (str, int, float, type, torch.dtype, torch.device, Codec, Calibration)):
            continue
        seen.add(id(x))
        if isinstance(x, torch.Tensor):
            found[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        elif isinstance(x, dict):
            todo += x.values()
        elif isinstance(x, (list, tuple, set)):
            todo += x
        elif hasattr(x, "__dict__") and type(x).__module__.startswith(("kvmm", "transformers.cache_utils")):
            todo += vars(x).values()
    return found


@pytest.mark.parametrize(
    ("family", "policy"),
    [("gemma3", "bf16"), ("gemma3", "balanced"), *(("qwen2_5_omni", policy) for policy in policies())],
)
def test_bytes_equal_the_tensors_found(family, policy):
    model = build(family)
    cache = KVMMCache.for_model(model, policy, residual_length=8, flush_length=32)
    generate(model, inputs(family, 2), past_key_values=cache)
    report = cache.memory()
    # gemma3's sliding layers keep a one-element tensor with their window's length, which is no cache
    windows = sum(getattr(layer, "_sliding_window_tensor", torch.empty(0)).nbytes for layer in cache.layers)
    assert report.nbytes == sum(storages(cache).values()) - windows
    assert report.nbytes == sum(report.by_component.values())
    assert report.nbytes - report.reserved_nbytes == report.held_nbytes == report.to_dict()["held_nbytes"]
    assert report.held_nbytes == sum(m["nbytes"] for m in report.by_modality.values())
    assert report.nbytes == sum(x["nbytes"] for x in report.by_layer) + cache.table.nbytes()
    reserved = sum(x["reserved_nbytes"] for x in report.by_layer) + cache.table.slack_nbytes()
    assert report.reserved_nbytes == report.by_component["reserved"] == reserved > 0
    assert report.ratio == report.nbytes_dense / report.held_nbytes
    assert report.bits_per_value == pytest.approx(16 / report.ratio)
    assert report.nbytes_dense == sum(m["nbytes_dense"] for m in report.by_modality.values())
    assert report.nbytes_dense == sum(x["nbytes_dense"] for x in report.by_layer)
    json.dumps(report.to_dict())


def test_before_packing_and_empty():
    h = Harness(get_policy("kivi2"))
    assert h.cache.memory().nbytes == 0
    h.feed([layout((TEXT, 4), (IMAGE, 60), (AUDIO, 10))])
    report = h.cache.memory()
    assert not h.cache.is_packed
    assert report.by_component["residual"] == 74 * 2 * 2 * 64 * 4
    assert report.nbytes_dense == 74 * 2 * 2 * 64 * 2  # counted as bf16, though the tensors are float32
    assert {name: m["tokens"] for name, m in report.by_modality.items()} == {"text": 4, "image": 60, "audio": 10}
    h.cache.pack()
    assert h.cache.memory().nbytes < report.nbytes / 2


WIDE = {"heads": 8, "ratio": 1, "dim": 128}  # so that the token table's bytes are as small a part as in a model


@pytest.mark.parametrize("model", [torch.float32, torch.bfloat16])
def test_full_precision_has_16_bits_at_any_length(model):
    """Whatever is in pages, whatever slack there is, and also where some slots hold no token."""
    h = Harness(get_policy("bf16"), **WIDE)
    rows = [[TEXT] * 3, [TEXT] * 20, layout((TEXT, 5), (IMAGE, 259)), [TEXT] * 33, [TEXT] * 130]
    for codes in rows:
        h.feed([codes], *(x.to(model) for x in h.random(2, 1, 8, len(codes), 128)))
        h.cache.pack()
        for _ in range(3):
            h.feed([[TEXT]], *(x.to(model) for x in h.random(2, 1, 8, 1, 128)))
            report = h.cache.memory()
            assert report.bits_per_value == pytest.approx(16, abs=0.05)
            assert report.ratio == pytest.approx(1, abs=0.005)
            assert all(m["bits_per_value"] == pytest.approx(16, abs=0.05) for m in report.by_modality.values())
    assert report.packed_bits_per_value == pytest.approx(16, abs=1e-9)


def test_sequences_of_different_lengths_pay_for_their_tokens_only():
    h = Harness(get_policy("bf16"), **WIDE)
    h.feed([layout((TEXT, 200), (IMAGE, 100)), layout((PADDING, 200), (TEXT, 60), (IMAGE, 40))])
    h.cache.pack()
    report = h.cache.memory()
    assert report.tokens == 400 and report.bits_per_value == pytest.approx(16, abs=0.1)
    assert report.reserved_nbytes > 150 * 2 * 8 * 128 * 2  # the slots that the second one leaves empty


def test_slack_is_small_and_counted():
    """A long prompt's buffers do not grow by a part of its length."""
    h = Harness(get_policy("kivi2", residual_length=0, flush_length=32), **WIDE)
    h.feed([[TEXT] * 4100])
    h.cache.pack()
    before = h.cache.memory()
    assert before.packed_tokens == 4096 and before.reserved_nbytes == 0
    page, column = before.by_modality["text"]["packed_nbytes"] / 32, 2 * 2 * 8 * 128
    for _ in range(140):
        h.feed([[TEXT]])
    report = h.cache.memory()
    assert report.packed_tokens == 4096 + 128
    assert report.held_nbytes - before.held_nbytes == pytest.approx(page + 12 * column, rel=0.01)
    assert 0 < report.reserved_nbytes < 4 * page + 24 * column  # an eighth of 32 pages; columns go by eights


def test_packed_bits_are_those_of_the_pages():
    h = Harness(uniform(spec("kivi", 2, 32)), **WIDE)
    h.feed([layout((TEXT, 40), (IMAGE, 256), (TEXT, 76))])
    h.cache.pack()
    report = h.cache.memory()
    pages = sum(store.packed[name].nbytes for p in h.layer.parts.values() for store in p.stores for name in store.sizes)
    assert report.packed_tokens == 256 + 64
    assert report.packed_bits_per_value == pytest.approx(8 * pages / (320 * 2 * 8 * 128), rel=1e-3)
    assert 2 < report.packed_bits_per_value < 3.1 < report.bits_per_value < 6


@pytest.mark.parametrize(
    ("kv", "bits"),
    [
        # codes + scale and zero point a group (K over tokens, V over channels) + a norm a key
        (spec("kivi", 2, 32), 2 + 32 / 32),
        (spec("kivi", 2, 128), 2 + (32 / 128 + 32 / 64) / 2),
        (spec("oscar", 2, 128), 2 + (32 / 128 + 32 / 64 + 16 / 64) / 2),
        (spec("calibquant", 1), 1 + 32 / 1024),
    ],
)
def test_measured_bits_are_the_arithmetic_ones(kv, bits):
    h = Harness(uniform(kv, num_sink_tokens=0))
    h.feed([[IMAGE] * 1024])
    h.cache.pack()
    measured = h.cache.memory().by_modality["image"]["packed_bits_per_value"]
    assert measured == pytest.approx(bits, abs=0.01)


def test_short_images_waste_little():
    """A page's unused slots must not eat what the codec saves."""
    for count in (60, 257, 300, 391, 800):
        h = Harness(uniform(spec("kivi", 2, 32), num_sink_tokens=0))
        h.feed([[IMAGE] * count])
        h.cache.pack()
        bits = h.cache.memory().by_modality["image"]["packed_bits_per_value"]
        assert bits < 3 * 1.125


@pytest.mark.parametrize("budget", [None, 10**6])
def test_queries_of_a_prompt_that_waits_are_counted(budget):
    """A codec may look at their moments, a budget at the last ones themselves."""
    kv = spec("kitty", 2, 32, score="query_range")
    model = build("llama")
    cache = KVMMCache.for_model(model, uniform(kv, budget=budget, residual_length=0))
    with torch.no_grad():
        model(**inputs("llama", 1 if budget else 2), past_key_values=cache)
    report = cache.memory()
    assert report.nbytes == sum(storages(cache).values()) == sum(memory_storages(cache).values())
    assert report.nbytes == sum(report.by_component.values()) and report.by_component["queries"] > 0
    assert report.held_nbytes == sum(m["nbytes"] for m in report.by_modality.values())
    assert report.nbytes == sum(x["nbytes"] for x in report.by_layer) + cache.table.nbytes()
    assert "queries" not in cache.pack().memory().by_component
