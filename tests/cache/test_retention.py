"""Caches that live inside a budget."""

import copy
import json

import numpy as np
import pytest
import torch

from kvmm import KVMMCache, KVMMError
from kvmm.cache.retention import resident_nbytes
from kvmm.cache.tiers import TieredStore
from kvmm.modality import IMAGE, TEXT
from kvmm.policy import KVPolicy, KVSpec, get_policy, spec
from tests.cache.harness import Harness, uniform
from tests.cache.retained import PROMPT, filled, full_nbytes, policy, query, step
from tests.cache.test_memory import storages
from tests.tiny_models import build, generate, inputs


def test_without_pressure_nothing_changes():
    h = filled(policy())
    plain = filled(uniform(spec("spherical", 0.875)), steps=1)
    assert isinstance(h.layer.parts[IMAGE].key, TieredStore)
    torch.testing.assert_close(h.layer.dense()[0], plain.layer.dense()[0])
    assert h.compare(1) < 1e-4
    h.feed([[TEXT] * 5])
    assert h.compare(5) < 1e-4
    assert h.cache.retention_report()["flips"] == 0


@pytest.mark.parametrize("share", [0.99, 0.8, 0.5, 0.25])
@pytest.mark.parametrize("heads", ["adaptive", "uniform"])
def test_the_budget_holds_at_every_step(share, heads):
    budget = int(full_nbytes() * share)
    h = filled(policy(budget, heads=heads))
    for _ in range(70):
        assert h.cache.memory().nbytes <= budget
        assert resident_nbytes(h.cache) == h.cache.memory().nbytes
        assert torch.isfinite(step(h)).all()
    report = h.cache.retention_report()
    assert report["dropped"] > 0 and report["num_held"] < report["num_entries"]
    assert report["resident_nbytes"] <= budget
    h.cache.table.clear_bias()
    assert sum(storages(h.cache).values()) == h.cache.memory().nbytes
    json.dumps(report)


def test_memory_counts_what_exists():
    h = filled(policy(int(full_nbytes() * 0.5)))
    memory = h.cache.memory()
    store = h.layer.parts[IMAGE].value
    kept = sum(len(store.tier(0)[0]) for _ in range(1))
    assert memory.by_component["values"] == sum(
        len(part.value.tier(0)[0]) * part.value.page_size * 64 * 2 for part in h.layer.parts.values()
    )
    assert 0 < kept < store.num_pages * store.num_heads


def test_less_budget_more_distortion():
    full = full_nbytes()
    found = []
    for share in (2.0, 0.9, 0.7, 0.5, 0.3):
        h = filled(policy(int(full * share)))
        exact = filled(policy())
        error = float((step(h) - step(exact)).square().mean())
        found.append((h.cache.retention_report()["distortion"], error))
    assert [d for d, _ in found] == sorted(d for d, _ in found)
    assert found[0][1] == 0 < found[2][1] < found[4][1]


def test_decisions_are_deterministic():
    budget = int(full_nbytes() * 0.4)
    reports = []
    for _ in range(2):
        h = filled(policy(budget, backing="host"), steps=40)
        reports.append(h.cache.retention_report())
    assert reports[0] == reports[1]


def test_protected_tokens_alone_exceed_the_budget():
    with pytest.raises(KVMMError, match="cannot be met") as error:
        filled(policy(20_000))
    assert "raise budget" in str(error.value)
    h = filled(policy(int(full_nbytes() * 0.5)), steps=0)
    h.cache.pin(0, 700)
    with pytest.raises(KVMMError, match="pinned spans"):
        h.cache.pack()


@pytest.mark.parametrize(
    "kv",
    [
        KVSpec(spec("kivi", 2, 32), spec("kivi", 2, 32)),
        KVSpec(spec("oscar", 2, 32), spec("oscar", 2, 32)),
        KVSpec(spec("calibquant", 2), spec("calibquant", 2)),
        KVSpec(spec("spherical", 2), spec("spherical", 1)),
        KVSpec(spec("bf16"), spec("bf16")),
    ],
    ids=lambda kv: kv.key.codec,
)
def test_other_codecs_are_dropped_page_by_page(kv):
    h = filled(policy(kv=kv))
    plain = filled(KVPolicy("t", "", kv, kv, kv, kv))
    for one, other in zip(h.layer.dense(), plain.layer.dense(), strict=True):
        torch.testing.assert_close(one, other)
    assert h.compare(1) < 1e-4
    budget = int(h.cache.memory().nbytes * 0.8)
    h = filled(policy(budget, kv=kv), steps=50)
    assert h.cache.memory().nbytes <= budget
    assert h.cache.retention_report()["dropped"] > 0


