"""The sets ``layouts`` and ``scans``: HTML documents rendered by Chromium, clean or as a scanner would return them."""

from __future__ import annotations

import io
import math
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from PIL import Image, ImageFilter

from training.heldout.templates import TEMPLATES
from training.heldout.templates.markup import Layout
from training.heldout.writer import Writer, turn
from training.pages import Rng
from training.pages.values import assets_dir

SMALLEST = 11  # CSS pixels; at the model's resolution a CSS pixel is a pixel
SCAN_SCALE = 4.4  # an A4 page of 560 x 784 becomes one of about 300 dpi
ACCENTS = ("#1f4e79", "#7a1f3d", "#2f6b3a", "#444444", "#8a4b00", "#4a3c8c", "#006a6a", "#222222")
_RESET = (
    "*{margin:0;box-sizing:border-box}body{width:%dpx;height:%dpx;position:relative;overflow:hidden;background:#fff;color:#111;"
    "font:15px var(--body);line-height:1.25}h1,h2,h3,th{font-family:var(--head)}table{border-collapse:collapse}"
)


def _family(path: Path) -> str:
    return re.sub(r"[-_].*|Bold.*|Italic.*|Oblique.*", "", path.stem)


def _font_face(path: Path) -> str:
    weight = "bold" if re.search("Bold|Demi|_RB", path.stem) else "normal"
    style = "italic" if re.search("Italic|Oblique|_RI", path.stem) else "normal"
    return (
        f"@font-face{{font-family:{_family(path)};src:url('{path.resolve().as_uri()}');"
        f"font-weight:{weight};font-style:{style}}}"
    )


def html(layout: Layout, r: Rng, fonts: Path) -> str:
    """The document, with a font family for headings and one for the rest from ``fonts``, and an accent colour."""
    plain = [p for p in sorted(fonts.iterdir()) if not re.search("Light|Medium|Cond|Thin|DejaVuSans-Ob", p.stem)]
    families = sorted({_family(path) for path in plain})
    css = f":root{{--accent:{r.pick(ACCENTS)}}}"
    for role in ("head", "body"):
        family = r.pick(families)
        css += f":root{{--{role}:{family},sans-serif}}"
        css += "".join(_font_face(path) for path in plain if _family(path) == family)
    css += _RESET % (layout.width, layout.height) + layout.style
    return f"<!doctype html><head><meta charset=utf-8><style>{css}</style></head><body>{layout.body}</body>"


_CHECK = """() => {
  const small = [], walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode;
    const size = parseFloat(getComputedStyle(node.parentElement).fontSize);
    if (node.textContent.trim() && size < %d) small.push(node.textContent);
  }
  return {height: document.body.scrollHeight, width: document.body.scrollWidth, text: document.body.innerText, small};
}"""


