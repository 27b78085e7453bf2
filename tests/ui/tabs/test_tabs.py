"""The tabs beside Ask, with real content: each is opened by a new visitor, who takes the sample that is offered."""

from __future__ import annotations

import csv
import json
import re
import threading
import zipfile

import pytest

from kvmm.analysis.cost.plan import PLAN_POLICIES, count_tokens, make_plan
from kvmm.analysis.cost.shapes import find_shape
from kvmm.ui.tabs.evaluate import FIRST_LIMIT, MINI, sources_in

sync_api = pytest.importorskip("playwright.sync_api")
expect = sync_api.expect


def open_with_sample(page, name: str, tab: str) -> None:
    """Open a tab before anything was asked, and press the button that asks the sample's question."""
    page.get_by_role("tab", name=name).click()
    expect(page.locator(f"#{tab}-summary")).to_contain_text("A worked sample")
    page.locator(f"#{tab}-sample").click()
    expect(page.locator(f"#{tab}-sample")).to_be_hidden()


def type_number(page, place: str, value: int) -> None:
    page.locator(f"{place} input").first.fill(str(value))
    page.locator(f"{place} input").first.press("Tab")


def test_a_token_is_followed_to_its_place(visit, screenshot):
    page = visit()
    open_with_sample(page, "Token norms", "norms")
    expect(page.locator("#norm-channels .heatmaplayer image")).to_have_count(2)
    expect(page.locator("#norm-stages .boxes").first).to_be_visible()

    # a point of a figure: the middle of the heatmap is the middle of the page
    cells = page.locator("#norm-heatmap .heatmaplayer").nth(1)
    cells.scroll_into_view_if_needed()
    box = cells.bounding_box()
    middle = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.mouse.move(*middle, steps=5)
    page.mouse.click(*middle)
    expect(page.locator("#token-line")).to_contain_text("image")
    expect(page.locator("#token-place")).to_contain_text("invoice.png: row")
    row, rows = map(int, re.search(r"row (\d+) of (\d+)", page.locator("#token-place").inner_text()).groups())
    assert 0.3 < row / rows < 0.7
    expect(page.locator("#norm-place img.patch")).to_be_visible()
    screenshot(page, "norms-token-1280")

    # a row of the table
    button = page.locator("#norm-outliers [data-token]").last
    button.click()
    expect(page.locator("#token-line")).to_contain_text(f"Token {button.inner_text()},")

    # a number: the first tokens are text
    type_number(page, "#norm-token", 1)
    expect(page.locator("#norm-place mark")).to_have_text("user")
    type_number(page, "#norm-token", 99999)
    expect(page.locator("#norm-place")).to_contain_text("There is no token 99999")

    page.get_by_label("Side by side").check()
    expect(page.locator("#norm-channels .heatmaplayer image")).to_have_count(8)

    # the sample's answer is in the first tab
    page.get_by_role("tab", name="Ask").click()
    expect(page.locator("#chat-kvmm")).to_contain_text("$1,274.94")


def test_errors_of_the_sidebars_policy(visit, screenshot):
    page = visit()
    open_with_sample(page, "Errors", "errors")
    table = page.locator("#error-table tbody tr")
    expect(table).to_have_count(2)
    expect(page.locator("#error-line")).to_contain_text("balanced: squared error")
    relative = [float(cell) for cell in table.nth(0).locator("td").all_inner_texts()[1:4]]
    assert all(0 < value < 1 for value in relative)
    for figure in ("curves", "channels", "tokens", "scores", "kl", "mixed"):
        expect(page.locator(f"#error-{figure} .main-svg").first).to_be_visible()
    screenshot(page, "errors-1280")
    slider = page.locator("#error-layer input[type=number]")
    slider.fill("2")
    slider.press("Enter")
    page.locator("#policy input").click()
    page.get_by_role("option", name=re.compile("^bf16 ")).click()
    page.locator("#error-again").click()
    expect(page.locator("#error-line")).to_contain_text("bf16: squared error")
    for k in (1, 2, 3):
        expect(table.nth(1).locator("td").nth(k)).to_have_text("0.0000")  # the lossless control


