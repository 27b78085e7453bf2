"""The figure of a cache that grows: what is stacked, and against what."""

from __future__ import annotations

import pytest

from kvmm.analysis.plots import memory_over_tokens


def report(text: int, image: int) -> dict:
    rows = {"text": {"nbytes": text}, "image": {"nbytes": image}}
    return {"nbytes": text + image, "nbytes_dense": 8 * (text + image), "by_modality": rows}


def test_modalities_are_stacked_below_full_precision():
    figure = memory_over_tokens([(2, report(1024, 2048)), (9, report(4096, 2048))])
    text, image, dense = figure.data
    assert (text.name, image.name, dense.name) == ("text", "image", "bf16")
    assert text.stackgroup == image.stackgroup == "held" and dense.stackgroup is None
    assert list(text.x) == [2, 9] and list(text.y) == [1, 4] and list(image.y) == [2, 2]
    assert list(dense.y) == [8 * 3, 8 * 6] and figure.layout.yaxis.title.text == "KiB"


def test_a_modality_that_comes_later_starts_at_zero():
    first = {"nbytes": 1024, "nbytes_dense": 2048, "by_modality": {"text": {"nbytes": 1024}}}
    figure = memory_over_tokens([(2, first), (9, report(2 << 30, 1 << 30))])
    assert figure.data[1].y[0] == 0 and figure.layout.yaxis.title.text == "MiB"


@pytest.mark.parametrize("points", [0, 1, 5000])
def test_any_number_of_points(points):
    figure = memory_over_tokens([(i, report(i + 1, 1)) for i in range(points)])
    longest = max(len(trace.x) for trace in figure.data)
    assert longest == min(points, 513) and (not points or figure.data[0].x[-1] == points - 1)
