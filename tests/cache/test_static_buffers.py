"""Static buffers: how they grow, what they take, what they do not go together with, and caches saved from them."""

from __future__ import annotations

import itertools

import pytest
import torch

from kvmm import KVMMCache
from kvmm.cache import capacity
from kvmm.cache.token_table import TokenTable
from kvmm.errors import KVMMError
from kvmm.modality import TEXT
from tests.cache.static import TOKENS, dynamic, make, static
from tests.cache.test_memory import storages
from tests.tiny_models import build, generate, inputs


@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("max_length", [None, 20, 70])
def test_buffers_grow(max_length, graph, monkeypatch):
    """With a hint that is too small, or none; the tokens are those of a cache that was large enough."""
    monkeypatch.setattr(capacity, "_STEP", 24)
    model, arguments = build("qwen3"), inputs("qwen3", 2)
    expected = make(model, graph=graph)
    tokens = generate(model, arguments, past_key_values=expected, max_new_tokens=TOKENS)
    cache = make(model, max_length=max_length, graph=graph) if max_length or graph else static(model)
    addresses = []
    monkeypatch.setattr(cache.layers[0], "allocate", lambda own=cache.layers[0].allocate: addresses.append(own()))
    assert torch.equal(generate(model, arguments, past_key_values=cache, max_new_tokens=TOKENS), tokens)
    assert cache.get_max_length() == -1
    assert cache.table.static.capacity >= cache.table.length
    assert cache.table.static.capacity <= cache.table.length + 24
    assert len(addresses) >= 3  # grew more than once
    torch.testing.assert_close(cache.layers[1].keys, expected.layers[1].keys, atol=1e-4, rtol=1e-4)


def test_growth_is_bounded():
    """A long answer moves its buffers seldom, and never has space for many tokens that may not come."""
    table = TokenTable(KVMMCache.for_model(build("qwen3"), "oscar2").policy, capacity.StaticCapacity())
    table.append(torch.zeros(1, 4096, dtype=torch.int8))
    layouts = []
    while table.length < 40_000:
        if table.length >= table.static.capacity:
            table.static.allocate(table)
            layouts.append(table.static.capacity)
        table.length += 1
    assert len(layouts) < 26
    assert all(new - old <= 2048 + 1 for old, new in itertools.pairwise([4096, *layouts]))


@pytest.mark.parametrize("graph", [False, True])
def test_a_long_turn_leaves_no_room_behind(graph):
    """Its tokens wait for packing in columns of their own; the same tokens come out."""
    model, first = build("qwen3"), inputs("qwen3")
    cache, expected = make(model, graph=graph), dynamic(model)
    turn = torch.randint(3, 100, (1, 700), generator=torch.Generator().manual_seed(3))
    found = []
    for each in (expected, cache):
        ids = generate(model, first, past_key_values=each, max_new_tokens=10)
        ids = torch.cat((ids, turn), 1)
        found.append(generate(model, {"input_ids": ids}, past_key_values=each, max_new_tokens=40))
    assert torch.equal(*found)
    columns = cache.layers[0].dense_key.shape[2]
    assert cache.layers[0].residual.in_place
    assert columns == cache.table.static.residual_tokens
    assert columns <= 2 + 16 + 2 * cache.table.page_sizes[TEXT] + 8  # sinks, residual, two pages, slack


def test_beams_leave_buffers_in_place():
    """Those of media too, which are not reserved: a captured step goes on to fit."""
    model, arguments = build("qwen2_5_omni"), inputs("qwen2_5_omni")
    cache = make(model, graph=True)
    seen = set()
    reorder = cache.reorder_cache

    def note(index):
        reorder(index)
        if cache.is_packed:
            seen.add(tuple(layer.addresses() for layer in cache.layers))

    cache.reorder_cache = note
    generate(model, arguments, past_key_values=cache, max_new_tokens=20, num_beams=3)
    assert 1 <= len(seen) <= 2


def test_extend_is_a_hint():
    model, arguments = build("llama"), inputs("llama")
    dynamic(model).extend(100)  # grows by itself
    cache = make(model, max_length=20)
    generate(model, arguments, past_key_values=cache, max_new_tokens=5)
    cache.extend(3000)
    before = cache.layers[0].addresses()
    cache.extend(100)
    assert cache.layers[0].addresses() == before
    assert cache.table.static.capacity == 3000


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"graph": "fast", "max_length": 9}, "graph="),
        ({"graph": "auto"}, "graph="),
        ({"graph": True, "budget": 10**6}, "graph="),
        ({"max_length": 0}, "max_length"),
        ({"max_length": 2000, "budget": 10**6}, "budget"),
        ({"max_length": 2000, "offloading": True}, "offloading"),
    ],
)
def test_what_does_not_go_together(options, message):
    with pytest.raises(KVMMError, match=message):
        KVMMCache.for_model(build("qwen3"), "oscar2", **options)


@pytest.mark.parametrize("batch", [1, 2])
def test_memory_counts_room(batch):
    model, arguments = build("qwen2_5_omni"), inputs("qwen2_5_omni", batch)
    cache, other = make(model, graph=False), dynamic(model)
    for each in (cache, other):
        generate(model, arguments, past_key_values=each, max_new_tokens=50)
    report = cache.memory()
    assert report.nbytes == sum(storages(cache).values())
    assert report.nbytes == sum(report.by_component.values())
    assert report.held_nbytes == sum(m["nbytes"] for m in report.by_modality.values())
    assert report.nbytes == sum(x["nbytes"] for x in report.by_layer) + cache.table.nbytes()
    assert 0 < report.reserved_nbytes < report.nbytes
    # what it holds is what a cache that grows holds, and the counters of the device
    assert report.held_nbytes - cache.table.static.nbytes() == other.memory().held_nbytes
    for name, mine in report.by_modality.items():
        assert mine["packed_bits_per_value"] == other.memory().by_modality[name]["packed_bits_per_value"]


def test_save_and_load(tmp_path):
    model, arguments = build("qwen3"), inputs("qwen3")
    cache = make(model)
    ids = generate(model, arguments, past_key_values=cache, max_new_tokens=60)
    cache.save(tmp_path / "cache.safetensors")
    loaded = KVMMCache.load(tmp_path / "cache.safetensors", model)
    rest = {"input_ids": ids}
    found = generate(model, rest, past_key_values=loaded, max_new_tokens=50)
    assert torch.equal(found, generate(model, rest, past_key_values=cache, max_new_tokens=50))
