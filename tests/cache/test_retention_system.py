"""Spherical KV's whole system: tiers of keys and values, entries by token and head, caps, averages, evictions."""

import numpy as np
import pytest
import torch

from kvmm import KVMMCache, KVMMError, KVPolicy, RetentionSettings, get_policy
from kvmm.cache.retention import resident_nbytes
from kvmm.modality import IMAGE
from kvmm.policy import KVSpec, spec
from tests.cache.retained import attention_of, filled, full_nbytes, policy, query, step
from tests.tiny_models import build, generate, inputs

TIERS = (
    KVSpec(spec("spherical", 0.875), spec("kivi", 4, 32)),
    KVSpec(spec("spherical", 0.75), spec("kivi", 2, 32)),
)
SYSTEM = {
    "tiers": TIERS,
    "entries": "token",
    "entry_tokens": 16,
    "layer_cap": 2.0,
    "head_cap": 3.0,
    "window": 2,
    "stickiness": 0.05,
    "segment_weights": (1.5, 1.0, 1.5),
    "margin_gate": True,
}


def test_entries_are_lowered_before_they_are_dropped():
    """With exact values a lower tier of keys frees next to nothing, and today's plan only drops."""
    budget = int(full_nbytes() * 0.5)
    only_keys = filled(policy(budget)).cache.retention_report()
    assert only_keys["lowered"] == 0 < only_keys["dropped"]
    report = filled(policy(budget, tiers=TIERS)).cache.retention_report()
    assert report["lowered"] > 0 == report["dropped"]
    assert report["distortion"] < 0.8 * only_keys["distortion"]
    less = filled(policy(int(full_nbytes() * 0.25), tiers=TIERS)).cache.retention_report()
    assert less["lowered"] > 0 < less["dropped"]
    assert less["entries"][0]["tier_names"] == [
        "spherical 0.875, bf16 16",
        "spherical 0.875, kivi 4",
        "spherical 0.75, kivi 2",
        "dropped",
    ]


@pytest.mark.parametrize("entries", ["page", "token"])
def test_attention_over_tiers_of_both_is_that_over_what_they_decode_to(entries):
    h = filled(policy(tiers=TIERS, entries=entries, entry_tokens=16))
    key, value = h.layer.parts[IMAGE].key, h.layer.parts[IMAGE].value
    target = np.arange(key.num_pages * 2).reshape(-1, 2) % 4
    for store in (key, value):
        store.move(target)
    keys, values = h.layer.dense()
    probe = query(h)
    output = h.layer.attend(probe, None, 0.125)
    slots = h.cache.table.stores[IMAGE][0].long()
    visible = torch.ones(2, keys.shape[2], dtype=torch.bool)
    for head in range(2):
        order = torch.arange(len(slots)) if key.order is None else key.order[head].long()
        gone = slots[order].view(-1, 16)[torch.as_tensor(target[:, head] == 3)]
        visible[head, gone[gone >= 0]] = False
    expected = attention_of(probe, keys, values, visible)
    torch.testing.assert_close(output, expected, atol=1e-4, rtol=1e-4)


def test_entries_by_token_hold_tokens_of_like_importance():
    """Single tokens that queries look for, far apart: each head gathers its own."""
    hot = torch.arange(60, 480, 40)
    h = filled(policy(entries="token", entry_tokens=16), hot=hot)
    store = h.layer.parts[IMAGE].key
    positions = h.cache.table.stores[IMAGE][0].long()
    for head in range(2):
        first = positions[store.order[head].long()][:16]
        assert set(hot.tolist()) <= set(first.tolist())
    share = store.importance / store.importance.sum(0)
    plain = filled(policy(entry_tokens=16), hot=hot).layer.parts[IMAGE].key
    assert share[0].min() > 0.5 > (plain.importance / plain.importance.sum(0)).max()
    exact = filled(policy(), hot=hot)
    for one, other in zip(
        h.layer.dense(), exact.layer.dense(), strict=True
    ):  # in the order of the sequence all the same
        assert float((one - other).square().mean()) < 0.2 * float(other.square().mean())


def test_entries_by_token_keep_more_attention_at_equal_bytes():
    hot = torch.arange(60, 480, 40)
    errors = {}
    for entries in ("page", "token"):
        exact = filled(policy(10**9, entries=entries, entry_tokens=16), hot=hot)
        h = filled(policy(int(full_nbytes() * 0.3), entries=entries, entry_tokens=16, mode="retain"), hot=hot)
        probe = query(exact, 40)
        errors[entries] = float(
            (h.layer.attend(probe, None, 0.125) - exact.layer.attend(probe, None, 0.125)).square().mean()
        )
    assert errors["token"] < 0.5 * errors["page"], errors


