"""Pictograms of screens."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from PIL import Image, ImageDraw


@lru_cache(512)
def icon_of(shape: str, size: int) -> np.ndarray:
    """Coverage uint8 ``[size, size]`` of a pictogram."""
    k = 4 * size
    image = Image.new("L", (k, k), 0)
    draw, w = ImageDraw.Draw(image), max(k // 12, 4)
    box = (w, w, k - w, k - w)
    if shape in ("box", "ticked"):
        draw.rectangle(box, outline=255, width=w // 2 + 1)
    elif shape in ("radio", "chosen", "clock", "ring"):
        draw.ellipse(box, outline=255, width=w // 2 + 1)
    if shape == "ticked":
        draw.line((k * 0.25, k * 0.5, k * 0.45, k * 0.72, k * 0.8, k * 0.25), fill=255, width=int(w * 1.3))
    elif shape == "chosen":
        draw.ellipse((k * 0.3, k * 0.3, k * 0.7, k * 0.7), fill=255)
    elif shape == "clock":
        draw.line((k / 2, k * 0.22, k / 2, k / 2, k * 0.7, k * 0.6), fill=255, width=w)
    elif shape in ("star", "hollow star"):
        points = [
            (k / 2 + k * q * np.sin(np.pi * i / 5), k * 0.53 - k * q * np.cos(np.pi * i / 5))
            for i, q in zip(range(10), (0.47, 0.2) * 5, strict=True)
        ]
        draw.polygon(points, fill=255 if shape == "star" else 60)
    elif shape == "folder":
        draw.polygon([(w, k * 0.22), (k * 0.4, k * 0.22), (k * 0.5, k * 0.34), (w, k * 0.34)], fill=170)
        draw.rectangle((w, k * 0.32, k - w, k * 0.82), fill=170)
    elif shape == "file":
        draw.rectangle((k * 0.2, w, k * 0.8, k - w), outline=200, width=w // 2 + 1)
        for at in (0.3, 0.45, 0.6):
            draw.line((k * 0.32, k * at, k * 0.68, k * at), fill=130, width=w // 2)
    elif shape in ("person", "avatar"):
        draw.ellipse((0, 0, k - 1, k - 1), fill=70)
        draw.ellipse((k * 0.34, k * 0.2, k * 0.66, k * 0.52), fill=190)
        draw.pieslice((k * 0.18, k * 0.56, k * 0.82, k * 1.3), 180, 360, fill=190)
    elif shape == "search":
        draw.ellipse((k * 0.12, k * 0.12, k * 0.66, k * 0.66), outline=220, width=w)
        draw.line((k * 0.6, k * 0.6, k * 0.9, k * 0.9), fill=220, width=w)
    elif shape == "menu":
        for at in (0.25, 0.5, 0.75):
            draw.line((k * 0.12, k * at, k * 0.88, k * at), fill=230, width=w)
    elif shape == "cart":
        draw.line((0, k * 0.2, k * 0.2, k * 0.2, k * 0.35, k * 0.66, k * 0.85, k * 0.66), fill=230, width=w)
        draw.polygon([(k * 0.22, k * 0.3), (k * 0.95, k * 0.3), (k * 0.85, k * 0.56), (k * 0.32, k * 0.56)], fill=150)
        for at in (0.42, 0.78):
            draw.ellipse((k * (at - 0.08), k * 0.74, k * (at + 0.08), k * 0.9), fill=230)
    elif shape in ("left", "right", "down", "up"):
        points = np.array([(0.68, 0.15), (0.32, 0.5), (0.68, 0.85)]) * k
        points = {"left": points, "right": k - points, "down": k - points[:, ::-1], "up": points[:, ::-1]}[shape]
        draw.line([tuple(p) for p in points], fill=220, width=w)
    elif shape == "close":
        for line in ((k * 0.22, k * 0.22, k * 0.78, k * 0.78), (k * 0.22, k * 0.78, k * 0.78, k * 0.22)):
            draw.line(line, fill=230, width=w)
    elif shape == "minus":
        draw.line((k * 0.2, k * 0.6, k * 0.8, k * 0.6), fill=230, width=w)
    elif shape == "square":
        draw.rectangle((k * 0.22, k * 0.22, k * 0.78, k * 0.78), outline=230, width=w // 2 + 1)
    elif shape == "dot":
        draw.ellipse((k * 0.2, k * 0.2, k * 0.8, k * 0.8), fill=200)
    elif shape == "app":
        draw.rounded_rectangle((0, 0, k - 1, k - 1), k // 4, fill=110)
        draw.ellipse((k * 0.28, k * 0.28, k * 0.72, k * 0.72), fill=235)
    elif shape in ("on", "off"):
        draw.rounded_rectangle((0, k * 0.22, k - 1, k * 0.78), k * 0.28, fill=200 if shape == "on" else 60)
        at = 0.52 if shape == "on" else 0.04
        draw.ellipse((k * at, k * 0.26, k * (at + 0.44), k * 0.74), fill=20 if shape == "on" else 190)
    elif shape == "signal":
        for i in range(4):
            draw.rectangle((k * (0.1 + 0.22 * i), k * (0.7 - 0.18 * i), k * (0.24 + 0.22 * i), k * 0.88), fill=230)
    elif shape == "battery":
        draw.rectangle((0, k * 0.28, k * 0.86, k * 0.74), outline=230, width=w // 2 + 1)
        draw.rectangle((k * 0.07, k * 0.35, k * 0.6, k * 0.67), fill=200)
        draw.rectangle((k * 0.87, k * 0.42, k * 0.97, k * 0.6), fill=230)
    elif shape == "plane":
        draw.polygon([(0, k * 0.5), (k, k * 0.5), (k * 0.8, k * 0.38)], fill=200)
        draw.polygon([(k * 0.3, k * 0.5), (k * 0.7, k * 0.44), (k * 0.35, k * 0.95)], fill=200)
    elif shape == "lens":
        draw.ellipse((k * 0.25, k * 0.25, k * 0.75, k * 0.75), outline=230, width=w)
    return np.asarray(image.reduce(4))