def test_methods_are_compared_and_downloaded(visit, screenshot):
    page = visit()
    open_with_sample(page, "Methods", "methods")
    page.locator("#methods-start").click()
    expect(page.locator("#methods-done")).to_contain_text("3 methods")
    rows = [row.locator("td").all_inner_texts() for row in page.locator("#methods-table tbody tr").all()]
    rows = [row for row in rows if row]  # a heading has no cells
    assert [row[0] for row in rows] == ["full precision", "balanced", "bf16", "kivi4"]
    headings = page.locator("#methods-table tr.part-of").all_inner_texts()
    assert headings == ["Recommended", "Papers' methods · KIVI, arXiv 2402.02750"]
    assert all(row[5] == "$1,274.94" for row in rows) and [row[6] for row in rows[1:]] == ["yes"] * 3
    assert all(float(rows[1][i]) < float(rows[3][i]) < float(rows[2][i]) for i in (1, 2))
    expect(page.locator("#methods-pareto .points path").first).to_be_visible()
    screenshot(page, "methods-1280")
    with page.expect_download() as download:
        page.locator("#methods-csv").click()
    with download.value.path().open(encoding="utf-8") as file:
        found = list(csv.DictReader(file))
    assert [row["policy"] for row in found] == ["balanced", "bf16", "kivi4"]
    assert [round(float(found[0][n]), 2) for n in ("packed_bits", "bits")] == [float(x) for x in rows[1][1:3]]
    with page.expect_download() as download:
        page.locator("#methods-json").click()
    assert json.loads(download.value.path().read_text())["answer"] == "$1,274.94"


def test_stop_ends_a_comparison_after_the_method_in_hand(visit, monkeypatch):
    """The second method waits until Stop was pressed, so the test does not race."""
    from kvmm.analysis.methods import measure as methods

    pressed, begun, measure = threading.Event(), [], methods._measure

    def slow(*args):
        begun.append(1)
        if len(begun) == 2:
            pressed.wait(60)
        return measure(*args)

    page = visit()
    monkeypatch.setattr(methods, "_measure", slow)
    open_with_sample(page, "Methods", "methods")
    page.locator("#methods-start").click()
    expect(page.locator("#methods-table tbody tr:not(.part-of)")).to_have_count(2)
    with page.expect_response(lambda response: response.request.method == "POST"):
        page.locator("#methods-stop").click()
    pressed.set()
    expect(page.locator("#methods-done")).to_contain_text("Stopped after 1 of 3 methods")
    expect(page.locator("#methods-start")).to_be_visible()


def test_a_benchmark_is_run_and_gone_on_with(visit, screenshot):
    page = visit()
    page.get_by_role("tab", name="Evaluate").click()
    expect(page.locator("#evaluate-limit input").first).to_have_value(str(FIRST_LIMIT))
    page.wait_for_timeout(1000)  # what the page loads last sets its fields, and nobody types within that second
    type_number(page, "#evaluate-limit", 0)
    page.locator("#evaluate-start").click()
    expect(page.locator("#evaluate-progress")).to_contain_text("Questions must be a whole number")
    type_number(page, "#evaluate-limit", 1)
    page.locator("#evaluate-start").click()
    expect(page.locator("#evaluate-done")).to_contain_text("3 answers")
    type_number(page, "#evaluate-limit", 2)
    page.locator("#evaluate-start").click()
    expect(page.locator("#evaluate-done")).to_contain_text("6 answers")
    rows = [row.locator("td").all_inner_texts() for row in page.locator("#evaluate-table tbody tr").all()]
    assert [row[0] for row in rows] == ["bf16", "balanced", "small"]
    assert rows[0][2] == "" and re.match(r"[+-]\d", rows[1][2])  # the difference to full precision
    files = page.locator("#evaluate-files .file")
    expect(files).to_have_count(5)
    screenshot(page, "evaluate-1280")
    with page.expect_download() as download:
        page.locator("#evaluate-files .file", has_text="report").get_by_role("link").click()
    assert "anls" in download.value.path().read_text(encoding="utf-8").lower()


