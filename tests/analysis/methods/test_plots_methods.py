"""The data inside the figures of methods and costs."""

from __future__ import annotations

import json
from math import log10

import numpy as np
import pytest

from kvmm.analysis.cost.operations import decode_operations, pack_operations
from kvmm.analysis.cost.plan import make_plan
from kvmm.analysis.cost.shapes import ModelShape
from kvmm.analysis.methods.measure import MethodRow, MethodsReport
from kvmm.analysis.plots import cost_components, decode_counts, method_seconds, pack_counts, pareto
from kvmm.analysis.plots.labels import HEIGHT, LINE, WIDTHS
from kvmm.analysis.plots.policies import family_color, family_of, family_symbol
from kvmm.policy import policies

MIB = 2**20


def row(name, mib, kl, answer="same", **changes):
    fields = {
        "nbytes": int(mib * MIB),
        "nbytes_dense": 16 * MIB,
        "ratio": 16 / mib,
        "bits": mib,
        "by_component": {"codes": int(mib * MIB) - 100, "scale": 60, "zero_point": 30, "sink": 10},
        "kl": kl,
        "kl_max": kl,
        "top1": 1.0,
        "positions": 4,
        "answer": answer,
        "identical": answer == "same",
        "tokens": 4,
        "pack_seconds": 0.5,
        "answer_seconds": 0.25,
    }
    return MethodRow(name, "", name, **{**fields, **changes})


def report(*rows):
    return MethodsReport(10, 8, "same", 4, 0.2, 0.1, rows, len(rows))


def crowd(seed):
    """All presets, many of them close together."""
    rng = np.random.default_rng(seed)
    return report(*(row(name, 2 + rng.random(), 10.0 ** rng.uniform(-3, -2)) for name in policies()))


@pytest.fixture(scope="module")
def crowded():
    return crowd(0)


@pytest.fixture(scope="module")
def plan():
    shape = ModelShape("tiny", 2, 4, 2, 64, 256)
    return make_plan(shape, ["bf16", "kivi2", "oscar2", "kitty"], {"text": 600, "image": 500}, budget=1 << 20)


def test_the_front_is_drawn_through_what_no_other_beats():
    found = report(row("rd1", 1, 0.5), row("kivi2", 3, 0.2), row("rd3", 3, 0.1), row("bf16", 16, 0.0, "other <b>"))
    figure = pareto(found)
    front = figure.data[0]
    np.testing.assert_allclose(front.x, [1, 3, 16])
    np.testing.assert_allclose(front.y[:2], [0.5, 0.1])
    assert 0 < front.y[2] < 1e-6, "zero is drawn where rounding ends"
    names = {trace.name: trace for trace in figure.data[1:]}
    assert set(names) == {"rd", "kivi", "full precision"} and list(names["rd"].x) == [1, 3]
    assert "other &lt;b&gt;" in names["full precision"].customdata[0], "an answer is no markup"
    assert "the same answer" in names["rd"].customdata[0]
    assert names["rd"].marker.size[0] > names["kivi"].marker.size[0]


def plain(text):
    return text.replace("<b>", "").replace("</b>", "")


def boxes_of(figure, width):
    """Left, low, right and high of every label in pixels, where the plot is ``width`` pixels wide."""
    x_range, y_range = figure.layout.xaxis.range, figure.layout.yaxis.range
    for label in figure.layout.annotations:
        wide = 6 * len(plain(label["text"]))  # pixels, a little less than is reserved
        dx, dy = (label["ax"], -label["ay"]) if label["showarrow"] else (label["xshift"], label["yshift"])
        x = (label["x"] - x_range[0]) / (x_range[1] - x_range[0]) * width + dx
        y = (label["y"] - y_range[0]) / (y_range[1] - y_range[0]) * HEIGHT + dy
        left = x - {"left": 0, "right": wide, "center": wide / 2}[label["xanchor"]]
        low = y - {"bottom": 0, "top": LINE, "middle": LINE / 2}[label["yanchor"]]
        yield left, low, left + wide, low + LINE


def overlaps(boxes):
    return [
        (one, other)
        for i, one in enumerate(boxes)
        for other in boxes[:i]
        if one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]
    ]


