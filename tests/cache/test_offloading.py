"""A layer that is being fetched on another stream: whoever reads it or changes it waits for it first."""

from __future__ import annotations

import copy

import pytest
import torch

from kvmm import KVMMCache
from kvmm.cache import layer_contract
from tests.tiny_models import build

TOKENS = 90


class Stream:
    """Copies arrive when somebody waits for them, and are zeros before."""

    def __init__(self):
        self.copies = {}

    def record_event(self):
        return len(self.copies)

    def send(self, tensors, event):
        self.copies[event] = [(x, x.clone()) for x in tensors]
        for x in tensors:
            x.zero_()

    def wait_event(self, event):
        for x, arrived in self.copies.pop(event, ()):
            x.copy_(arrived)


def tensors_of(layer):
    buffers = [buffer for store in layer.segments.allocated_stores for buffer in store.buffers.values()]
    return [*layer.residual.tensors(), *layer.queries.tensors, *buffers]


def filled(packed):
    model = build("qwen3")
    cache = KVMMCache.for_model(model, "kivi2", residual_length=16, flush_length=32, num_sink_tokens=2)
    with torch.no_grad():
        model(torch.arange(2 * TOKENS).reshape(2, -1) % 90 + 5, past_key_values=cache, use_cache=True)
    return cache.pack() if packed else cache


def saved(cache, folder):
    cache.save(folder / "cache.kvmm")
    return KVMMCache.load(folder / "cache.kvmm", cache.model)


OPERATIONS = {
    "pack": lambda cache, _: cache.pack(),
    "crop": lambda cache, _: cache.crop(-3),
    "crop-pages": lambda cache, _: cache.crop(-40),
    "reorder": lambda cache, _: cache.reorder_cache(torch.tensor([1, 0])),
    "select": lambda cache, _: cache.batch_select_indices(torch.tensor([1])),
    "repeat": lambda cache, _: cache.batch_repeat_interleave(2),
    "fork": lambda cache, _: cache.fork(),
    "copy": lambda cache, _: copy.deepcopy(cache),
    "offload": lambda cache, _: [layer.offload() for layer in cache.layers] and None,
    "save": saved,
}


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_layer_on_its_way_is_waited_for(operation, monkeypatch, tmp_path):
    run, packed = OPERATIONS[operation], operation != "pack"
    cache, expected = filled(packed), filled(packed)
    expected = run(expected, tmp_path) or expected
    expected = [x for layer in expected.layers for x in layer.dense()]

    stream = Stream()
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: stream)
    monkeypatch.setattr(layer_contract, "copied", lambda device: stream.record_event())
    for layer in cache.layers:
        tensors, event = tensors_of(layer), stream.record_event()
        layer.offloaded = True
        layer.prefetch()
        stream.send(tensors, event)
    changed = run(cache, tmp_path) or cache
    found = [x for layer in changed.layers for x in layer.dense()]
    assert all(torch.equal(x, y) for x, y in zip(found, expected, strict=True))
    assert not stream.copies