def test_a_visitor_evaluates_a_benchmark_of_their_own(visit, screenshot, invoice, tmp_path):
    items = [
        {"questionId": i, "question": question, "answers": [answer], "image": image}
        for i, (question, answer, image) in enumerate(
            [
                ("What is the total?", "$1,274.94", "march.png"),
                ("What is the tax?", "$94.44", "march.png"),
                ("Who is it?", "nobody", "/etc/hostname"),
            ]
        )
    ]
    with zipfile.ZipFile(tmp_path / "mine.zip", "w") as file:
        file.writestr("val.json", json.dumps({"data": items}))
        file.write(invoice, "images/march.png")
    (tmp_path / "bad.zip").write_bytes(b"PK")

    def send(page, name: str) -> None:
        with page.expect_file_chooser() as chooser:
            page.locator("#evaluate-upload").click()
        chooser.value.set_files(str(tmp_path / name))

    page, other = visit(), visit()
    for one in (page, other):
        one.get_by_role("tab", name="Evaluate").click()
    send(page, "bad.zip")
    expect(page.locator("#evaluate-progress")).to_contain_text("bad.zip is damaged")
    send(page, "mine.zip")
    expect(page.locator("#evaluate-progress")).to_contain_text("mine.zip: 1 data file, 1 picture.")
    expect(page.locator("#evaluate-source input")).to_have_value("yours: mine.zip")
    page.locator("#evaluate-start").click()
    expect(page.locator("#evaluate-done")).to_contain_text("2 questions from yours: mine.zip; 1 left out")
    scores = [row.locator("td").nth(1).inner_text() for row in page.locator("#evaluate-table tbody tr").all()]
    assert scores == ["100.0"] * 3
    screenshot(page, "evaluate-own-1280")
    for file in page.locator("#evaluate-files .file").all():  # nothing tells where files are on the server
        with page.expect_download() as download:
            file.get_by_role("link").click()
        assert str(tmp_path.parent.parent) not in download.value.path().read_text(encoding="utf-8")
    other.locator("#evaluate-source input").click()
    expect(other.get_by_role("option", name=MINI)).to_be_visible()
    expect(other.get_by_role("option", name="yours")).to_have_count(0)


def test_visitors_choose_data_by_name(tmp_path):
    (tmp_path / "mine.json").write_text("[]")
    (tmp_path / ".secret").write_text("")
    assert sources_in(tmp_path) == {MINI: "mini", "mine.json": tmp_path / "mine.json"}
    assert sources_in(None) == {MINI: "mini"}


@pytest.mark.parametrize(
    "name, options",
    [
        ("1280", {}),
        (
            "phone-390",
            {"viewport": {"width": 390, "height": 844}, "is_mobile": True, "has_touch": True, "color_scheme": "dark"},
        ),
    ],
)
def test_the_planner_has_the_numbers_of_kvmm_plan(visit, screenshot, name, options):
    page = visit(**options)
    if "phone" in name:
        expect(page.locator("#sidebar.open")).to_have_count(0)
        page.locator(".overflow-menu > button").click()
        page.locator(".overflow-dropdown button", has_text="Planner").click()
    else:
        page.get_by_role("tab", name="Planner").click()
    rows = page.locator("#plan-table tbody tr")
    expect(rows).to_have_count(len(PLAN_POLICIES))
    type_number(page, "#plan-context", 65536)
    expect(page.locator("#plan-shape")).to_contain_text("57,344 text, 8,192 image tokens")
    tokens = count_tokens(65536, {"image": 8 * 1024, "audio": 0})
    plan = make_plan(find_shape("Qwen2.5-VL-7B"), PLAN_POLICIES, tokens, budget=24 * 2**30)
    for i, row in enumerate(plan.rows):
        expect(rows.nth(i).locator("td")).to_have_text(list(plan.cells(row)), use_inner_text=True)
    expect(page.locator(".plan-note")).to_have_text(plan.notes, use_inner_text=True)
    expect(page.locator("#plan-command")).to_contain_text("--context 65536")
    for figure in ("plan-bytes", "plan-contexts"):
        expect(page.locator(f"#{figure} .bars").first).to_be_visible()
    width = page.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
    assert width[0] <= width[1], "the page scrolls sideways"
    screenshot(page, f"planner-{name}")
    type_number(page, "#plan-context", 100)
    expect(page.locator("#plan-error")).to_contain_text("The media have 8192 tokens and the context 100")


def test_a_data_folder_that_is_none_is_one_line(capsys):
    import app

    assert app.main(["--data", "/nowhere"]) == 2
    assert capsys.readouterr().err == "kvmm: --data /nowhere is no folder\n"
