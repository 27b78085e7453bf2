"""Tokens of text that are added to a page which is not full."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from kvmm import KVMMCache, get_policy
from kvmm.modality import IMAGE, TEXT
from kvmm.models import load_model
from kvmm.policy import KVPolicy, spec
from tests.cache.harness import Harness, uniform

FIELDS = {"num_sink_tokens": 2, "residual_length": 8, "flush_length": 16}


@pytest.fixture(scope="module")
def embedded():
    return load_model(device="cpu")


def fed(policy: KVPolicy, prompt: int, length: int) -> Harness:
    h = Harness(policy, ratio=1)
    h.feed([[TEXT] * prompt])
    while h.keys.shape[2] < length:
        h.feed([[TEXT]])
    return h


def test_sixteen_tokens_at_a_time_go_into_one_page():
    h = fed(uniform(spec("bf16", 16), **FIELDS), 40, 300)
    table = h.cache.table
    # 2 sinks, at least 8 newest tokens, and fewer than 16 that wait
    assert 10 < table.dense.shape[1] <= 2 + 8 + 16
    assert (
        table.page_sizes[TEXT] == 64
        and table.stores[TEXT].shape[1] == 320
        and table.appends[TEXT] == [64, 128, 192, 256, 320]
    )
    assert (table.stores[TEXT] >= 0).sum() == table.text_slots == 300 - table.dense.shape[1]
    assert torch.equal(table.stores[TEXT][0, : table.text_slots], torch.arange(2, 2 + table.text_slots).int())
    assert h.compare(1) < 1e-4
    key, _ = h.layer.dense()
    assert torch.equal(key, h.keys.bfloat16().float())


def rd(**fields) -> KVPolicy:
    """Exact tokens stay in the model's dtype: in float32 those that wait would be rounded before packing."""
    return get_policy("rd2", **{**FIELDS, "exact_dtype": "model", **fields})


