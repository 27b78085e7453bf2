"""Pages written in HTML, printed or photographed from the screen by Chromium.

The first line of a file is a comment that holds JSON: ``out`` (pdf, png or jpg), ``width`` in CSS pixels, ``scale``,
``size`` of the paper, ``wear`` (see ``wear.py``) and ``seed``. Each ``<section>`` of a file that becomes images is one
page.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import sync_playwright

from tests.blind.make.files import save_image
from tests.blind.make.wear import worn

PAGES = Path(__file__).parent / "pages"
CHROMIUM = {"executable_path": "/usr/bin/chromium", "args": ["--no-sandbox"]}


def settings_of(path: Path) -> dict[str, Any]:
    """The settings in the first line of a page's file."""
    return json.loads(re.match(r"<!--(\{.*\})-->", path.read_text(encoding="utf-8").split("\n", 1)[0])[1])


def render(out: Path, wanted: str = "") -> Iterator[tuple[str, list[str]]]:
    """Write the documents whose names contain ``wanted`` into ``out``; yields each name with the text of each page."""
    with sync_playwright() as engine:
        chromium = engine.chromium.launch(**CHROMIUM)
        for path in sorted(PAGES.glob("*.html")):
            if wanted in path.stem:
                yield path.stem, _render(chromium, path, out)
        chromium.close()


def _render(chromium: Any, path: Path, out: Path) -> list[str]:
    settings = {"out": "png", "width": 640, "scale": 1.5, "size": "A4", "wear": [], "seed": 1} | settings_of(path)
    page = chromium.new_page(
        viewport={"width": settings["width"], "height": 400}, device_scale_factor=settings["scale"]
    )
    page.goto(path.as_uri())
    page.evaluate("document.fonts.ready")
    if settings["out"] == "pdf":
        texts = [page.inner_text("body")]
        page.pdf(
            path=out / f"{path.stem}.pdf",
            format=settings["size"],
            print_background=True,
            prefer_css_page_size=True,
        )
    else:
        sections = page.query_selector_all("section") or [page.query_selector("body")]
        texts = [section.inner_text() for section in sections]
        for number, section in enumerate(sections, 1):
            picture = Image.open(io.BytesIO(section.screenshot())).convert("RGB")
            name = path.stem if len(sections) == 1 else f"{path.stem}-{number}"
            picture = worn(picture, settings["wear"], settings["seed"] + number)
            save_image(
                picture, out / f"{name}.{settings['out']}", settings.get("colours", 32), settings.get("quality", 62)
            )
    page.close()
    stamps = [how.partition(":")[2].partition("@")[0] for how in settings["wear"] if how.startswith("stamp:")]
    return ["\n".join([text, *stamps]) for text in texts]
