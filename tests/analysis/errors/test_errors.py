"""Errors of stored keys and values against caches that store them, and against tensors planted by hand."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from kvmm import KVMMError
from kvmm.analysis import measure_errors
from kvmm.analysis.common.recording import Seen
from kvmm.analysis.common.stored import LayerStorage
from kvmm.analysis.errors.measure import _Meter
from kvmm.analysis.errors.report import ARRANGEMENTS, MIXED_SINKS, SCOPES
from kvmm.kernels.exact import BF16_ROUNDING
from kvmm.modality import AUDIO, IMAGE, TEXT
from kvmm.models.caches import DYNAMIC
from kvmm.models.documents import Document
from kvmm.policy import KVPolicy, KVSpec, get_policy, spec
from tests.tiny_models import build, inputs, rope_deltas_holder

POLICIES = ("bf16", "kivi2", "kitty", "rd2")
PROMPT = KVPolicy("prompt", **dict.fromkeys(("text", "image", "audio"), KVSpec(spec("rd", 2, fit="prompt"))))


def stored_and_exact(model, given, policy):
    """Per layer: decoded and exact keys and values ``[H, T, D]`` of a cache of the whole prompt, and what is packed."""
    document = Document(model, given, given["input_ids"].shape[1])
    cache, exact = document.unpacked(policy).pack(), document.cache(DYNAMIC)
    packed = np.zeros(document.length, dtype=bool)
    for positions in cache.table.stores.values():
        packed[positions[positions >= 0].numpy()] = True
    pairs = []
    for got, want in zip(cache.layers, exact.layers, strict=True):
        both = zip(got.dense(), (want.keys, want.values), strict=True)
        pairs.append([tuple(x[0].double().numpy() for x in pair) for pair in both])
    return pairs, packed


def test_errors_are_those_of_a_cache_that_stores_the_prompt():
    model, given = build("qwen2_5_omni"), inputs("qwen2_5_omni")
    report = measure_errors(model, given, [*POLICIES, PROMPT], max_outliers=0)
    assert report.layers == (0, 1) and report.modalities() == ["text", "image", "audio"]
    for policy in (*POLICIES, PROMPT):
        pairs, packed = stored_and_exact(model, given, policy)
        one = report.of(getattr(policy, "name", policy))
        assert packed.sum() == one.key.group_tokens.sum() > 20
        for row, sides in enumerate(pairs):
            for found, (got, want) in zip((one.key, one.value), sides, strict=True):
                error, energy = (got - want)[:, packed] ** 2, want[:, packed] ** 2
                close = {"rtol": 1e-4, "atol": 1e-9}
                np.testing.assert_allclose(found.by_layer()[row], error.sum() / energy.sum(), **close)
                np.testing.assert_allclose(found.by_layer(relative=False)[row], error.mean(), **close)
                np.testing.assert_allclose(found.by_head()[row], error.sum((1, 2)) / energy.sum((1, 2)), **close)
                np.testing.assert_allclose(found.by_channel()[row], error.sum(1) / energy.sum(1), **close)
                np.testing.assert_allclose(
                    found.by_token()[row, packed], error.sum((0, 2)) / energy.sum((0, 2)), **close
                )
                assert np.isnan(found.by_token()[row, ~packed]).all()
                for name, code in (("image", IMAGE), ("audio", AUDIO)):
                    mask = report.modality[packed] == code
                    want_part = error[:, mask].sum() / energy[:, mask].sum()
                    np.testing.assert_allclose(found.by_modality()[name][row], want_part, **close)


def test_full_precision_has_no_error_and_fewer_bits_have_more():
    model, given = build("qwen2_5_omni"), inputs("qwen2_5_omni")
    report = measure_errors(model, given, ["bf16", "kivi4", "kivi2"], layers=[1])
    assert report.layers == (1,)
    for side in ("key", "value"):
        exact, four, two = (report.of(name).side(side).by_layer()[0] for name in ("bf16", "kivi4", "kivi2"))
        assert 0 < exact < BF16_ROUNDING < four < two < 1


def test_a_policy_without_a_fit_says_what_it_stores():
    model, given = build("qwen2_5_omni"), inputs("qwen2_5_omni")
    one, other = measure_errors(model, given, ["small", "oscar2"], layers=[0]).policies
    assert (one.stored_as, other.stored_as) == ("oscar2", "oscar2")
    np.testing.assert_array_equal(one.key.by_channel(), other.key.by_channel())


def seen(key, value=None):
    value = key if value is None else value
    heads = key.shape[1]
    return Seen(0, torch.zeros(1, heads, *key.shape[2:]), key, value, 1.0, True, lambda start, stop: None)


def meter(policies, modality, mixed=(), max_outliers=8):
    storages = [LayerStorage(build("llama"), policy) for policy in policies]
    return _Meter(storages, modality, mixed, max_outliers)


def done(one, side="key"):
    return [sums[side].done() for sums in one.sums]


def test_an_outlier_token_spoils_its_group_until_it_is_left_out_of_the_codes():
    """A long key among the packed tokens: most of the loss is its neighbours', which only the refit gets back."""
    key = torch.randn(1, 2, 300, 64, generator=torch.Generator().manual_seed(0))
    plain = meter(["kivi2"], torch.full((300,), TEXT, dtype=torch.int8))
    plain.visit(seen(key))
    key = key.clone()
    key[:, :, 100] *= 40
    planted = meter(["kivi2"], torch.full((300,), TEXT, dtype=torch.int8))
    planted.visit(seen(key))
    assert planted.outliers["key"] == [(100,)] and plain.outliers["key"] == [()]
    (without,), (found,) = done(plain), done(planted)
    everywhere, rest, refit = (found.by_layer(scope, relative=False)[0] for scope in SCOPES)
    clean = without.by_layer(relative=False)[0]
    assert refit == pytest.approx(clean, rel=0.02), "without it the codes are as good as if it had never been"
    assert rest > 3 * refit
    assert everywhere == pytest.approx(rest, rel=0.02), "the outlier is an end of the range, and stored well itself"
    assert found.by_layer("all")[0] < 0.3 * found.by_layer("rest")[0], "its energy hides that in the relative error"
    group = found.by_token(relative=False)[0]
    assert group[101] > 20 * group[64:96].mean(), "neighbours in its group of 32 pay for it"
    counts = found.channel_tokens
    assert counts["all"] == counts["rest"] + 1 and counts["rest"] == counts["refit"]
    # a per-token code gives each token a scale of its own, so nobody pays
    value = done(planted, "value")[0]
    assert value.by_layer("rest", False)[0] == pytest.approx(value.by_layer("refit", False)[0], rel=1e-6)