def forced(model, cache: KVMMCache, count: int, first: int = 0) -> KVMMCache:
    """Text tokens read one at a time behind a short prompt."""
    ids = torch.randint(20, 400, (1, 40 + first + count), generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        if not first:
            model(input_ids=ids[:, :40], past_key_values=cache, logits_to_keep=1)
        for i in range(40 + first, ids.shape[1]):
            model(input_ids=ids[:, i : i + 1], past_key_values=cache)
    return cache


@pytest.fixture(scope="module")
def decoded(embedded) -> KVMMCache:
    """A cache that 250 tokens were added to one at a time."""
    return forced(embedded[0], KVMMCache.for_model(embedded[0], rd(), graph=False), 250)


def codes(cache: KVMMCache) -> list[torch.Tensor]:
    """What the slots of text in use hold, decoded."""
    slots = cache.table.stores[TEXT][0] >= 0
    stores = [store for i in cache.packed_layers for store in cache.layers[i].parts[TEXT].stores]
    return [store.decode()[:, :, slots] for store in stores]


def test_a_token_is_stored_as_in_a_whole_page(embedded, decoded):
    """Which tokens share a page, and when they came, changes nothing that is stored."""
    model, found = embedded[0], decoded
    whole = forced(model, KVMMCache.for_model(model, rd(flush_length=128), graph=False), 250)
    assert found.table.opens_pages and found.table.text_slots % 64 and not whole.table.text_slots % 128
    # The first layer's tokens do not depend on what was packed before. A product of 16 rows may be rounded otherwise
    # than one of 128, as the processor's library chooses, and then a channel between two levels takes the other one.
    few = whole.table.stores[TEXT].shape[1]
    for mine, theirs in zip(codes(found)[:2], codes(whole)[:2], strict=True):
        moved = (mine[:, :, :few] - theirs).abs() > 1e-2 * theirs.abs().amax(-1, keepdim=True)
        assert moved.float().mean() < 1e-3


@pytest.mark.parametrize("graph", [False, True])
def test_buffers_in_place_hold_the_same(embedded, decoded, graph):
    model, expected = embedded[0], decoded
    cache = KVMMCache.for_model(model, rd(), graph=graph, max_length=600)
    forced(model, cache, 250)
    assert torch.equal(cache.table.slots(), expected.table.slots())
    for mine, theirs in zip(codes(cache), codes(expected), strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-3, rtol=1e-3)
    if graph:
        report = cache.graph.packing.report()
        assert report["eager"] == cache.table.text_slots // 16 - 1 and report["plain"] == 1, report


def test_cropped_saved_and_forked_caches_go_on(embedded, tmp_path):
    model, _ = embedded
    cache = forced(model, KVMMCache.for_model(model, rd(), graph=False), 200)
    before = cache.table.text_slots
    fork = cache.fork()
    cache.save(tmp_path / "cache.safetensors")
    loaded = KVMMCache.load(tmp_path / "cache.safetensors", model)
    assert loaded.table.text_slots == before and before % 64
    kept = [x.clone() for x in codes(cache)]
    for other in (cache, fork, loaded):
        forced(model, other, 60, first=200)
        assert other.table.text_slots > before
    assert torch.equal(fork.table.slots(), cache.table.slots()) and torch.equal(
        loaded.table.slots(), cache.table.slots()
    )
    for mine, forks, files, old in zip(codes(cache), codes(fork), codes(loaded), kept, strict=True):
        assert torch.equal(mine, forks) and torch.equal(mine, files)
        assert torch.equal(mine[:, :, : old.shape[2]], old)
    cache.crop(-70)  # into the midst of a page
    used = int((cache.table.stores[TEXT][0] >= 0).nonzero()[-1]) + 1
    assert used % 16 and cache.table.text_slots == -(-used // 16) * 16 < fork.table.text_slots
    forced(model, cache, 70, first=190)
    positions = cache.table.slots()[0]
    assert sorted(positions[positions >= 0].tolist()) == list(range(300))


def test_pictures_and_sequences_of_several_lengths():
    policy = uniform(spec("bf16", 16), **FIELDS)
    h = Harness(policy, ratio=1)
    h.feed([[-1] * 13 + [TEXT] * 47 + [IMAGE] * 50 + [TEXT] * 30, [TEXT] * 60 + [IMAGE] * 50 + [TEXT] * 30])
    for _ in range(70):
        h.feed([[TEXT], [TEXT]])
    assert h.cache.table.filled and h.compare(1) < 1e-4
    assert all(
        sorted(p[p >= 0].tolist()) == list(range(13 * (i == 0), 210)) for i, p in enumerate(h.cache.table.slots())
    )


def test_a_long_turn_fills_the_page_and_begins_others():
    h = fed(uniform(spec("bf16", 16), **FIELDS), 40, 60)
    assert h.cache.table.filled == 48
    h.feed([[TEXT] * 300])
    h.feed([[TEXT]])
    assert h.cache.table.text_slots == 336 and h.cache.table.appends[TEXT] == [64, 384]
    assert h.compare(1) < 1e-4


def test_what_cannot_add_to_a_page_packs_whole_ones():
    """Codecs with levels of a group, or rd without a fit, wait for 128 tokens."""
    for one in (spec("kivi", 2, 32), spec("rd", 2)):
        table = fed(uniform(one, **FIELDS), 40, 200).cache.table
        assert not table.opens_pages and table.appends[TEXT] == [128] and (table.stores[TEXT] >= 0).all()
    mixed = replace(uniform(spec("bf16", 16), **FIELDS), text=uniform(spec("kivi", 2, 32)).text)
    assert not Harness(mixed).cache.table.opens_pages


def test_outlier_tokens_of_the_first_page(embedded):
    """They stay exact while tokens are added; an answer's tokens get no more of them."""
    model, _ = embedded
    policy = rd().map_specs(lambda kv: replace(kv, key=spec("rd", 2, outliers=1), value=spec("rd", 2, outliers=1)))
    cache = forced(model, KVMMCache.for_model(model, policy, graph=False), 150)
    assert cache.table.opens_pages and len(cache.table.appends[TEXT]) >= 2
    packed = cache.layers[3].parts[TEXT].key.packed
    slots, kept = packed["outlier_slot"].clone(), packed["outlier"].clone()
    assert slots.shape == (1, 2, 1) and int(slots.max()) < 64
    packed = forced(model, cache, 60, 150).layers[3].parts[TEXT].key.packed
    assert torch.equal(packed["outlier_slot"], slots) and torch.equal(packed["outlier"], kept)
    assert torch.equal(packed["codes"].shape[2] * torch.tensor(64), torch.tensor(cache.table.stores[TEXT].shape[1]))
