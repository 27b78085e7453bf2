"""The operations of OScaR's paper, number by number, and what kvmm's own counts have in common with them."""

from __future__ import annotations

import pytest

from benchmarks import operation_table
from kvmm.analysis.cost.model import CostModel
from kvmm.analysis.cost.operations import decode_operations
from kvmm.analysis.cost.paper_operations import PAPER_OPERATIONS, policy_operations
from kvmm.analysis.cost.shapes import ModelShape
from tests.docs.pages import text_of

# Tables 3 and 4 for 10,000 tokens: millions of operations of the prompt, and of a step
FIGURES = {
    "KIVI": ("204.8", "81.9"),
    "QuaRot": ("778.2", "82.0"),
    "OScaR": ("901.1", "123.0"),
    "TurboQuant+": ("21186.6", "247.9"),  # 21,187 in the paper
    "TurboQuant": ("32051.2", "249.0"),  # 32,051
}
PICTURE = {"KIVI": 81.7, "OScaR": 122.8, "TurboQuant+": 248.1}  # Fig. 9, read off the authors' picture


@pytest.mark.parametrize("method", FIGURES)
def test_figures_of_the_tables(method):
    one = PAPER_OPERATIONS[method]
    assert (f"{one.prefill() / 1e6:.1f}", f"{one.step() / 1e6:.1f}") == FIGURES[method]


def test_every_method_has_its_figures():
    assert list(PAPER_OPERATIONS) == list(FIGURES)


@pytest.mark.parametrize("method", PICTURE)
def test_the_picture_of_figure_9(method):
    assert abs(PAPER_OPERATIONS[method].step() / 1e6 - PICTURE[method]) < 0.5


def test_a_step_grows_with_the_cache_and_packing_with_the_heads():
    oscar, turboquant = PAPER_OPERATIONS["OScaR"], PAPER_OPERATIONS["TurboQuant+"]
    assert oscar.step(20_000) - oscar.step(10_000) == 3 * 4096 * 10_000
    assert oscar.packing(1024, 64) == 1024 * (8 + 2 * 6)
    assert turboquant.packing(1024, 64) == 1024 * (5.25 + 4 * 64)
    assert oscar.prefill(7, 1024, 64) == 7 * oscar.packing(1024, 64)


def test_packing_oscar_takes_what_the_paper_says():
    packing, added, products = policy_operations("paper-oscar2")
    assert packing == PAPER_OPERATIONS["OScaR"].prefill()
    assert products == PAPER_OPERATIONS["KIVI"].read * 4096 * 10_000
    assert added < 0.04 * (PAPER_OPERATIONS["OScaR"].step() - products), "norms and scales are folded"


def test_an_operation_of_norms_is_one_per_key_and_query_head():
    shape = ModelShape("a layer", 1, 32, 32, 128, 4096)
    found = decode_operations(CostModel(shape, "oscar2"), {"text": 10_000})
    packed = found.norm // 32
    assert packed * 32 == found.norm and 9_800 < packed < 10_000


def test_the_table_of_the_page():
    page = text_of("docs/analysis.md")
    assert operation_table.marked(page) == operation_table.operation_table()
    for figure in (number for row in FIGURES.values() for number in row):
        assert f" {float(figure):,.1f} |" in page
