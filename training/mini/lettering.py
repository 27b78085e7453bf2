"""Crops with a word or a line of lettering: straight, bent or tilted, in printed, decorative and hand-like fonts."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFilter, ImageFont

from training.pages import Rng
from training.pages.values import assets_dir

SHAPES = ((392, 560), (448, 504), (336, 616))  # height and width: about the fewest pixels that the model reads
PAPER = ("#ffffff", "#fff7d6", "#e8f1ff", "#eaf7ea", "#fdecea", "#f2f2f2", "#ffe9b8")
INK = ("#111111", "#1a2f5a", "#5a1a1a", "#1f4d2b", "#3a2a5e", "#222222")

# Debian package: faces below /usr/share/fonts that imitate a hand, none of them in training
HANDWRITING = {
    "fonts-urw-base35": ("opentype/urw-base35/Z003-MediumItalic.otf",),
    "fonts-leckerli-one": ("truetype/leckerli-one/LeckerliOne-Regular.ttf",),
    "fonts-kaushanscript": ("opentype/kaushanscript/KaushanScript-Regular.otf",),
}


def held_fonts() -> list[Path]:
    """The faces that the generator of pages keeps out of training."""
    return sorted((assets_dir() / "fonts" / "held").iterdir())


def package_fonts(packages: dict[str, tuple[str, ...]], roots: list[Path]) -> list[Path]:
    """The files of ``packages``.

    Raises:
        SystemExit: names the package that is not installed.
    """
    found = []
    for package, names in packages.items():
        for name in names:
            path = next((root / name for root in roots if (root / name).is_file()), None)
            if path is None:
                raise SystemExit(f"{name} is missing: install the Debian package {package}")
            found.append(path)
    return found


def mask(text: str, font: Path, size: int) -> np.ndarray:
    """Coverage of one line, uint8 ``[h, w]`` with a margin of half a line."""
    face = ImageFont.truetype(str(font), size, layout_engine=ImageFont.Layout.BASIC)
    x0, y0, x1, y1 = face.getbbox(text)
    margin = size // 2
    image = Image.new("L", (math.ceil(x1 - x0) + 2 * margin, math.ceil(y1 - y0) + 2 * margin))
    ImageDraw.Draw(image).text((margin - x0, margin - y0), text, font=face, fill=255)
    return np.asarray(image)


def bend(letters: np.ndarray, height: float) -> np.ndarray:
    """Columns moved along an arc of ``height`` pixels."""
    columns = letters.shape[1]
    room = math.ceil(abs(height))
    padded = np.pad(letters, ((room, room), (0, 0))).astype(np.float32)
    places = np.arange(len(padded))
    shift = height * (np.cos(np.linspace(-math.pi / 2, math.pi / 2, columns)) - 0.5)
    moved = [np.interp(places + s, places, padded[:, x]) for x, s in enumerate(shift)]
    return np.stack(moved, 1).astype(np.uint8)


def tilt(letters: np.ndarray, degrees: float, shear: float) -> np.ndarray:
    """Turned and slanted."""
    image = Image.fromarray(letters)
    width = image.width + math.ceil(abs(shear) * image.height)
    offset = -shear * image.height if shear > 0 else 0.0
    image = image.transform(
        (width, image.height), Image.Transform.AFFINE, (1, shear, offset, 0, 1, 0), Image.Resampling.BICUBIC
    )
    return np.asarray(image.rotate(degrees, Image.Resampling.BICUBIC, expand=True))


def _painted(r: Rng, picture: Image.Image, letters: np.ndarray, place: tuple[int, int], artistic: bool) -> None:
    """Letters in one ink, or with a shadow, an outline or a blend of two inks."""
    cover = Image.fromarray(letters)
    first, second = r.sample(INK, 2)
    if not artistic:
        picture.paste(first, place, cover)
        return
    effect = r.pick(("shadow", "outline", "blend"))
    if effect == "blend":
        ramp = Image.linear_gradient("L").resize(cover.size)
        picture.paste(
            Image.composite(Image.new("RGB", cover.size, first), Image.new("RGB", cover.size, second), ramp),
            place,
            cover,
        )
        return
    if effect == "shadow":
        picture.paste("#b9b9b9", (place[0] + 3, place[1] + 3), cover)
        picture.paste(first, place, cover)
        return
    picture.paste(second, place, cover.filter(ImageFilter.MaxFilter(3)))
    picture.paste(r.pick(("#c23b22", "#1f6fb2", "#2e8b57", "#8a2be2")), place, cover)


def crop(
    r: Rng,
    text: str,
    font: Path,
    *,
    irregular: bool = False,
    artistic: bool = False,
    sizes: tuple[int, int] = (20, 44),
) -> Image.Image:
    """A picture of ``text`` on plain paper, in a size that fits."""
    height, width = r.pick(SHAPES)
    size = r.randint(*sizes)
    while True:
        letters = mask(text, font, size)
        if letters.shape[1] <= width - 24 or size <= 18:
            break
        size -= 2
    if irregular:
        if r.chance(0.5):
            letters = bend(letters, r.uniform(0.4, 0.9) * size * (1 if r.chance(0.5) else -1))
        else:
            letters = tilt(letters, r.uniform(2, 7) * (1 if r.chance(0.5) else -1), r.uniform(-0.25, 0.25))
    letters = letters[: height - 8, : width - 8]
    free_rows, free_columns = height - letters.shape[0], width - letters.shape[1]
    picture = Image.new("RGB", (width, height), r.pick(PAPER))
    place = (r.randint(0, free_columns), r.randint(0, free_rows // 2))
    _painted(r, picture, letters, place, artistic)
    return picture
