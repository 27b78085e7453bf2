"""The data inside the figures of errors and scores."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from kvmm.analysis import measure_errors, measure_scores
from kvmm.analysis.errors import ARRANGEMENTS, SCOPES
from kvmm.analysis.plots import (
    MAX_COLUMNS,
    attention_kl,
    attention_kl_parts,
    channel_errors,
    layer_errors,
    mixed_errors,
    outlier_channels,
    outlier_layers,
    score_histogram,
    softmax_errors,
    token_error_map,
    token_errors,
)
from kvmm.policy import KVPolicy, KVSpec, spec
from tests.tiny_models import build, inputs

ONE_BIT = KVSpec(spec("calibquant", 1, levels="paper", calibration=(0, 3)), spec("calibquant", 1, levels="paper"))
CALIBRATED = KVPolicy("calibrated", **dict.fromkeys(("image", "audio"), ONE_BIT))
POLICIES = ["bf16", "kivi2", CALIBRATED]


@pytest.fixture(scope="module")
def errors():
    return measure_errors(build("qwen2_5_omni"), inputs("qwen2_5_omni"), POLICIES, mixed_group_size=32)


@pytest.fixture(scope="module")
def scores():
    return measure_scores(build("qwen2_5_omni"), inputs("qwen2_5_omni"), POLICIES, queries=8)


@pytest.fixture(scope="module")
def long():
    """A text of more tokens than a figure has columns."""
    given = {"input_ids": torch.randint(3, 110, (1, 900), generator=torch.Generator().manual_seed(0))}
    return measure_errors(build("llama"), given, ["kivi2"])


def test_channels_are_a_cell_each(errors):
    (cells,) = channel_errors(errors, "kivi2", 1).data
    np.testing.assert_allclose(cells.z, errors.of("kivi2").key.by_channel()[1], atol=1e-6)
    (cells,) = channel_errors(errors, "kivi2", 0, side="value", scope="rest", relative=False).data
    np.testing.assert_allclose(cells.z, errors.of("kivi2").value.by_channel("rest", False)[0], atol=1e-6)


def test_the_axis_of_an_error_names_whole_numbers(errors, scores):
    axes = [outlier_channels(errors, "kivi2", 1).layout.yaxis, layer_errors(errors).layout.yaxis]
    axes += [token_errors(errors, ["kivi2"], 1).layout.yaxis2, attention_kl(scores).layout.yaxis]
    for axis in axes:
        assert axis.type == "log" and list(axis.tickvals) == sorted(axis.tickvals) and len(axis.tickvals) >= 1
        assert [float(text) for text in axis.ticktext if "sup" not in text] == pytest.approx(
            [value for value, text in zip(axis.tickvals, axis.ticktext, strict=True) if "sup" not in text]
        )


def test_outliers_in_and_out_share_one_order_of_channels(errors):
    figure = outlier_channels(errors, "kivi2", 1, head=0)
    assert [trace.name for trace in figure.data] == list(SCOPES.values())
    worst = errors.of("kivi2").key.by_channel()[1, 0]
    np.testing.assert_allclose(figure.data[0].y, np.sort(worst)[::-1], atol=1e-6)
    refit = errors.of("kivi2").key.by_channel("refit")[1, 0]
    np.testing.assert_allclose(figure.data[2].y, refit[np.argsort(-worst, kind="stable")], atol=1e-6)
    assert figure.data[0].customdata[0] == f"head 0, channel {worst.argmax()}"
    both = outlier_channels(errors, "kivi2", 1)
    assert len(both.data[0].y) == errors.of("kivi2").key.by_channel()[1].size
    bars = outlier_layers(errors, "kivi2").data
    for bar, scope in zip(bars, SCOPES, strict=True):
        np.testing.assert_allclose(bar.y, errors.of("kivi2").key.by_layer(scope))


def test_layers_leave_full_precision_out(errors):
    figure = layer_errors(errors, "value")
    assert [trace.name for trace in figure.data] == ["kivi2", "calibrated"], "a logarithmic axis has no zero"
    np.testing.assert_allclose(figure.data[0].y, errors.of("kivi2").value.by_layer())
    assert [trace.name for trace in layer_errors(errors, policies=["calibrated"]).data] == ["calibrated"]


def test_tokens_lie_under_their_modality(errors):
    figure = token_errors(errors, ["kivi2"], row=1)
    lines = [trace for trace in figure.data if trace.name == "kivi2"]
    want = errors.of("kivi2").value.by_token()[1]
    np.testing.assert_allclose(np.asarray(lines[0].y, float), want, atol=1e-6)
    assert np.isnan(np.asarray(lines[0].y, float)[0]), "sinks leave a gap"
    np.testing.assert_array_equal(np.asarray(figure.data[0].z)[0], errors.modality)
    assert len(figure.layout.shapes) == len(errors.outliers["value"][1])
    cells = token_error_map(errors, "kivi2").data[-1]
    np.testing.assert_allclose(np.asarray(cells.z, float), errors.of("kivi2").value.by_token(), atol=1e-5)


def test_long_prompts_are_means_of_spans(long):
    cells = token_error_map(long, "kivi2", "key").data[-1]
    assert np.shape(cells.z) == (2, MAX_COLUMNS)
    starts, values = np.asarray(cells.x), long.of("kivi2").key.by_token()[0]
    column = MAX_COLUMNS // 2
    span = values[starts[column] : starts[column + 1]]
    assert np.asarray(cells.z, float)[0, column] == pytest.approx(span.mean(), abs=1e-5)
    line = next(trace for trace in token_errors(long, side="key").data if trace.name == "kivi2")
    assert len(line.y) == MAX_COLUMNS


def test_mixed_groups_beside_separate_ones(errors, long):
    figure = mixed_errors(errors)
    assert len(figure.data) == 2 * len(ARRANGEMENTS)
    kivi = errors.mixed[0]
    bar = figure.data[0]
    assert bar.name == ARRANGEMENTS["separate"] and list(bar.x) == [*kivi.by_modality("separate"), "all"]
    np.testing.assert_allclose(bar.y, [*kivi.by_modality("separate").values(), kivi.total("separate")])
    np.testing.assert_allclose(mixed_errors(errors, 1).data[0].y[-1], kivi.by_layer("separate")[1])
    assert not mixed_errors(long).data and "one modality" in mixed_errors(long).layout.annotations[0].text


def test_histogram_shows_the_kinds_there_are(scores):
    figure = score_histogram(scores, "calibrated", 1, "image")
    assert [trace.name for trace in figure.data] == ["exact", "quantised", "quantised, calibrated"]
    share = scores.of("calibrated").histogram("exact", 1, "image")
    np.testing.assert_allclose(np.nan_to_num(np.asarray(figure.data[0].y, float)), share)
    edges = scores.of("calibrated").edges[1]
    assert edges[0] < figure.data[0].x[0] < edges[1]
    assert [trace.name for trace in score_histogram(scores, "kivi2", log=False).data] == ["exact", "quantised"]


def test_divergence_of_attention(scores):
    figure = attention_kl(scores)
    assert [trace.name for trace in figure.data] == ["kivi2", "calibrated"]
    np.testing.assert_allclose(figure.data[1].y, scores.of("calibrated").kl)
    parts = attention_kl_parts(scores, "calibrated")
    bars = [trace for trace in parts.data if trace.type == "bar"]
    np.testing.assert_allclose(np.sum([bar.y for bar in bars], axis=0), scores.of("calibrated").kl, atol=1e-6)
    np.testing.assert_allclose(parts.data[-1].y, scores.of("calibrated").kl_uncalibrated)
    assert all(trace.type == "bar" for trace in attention_kl_parts(scores, "kivi2").data)


def test_squared_errors_of_the_softmax(scores):
    figure = softmax_errors(scores)
    assert [trace.name for trace in figure.data] == ["kivi2", "calibrated", "calibrated, not calibrated"]
    one = scores.of("calibrated")
    np.testing.assert_allclose(figure.data[1].y, one.softmax_mse)
    np.testing.assert_allclose(figure.data[2].y, one.softmax_mse_uncalibrated)
    assert figure.data[2].line.dash == "dot" and figure.layout.yaxis.type == "log"


def test_every_figure_is_small_transparent_and_keeps_the_view(errors, scores, long):
    figures = [
        channel_errors(errors, "kivi2"), outlier_channels(errors, "kivi2"), outlier_layers(errors, "kivi2"),
        layer_errors(errors), token_errors(errors), token_errors(long), token_error_map(long, "kivi2"),
        mixed_errors(errors), mixed_errors(long), score_histogram(scores, "kivi2"), attention_kl(scores),
        attention_kl_parts(scores, "kivi2"), softmax_errors(scores),
    ]  # fmt: skip
    for figure in figures:
        assert figure.layout.paper_bgcolor == figure.layout.plot_bgcolor == "rgba(0,0,0,0)"
        assert figure.layout.uirevision
        assert len(figure.to_json()) < 100_000
        json.loads(figure.to_json())
