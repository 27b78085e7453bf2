"""The analysis tabs are never empty: a worked sample before a question, earlier figures while one is answered."""

from __future__ import annotations

import re

import numpy as np
import pytest

from benchmarks.worked_sample import load, measure
from kvmm.models.conversation import model_lock
from kvmm.policy import policies
from kvmm.ui.tabs import errors, methods, norms
from kvmm.ui.worked import PATH, read, worked_sample, write

sync_api = pytest.importorskip("playwright.sync_api")
expect = sync_api.expect

TABS = {"norms": "Token norms", "errors": "Errors", "methods": "Methods"}
FIGURES = {
    "norms": ("norm-heatmap", "norm-boxes", "norm-imbalance"),
    "errors": ("error-curves", "error-channels", "error-tokens", "error-scores", "error-kl", "error-mixed"),
    "methods": ("methods-pareto", "methods-seconds"),
}
PHONE = {"viewport": {"width": 390, "height": 844}, "is_mobile": True, "has_touch": True}


# Texts of a figure that stick out of its block or lie under the block's label, and names that lie on each other.
PROBLEMS = """(block) => {
  const box = block.getBoundingClientRect(), found = [];
  const label = block.querySelector('label[data-testid="block-label"]').getBoundingClientRect();
  for (const text of [...block.querySelectorAll("svg text")].filter((one) => one.textContent.trim())) {
    const r = text.getBoundingClientRect(), said = text.textContent;
    if (!r.width) continue;
    if (r.left < box.left - 1 || r.right > box.right + 1 || r.bottom > box.bottom + 1) found.push("out: " + said);
    if (r.top < label.bottom - 2 && r.left < label.right) found.push("under the label: " + said);
  }
  const shared = (a0, a1, b0, b1) => Math.min(a1, b1) - Math.max(a0, b0);
  const names = [...block.querySelectorAll(".annotation-text")];
  const boxes = names.map((one) => one.getBoundingClientRect());
  boxes.forEach((a, i) => boxes.slice(0, i).forEach((b, j) => {
    if (shared(a.left, a.right, b.left, b.right) > 1 && shared(a.top, a.bottom, b.top, b.bottom) > 4)
      found.push(names[i].textContent + " on " + names[j].textContent);
  }));
  return found;
}"""


def go_to(page, tab: str) -> None:
    expect(page.locator("#chat-kvmm, #norms-summary, #errors-summary, #methods-summary").first).to_be_attached()
    expect(page.get_by_role("tab").first).to_be_visible()
    button = page.get_by_role("tab", name=TABS[tab])
    if not button.is_visible():
        page.locator(".overflow-menu > button").click()
        button = page.locator(".overflow-dropdown button", has_text=TABS[tab])
    button.click()


@pytest.fixture(scope="module")
def now():
    """The sample as the code measures it now, with two methods of all."""
    return measure(*load(), ["balanced", "bf16"])


def test_a_sample_is_read_as_it_was_written(now, tmp_path):
    write(now, tmp_path / "sample.safetensors")
    found = read(tmp_path / "sample.safetensors")
    np.testing.assert_array_equal(found.norms.query, now.norms.query)
    assert found.norms.tokens == now.norms.tokens and found.methods == now.methods and found.grids == now.grids
    errors = [sample.errors.of("balanced").key.by_layer() for sample in (found, now)]
    np.testing.assert_allclose(*errors, rtol=1e-6)  # quotients of two numbers that the file rounds to float32
    np.testing.assert_allclose(found.scores.of("balanced").kl, now.scores.of("balanced").kl, rtol=1e-6)


def test_the_committed_sample_is_what_the_code_measures(now):
    sample = worked_sample()
    assert PATH.stat().st_size < 2**20
    assert (sample.question, sample.answer, sample.file) == (now.question, now.answer, now.file)
    np.testing.assert_allclose(sample.norms.key, now.norms.key, rtol=1e-3)
    np.testing.assert_allclose(  # between two levels another machine may take the other one
        sample.errors.of("balanced").key.by_layer(), now.errors.of("balanced").key.by_layer(), rtol=1e-2
    )
    stored = {row.policy: row for row in sample.methods.rows}
    assert set(stored) == set(policies())
    for row in now.methods.rows:
        assert (stored[row.policy].nbytes, stored[row.policy].bits) == (row.nbytes, pytest.approx(row.bits))


@pytest.mark.parametrize("layout, options", [("1280", {}), ("phone-390", PHONE)])
def test_tabs_open_on_a_worked_sample(visit, screenshot, layout, options):
    page = visit(**options)
    expect(page.locator("#chat-kvmm")).to_be_visible()
    meanings = {"norms": norms.MEANING, "errors": errors.MEANING, "methods": methods.MEANING}
    for tab, figures in FIGURES.items():
        go_to(page, tab)
        summary = page.locator(f"#{tab}-summary")
        expect(summary).to_contain_text(f"A worked sample: “{worked_sample().question}”")
        expect(summary).to_contain_text(meanings[tab])
        for figure in figures:
            expect(page.locator(f"#{figure} .main-svg").first).to_be_visible()
        page.wait_for_timeout(500)
        for figure in figures:
            assert page.locator(f"#{figure}").evaluate(PROBLEMS) == []
        if tab == "methods":
            drawn = page.locator("#methods-pareto .annotation-text").all_text_contents()
            assert sorted(name for text in drawn for name in text.split(", ")) == sorted(policies())
        width = page.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
        assert width[0] <= width[1], f"{tab} scrolls sideways"
        screenshot(page, f"worked-{tab}-{layout}")


