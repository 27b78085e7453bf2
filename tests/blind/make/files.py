"""How pictures of pages are stored: few colours as PNG, photographs as JPEG."""

from __future__ import annotations

from pathlib import Path

from PIL import Image


def save_image(picture: Image.Image, path: Path, colours: int = 32, quality: int = 62) -> None:
    """Write an RGB image; PNG with a palette of ``colours``, JPEG with ``quality``."""
    if path.suffix == ".png":
        picture.quantize(colours, dither=Image.Dither.NONE).save(path, optimize=True)
    else:
        picture.save(path, quality=quality, optimize=True, progressive=True)
