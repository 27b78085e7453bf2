"""Channels of one layer against the model's own keys, and the stages against the codec that stores them."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from transformers import DynamicCache

from kvmm.analysis.channels import STAGES, ChannelReport, record_channels
from kvmm.analysis.norms import record_norms
from kvmm.analysis.plots import (
    MAX_COLUMNS,
    channel_heatmap,
    channel_stages,
    head_boxes,
    stage_boxes,
    stage_summary,
)
from kvmm.codecs import build_codec
from kvmm.codecs.base import EncodeContext
from kvmm.errors import KVMMError
from kvmm.kernels.hadamard import rotate
from kvmm.policy import spec
from tests.tiny_models import build, inputs


@pytest.mark.parametrize("family", ["qwen2_5_vl", "gemma3"])
def test_channels_are_the_models_own(family):
    model, batch = build(family), inputs(family, batch=2)
    cache = DynamicCache(config=model.config.get_text_config(decoder=True))
    with torch.no_grad():
        model(**batch, past_key_values=cache, use_cache=True)
    for row in (0, 1):
        keep = batch["attention_mask"][row].bool()
        report = record_channels(model, batch, 1, row=row)
        layer = cache.layers[1]
        for kind, states in (("key", layer.keys), ("value", layer.values)):
            np.testing.assert_allclose(report.states(kind), states[row][:, keep].numpy(), rtol=1e-4, atol=1e-5)
        assert report.query.shape == (4, int(keep.sum()), report.key.shape[2])
        norms = record_norms(model, batch, row=row)
        np.testing.assert_allclose(report.token_norms("query"), norms.query[1], rtol=1e-4)
        np.testing.assert_array_equal(report.modality, norms.modality)


def test_wrong_requests():
    model, batch = build("gemma3"), inputs("gemma3")
    with pytest.raises(KVMMError, match=r"no layer 7 .* layers 0 to 1"):
        record_channels(model, batch, 7)
    with pytest.raises(KVMMError, match="stores 1, 2"):
        record_channels(model, batch, 0, bits=5)
    report = record_channels(model, batch, 0)
    for call, match in [
        (lambda: report.stage("value", "both"), "value has no stage 'both'"),
        (lambda: report.states("keys"), "unknown kind"),
        (lambda: report.summary("query"), "not coded"),
        (lambda: report.quantiles("raw", "audio"), "no audio tokens"),
        (lambda: channel_heatmap(report, head=9), "no head 9"),
    ]:
        with pytest.raises(KVMMError, match=match):
            call()


@pytest.fixture(scope="module")
def report() -> ChannelReport:
    """Keys with two strong channels and a few tokens of other norm: what OScaR is for."""
    rng = np.random.default_rng(0)
    key = rng.normal(0, 1, (2, 600, 64)).astype(np.float32)
    key[..., [3, 40]] *= 8
    key *= rng.uniform(0.5, 1.5, (2, 600, 1)).astype(np.float32)
    key[:, [100, 400]] *= 8
    modality = np.array([0] * 40 + [1] * 500 + [0] * 60, dtype=np.int8)
    return ChannelReport(5, key, key[..., ::-1].copy(), np.repeat(key, 3, axis=0), modality)


def test_stages_are_the_codecs(report):
    key = torch.from_numpy(report.key)
    rotated = rotate(key)
    norm = key.norm(dim=-1, keepdim=True)
    for name, want in {"raw": key, "rotated": rotated, "scaled": key / norm, "both": rotated / norm}.items():
        np.testing.assert_allclose(report.stage("key", name), want.numpy(), rtol=2e-3, atol=1e-4)  # fp16 norms
    np.testing.assert_allclose(report.token_norms("key", "both"), 1, rtol=1e-3)
    np.testing.assert_allclose(report.stage("query", "rotated"), rotate(torch.from_numpy(report.query)), atol=1e-4)


def test_summary_tells_the_error_of_the_stored_codes(report):
    rows = {(row.stage, row.modality): row for row in report.summary("key")}
    assert set(rows) == {(stage, name) for stage in STAGES for name in ("text", "image")}
    image = torch.from_numpy(report.key[:, report.modality == 1])[None]
    codec = build_codec(spec("oscar", 2, 128), "key")  # the defaults are the method: both
    decoded = codec.decode(codec.encode(image, EncodeContext(128)))[:, :, :500]
    want = float((decoded - image).square().sum() / image.square().sum())
    assert rows["both", "image"].relative_error == pytest.approx(want, rel=1e-5)
    for name in ("text", "image"):
        raw, both = rows["raw", name], rows["both", name]
        assert both.kurtosis < 4 < raw.kurtosis and both.norm_variation < 1e-3 < raw.norm_variation
    # In the group of a token of large norm, all others are lost without scaling.
    assert rows["both", "image"].token_error < 0.5 * rows["rotated", "image"].token_error
    assert rows["raw", "image"].tokens == 500
    assert [row.stage for row in report.summary("value")] == ["raw", "rotated"] * 2


def test_ranges_are_in_units_of_the_stage(report):
    image = report.key[:, report.modality == 1]
    rms = np.sqrt(np.square(report.key[:, report.modality == 1]).mean())
    found = report.group_ranges("raw", "image")
    assert found.shape == (2, 4 * 64)  # 500 tokens are 4 groups
    np.testing.assert_allclose(found[0, 3], np.ptp(image[0, :128, 3]) / rms, rtol=2e-2)
    low, high = (report.quantiles(stage, "image", "range")[:, 4] for stage in ("both", "raw"))
    assert (low < 0.6 * high).all()  # the widest channels


def test_json(report):
    found = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    assert found["layer"] == 5 and found["heads"] == 2 and len(found["key"]) == 8
    assert np.shape(found["key_by_head"]["both"]["image"]["range"]) == (2, 5)


def test_heatmaps_are_binned_and_keep_the_largest(report):
    figure = channel_heatmap(report, "key", "raw", head=1)
    ribbon, cells = figure.data[:2]
    assert np.shape(cells.z) == (64, MAX_COLUMNS) and np.shape(ribbon.z) == (1, MAX_COLUMNS)
    assert np.max(cells.z) == pytest.approx(np.abs(report.key[1]).max())
    np.testing.assert_array_equal(np.argsort(np.mean(cells.z, axis=1))[-2:] % 37, [3, 3])  # channels 3 and 40
    stages = channel_stages(report)
    heat = [trace for trace in stages.data if trace.type == "heatmap" and len(trace.y) == 64]
    assert len(heat) == 4 and all(np.shape(trace.z)[1] <= 128 for trace in heat)
    assert [note.text for note in stages.layout.annotations] == ["raw", "rotated", "scaled", "rotated, then scaled"]
    # what the picture is for: after both, the strongest row is no longer far above the others
    rows = [np.mean(trace.z, axis=1) for trace in heat]
    assert rows[0].max() / np.median(rows[0]) > 4 > 2 > rows[3].max() / np.median(rows[3])


def test_boxes_of_heads_by_stage_and_modality(report):
    figure = stage_boxes(report, "range")
    assert len(figure.data) == 4 * 2 and {trace.name for trace in figure.data} == {"text", "image"}
    assert sum(trace.showlegend is not False for trace in figure.data) == 2
    first = next(trace for trace in figure.data if trace.name == "image")
    np.testing.assert_allclose(first.median, report.quantiles("raw", "image", "range")[:, 2], atol=1e-4)
    norms = stage_boxes(report, "norm")
    np.testing.assert_allclose(norms.data[-1].median, 1, atol=1e-3)  # scaled
    bars = stage_summary(report)
    assert len(bars.data) == 3 * 2 and bars.data[0].y[0] == pytest.approx(report.summary()[0].range, rel=1e-3)
    for one in (figure, norms, bars, channel_stages(report)):
        assert one.layout.paper_bgcolor == "rgba(0,0,0,0)" and one.layout.uirevision
        assert len(one.to_json()) < 500_000


def test_boxes_of_many_heads_are_thinned():
    model, batch = build("gemma3"), inputs("gemma3")
    report = record_norms(model, batch)
    figure = head_boxes(report, "query", 1)
    assert [trace.name for trace in figure.data] == ["text", "image"] and list(figure.data[0].x) == ["0", "1", "2", "3"]
    np.testing.assert_allclose(figure.data[0].median, report.head_quantiles("query", 1, "text")[:, 2], atol=1e-4)
    wide = np.repeat(report.query, 40, axis=1)
    many = type(report)(report.layers, wide, wide, None, report.modality)
    assert len(head_boxes(many, "key", 0).data[0].x) <= 64
