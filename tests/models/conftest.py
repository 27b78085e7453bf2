from __future__ import annotations

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageFont

from kvmm.media import Media
from tests.encoded_pages import load_embedded


@pytest.fixture(scope="session")
def omni():
    """The embedded model and its processor, in float32 on the CPU."""
    return load_embedded()


def draw_page(lines: list[str], size: tuple[int, int] = (448, 420), font_size: int = 18) -> Image.Image:
    image = Image.new("RGB", size, "white")
    draw = ImageDraw.Draw(image)
    font = ImageFont.load_default(font_size)
    for row, line in enumerate(lines):
        draw.text((28, 24 + row * 2 * font_size), line, font=font, fill="black")
    return image


@pytest.fixture(scope="session")
def invoice() -> Media:
    lines = [
        "Northwind Trading",
        "Invoice No: 48213",
        "Date: 12 March 2024",
        "Paper 12.50",
        "Ink 30.00",
        "Total: $42.50",
    ]
    return Media("image", draw_page(lines), "invoice.png")


@pytest.fixture(scope="session")
def receipt() -> Media:
    lines = ["Harbour Cafe", "Receipt No: 9071", "Coffee 3.20", "Cake 4.10", "Total: $7.30"]
    return Media("image", draw_page(lines, (420, 448)), "receipt.png")


@pytest.fixture(scope="session")
def tone() -> Media:
    seconds = np.arange(16_000) / 16_000
    return Media("audio", (0.3 * np.sin(2 * np.pi * 440 * seconds)).astype(np.float32), "tone.wav")