def test_the_average_takes_the_largest_of_a_window():
    h = filled(policy(window=3, decay=0.5), steps=1)
    store = h.layer.parts[IMAGE].key
    before, seen = store.importance.clone(), []
    store.observe, observe = lambda *a: (seen.append(a), observe(*a)), store.observe
    for count in range(3):
        assert torch.equal(store.importance, before) == (count < 3)
        step(h)
        if store.since == 0:
            break
    mass = torch.stack([p[0, :, :, s:e].mean(1).unflatten(-1, (store.num_pages, -1)).sum(-1).T for _, p, s, e in seen])
    assert store.since == 0 and len(seen) == 2, "the prompt's first step was one of the three"
    assert (store.importance >= 0.5 * before + 0.5 * mass.amax(0) - 1e-6).all()


@pytest.mark.parametrize("share", [0.6, 0.25])
def test_the_whole_system_inside_its_budget(share):
    budget = int(full_nbytes() * share)
    h = filled(policy(budget, **SYSTEM))
    for _ in range(40):
        assert resident_nbytes(h.cache) == h.cache.memory().nbytes <= budget
        assert torch.isfinite(step(h)).all()
    report = h.cache.retention_report()
    assert report["lowered"] > 0 and set(report["prices"]) == {"budget", "heads", "layers"}


def test_backing_brings_values_back_too():
    budget = int(full_nbytes() * 0.5)
    h = filled(policy(budget, tiers=TIERS, backing="host", decay=0.3, cooldown=0), hot=slice(100, 130), steps=0)
    h.cache.pack()
    h.aim = h.random(64)
    for _ in range(40):
        step(h)
    assert h.cache.retention_report()["raised"] > 0
    part = h.layer.parts[IMAGE]
    assert np.array_equal(part.key.tier_map(), part.value.tier_map())


@pytest.mark.parametrize("selection", ["streaming", "h2o", "vlcache"])
def test_eviction_under_the_same_budget(selection):
    exact = KVSpec(spec("bf16"), spec("bf16"))
    full = filled(policy(kv=exact, entry_tokens=1)).cache.memory().nbytes
    h = filled(policy(int(0.5 * full), kv=exact, selection=selection, entry_tokens=1), hot=slice(60, 70))
    for _ in range(20):
        assert h.cache.memory().nbytes <= int(0.5 * full)
        assert torch.isfinite(step(h)).all()
    report = h.cache.retention_report()
    assert report["dropped"] > 0 == report["lowered"] and report["selection"] == selection
    store = h.layer.parts[IMAGE].key
    gone = store.tier_map() == 1
    positions = h.cache.table.stores[IMAGE][0].numpy()
    if selection == "streaming":
        assert positions[gone[:, 0]].max() < positions[~gone[:, 0]].min()
    else:
        assert not gone[(positions >= 60) & (positions < 70)].any(), "what is attended to stays"
    if selection == "h2o":
        counts = sum(part.key.tier_map().sum(0) for part in h.layer.parts.values())
        assert abs(int(counts[0]) - int(counts[1])) <= 1


def test_a_saved_cache_goes_on(tmp_path):
    model = build("llama")
    arguments = inputs("llama", 1)
    settings = RetentionSettings(interval=2, **SYSTEM)
    free = KVMMCache.for_model(model, "spherical-high", budget=10**9, retention=settings, residual_length=0)
    tokens = generate(model, arguments, past_key_values=free)
    budget = int(free.memory().nbytes * 0.7)
    cache = KVMMCache.for_model(model, "spherical-high", budget=budget, retention=settings, residual_length=0)
    generate(model, arguments, past_key_values=cache)
    cache.save(tmp_path / "cache")
    loaded = KVMMCache.load(tmp_path / "cache", model)
    before, after = (c.retention_report() for c in (cache, loaded))
    assert before["entries"] == after["entries"] and before["lowered"] > 0
    for one, other in zip(cache.layers, loaded.layers, strict=True):
        for x, y in zip(one.parts.values(), other.parts.values(), strict=True):
            assert torch.equal(x.key.order, y.key.order) and x.key.since == y.key.since
    longer = torch.cat((tokens, tokens[:, :1]), 1)
    generate(model, {"input_ids": longer, "attention_mask": torch.ones_like(longer)}, past_key_values=loaded)
    assert loaded.memory().nbytes <= budget