def test_an_outlier_among_the_sinks_costs_nothing():
    key = torch.randn(1, 2, 300, 64, generator=torch.Generator().manual_seed(0))
    key[:, :, 0] *= 40
    one = meter(["kivi2"], torch.full((300,), TEXT, dtype=torch.int8))
    one.visit(seen(key))
    assert one.outliers["key"] == [(0,)]
    (found,) = done(one)
    values = {scope: found.by_layer(scope)[0] for scope in SCOPES}
    assert len(set(values.values())) == 1


def test_mixing_modalities_of_different_scale_costs_more_than_groups_of_their_own():
    generator = torch.Generator().manual_seed(0)
    modality = torch.tensor([TEXT] * MIXED_SINKS + ([IMAGE] * 64 + [TEXT] * 64) * 4, dtype=torch.int8)
    key = torch.randn(1, 2, len(modality), 64, generator=generator)
    key[:, :, modality == IMAGE] *= 6
    one = meter(["kivi2"], modality, [spec("kivi", 2, 128), spec("oscar", 2, 128)], max_outliers=0)
    one.visit(seen(key))
    kivi, oscar = one.mixed()
    assert kivi.tokens.tolist() == [256, 256, 0, 0]
    text = {arrangement: kivi.by_modality(arrangement)["text"] for arrangement in ARRANGEMENTS}
    assert text["interleaved"] > 10 * text["separate"] and text["sequence"] > 10 * text["separate"]
    image = {arrangement: kivi.by_modality(arrangement)["image"] for arrangement in ARRANGEMENTS}
    assert image["interleaved"] == pytest.approx(image["separate"], rel=0.25), "the larger sets the range either way"
    assert kivi.total("interleaved") > kivi.total("separate")
    # OScaR divides each token by its norm, so that a group may mix scales
    assert oscar.by_modality("interleaved")["text"] < 1.5 * oscar.by_modality("separate")["text"]
    # the numbers themselves: per channel and group of 128 tokens, four levels from the least to the largest
    own = key[0, :, modality == TEXT][:, MIXED_SINKS:].unflatten(1, (2, 128))
    low, high = own.amin(2, keepdim=True), own.amax(2, keepdim=True)
    step = (high - low) / 3
    error = (((own - low) / step).round() * step + low - own).square().sum() / own.square().sum()
    assert text["separate"] == pytest.approx(float(error), rel=0.01)


