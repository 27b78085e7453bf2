"""An ink canvas that knows which characters it shows and where: pixels, transcription and character map in one."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from training.pages.values import MissingAssets, Rng, assets_dir

CELL_HEIGHT, CELL_WIDTH = 14, 7  # one character cell of the auxiliary loss: a 28-pixel merged token has 2 x 4 of them
PHASES = 3  # sub-pixel positions of a glyph
# What pages may be written in. Class 0 of the character map is the blank; ASCII keeps `ord(c) - 32`.
CHARACTERS = (
    "".join(map(chr, (*range(32, 127), *range(0xA1, 0x100)))) + "\u2013\u2014\u2018\u2019\u201c\u201d\u2022\u2026\u20ac"
)
_CLASSES = np.full(0x20AE, -1, np.int16)
_CLASSES[[ord(c) for c in CHARACTERS]] = np.arange(len(CHARACTERS))
# Hands that nobody can read: drawn as outlines, or in black letter, where K is like L and k like f.
UNREADABLE = frozenset(("femkeklaver.ttf", "Isabella.ttf"))
BASELINE_TOLERANCE = 5  # items whose baselines differ by no more are one line of the transcription


def classes_of(text: str) -> np.ndarray:
    """Indices into ``CHARACTERS``, int16 ``[n]``.

    Raises:
        ValueError: a character is not one of them.
    """
    points = np.frombuffer(text.encode("utf-16-le"), np.uint16)
    classes = _CLASSES[np.minimum(points, len(_CLASSES) - 1)]
    if len(classes) and classes.min() < 0:
        raise ValueError(f"pages cannot show {text[int(classes.argmin())]!r} of {text!r}")
    return classes


class Face:
    """A font at a size, that measures and draws characters once."""

    def __init__(self, path: str, size: int):
        self.path, self.size = path, size
        self.font = ImageFont.truetype(path, size, layout_engine=ImageFont.Layout.BASIC)
        self.ascent, self.descent = self.font.getmetrics()
        if self.descent < 0:  # the sign is wrong, as in Lemonada, and lines would overlap
            _, top, _, bottom = self.font.getbbox("\xc4\xc5gpqy", anchor="ls")
            self.ascent, self.descent = int(-top), int(bottom)
        self.height = self.ascent + self.descent
        self._advance = np.full(len(CHARACTERS), np.nan, np.float32)
        self.cap_height = -self.font.getbbox("H", anchor="ls")[1]
        self._glyphs: dict[tuple[int, int], tuple[int, int, np.ndarray]] = {}

    @property
    def space(self) -> float:
        """Advance width of a blank, pixels."""
        return float(self.advances(np.zeros(1, np.int16))[0])

    def advances(self, classes: np.ndarray) -> np.ndarray:
        """Advance widths float32 ``[n]`` of classes int16 ``[n]``, measured when a class is first met."""
        widths = self._advance[classes]
        if np.isnan(widths).any():
            for c in set(classes[np.isnan(widths)].tolist()):
                self._advance[c] = self.font.getlength(CHARACTERS[c])
            widths = self._advance[classes]
        return widths

    def glyph(self, char: int, phase: int) -> tuple[int, int, np.ndarray]:
        """Offset (x, y) from the pen and coverage uint8 ``[h, w]`` of a class at sub-pixel ``phase`` of ``PHASES``.

        Cached: rendering text afresh took four fifths of a page's time.
        """
        key = char, phase
        if key not in self._glyphs:
            x0, y0, x1, y1 = self.font.getbbox(CHARACTERS[char], anchor="ls")
            x0, y0 = int(x0) - 1, int(y0) - 1
            image = Image.new("L", (max(int(x1) + 3 - x0, 1), max(int(y1) + 2 - y0, 1)), 0)
            ImageDraw.Draw(image).text(
                (-x0 + phase / PHASES, -y0), CHARACTERS[char], font=self.font, fill=255, anchor="ls"
            )
            self._glyphs[key] = x0, y0, np.asarray(image).copy()
        return self._glyphs[key]

    def width(self, text: str) -> float:
        return float(self.advances(classes_of(text)).sum())


@lru_cache(4096)
def face(path: str, size: int) -> Face:
    """A cached :class:`Face`."""
    return Face(path, size)


@lru_cache(None)
def font_files(held: bool, latin: bool = False, hand: bool = False) -> tuple[str, ...]:
    """Font files of the training split, or of the held-out one (families never seen in training).

    Args:
        held: the held-out split. latin: only faces that hold all of ``CHARACTERS``, as far as the assets say.
        hand: faces that look written by hand, of no split; empty where the assets have none. Many hold ASCII only.

    Raises:
        MissingAssets: there are none.
    """
    folder = assets_dir() / "fonts" / ("hand" if hand else "held" if held else "train")
    if hand and not folder.is_dir():
        return ()
    found = folder.iterdir() if folder.is_dir() else ()
    files = tuple(sorted(str(p) for p in found if p.suffix in (".ttf", ".otf") and p.name not in UNREADABLE))
    complete = assets_dir() / "fonts" / "latin.txt"
    if latin and complete.is_file():
        names = set(complete.read_text(encoding="utf-8").split("\n"))
        files = tuple(f for f in files if Path(f).name in names) or files
    if not files:
        raise MissingAssets(f"no fonts in {folder}; run: python -m training.assets --out {assets_dir()}")
    return files


class Canvas:
    """Ink on a page of ``height`` x ``width`` pixels.

    ``ink()`` is its coverage (0 background, 255 ink); ``chars`` holds, for every 14 x 7 cell, the class of
    the character centred there (0 for none); ``lines()`` is the transcription, row by row.
    """

    def __init__(self, height: int, width: int):
        self.height, self.width = height, width
        self._ink = np.zeros((height, width), np.uint8)
        self.chars = np.zeros((height // CELL_HEIGHT, width // CELL_WIDTH), np.uint8)
        self.items: list[tuple[float, float, str]] = []

    def rect(self, x0: float, y0: float, x1: float, y1: float, fill: int | None = None, outline: int | None = None):
        x0, y0, x1, y1 = max(int(x0), 0), max(int(y0), 0), min(int(x1), self.width - 1), min(int(y1), self.height - 1)
        if x1 < x0 or y1 < y0:
            return
        if fill is not None:
            self._ink[y0 : y1 + 1, x0 : x1 + 1] = fill
        if outline is not None:
            for edge in (
                np.s_[y0, x0 : x1 + 1],
                np.s_[y1, x0 : x1 + 1],
                np.s_[y0 : y1 + 1, x0],
                np.s_[y0 : y1 + 1, x1],
            ):
                self._ink[edge] = outline

    def line(self, x0: float, y0: float, x1: float, y1: float, fill: int = 255, width: int = 1):
        """A horizontal or vertical line."""
        wide, high = (0, width - 1) if abs(x1 - x0) > abs(y1 - y0) else (width - 1, 0)
        self.rect(x0, y0, x1 + wide, y1 + high, fill=fill)

    def panel(self, x0: float, y0: float, x1: float, y1: float, level: int, inverted: bool = False) -> None:
        """Lay a background of coverage ``level`` under what is drawn there; ``inverted`` makes the drawing paper."""
        x0, y0 = max(int(x0), 0), max(int(y0), 0)
        region = self._ink[y0 : max(int(y1) + 1, y0), x0 : max(int(x1) + 1, x0)]
        if inverted:
            region[...] = level - (region.astype(np.uint16) * level // 255).astype(np.uint8)
        else:
            np.maximum(region, level, out=region)

    def _draw(self, x: float, baseline: float, codes: np.ndarray, advance: np.ndarray, f: Face, fill: int) -> None:
        for code, pen in zip(codes.tolist(), (x + np.cumsum(advance) - advance).tolist(), strict=True):
            if code == 0:
                continue
            at = int(pen * PHASES + 0.5)
            gx, gy, mask = f.glyph(code, at % PHASES)
            gx, gy = gx + at // PHASES, gy + int(baseline)
            top, left = max(-gy, 0), max(-gx, 0)
            mask = mask[top : self.height - gy, left : self.width - gx]
            region = self._ink[gy + top : gy + top + mask.shape[0], gx + left : gx + left + mask.shape[1]]
            if fill == 0:
                np.minimum(region, 255 - mask, out=region)
            else:
                np.maximum(
                    region, mask if fill == 255 else (mask.astype(np.uint16) * fill // 255).astype(np.uint8), out=region
                )

    def text(self, x: float, baseline: float, text: str, f: Face, align: str = "l", fill: int = 255) -> bool:
        """Draw ``text``; ``align`` says whether ``x`` is its left, centre or right. False, and nothing drawn, if it
        would leave the page."""
        if not text:
            return True
        width = f.width(text)
        x -= {"l": 0.0, "c": width / 2, "r": width}[align]
        x = float(int(x))
        if x < 2 or x + width > self.width - 2 or baseline - f.cap_height < 1 or baseline + 2 > self.height:
            return False
        codes = classes_of(text)
        advance = f.advances(codes)
        self._draw(x, baseline, codes, advance, f, fill)
        self._note(x, baseline, text, codes, x + np.cumsum(advance) - advance / 2, f)
        return True

    def hint(self, x: float, baseline: float, text: str, f: Face, align: str = "l") -> None:
        """Enter ``text`` into the character map alone, if all of its cells are free: what a mark stands for."""
        codes = classes_of(text)
        advance = f.advances(codes)
        x = float(int(x - {"l": 0.0, "c": f.width(text) / 2, "r": f.width(text)}[align]))
        centre = x + np.cumsum(advance) - advance / 2
        if x >= 0 and centre[-1] < self.width and 0 < baseline < self.height:
            row, col = self._cells(baseline, codes, centre, f)
            if not self.chars[row, col].any():
                self.chars[row, col[::-1]] = codes[codes > 0][::-1]

    def comb(self, x: float, baseline: float, text: str, f: Face, pitch: float, fill: int = 255) -> None:
        """Draw a character in the middle of each ``pitch`` pixels from ``x`` on; the caller sees that they fit."""
        codes = classes_of(text)
        centre = x + pitch * (np.arange(len(codes)) + 0.5)
        for code, middle, wide in zip(codes, centre.tolist(), f.advances(codes).tolist(), strict=True):
            self._draw(middle - wide / 2, baseline, np.array([code]), np.array([wide]), f, fill)
        self._note(x, baseline, text, codes, centre, f)

    def _note(self, x: float, baseline: float, text: str, codes: np.ndarray, centre: np.ndarray, f: Face) -> None:
        """Enters what was drawn into the character map and the transcription."""
        row, col = self._cells(baseline, codes, centre, f)
        # assigned in reverse, so that the first of several characters in a cell wins
        self.chars[row, col[::-1]] = codes[codes > 0][::-1]
        self.items.append((baseline, x, text))

    def _cells(self, baseline: float, codes: np.ndarray, centre: np.ndarray, f: Face) -> tuple[int, np.ndarray]:
        """Row and columns of the character map in which the visible ones of some characters are centred."""
        rows, cols = self.chars.shape
        row = min(max(int(baseline - f.cap_height / 2) // CELL_HEIGHT, 0), rows - 1)
        return row, np.minimum((centre[codes > 0] / CELL_WIDTH).astype(int), cols - 1)

    def lines(self) -> list[str]:
        """The page's text, top to bottom, items of one baseline joined by a space from left to right."""
        rows: list[tuple[float, list[tuple[float, str]]]] = []
        for baseline, x, text in sorted(self.items):
            if rows and abs(rows[-1][0] - baseline) <= BASELINE_TOLERANCE:
                rows[-1][1].append((x, text))
            else:
                rows.append((baseline, [(x, text)]))
        return [" ".join(text for _, text in sorted(cells)) for _, cells in rows]

    def ink(self) -> np.ndarray:
        """uint8 ``[height, width]``."""
        return self._ink


def random_faces(r: Rng, held: bool, latin: bool = False) -> tuple[str, str]:
    """Font files for the text and for what stands out (headings, labels), often the same one."""
    files = font_files(held, latin)
    body = r.pick(files)
    return body, (r.pick(files) if r.chance(0.5) else body)