def test_what_a_policy_file_may_say(tmp_path):
    path = tmp_path / "system.yaml"
    path.write_text(
        "base: spherical-high\nbudget: 1 MiB\nretention:\n  entries: token\n  entry_tokens: 16\n  head_cap: 2\n"
        "  tiers:\n"
        "    - {key: {codec: spherical, bits: 0.75, gain: 1.1}, value: {codec: kivi, bits: 4, group_size: 32}}\n"
    )
    found = KVPolicy.from_file(path)
    assert found.retention.tiers == (KVSpec(spec("spherical", 0.75, gain=1.1), spec("kivi", 4, 32)),)
    assert KVPolicy.from_dict(found.to_dict()) == found
    for text, message in (
        ("tiers: 5", "must be a list of specs"),
        ("tiers: [{key: {codec: kivi, bits: 2}}]", "with `key` and `value`"),
        ("entry_tokens: 3", "entry_tokens must be"),
        ("entry_tokens: 1", "packs tokens together"),
        ("layer_cap: 0.5", "at least 1"),
        ("selection: snapkv", "selection must be"),
        ("tiers: [{key: {codec: ott, bits: 2}, value: {codec: bf16, bits: 16}}]", "not read one by one"),
    ):
        path.write_text(f"base: spherical-high\nbudget: 1 MiB\nretention: {{{text}}}\n")
        with pytest.raises(KVMMError, match=message):
            KVPolicy.from_file(path)


def test_layers_that_are_kept_exact_have_no_tiers():
    chosen = get_policy("spherical-high", budget=10**9, retention=RetentionSettings(tiers=TIERS))
    model = build("llama")
    skipping = KVPolicy.from_dict(chosen.to_dict() | {"skip_layers": [0]})
    cache = KVMMCache.for_model(model, skipping, residual_length=0, flush_length=32)
    generate(model, inputs("llama", 1), past_key_values=cache)
    tiers = [next(iter(cache.layers[index].parts.values())).key.num_tiers for index in cache.packed_layers[:2]]
    assert tiers == [1, 3]


def test_exact_entries_have_tiers_with_a_span(tmp_path):
    """The first tier stores no mean, the second subtracts one: it is stored beside, once."""
    exact = KVSpec(spec("bf16"), spec("bf16"))
    below = (
        KVSpec(spec("spherical-angles", 4), spec("kivi", 4, 32)),
        KVSpec(spec("spherical", 0.75), spec("kivi", 2, 32)),
    )
    full = filled(policy(kv=exact)).cache.memory().nbytes
    h = filled(policy(int(0.35 * full), kv=exact, tiers=below), steps=10)
    report = h.cache.retention_report()
    assert report["lowered"] > 0 and h.cache.memory().nbytes <= int(0.35 * full)
    store = h.layer.parts[IMAGE].key
    assert store.buffers["span.mean"].shape == (1, 2, 1, 64)
    coarse = (store.error[1:] > store.error[:-1]).float().mean()
    assert float(store.error[0].max()) < 1e-3 and coarse > 0.9
    settings = RetentionSettings(interval=2, tiers=below, entries="token", entry_tokens=16)
    model = build("llama")
    cache = KVMMCache.for_model(model, "bf16", budget=10**9, retention=settings, residual_length=0)
    generate(model, inputs("llama", 1), past_key_values=cache)
    cache = KVMMCache.for_model(
        model, "bf16", budget=int(0.5 * cache.memory().nbytes), retention=settings, residual_length=0
    )
    generate(model, inputs("llama", 1), past_key_values=cache)
    cache.save(tmp_path / "cache")
    loaded = KVMMCache.load(tmp_path / "cache", model)
    assert loaded.retention_report()["entries"] == cache.retention_report()["entries"]
    assert cache.retention_report()["lowered"] > 0


def test_tiers_that_do_not_fit_are_refused_before_a_prompt_is_read():
    wrong = RetentionSettings(tiers=(KVSpec(spec("oscar", 2, 32), spec("bf16")),))
    with pytest.raises(KVMMError, match="all tiers of a modality need one transform"):
        KVMMCache.for_model(build("llama"), "spherical-high", budget=10**9, retention=wrong)


def test_names_of_retention():
    assert get_policy("spherical-high", budget=10**9, retention="spherical").retention.margin_gate
    assert get_policy("bf16", budget=10**9, retention="h2o").retention.selection == "h2o"
    with pytest.raises(KVMMError, match="Unknown retention 'snapkv'; choose one of: spherical, streamingllm"):
        get_policy("bf16", budget=10**9, retention="snapkv")
    found = KVPolicy.from_dict({"base": "bf16", "budget": "1 MB", "retention": {"base": "vlcache", "interval": 3}})
    assert (found.retention.selection, found.retention.interval) == ("vlcache", 3)
    assert KVPolicy.from_dict({"base": "bf16", "budget": "1 MB", "retention": "h2o"}).retention.evicts
