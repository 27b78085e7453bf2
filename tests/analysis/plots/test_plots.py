"""The data inside the figures."""

from __future__ import annotations

import json

import numpy as np
import pytest

from kvmm.analysis import NormReport
from kvmm.analysis.plots import (
    MAX_COLUMNS,
    MODALITY_COLORS,
    format_bytes,
    log_ticks,
    memory_by_modality,
    norm_boxes,
    norm_heatmap,
    norm_imbalance,
)

MEMORY = {
    "by_modality": {
        "text": {"tokens": 16, "nbytes": 4096, "nbytes_dense": 4096, "bits_per_value": 16.0, "packed_tokens": 0},
        "image": {
            **{"tokens": 1200, "nbytes": 10240, "nbytes_dense": 81920, "bits_per_value": 2.0},
            **{"packed_tokens": 1200, "packed_bits_per_value": 1.9},
        },
        "audio": {"tokens": 0, "nbytes": 0, "nbytes_dense": 0, "bits_per_value": 0.0, "packed_tokens": 0},
    }
}


@pytest.fixture
def report() -> NormReport:
    rng = np.random.default_rng(0)
    key = rng.uniform(1, 2, (3, 2, 1300)).astype(np.float32)
    key[1, :, 700] = 50.0
    modality = np.array([0] * 4 + [1] * 1200 + [0] * 96, dtype=np.int8)
    return NormReport((0, 2, 5), key, key * 2, key * 3, modality)


@pytest.mark.parametrize(
    "nbytes, text",
    [(0, "0 B"), (999, "999 B"), (1000, "0.98 KiB"), (39117, "38.2 KiB"), (412 * 1024, "412 KiB"),
     (1.5 * 2**20, "1.50 MiB"), (20 * 2**30, "20.0 GiB"), (3000 * 2**30, "3000 GiB")],
)  # fmt: skip
def test_format_bytes(nbytes, text):
    assert format_bytes(nbytes) == text


def value_of(text: str) -> float:
    digits, _, power = text.partition("10<sup>")
    return float(text) if not power else float(digits.rstrip("·") or 1) * 10.0 ** int(power.removesuffix("</sup>"))


@pytest.mark.parametrize("low, high", [(0.13, 1.8), (0.009, 1.1), (3e-7, 4e-6), (1e-9, 5.0), (3.1, 3.1), (20, 9e6)])
def test_ticks_of_a_logarithmic_axis_are_whole_numbers_in_order(low, high):
    ticks = log_ticks(low, high)
    values = ticks["tickvals"]
    assert values == sorted(values) and 1 <= len(values) <= 14
    assert all(low / 1.75 <= value <= high * 1.75 for value in values)
    assert [value_of(text) for text in ticks["ticktext"]] == pytest.approx(values), "a tick says all of its number"


def test_memory_shows_measured_beside_dense():
    packed, dense = memory_by_modality(MEMORY).data
    assert [label.split("<br>")[1] for label in packed.y] == ["1,200 tokens", "16 tokens"]  # audio has none: left out
    np.testing.assert_allclose(packed.x, [10, 4])
    assert list(packed.customdata) == [
        "packed: 1.9 bits per value, whole cache: 2.0 bits",
        "nothing packed yet: 16 tokens stay exact",
    ]
    np.testing.assert_allclose(dense.x, [80, 4])
    assert "2.00 bits" in packed.text[0] and "10.0 KiB" in packed.text[0]
    assert list(packed.marker.color) == [MODALITY_COLORS["image"], MODALITY_COLORS["text"]]


def test_heatmap_is_binned_and_keeps_outliers(report):
    figure = norm_heatmap(report)
    ribbon, cells = figure.data[:2]
    assert np.shape(cells.z) == (3, MAX_COLUMNS) and np.shape(ribbon.z) == (1, MAX_COLUMNS)
    assert np.max(cells.z) == 50.0
    column = int(np.argmax(np.max(cells.z, axis=0)))
    assert cells.x[column] <= 700 < cells.x[column + 1]
    assert ribbon.z[0][0] == 0 and ribbon.z[0][column] == 1 and ribbon.z[0][-1] == 0
    assert list(cells.y) == ["0", "2", "5"]
    assert [trace.name for trace in figure.data[2:]] == ["text", "image"]
    short = NormReport((0,), report.key[:1, :, :10], report.value[:1, :, :10], None, report.modality[:10])
    np.testing.assert_allclose(norm_heatmap(short, "key").data[1].z, short.by_token().round(3), rtol=1e-6)


def test_boxes_carry_five_numbers(report):
    figure = norm_boxes(report, "value", layer=1)
    assert [trace.name for trace in figure.data] == ["text", "image"]
    image = figure.data[1]
    want = report.quantiles("value", "image")
    got = np.stack([image.lowerfence, image.q1, image.median, image.q3, image.upperfence], axis=1)
    np.testing.assert_allclose(got, want, atol=1e-4)
    assert image.y is None  # no raw points travel
    assert len(figure.layout.shapes) == 1
    assert figure.layout.yaxis.title.text == "Value norm"


def test_imbalance_is_the_mean_over_heads(report):
    (bars,) = norm_imbalance(report, "key", layer=1).data
    variation = report.coefficient_of_variation("key")
    np.testing.assert_allclose(bars.y, variation.mean(axis=1), atol=1e-4)
    np.testing.assert_allclose(bars.y + bars.error_y.array, variation.max(axis=1), atol=2e-4)


def test_every_figure_is_small_transparent_and_keeps_the_view(report):
    for figure in (memory_by_modality(MEMORY), norm_heatmap(report), norm_boxes(report), norm_imbalance(report)):
        assert figure.layout.paper_bgcolor == figure.layout.plot_bgcolor == "rgba(0,0,0,0)"
        assert figure.layout.uirevision
        assert len(figure.to_json()) < 100_000
        json.loads(figure.to_json())
