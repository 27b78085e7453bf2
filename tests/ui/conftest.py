"""The app on a free port and Debian's chromium against it. Screenshots go to ``tests/artifacts``."""

from __future__ import annotations

import os
import shutil
import time
import wave
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw, ImageFont

CHROMIUM = shutil.which("chromium") or "/usr/bin/chromium"
ARTIFACTS = Path(__file__).resolve().parents[1] / "artifacts"
TIMEOUT_MS = 30_000
METHODS = ("bf16", "kivi4", "balanced")  # selected first in the Methods tab
LINES = [
    ("Harbour Lane Supplies", ""),
    ("INVOICE", ""),
    ("Invoice No:", "INV-40712"),
    ("Date:", "14 March 2024"),
    ("Bill to:", "Marta Olsen"),
    ("Subtotal", "$1,180.50"),
    ("Tax", "$94.44"),
    ("Total", "$1,274.94"),
]


def draw_invoice(path: Path, lines: list[tuple[str, str]] = LINES) -> Path:
    """A plain page in the font that comes with Pillow, saved in the format that the name asks for."""
    page = Image.new("RGB", (560, 616), "white")
    draw = ImageDraw.Draw(page)
    for i, (label, value) in enumerate(lines):
        size = 26 if i < 2 else 20
        draw.text((36, 36 + 52 * i), label, fill="black", font=ImageFont.load_default(size))
        draw.text((300, 36 + 52 * i), value, fill="black", font=ImageFont.load_default(size))
    page.save(path)
    return path


def drawn_width(image: Any) -> int:
    """The width of the picture in an ``<img>``, in pixels, once the browser has decoded it."""
    return image.evaluate("async image => { await image.decode(); return image.naturalWidth; }")


@pytest.fixture(scope="session")
def samples_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("samples")
    draw_invoice(folder / "invoice.png")
    (folder / "samples.json").write_text(
        '[{"title": "Invoice: the total", "question": "What is the total?", "files": ["invoice.png"]},'
        ' {"title": "gone", "question": "?", "files": ["missing.png"]}]'
    )
    return folder


@pytest.fixture(scope="session")
def invoice(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draw_invoice(tmp_path_factory.mktemp("pages") / "march.png")


@pytest.fixture(scope="session")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A second of a tone: nobody speaks, but it has to travel through upload, decoding and the audio tower."""
    path = tmp_path_factory.mktemp("sounds") / "tone.wav"
    samples = 0.3 * np.sin(2 * np.pi * 440 * np.arange(16_000) / 16_000)
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1), file.setsampwidth(2), file.setframerate(16_000)
        file.writeframes((samples * 32767).astype("<i2").tobytes())
    return path


@pytest.fixture(scope="session")
def model_and_processor():
    from kvmm import load_model

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", 2)))
    return load_model()


class Clock:
    """The time that the app goes by: the real one, and what tests let pass."""

    def __init__(self) -> None:
        self.passed = 0.0

    def __call__(self) -> float:
        return time.time() + self.passed

    def pass_minutes(self, minutes: float) -> None:
        self.passed += 60 * minutes


@dataclass
class App:
    """The app under test, its address, and its clock."""

    demo: Any
    url: str
    clock: Clock

    def clean_up(self) -> None:
        """What the app does every ten minutes."""
        from kvmm.ui.demo import made_files

        self.demo.visitors.clean_up(made_files(self.demo))


@pytest.fixture(scope="session")
def app(model_and_processor, samples_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[App]:
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    os.environ["GRADIO_TEMP_DIR"] = str(tmp_path_factory.mktemp("uploads"))
    from kvmm.ui import Models, build_demo, launch_options

    clock = Clock()
    demo = build_demo(
        Models.of(*model_and_processor), samples_folder=samples_folder, max_new_tokens=64, methods=METHODS, now=clock
    )
    _, local, _ = demo.launch(prevent_thread_lock=True, quiet=True, mcp_server=True, **launch_options(samples_folder))
    yield App(demo, local, clock)
    demo.close()


@pytest.fixture(scope="session")
def url(app: App) -> str:
    return app.url


@pytest.fixture(scope="session")
def browser():
    if not Path(CHROMIUM).exists():
        reason = "no chromium: apt-get install chromium"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    sync_api = pytest.importorskip("playwright.sync_api")
    sync_api.expect.set_options(timeout=TIMEOUT_MS)
    with sync_api.sync_playwright() as playwright:
        flags = ["--no-sandbox", "--disable-background-networking"]
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=flags)
        yield browser
        browser.close()


@pytest.fixture
def visit(browser, url: str) -> Iterator[Callable]:
    """``visit(**context options)`` opens the app as a new visitor. No page may log an error or ask another host."""
    complaints: list[str] = []

    def complaint(message) -> str:
        return f"console: {message.text} ({message.location.get('url')})"

    contexts = []

    def open_page(**options):
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, "color_scheme": "light"} | options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(TIMEOUT_MS)
        page.on("console", lambda m: complaints.append(complaint(m)) if m.type == "error" else None)
        page.on("pageerror", lambda e: complaints.append(f"page error: {e}"))
        page.on(
            "request",
            lambda r: None if r.url.startswith((url, "data:", "blob:")) else complaints.append(f"outside: {r.url}"),
        )
        page.goto(url)
        return page

    def reload(page) -> None:
        """Reload a page. Requests that this cuts off are no complaint."""
        known = len(complaints)
        page.reload()
        cut_off = ("AbortError: signal is aborted", "Connection errored out")
        complaints[known:] = [line for line in complaints[known:] if not any(words in line for words in cut_off)]

    open_page.reload = reload
    yield open_page
    for context in contexts:
        context.close()
    assert not complaints, "\n".join(complaints)


@pytest.fixture
def screenshot() -> Callable:
    ARTIFACTS.mkdir(exist_ok=True)
    return lambda page, name: page.screenshot(path=ARTIFACTS / f"{name}.png", full_page=True)