@contextmanager
def browser() -> Iterator[Callable[[str, int, int, float], tuple[Image.Image, dict]]]:
    """Gives ``render(html, height, width, scale) -> (RGB picture, layout check)`` with the system's Chromium."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=shutil.which("chromium") or shutil.which("chromium-browser"),
            args=[
                "--no-sandbox",
                "--disable-background-networking",
                "--allow-file-access-from-files",
                "--font-render-hinting=none",
            ],
        )
        blank = assets_dir().resolve() / "blank.html"
        blank.write_text("<!doctype html>")

        def render(source: str, height: int, width: int, scale: float) -> tuple[Image.Image, dict]:
            page = chromium.new_page(viewport={"width": width, "height": height}, device_scale_factor=scale)
            page.goto(blank.as_uri())  # a file page may load fonts from files
            page.set_content(source)
            page.evaluate("() => document.fonts.ready")
            check = page.evaluate(_CHECK % SMALLEST)
            picture = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
            page.close()
            return picture, check

        try:
            yield render
        finally:
            chromium.close()
            blank.unlink()


def check_layout(layout: Layout, check: dict) -> None:
    """Every answer can be read, nothing is cut off, no text is too small.

    Raises:
        ValueError: says which page breaks which rule.
    """
    if check["height"] > layout.height or check["width"] > layout.width:
        raise ValueError(f"{layout.kind}: {check['width']} x {check['height']} does not fit its page")
    if check["small"]:
        raise ValueError(f"{layout.kind}: text below {SMALLEST} pixels: {check['small'][:3]}")
    text = " ".join(check["text"].split())
    for question in layout.asks:
        if question.answers[0] not in text:
            raise ValueError(f"{layout.kind}: {question.answers[0]!r} is not on the page")


def scan(r: Rng, picture: Image.Image, height: int, width: int) -> tuple[Image.Image, int]:
    """A page as scanned and sent: turned by up to 1.5 degrees, unevenly lit, blurred, noisy, scaled down.

    Args:
        picture: RGB at about 300 dpi.
        height, width: the model's resolution; the result is 1 to 1.5 times as large.

    Returns:
        The picture, and the JPEG quality to save it with.
    """
    base = r.randint(234, 252)
    paper = (base, base - r.randint(0, 6), base - r.randint(0, 16))
    turned = picture.rotate(r.uniform(-1.5, 1.5), Image.Resampling.BICUBIC, fillcolor=paper)
    turned = turned.filter(ImageFilter.GaussianBlur(r.uniform(0.6, 2.4)))
    pixels = np.asarray(turned, np.float32)
    pixels = np.minimum(pixels, np.float32(paper)) * r.uniform(0.96, 1.0) + r.uniform(0, 26)  # paper and faded ink
    rows, columns = (
        np.linspace(-1, 1, pixels.shape[0], dtype=np.float32),
        np.linspace(-1, 1, pixels.shape[1], dtype=np.float32),
    )
    angle = r.uniform(0, 2 * math.pi)
    light = 1 - r.uniform(0.02, 0.16) * (1 + rows[:, None] * math.sin(angle) + columns[None] * math.cos(angle)) / 2
    pixels *= light[..., None]
    noise = np.random.default_rng(r.getrandbits(63)).standard_normal(pixels.shape[:2], dtype=np.float32)
    pixels += noise[..., None] * np.float32(r.uniform(4, 22))
    factor = r.uniform(1.0, 1.5)
    small = Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))
    small = small.resize((round(width * factor), round(height * factor)), Image.Resampling.LANCZOS)
    return (small.convert("L") if r.chance(0.4) else small), r.randint(40, 80)


def _fitting(r: Rng, number: int, render: Callable, fonts: Path) -> tuple[Layout, str]:
    """A document of the template that fits its page; wide fonts with long values may take more than one try."""
    for _ in range(8):
        layout = TEMPLATES[number % len(TEMPLATES)](r)
        source = html(layout, r, fonts)
        _, check = render(source, layout.height, layout.width, 1)
        try:
            check_layout(layout, check)
        except ValueError as error:
            failure = error
        else:
            return layout, source
    raise failure


def _questions(r: Rng, layout: Layout, n: int) -> list[dict]:
    return [turn(r.pick(a.wordings), list(a.answers), a.key) for a in r.sample(layout.asks, min(n, len(layout.asks)))]


def _fonts(r: Rng) -> Path:
    return assets_dir() / "fonts" / ("held" if r.chance(0.7) else "train")


def layouts(writer: Writer, seed: int, pages: int = 42, questions: int = 5) -> None:
    """Clean renderings, half of them made at twice the size and scaled down."""
    r = Rng(seed)
    with browser() as render:
        for number in range(pages):
            layout, source = _fitting(r, number, render, _fonts(r))
            picture, _ = render(source, layout.height, layout.width, 1 + number % 2)
            if number % 2:
                picture = picture.resize((layout.width, layout.height), Image.Resampling.LANCZOS)
            path = writer.image(f"layouts-{number:03d}", picture)
            for question in _questions(r, layout, questions):
                writer.add("layouts", layout.kind, [path], None, [question])


def scans(writer: Writer, seed: int, pages: int = 28, questions: int = 4) -> None:
    """The same kinds of pages at 300 dpi, degraded."""
    r = Rng(seed)
    with browser() as render:
        for number in range(pages):
            layout, source = _fitting(r, number, render, _fonts(r))
            picture, _ = render(source, layout.height, layout.width, SCAN_SCALE)
            picture, quality = scan(r, picture, layout.height, layout.width)
            path = writer.image(f"scans-{number:03d}", picture, quality)
            for question in _questions(r, layout, questions):
                writer.add("scans", layout.kind, [path], None, [question])
