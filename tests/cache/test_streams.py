"""Packing a long prompt on several streams of a GPU: the same pages, and the host never waits for the GPU."""

from __future__ import annotations

import copy

import pytest
import torch

from kvmm import KVMMCache, policies
from kvmm.cache import streams
from kvmm.cache.plan import Move, Plan
from kvmm.modality import TEXT
from tests.tiny_models import build

NEEDS_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
TOKENS = 700


class Layer:
    """Notes where a plan is carried out."""

    device, packed, offloaded, dense_key, codecs = torch.device("cpu"), False, False, None, {}

    def __init__(self, initialized=True):
        self.is_initialized, self.calls = initialized, []

    def apply(self, plan):
        self.calls.append(plan)

    def apply_on(self, stream, plan):
        raise AssertionError("a CPU has no streams")


def test_layers_of_a_cpu_are_packed_in_place(monkeypatch):
    monkeypatch.setattr(streams, "_LEAST", 1)
    index = torch.arange(8)[None]
    plan = Plan([Move(TEXT, index, None, index.int(), 8)], index[:, :0], index[:, :0].int(), 0)
    layers = [Layer(), Layer(initialized=False), Layer()]
    streams.apply_plan(layers, plan)
    assert [layer.calls for layer in layers] == [[plan]] * 3


def test_tensors_of_a_plan_are_copied_once():
    index = torch.arange(8)[None]
    plan = Plan([Move(TEXT, index, index > 2, index.int(), 8)], index[:, :2], index[:, :2].int(), 0)
    copies = [plan.to(torch.device("cpu")) for _ in range(2)]
    assert copies[0] is copies[1] and torch.equal(copies[0].moves[0].valid, index > 2)


def filled(policy):
    """A cache with a prompt that is not packed yet, on the GPU."""
    model = copy.deepcopy(build("qwen3")).to("cuda", torch.bfloat16)
    cache = KVMMCache.for_model(model, policy, residual_length=16, flush_length=32, num_sink_tokens=2)
    ids = torch.arange(TOKENS, device="cuda")[None] % 90 + 5
    with torch.no_grad():
        model(ids, past_key_values=cache, use_cache=True)
    return cache


def contents(cache):
    found = []
    for layer in cache.layers:
        found += [layer.dense_key[:, :, : layer.num_dense], layer.dense_value[:, :, : layer.num_dense]]
        for store in layer.segments.stores:
            found += [tensor for _, tensor in sorted(store.packed.tensors.items())]
    return found


@NEEDS_GPU
@pytest.mark.parametrize("policy", [name for name in policies() if not name.startswith(("rd", "balanced", "small"))])
def test_the_same_pages_on_streams(policy, monkeypatch):
    expected = contents(filled(policy).pack())
    monkeypatch.setattr(streams, "_LEAST", 1)
    cache = filled(policy).pack()
    torch.cuda.synchronize()
    for found, wanted in zip(contents(cache), expected, strict=True):
        assert torch.equal(found, wanted)


@NEEDS_GPU
@pytest.mark.parametrize("policy", ["kivi2", "oscar2", "kitty", "calibquant1", "quarot2", "turboquant2"])
def test_the_host_does_not_wait(policy, monkeypatch):
    monkeypatch.setattr(streams, "_LEAST", 1)
    filled(policy).pack()  # fills tables
    cache = filled(policy)
    torch.cuda.synchronize()
    plan = cache.table.plan()
    torch.cuda.set_sync_debug_mode("error")
    try:
        streams.apply_plan([cache.layers[index] for index in cache.packed_layers], plan)
    finally:
        torch.cuda.set_sync_debug_mode("default")