def test_one_modality_has_nothing_to_mix():
    given = {"input_ids": torch.randint(3, 110, (1, 150), generator=torch.Generator().manual_seed(0))}
    report = measure_errors(build("llama"), given, ["kivi2"])
    assert report.mixed == () and report.modalities() == ["text"]


def test_sliding_layers_are_left_out_and_cannot_be_asked_for():
    given = inputs("gemma3")
    assert measure_errors(build("gemma3"), given, ["kivi2"]).layers == (1,)
    with pytest.raises(KVMMError, match="Layer 0 has no full attention; choose among 1"):
        measure_errors(build("gemma3"), given, ["kivi2"], layers=[0])


def test_report_is_plain_json():
    model, given = build("qwen2_5_omni"), inputs("qwen2_5_omni")
    report = measure_errors(model, given, ["kivi2"])
    found = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    one = found["policies"][0]
    assert one["policy"] == "kivi2" and set(one["key"]["relative"]) == set(SCOPES)
    np.testing.assert_allclose(one["key"]["relative"]["all"], report.of("kivi2").key.by_layer())
    values = one["value"]["by_token"]["values"][0]
    assert len(values) == len(report.modality) and None in values, "sinks stay in full precision"
    assert set(found["mixed"][0]["arrangements"]) == set(ARRANGEMENTS)


def test_the_model_answers_as_before():
    model, given = build("qwen2_5_omni"), inputs("qwen2_5_omni")
    holder = rope_deltas_holder(model)
    with torch.no_grad():
        before, deltas = model(**given).logits, holder.rope_deltas
        measure_errors(model, inputs("qwen2_5_omni", seed=1), ["kivi2"])
        assert torch.equal(holder.rope_deltas, deltas)
        torch.testing.assert_close(model(**given).logits, before)


@pytest.mark.parametrize(
    "policies, changes, message",
    [
        ([], {}, "each once"),
        (["kivi2", "kivi2"], {}, "each once"),
        (["nothing"], {}, "nothing"),
        ([get_policy("kivi2", budget=1 << 20)], {}, "has a budget"),
        (["kivi2"], {"mixed_group_size": 100}, "32, 64 or 128"),
        (["kivi2"], {"layers": []}, "at least one"),
    ],
)
def test_what_cannot_be_measured_is_a_clear_error(policies, changes, message):
    with pytest.raises(KVMMError, match=message):
        measure_errors(build("qwen2_5_omni"), inputs("qwen2_5_omni"), policies, **changes)


def test_batches_and_padding_are_refused():
    with pytest.raises(KVMMError, match="One sequence without padding"):
        measure_errors(build("qwen2_5_omni"), inputs("qwen2_5_omni", batch=2), ["kivi2"])