def test_calibrated_logits_are_those_of_what_is_left():
    """CalibQuant's logit calibration takes its range from the slots that exist."""
    kv = KVSpec(spec("calibquant", 2, calibration=(0.0, 1.0)), spec("bf16"))
    h, plain = filled(policy(kv=kv)), filled(KVPolicy("t", "", kv, kv, kv, kv))
    probe = query(h)
    torch.testing.assert_close(h.layer.attend(probe, None, 0.125), plain.layer.attend(probe, None, 0.125))
    part = h.layer.parts[IMAGE]
    target = np.zeros_like(part.key.tier_map())
    target[1:] = 1
    part.key.move(target)
    part.value.move(target)
    first = h.cache.table.stores[IMAGE][0, : part.key.page_size].tolist()
    kept = [m != IMAGE or position in first for position, m in enumerate([*PROMPT, TEXT])]
    visible = torch.tensor([kept])
    output = h.layer.attend(probe, None, 0.125)
    torch.testing.assert_close(output, plain.layer.attend(probe, visible, 0.125), atol=1e-4, rtol=1e-4)


def test_codecs_that_share_data_between_pages():
    with pytest.raises(KVMMError, match="norm_scope=head"):
        filled(policy(kv=KVSpec(spec("oscar", 2, 32, norm_scope="token"), spec("bf16"))))
    with pytest.raises(KVMMError, match="cannot lower pages of codec rotatekv"):
        get_policy("rotatekv2", budget=10**6)


def test_one_sequence_only():
    h = Harness(policy())
    with pytest.raises(KVMMError, match="one sequence"):
        h.feed([[TEXT] * 5] * 2)
    h = filled(policy(int(full_nbytes() * 0.5)))
    h.cache.reorder_cache(torch.tensor([0]))
    with pytest.raises(KVMMError, match="holds one sequence"):
        h.cache.batch_repeat_interleave(2)
    assert h.cache.batch_size == 1
    plain = filled(uniform(spec("kivi", 2, 32)))
    for call in (lambda: plain.cache.pin(0, 5), plain.cache.retention_report):
        with pytest.raises(KVMMError, match="without a budget"):
            call()


def test_copies_go_their_own_way():
    budget = int(full_nbytes() * 0.5)
    for copied in (copy.deepcopy, KVMMCache.fork):
        h = filled(policy(budget))
        before = h.cache.retention_report()
        twin = Harness(policy(budget))
        twin.aim, twin.cache, twin.generator = h.aim, copied(h.cache), h.generator
        twin.layer = twin.cache.layers[0]
        for _ in range(70):
            step(twin)
        assert twin.cache.retention_report()["runs"] > before["runs"]
        assert h.cache.retention_report() == before
        assert twin.cache.memory().nbytes <= budget


def test_crop_and_reset():
    h = filled(policy(int(full_nbytes() * 0.5)), steps=20)
    h.cache.crop(-30)
    assert h.cache.get_seq_length() == len(PROMPT) - 10
    assert torch.isfinite(step(h)).all()
    h.cache.reset()
    assert h.cache.memory().nbytes == 0
    h.feed([PROMPT])
    h.feed([[TEXT]])
    assert h.cache.retention_report()["runs"] == 1


