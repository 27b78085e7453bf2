"""Attention scores under a policy against dense attention computed here."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from kvmm import KVMMError
from kvmm.analysis import measure_scores, squared_softmax_error
from kvmm.analysis.common.prefill import full_layers, visit_layers
from kvmm.modality import MODALITY_NAMES
from kvmm.models.documents import Document
from kvmm.policy import KVPolicy, KVSpec, get_policy, spec
from tests.tiny_models import build, inputs

TAU = (0, 3)
ONE_BIT = KVSpec(spec("calibquant", 1, levels="paper", calibration=TAU), spec("calibquant", 1, levels="paper"))
CALIBRATED = KVPolicy("calibrated", **dict.fromkeys(("image", "audio"), ONE_BIT))
EXACT = replace(get_policy("bf16"), exact_dtype="model")
QUERIES = 5


@pytest.fixture(scope="module")
def case():
    model, given = build("qwen2_5_omni"), inputs("qwen2_5_omni")
    return model, given, measure_scores(model, given, [EXACT, "kivi2", CALIBRATED], queries=QUERIES)


def dense(model, given, policy, row):
    """Scores ``[H_q, QUERIES, T]`` in float64: exact, quantised, calibrated; what each query sees; what is packed."""
    found = []
    visit_layers(model, given, lambda seen: found.append((seen.query, seen.key, seen.scaling)), full_layers(model))
    query, key, scaling = found[row]
    count = key.shape[2]
    cache = Document(model, given, count).unpacked(policy).pack()
    stored = cache.layers[row].dense()[0]
    query = query[0, :, -QUERIES:].double() * scaling
    repeat = query.shape[0] // key.shape[1]
    exact, own = (query @ x[0].double().repeat_interleave(repeat, 0).transpose(1, 2) for x in (key, stored))
    visible = torch.arange(count) <= torch.arange(count - QUERIES, count)[:, None]
    packed = torch.zeros(count, dtype=torch.bool)
    calibrated = own.clone()
    for modality, positions in cache.table.stores.items():
        positions = positions[positions >= 0].long()
        packed[positions] = True
        codec = cache.layers[row].codecs[modality][0]
        if codec.calibrates_logits:  # equation: [gamma, delta] onto [gamma - tau1, delta - tau2]
            for q in range(QUERIES):
                shown = positions[visible[q, positions]]
                if len(shown) > 1:
                    part = own[:, q, shown]
                    gamma, delta = part.amin(-1, keepdim=True), part.amax(-1, keepdim=True)
                    slope = (delta - gamma - TAU[1] + TAU[0]) / (delta - gamma)
                    mapped = (part - gamma) * slope + gamma - TAU[0]
                    calibrated[:, q, shown] = torch.where(slope > 0, mapped, part)
    return exact, own, calibrated, visible, packed


def probabilities(scores, visible):
    return scores.masked_fill(~visible, -torch.inf).softmax(-1)


def divergence(p, q):
    return float(torch.where(p > 0, p * (p / q).log(), 0.0).sum(-1).mean())


def squared_error(p, q, visible):
    """The mean over heads and queries of ``1/n * sum_t (p_t - q_t)^2``, in loops over queries."""
    each = [(p[:, i, seen] - q[:, i, seen]).square().mean(-1) for i, seen in enumerate(visible)]
    return float(torch.stack(each).mean())


@pytest.mark.parametrize("policy", ["kivi2", CALIBRATED], ids=["kivi2", "calibrated"])
def test_attention_against_dense_attention(case, policy):
    model, given, report = case
    one = report.of(getattr(policy, "name", policy))
    for row in range(2):
        exact, own, calibrated, visible, _ = dense(model, given, policy, row)
        p, q, r = (probabilities(x, visible) for x in (exact, calibrated, own))
        assert one.kl[row] == pytest.approx(divergence(p, q), rel=1e-4) and one.kl[row] > 1e-4
        assert one.kl_uncalibrated[row] == pytest.approx(divergence(p, r), rel=1e-4)
        between, within = 0.0, {}
        for code in range(len(MODALITY_NAMES)):
            mask = torch.as_tensor(report.modality == code)
            mass, other = p[..., mask].sum(-1), q[..., mask].sum(-1)
            assert report.mass[row, code] == pytest.approx(float(mass.mean()), abs=1e-6)
            assert one.mass[row, code] == pytest.approx(float(other.mean()), abs=1e-6)
            if bool(mask.any()):
                inner = p[..., mask] / mass[..., None]
                outer = q[..., mask] / other[..., None]
                terms = torch.where(inner > 0, inner * (inner / outer).log(), 0.0).sum(-1)
                within[code] = float((mass * torch.where(mass > 0, terms, 0.0)).nan_to_num().mean())
                between += float(torch.where(mass > 0, mass * (mass / other).log(), 0.0).mean())
        assert one.kl_between[row] == pytest.approx(between, abs=1e-6)
        for code, value in within.items():
            assert one.kl_within[row, code] == pytest.approx(value, abs=1e-6)
        np.testing.assert_allclose(one.kl_between[row] + one.kl_within[row].sum(), one.kl[row], atol=1e-6)
        assert one.softmax_mse[row] == pytest.approx(squared_error(p, q, visible), rel=1e-4)
        assert one.softmax_mse_uncalibrated[row] == pytest.approx(squared_error(p, r, visible), rel=1e-4)


def test_squared_softmax_error_of_few_numbers():
    """Two keys and three, one of them hidden from the first query."""
    p = torch.tensor([[[0.5, 0.5, 0.0], [0.2, 0.3, 0.5]]])
    q = torch.tensor([[[0.9, 0.1, 0.0], [0.2, 0.6, 0.2]]])
    hidden = torch.tensor([[False, False, True], [False, False, False]])
    found = squared_softmax_error(p.log(), q.log(), hidden)
    assert found.dtype == torch.float64 and found.shape == (1, 2)
    torch.testing.assert_close(
        found, torch.tensor([[(0.4**2 + 0.4**2) / 2, (0.3**2 + 0.3**2) / 3]], dtype=torch.float64)
    )


def test_histograms_hold_every_score_once(case):
    model, given, report = case
    one = report.of("calibrated")
    for row in range(2):
        exact, own, calibrated, visible, packed = dense(model, given, CALIBRATED, row)
        edges = one.edges[row].astype(float)
        for kind, scores in (("exact", exact), ("quantised", own), ("calibrated", calibrated)):
            for code in range(len(MODALITY_NAMES)):
                mask = visible & packed & torch.as_tensor(report.modality == code)
                values = scores[:, mask].flatten().numpy()
                assert one.counts[kind][row, code].sum() == len(values)
                want = np.histogram(values.clip(edges[0], edges[-1]), edges)[0]
                # a score that lies on an edge in float32 may fall on its other side in float64
                assert np.abs(one.counts[kind][row, code] - want).sum() <= 2 + len(values) // 100
    assert one.histogram("exact", 0).sum() == pytest.approx(1)
    assert one.modalities() == ["image", "audio"], "text stays in full precision"


def test_full_precision_moves_nothing_and_has_no_calibration(case):
    one = case[2].of("bf16")
    assert one.softmax_mse.max() < 1e-12
    assert one.kl.max() < 1e-6 and "calibrated" not in one.counts
    np.testing.assert_array_equal(one.counts["exact"], one.counts["quantised"])
    with pytest.raises(KVMMError, match="has no 'calibrated' scores"):
        one.histogram("calibrated", 0)


def test_calibration_narrows_the_right_tail(case):
    """tau = (0, 3) leaves the least score and lowers the largest: that is what it is for."""
    one = case[2].of("calibrated")
    places = np.arange(one.edges.shape[1] - 1)
    for row in range(2):
        quantised, calibrated = (one.histogram(kind, row) @ places for kind in ("quantised", "calibrated"))
        assert calibrated < quantised


def test_blocks_of_queries_add_up(case, monkeypatch):
    model, given, report = case
    monkeypatch.setattr("kvmm.analysis.scores.measure._BLOCK", 1)  # a query at a time
    again = measure_scores(model, given, ["kivi2"], queries=QUERIES, layers=[1])
    assert again.layers == (1,)
    np.testing.assert_allclose(again.of("kivi2").kl[0], report.of("kivi2").kl[1], rtol=1e-5)
    np.testing.assert_array_equal(again.of("kivi2").counts["quantised"][0], report.of("kivi2").counts["quantised"][1])


def test_more_queries_than_tokens_are_all_of_them():
    given = {"input_ids": torch.randint(3, 110, (1, 20), generator=torch.Generator().manual_seed(0))}
    report = measure_scores(build("llama"), given, [replace(get_policy("kivi2"), exact_dtype="model")])
    assert report.queries == 20
    one = report.of("kivi2")
    assert not one.kl.any() and not one.counts["exact"].any(), "nothing of so short a prompt is packed"
    json.dumps(report.to_dict(), allow_nan=False)


def test_report_is_plain_json(case):
    report = case[2]
    found = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    assert [one["policy"] for one in found["policies"]] == ["bf16", "kivi2", "calibrated"]
    np.testing.assert_allclose(found["policies"][1]["kl"], report.of("kivi2").kl)
    assert set(found["policies"][2]["counts"]) == {"exact", "quantised", "calibrated"}


def test_what_cannot_be_measured_is_a_clear_error():
    model, given = build("qwen2_5_omni"), inputs("qwen2_5_omni")
    with pytest.raises(KVMMError, match="use 1 or more"):
        measure_scores(model, given, ["kivi2"], queries=0)
    with pytest.raises(KVMMError, match="each once"):
        measure_scores(model, given, [])
    with pytest.raises(KVMMError, match="was not measured"):
        measure_scores(model, given, ["kivi2"], queries=1).of("rd2")