@pytest.mark.parametrize("layout, options", [("1280", {}), ("phone-390", PHONE)])
def test_the_figures_of_ones_own_prompt_are_whole(visit, screenshot, layout, options):
    page = visit(**options)
    page.get_by_text("Invoice: the total").click()
    expect(page.locator("#chat-kvmm")).to_contain_text("$1,274.94")
    expect(page.locator("#memory-plot .main-svg").first).to_be_visible()
    page.wait_for_timeout(800)
    for figure in ("memory-plot", "growth-plot"):
        assert page.locator(f"#{figure}").evaluate(PROBLEMS) == []
    go_to(page, "norms")
    expect(page.locator("#norm-stages .boxes").first).to_be_visible()
    page.wait_for_timeout(800)
    for figure in (*FIGURES["norms"], "norm-channels", "norm-stages"):
        assert page.locator(f"#{figure}").evaluate(PROBLEMS) == []
    screenshot(page, f"norms-own-{layout}")


@pytest.mark.parametrize("layout, options", [("1280", {}), ("phone-390", PHONE)])
def test_the_table_under_an_answer_has_words_on_one_line(visit, screenshot, layout, options):
    page = visit(**options)
    if options:
        expect(page.locator("#chat-kvmm")).to_be_visible()
        page.wait_for_timeout(1500)
        page.locator("#sidebar .toggle-button").click()
    page.get_by_label("Compare with full precision").check()
    if options:
        page.locator("#sidebar .toggle-button").click()
    page.get_by_text("Invoice: the total").click()
    expect(page.locator("#verdict")).to_be_visible()
    page.locator("#chat-kvmm .thought-group .title", has_text="KV ").click()
    table = page.locator("#chat-kvmm table")
    expect(table.locator("th").first).to_be_visible()
    heights = table.locator("th, td").evaluate_all("cells => cells.map((cell) => cell.getBoundingClientRect().height)")
    assert max(heights) < 40, "a cell is one line"
    table.evaluate("table => table.scrollTo(1000, 0)")
    first = table.locator("tbody tr").first.locator("td").first
    assert first.evaluate("cell => getComputedStyle(cell).position") == "sticky"
    assert first.bounding_box()["x"] >= table.bounding_box()["x"] - 1, "the first column stays"
    screenshot(page, f"compare-table-{layout}")


def test_the_worked_sample_is_looked_into(visit):
    page = visit()
    go_to(page, "norms")
    expect(page.locator("#outlier-table tbody tr").first).to_be_visible()
    before = page.locator("#norm-outliers").inner_text()
    slider = page.locator("#norm-layer input[type=number]")
    slider.fill("3")
    slider.press("Enter")
    expect(page.locator("#norm-outliers")).to_contain_text("Outlier tokens in layer 3")
    expect(page.locator("#norm-outliers")).not_to_have_text(before, use_inner_text=True)
    image = int(np.flatnonzero(worked_sample().norms.modality == 1)[40])
    page.locator("#norm-token input").fill(str(image))
    page.locator("#norm-token input").press("Tab")
    expect(page.locator("#token-place")).to_contain_text(re.compile(r"invoice\.png: row \d+ of 29, column \d+ of 21"))
    expect(page.locator("#norm-place img.patch")).to_be_visible()
    page.get_by_label("Values").check()
    expect(page.locator("#token-line")).to_contain_text("Value norm in layer 3")
    expect(page.locator("#norm-channels")).to_have_count(0)  # channels are of the visitor's own prompt


def test_figures_stay_while_a_question_is_answered(visit, screenshot, model_and_processor):
    """The model is held, so the answer cannot come: the tab shows the worked sample, says why, and follows."""
    page = visit()
    with model_lock(model_and_processor[0]):
        page.get_by_text("Invoice: the total").click()
        expect(page.locator("#chat-kvmm .message").first).to_be_visible()
        go_to(page, "norms")
        summary = page.locator("#norms-summary")
        expect(summary).to_contain_text("Your question is being answered")
        expect(page.locator("#norm-heatmap .heatmaplayer image").first).to_be_visible()
        screenshot(page, "norms-while-answering-1280")
    expect(summary).to_contain_text("Norms vary most in layer", timeout=60_000)
    expect(page.locator("#norm-stages .boxes").first).to_be_visible()
    own = summary.inner_text()

    # a second question: the figures of the first stay until those of both are there
    page.get_by_role("tab", name="Ask").click()
    with model_lock(model_and_processor[0]):
        page.locator("#ask-box").get_by_test_id("textbox").fill("What is the tax?")
        page.locator("#ask-box").get_by_test_id("submit-button").click()
        expect(page.locator("#chat-kvmm")).to_contain_text("What is the tax?")
        go_to(page, "norms")
        expect(page.locator("#norm-heatmap .heatmaplayer image").first).to_be_visible()
    expect(page.locator("#chat-kvmm")).to_contain_text("$94.44", timeout=60_000)
    go_to(page, "errors")
    expect(page.locator("#errors-summary")).to_contain_text("squared error over squared size", timeout=60_000)
    go_to(page, "norms")
    expect(summary).to_contain_text("Norms vary most in layer")
    expect(summary).not_to_have_text(own)


def test_measuring_says_so_at_once(visit, model_and_processor):
    page = visit()
    page.get_by_text("Invoice: the total").click()
    expect(page.locator("#chat-kvmm")).to_contain_text("$1,274.94")
    with model_lock(model_and_processor[0]):
        go_to(page, "errors")
        expect(page.locator("#measuring")).to_contain_text(re.compile(r"Measuring [\d,]+ tokens: errors and attention"))
        expect(page.locator("#measuring")).to_contain_text("Until then you see those of a worked sample")
        expect(page.locator("#error-curves .main-svg").first).to_be_visible()
    expect(page.locator("#error-line")).to_contain_text("balanced: squared error")
    expect(page.locator("#measuring")).to_have_count(0)