@pytest.mark.parametrize("count", [20, 40, 190])
@pytest.mark.parametrize("selection", ["rate-distortion", "streaming", "h2o", "vlcache"])
def test_crop_before_packing_forgets_the_queries_too(selection, count, tmp_path):
    """What is left of the watched queries are the last ones of what is left of the prompt."""
    model, length = build("llama"), 200
    ids = torch.arange(length)[None] % 100 + 1
    codes = torch.tensor([[TEXT] * 4 + [IMAGE] * 150 + [TEXT] * (length - 154)])
    kivi = KVSpec(spec("kivi", 4, 32), spec("kivi", 4, 32))
    cropped, short = (KVMMCache.for_model(model, policy(kv=kivi, selection=selection)) for _ in range(2))
    with torch.no_grad():
        for cache, end in ((cropped, length), (short, length - count)):
            cache.set_modality(codes[:, :end])
            model(input_ids=ids[:, :end], past_key_values=cache)
        cropped.crop(-count)
        for mine, theirs in zip(cropped.layers, short.layers, strict=True):
            kept = mine.queries.last
            assert kept is None or torch.allclose(kept, theirs.queries.last[:, :, -kept.shape[2] :], atol=1e-5)
        cropped.save(tmp_path / "cache")
        loaded = KVMMCache.load(tmp_path / "cache", model)
        logits = [model(input_ids=ids[:, :1], past_key_values=cache).logits for cache in (cropped, loaded, short)]
    assert torch.equal(logits[0], logits[1])
    assert torch.allclose(logits[0], logits[2], atol=1e-3)
    if selection == "h2o" and count < 100:  # which watches all of them
        for mine, theirs in zip(cropped.layers, short.layers, strict=True):
            assert torch.allclose(mine.parts[IMAGE].key.importance, theirs.parts[IMAGE].key.importance, atol=1e-4)


@pytest.mark.parametrize("family", ["qwen2_5_omni", "llava", "gemma3"])
def test_generate_inside_a_budget(family, tmp_path):
    """A whole model: the budget holds, decisions repeat, a saved cache goes on inside it."""
    model = build(family)
    arguments = inputs(family, 1)
    free = KVMMCache.for_model(model, "spherical-high", budget=10**9, residual_length=0, flush_length=32)
    expected = generate(model, arguments, past_key_values=free)
    plain = KVMMCache.for_model(model, "spherical-high", residual_length=0, flush_length=32)
    assert torch.equal(generate(model, arguments, past_key_values=plain), expected)
    budget = int(free.memory().nbytes * 0.8)
    caches = []
    for _ in range(2):
        cache = KVMMCache.for_model(model, "spherical-high", budget=budget, residual_length=0, flush_length=32)
        caches.append((cache, generate(model, arguments, past_key_values=cache)))
        assert cache.memory().nbytes <= budget
    (cache, tokens), (other, again) = caches
    assert torch.equal(tokens, again)
    assert cache.retention_report() == other.retention_report()
    assert cache.retention_report()["dropped"] > 0
    cache.save(tmp_path / "cache")
    loaded = KVMMCache.load(tmp_path / "cache", model)
    assert loaded.retention_report()["entries"] == cache.retention_report()["entries"]
    longer = torch.cat((tokens, tokens[:, :1]), 1)
    more = {"input_ids": longer, "attention_mask": torch.ones_like(longer)}
    generate(model, more, past_key_values=loaded)  # buffers differ in slack, so bytes and decisions may too
    assert loaded.memory().nbytes <= budget and loaded.retention_report()["runs"] >= cache.retention_report()["runs"]


def test_decoded_reads_and_weights_need_what_is_gone():
    model = copy.deepcopy(build("llama"))
    model.set_attn_implementation("eager")
    arguments = inputs("llama", 1)
    cache = KVMMCache.for_model(model, "spherical-high", budget=10**9, residual_length=0, flush_length=32)
    generate(model, arguments, past_key_values=cache)
    small = KVMMCache.for_model(
        model, "spherical-high", budget=int(cache.memory().nbytes * 0.8), residual_length=0, flush_length=32
    )
    tokens = generate(model, arguments, past_key_values=small)
    longer = torch.cat((tokens, tokens[:, :1]), 1)
    more = {"input_ids": longer, "attention_mask": torch.ones_like(longer)}
    twin = copy.deepcopy(small)
    with pytest.raises(KVMMError, match="dropped to meet the budget"), twin.reading_decoded():
        generate(model, more, past_key_values=twin)
    twin = copy.deepcopy(small)
    with pytest.raises(KVMMError, match="dropped to meet the budget"):
        model(**_last(more), past_key_values=twin, output_attentions=True)
    generate(model, more, past_key_values=small)  # without weights eager attention reads it


def _last(arguments):
    return {**arguments, "input_ids": arguments["input_ids"][:, -1:]}
