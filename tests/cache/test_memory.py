"""``memory()`` shows the bytes of the tensors that exist."""

from __future__ import annotations

import json

import pytest
import torch

from kvmm import KVMMCache, policies
from kvmm.cache.codecs import Codec
from kvmm.calibration import Calibration
from kvmm.modality import AUDIO, IMAGE, TEXT
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
    cache = KVMMCache.for_model(model, policy, residual_length=8)
    generate(model, inputs(family, 2), past_key_values=cache)
    report = cache.memory()
    # gemma3's sliding layers keep a one-element tensor with their window's length, which is no cache
    windows = sum(getattr(layer, "_sliding_window_tensor", torch.empty(0)).nbytes for layer in cache.layers)
    assert report.nbytes == sum(storages(cache).values()) - windows
    assert report.nbytes == sum(report.by_component.values())
    assert report.nbytes == sum(m["nbytes"] for m in report.by_modality.values())
    assert report.nbytes == sum(x["nbytes"] for x in report.by_layer) + cache.table.nbytes()
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