@pytest.mark.parametrize("width", WIDTHS)
def test_every_point_has_a_name_that_lies_on_no_other_and_inside(crowded, width):
    figure = pareto(crowded)
    named = [name for label in figure.layout.annotations for name in plain(label["text"]).split(", ")]
    assert sorted(named) == sorted(policies())
    boxes = list(boxes_of(figure, width))
    for one in boxes:
        assert one[0] >= 0 and one[1] >= 0 and one[2] <= width + 1 and one[3] <= HEIGHT + 1
    assert overlaps(boxes) == []
    bold = {
        name for label in figure.layout.annotations if "<b>" in label.text for name in plain(label.text).split(", ")
    }
    assert set(crowded.pareto()) <= bold


@pytest.mark.parametrize("seed", (1, 2, 4))
def test_names_of_another_crowd_lie_apart(seed):
    """Some names find no free place in their turn, so others have to move."""
    figure = pareto(crowd(seed))
    assert [overlaps(list(boxes_of(figure, width))) for width in WIDTHS] == [[]] * len(WIDTHS)


def test_equal_points_share_a_label():
    found = report(row("rd1", 1, 0.5), row("small", 1, 0.5), row("bf16", 16, 0.0))
    labels = {label.text: label for label in pareto(found).layout.annotations}
    assert set(labels) == {"<b>rd1, small</b>", "<b>bf16</b>"}
    assert labels["<b>bf16</b>"].x == pytest.approx(log10(16)), "a logarithmic axis takes powers of ten"


def test_a_row_without_figures_and_a_report_without_rows():
    broken = MethodRow("rd2", "", "rd2", error="no")
    figure = pareto(report(broken, row("kivi2", 3, 0.2)))
    assert [trace.name for trace in figure.data[1:]] == ["kivi"]
    assert not pareto(report()).data and not pareto(report(broken)).data
    assert list(method_seconds(report(broken)).data[0].y) == ["full precision"]


def test_seconds(crowded):
    packing, answering = method_seconds(crowded).data
    assert list(packing.y)[::-1] == ["full precision", *policies()]
    assert (packing.x[0], answering.x[0]) == (0.5, 0.25) and (packing.x[-1], answering.x[-1]) == (0, 0.2)


def test_components_add_up_to_all_bytes(crowded, plan):
    measured = cost_components(report(row("kivi2", 3, 0.2), row("rd1", 1, 0.2)))
    bars = {trace.name: trace for trace in measured.data if trace.type == "bar"}
    assert set(bars) == {"codes", "scales, norms, indices", "sinks, newest text, exact pages"}
    np.testing.assert_allclose(sum(np.asarray(bar.x) for bar in bars.values()), [1, 3])
    assert list(bars["codes"].y) == ["rd1", "kivi2"], "the first is on top"
    planned = cost_components(plan)
    total = sum(np.asarray(trace.x) for trace in planned.data if trace.type == "bar")
    np.testing.assert_allclose(total * MIB, [one.cost.nbytes for one in plan.rows][::-1])
    assert planned.layout.xaxis.title.text == "MiB · bits per value, whole cache"


def test_operations(plan):
    figure = decode_counts(plan)
    bars = {trace.name: trace for trace in figure.data if trace.type == "bar"}
    counts = [decode_operations(one.model, plan.tokens) for one in plan.rows][::-1]
    assert list(bars["rotation"].x) == [one.rotation for one in counts]
    np.testing.assert_array_equal(sum(np.asarray(bar.x) for bar in bars.values()), [one.total for one in counts])
    assert "0.0% added" in figure.data[-1].text[-1], "full precision only multiplies"
    packing = {trace.name: trace for trace in pack_counts(plan, "image").data if trace.type == "bar"}
    assert list(packing["quantising"].x) == [pack_operations(one.model, "image").quantize for one in plan.rows][::-1]


def test_methods_are_told_apart():
    looks = {(family_color(name), family_symbol(name)) for name in map(family_of, policies())}
    assert len(looks) == len(set(map(family_of, policies())))
    assert family_of("balanced", "oscar4-2") == "oscar" and family_of("balanced", "balanced") == "rd"
    assert family_of("bf16") == "other"


def test_every_figure_is_small_transparent_and_keeps_the_view(crowded, plan):
    figures = [pareto(crowded), method_seconds(crowded), cost_components(crowded), cost_components(plan)]
    for figure in [*figures, decode_counts(plan), pack_counts(plan)]:
        assert figure.layout.paper_bgcolor == figure.layout.plot_bgcolor == "rgba(0,0,0,0)"
        assert figure.layout.uirevision
        assert len(figure.to_json()) < 100_000
        json.loads(figure.to_json())
