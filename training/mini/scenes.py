"""Signs and posters in front of free photographs."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
from PIL import Image, ImageFilter

from training.pages import Page, Rng

# file: (Python package, what it shows and who made it, licence)
PHOTOGRAPHS = {
    "china.jpg": ("sklearn", "Summer Palace, danielbuechele (flickr.com/photos/danielbuechele)", "CC BY 2.0"),
    "flower.jpg": ("sklearn", "Flower, vultilion (flickr.com/photos/vultilion)", "CC BY 2.0"),
    "coffee.png": ("skimage", "Cup of coffee, Rachel Michetti, Pikolo Espresso Bar", "CC0"),
    "chelsea.png": ("skimage", "Cat, Stefan van der Walt", "CC0"),
    "astronaut.png": ("skimage", "Eileen Collins, NASA", "public domain"),
    "rocket.jpg": ("skimage", "Launch of DSCOVR, SpaceX", "public domain"),
    "brick.png": ("skimage", "Bricks25, CC0Textures", "CC0"),
    "grass.png": ("skimage", "Grass-01, linolafett (deviantart.com/linolafett)", "CC0"),
    "gravel.png": ("skimage", "Gravel04, CC0Textures", "CC0"),
    "camera.png": ("skimage", "Cameraman, Lav Varshney", "CC0"),
}
_FOLDERS = {"sklearn": "datasets/images", "skimage": "data"}
_PYPI = {"sklearn": "scikit-learn", "skimage": "scikit-image"}
HEIGHT, WIDTH = 560, 588  # of a picture
TINTS = ((255, 255, 255), (255, 244, 190), (214, 232, 255), (216, 244, 216), (255, 222, 205))


def photograph(name: str) -> Image.Image:
    """An RGB photograph of an installed package.

    Raises:
        SystemExit: names the package that is missing.
    """
    package = PHOTOGRAPHS[name][0]
    spec = importlib.util.find_spec(package)
    for root in (spec.submodule_search_locations or []) if spec else []:
        path = Path(root) / _FOLDERS[package] / name
        if path.is_file():
            return Image.open(path).convert("RGB")
    raise SystemExit(f"{name} is missing: pip install {_PYPI[package]}")


def _cover(picture: Image.Image, width: int, height: int) -> Image.Image:
    """Scaled and cut to ``width`` x ``height``."""
    scale = max(width / picture.width, height / picture.height)
    picture = picture.resize((round(picture.width * scale), round(picture.height * scale)), Image.Resampling.LANCZOS)
    x, y = (picture.width - width) // 2, (picture.height - height) // 2
    return picture.crop((x, y, x + width, y + height))


def _corners(target: list[tuple[float, float]], source: list[tuple[float, float]]) -> list[float]:
    """Pillow's eight perspective coefficients that take ``target`` corners to ``source`` corners."""
    rows, values = [], []
    for (x, y), (u, v) in zip(target, source, strict=True):
        rows += [[x, y, 1, 0, 0, 0, -u * x, -u * y], [0, 0, 0, x, y, 1, -v * x, -v * y]]
        values += [u, v]
    return np.linalg.solve(np.array(rows, float), np.array(values, float)).tolist()


def scene(r: Rng, sign: Page, background: str) -> Image.Image:
    """``sign`` hung in front of a photograph: tinted, seen a little from the side, framed."""
    picture = _cover(photograph(background), WIDTH, HEIGHT).filter(ImageFilter.GaussianBlur(0.6))
    board = np.minimum(sign.rgb(), np.array(r.pick(TINTS), np.uint8))
    height, width = board.shape[:2]
    x, y = r.randint(10, WIDTH - width - 10), r.randint(10, HEIGHT - height - 10)
    move = [(r.uniform(-8, 8), r.uniform(-6, 6)) for _ in range(4)]
    square = [(0, 0), (width, 0), (width, height), (0, height)]
    hung = [(x + a + dx, y + b + dy) for (a, b), (dx, dy) in zip(square, move, strict=True)]
    coefficients = _corners(hung, [(float(a), float(b)) for a, b in square])
    size, how = (WIDTH, HEIGHT), Image.Transform.PERSPECTIVE
    warped = Image.fromarray(board).transform(size, how, coefficients, Image.Resampling.BICUBIC)
    covered = Image.new("L", (width, height), 255).transform(size, how, coefficients, Image.Resampling.BICUBIC)
    shadow = covered.filter(ImageFilter.GaussianBlur(6)).point(lambda v: v * 0.45)
    picture.paste((0, 0, 0), (3, 4), shadow)
    picture.paste(warped, (0, 0), covered)
    return picture
