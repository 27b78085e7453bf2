"""Reports in a folder: the page as a browser without a network shows it, pictures, and what is said without Chrome."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import sync_playwright

from kvmm.analysis import NormReport
from kvmm.analysis.plots import norm_boxes, norm_heatmap
from kvmm.analysis.report import files as figures
from kvmm.analysis.report.files import Figure, Table, write_png, write_report
from kvmm.errors import KVMMError


@pytest.fixture(scope="module")
def parts() -> list[Figure]:
    key = np.random.default_rng(0).uniform(1, 2, (3, 2, 300)).astype(np.float32)
    report = NormReport((0, 1, 2), key, key, None, np.array([0] * 20 + [1] * 280, dtype=np.int8))
    return [
        Figure("heat", "Norms <by> token", "Stripes & such.", norm_heatmap(report)),
        Figure("boxes", "Boxes", "Half of the tokens.", norm_boxes(report)),
    ]


TABLE = Table("Numbers", "of <things>", ("name", "value"), (("a & b", "1.0"),))


def test_a_page_needs_nothing_else(parts, tmp_path):
    written = write_report(
        tmp_path / "new" / "folder", "norms", "A title", {"x": 1.5}, parts, tables=[TABLE], png=False
    )
    assert json.loads(written.json.read_text()) == {"x": 1.5} and written.png == () and not written.note
    text = written.html.read_text()
    assert text.count("plotly.js v") == 1 and "Norms &lt;by&gt; token" in text and "a &amp; b" in text
    asked, problems, colors = [], [], {}
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        for scheme in ("light", "dark"):
            page = browser.new_page(color_scheme=scheme, viewport={"width": 420, "height": 800})
            page.on("request", lambda request: asked.append(request.url))
            page.on("console", lambda message: problems.append(message.text))
            page.on("pageerror", lambda error: problems.append(str(error)))
            page.goto(written.html.as_uri())
            for name in ("heat", "boxes"):
                page.locator(f"#figure-{name} .main-svg").first.wait_for()
            assert page.locator("td").all_inner_texts() == ["a & b", "1.0"]
            assert page.evaluate("document.documentElement.scrollWidth") <= 420
            colors[scheme] = page.evaluate("getComputedStyle(document.body).backgroundColor")
        browser.close()
    assert asked == [written.html.as_uri()] * 2 and problems == []
    assert colors["light"] == "rgb(255, 255, 255)" and colors["dark"] == "rgb(20, 23, 29)"


def test_pictures_are_drawn_and_transparent(parts, tmp_path):
    written = write_report(tmp_path, "norms", "A title", {}, parts, scale=1.0)
    assert [path.name for path in written.png] == ["heat.png", "boxes.png"] and not written.note
    for path, part in zip(written.png, parts, strict=True):
        picture = Image.open(path)
        assert picture.size == (figures.PNG_WIDTH, part.figure.layout.height)
        alpha = np.asarray(picture.convert("RGBA"))[..., 3]
        assert alpha[0, 0] == 0 and (alpha > 0).mean() > 0.02  # readable on any page, and not empty
    colors = {pixel[:3] for _, pixel in Image.open(written.png[0]).convert("RGBA").getcolors(1 << 20)}
    assert {(230, 159, 0), (0, 114, 178)} <= colors  # the ribbon: image and text


def test_without_a_browser_everything_else_is_written(parts, tmp_path, monkeypatch):
    monkeypatch.setenv("BROWSER_PATH", str(tmp_path / "missing"))
    written = write_report(tmp_path, "norms", "A title", {}, parts)
    assert written.html.is_file() and written.json.is_file() and not list(tmp_path.glob("*.png"))
    assert "Chrome or Chromium" in written.note and "\n" not in written.note


def test_what_cannot_be_written_is_one_line(parts, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    with pytest.raises(KVMMError, match=re.escape(str(tmp_path / "file"))):
        write_report(tmp_path / "file", "norms", "A title", {}, parts)
    monkeypatch.setenv("BROWSER_PATH", "/bin/false")
    with pytest.raises(KVMMError, match="could not draw") as caught:
        write_png([parts[0].figure], [Path(tmp_path / "x.png")])
    assert "\n" not in str(caught.value) and not (tmp_path / "x.png").exists()
