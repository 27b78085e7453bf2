"""Screenshots: rows, columns and panels of texts and icons, as windows of programs and pages of sites have them.

A screen is a tree of elements. Every element has a ``width`` that it would like, a ``height`` at a given width, and is
drawn into a rectangle; a text that is too long for its place ends in an ellipsis and is not asked about. All texts are
parts of one block, so that questions rest on single ones.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from PIL import Image, ImageDraw

from training.office.document import Block, Document, Part
from training.office.icons import icon_of
from training.office.screen_faces import bold_of, faces_of
from training.pages.blocks import Setter
from training.pages.canvas import Canvas, Face, face
from training.pages.values import Rng

SIZES = (26, 23, 21, 19, 17, 16, 15, 14, 13, 12, 11, 10)  # from which the largest is taken at which everything has room
LARGEST = (4, 4, 5, 5, 6, 6, 7, 8)  # indices into SIZES, of the largest that a screen may have
READABLE = 0.95  # of the texts that are readable at some size are so at the chosen one
SANS_SHARE = 0.8  # of screens; the others are in any face
ELLIPSIS = "\u2026"
PIECES = re.compile(r"\S+(?: \S+)*")


@dataclass
class Look:
    """What a screen is drawn with: ``dry`` only finds out what has room."""

    canvas: Canvas
    r: Rng
    faces: dict[str, Face]
    grey: int
    rounded: float
    dry: bool = False
    drawn: set[Part] = field(default_factory=set)
    measured: dict[tuple[str, str], float] = field(default_factory=dict)
    breaks: list[int] = field(default_factory=lambda: [0])  # items of the canvas at which a pane ends

    def wide(self, name: str, text: str) -> float:
        """Width of ``text`` in the face called ``name``; measured once, for rows ask again and again."""
        key = name, text
        if key not in self.measured:
            self.measured[key] = self.faces[name].width(text)
        return self.measured[key]

    @property
    def unit(self) -> float:
        """A quarter of a line, in pixels; what paddings and gaps are measured in."""
        return self.faces["body"].height / 4

    def pane(self) -> None:
        """Ends what is read together."""
        self.breaks.append(len(self.canvas.items))


class Element:
    """A rectangle of a screen."""

    def width(self, look: Look) -> float:
        return 0.0

    def height(self, look: Look, width: float) -> float:
        return 0.0

    def draw(self, look: Look, x: float, y: float, width: float, height: float) -> None:
        pass


@dataclass
class Text(Element):
    """A text in one line, or in several if ``wrap``; ``mark`` is "struck", "under" or empty."""

    text: str
    part: Part
    face: str = "body"
    align: str = "l"
    grey: bool = False
    wrap: bool = False
    mark: str = ""

    def width(self, look: Look) -> float:
        return look.wide(self.face, self.text) + 1

    def rows(self, look: Look, width: float) -> list[str]:
        if not self.wrap or look.wide(self.face, self.text) <= width:
            return [self.text]
        rows, row = [], ""
        for word in self.text.split():
            longer = f"{row} {word}".strip()
            if row and look.wide(self.face, longer) > width:
                rows.append(row)
                row = word
            else:
                row = longer
        return [*rows, row]

    def height(self, look: Look, width: float) -> float:
        return look.faces[self.face].height * len(self.rows(look, width))

    def draw(self, look: Look, x: float, y: float, width: float, height: float) -> None:
        f, whole = look.faces[self.face], True
        if height + 1 < f.height:
            return
        for n, row in enumerate(self.rows(look, width)):
            shown = row
            if (n + 1) * f.height > height + 1:
                return
            while look.wide(self.face, shown) > width and len(shown) > 1:
                shown, whole = shown[:-2].rstrip() + ELLIPSIS, False
            if not whole and len(shown) < 4:
                return
            if look.dry:
                continue
            wide, baseline = look.wide(self.face, shown), y + n * f.height + f.ascent
            left = x + {"l": 0, "c": 0.5, "r": 1}[self.align] * (width - wide)
            for piece in PIECES.finditer(shown):  # columns of a terminal are read as cells
                at = left + f.width(shown[: piece.start()])
                if not look.canvas.text(at, baseline, piece[0], f, "l", look.grey if self.grey else 255):
                    return
            if self.mark:
                line = baseline + 2 if self.mark == "under" else baseline - f.cap_height // 2
                look.canvas.line(left, line, left + wide, line, 200)
        if whole:
            look.drawn.add(self.part)


@dataclass
class Space(Element):
    """Nothing, ``units`` high and wide; it takes what is left over where it is ``elastic``."""

    units: float = 0.0
    elastic: bool = False

    def width(self, look: Look) -> float:
        return self.units * look.unit

    def height(self, look: Look, width: float) -> float:
        return self.units * look.unit


class Rule(Element):
    """A thin line over the whole width."""

    def height(self, look: Look, width: float) -> float:
        return 3.0

    def draw(self, look: Look, x: float, y: float, width: float, height: float) -> None:
        if not look.dry and height >= 2:
            look.canvas.line(x, y + 1, x + width, y + 1, 70)


@dataclass
class Icon(Element):
    """A pictogram, ``size`` times as high as a line."""

    shape: str
    size: float = 0.8

    def pixels(self, look: Look) -> int:
        return max(int(look.faces["body"].height * self.size), 8)

    def width(self, look: Look) -> float:
        return self.pixels(look)

    def height(self, look: Look, width: float) -> float:
        return self.pixels(look)

    def draw(self, look: Look, x: float, y: float, width: float, height: float) -> None:
        size = self.pixels(look)
        if not look.dry and height + 1 >= size and x + size <= look.canvas.width:
            region = look.canvas.ink()[int(y) : int(y) + size, int(x) : int(x) + size]
            mask = icon_of(self.shape, size)
            np.maximum(region, mask[: region.shape[0], : region.shape[1]], out=region)


@dataclass
class Photo(Element):
    """A picture without meaning, ``units`` high and ``ratio`` times as wide: light and dark with soft shapes."""

    units: float
    ratio: float = 1.0

    def width(self, look: Look) -> float:
        return self.units * self.ratio * look.unit

    def height(self, look: Look, width: float) -> float:
        return self.units * look.unit

    def draw(self, look: Look, x: float, y: float, width: float, height: float) -> None:
        size = int(min(width, self.width(look))), int(min(height, self.units * look.unit))
        if look.dry or min(size) < 8:
            return
        noise = np.random.default_rng(look.r.getrandbits(32))
        image = Image.fromarray(noise.integers(15, 150, (4, 4), dtype=np.uint8)).resize(size, Image.BICUBIC)
        draw, level = ImageDraw.Draw(image), look.r.pick((60, 170, 220))
        a, b, c, e = (look.r.uniform(*part) for part in ((0.1, 0.4), (0.55, 0.9)) * 2)
        shape = (a * size[0], c * size[1], b * size[0], e * size[1])
        (draw.ellipse if look.r.chance(0.5) else draw.rectangle)(shape, fill=level)
        region = look.canvas.ink()[int(y) : int(y) + size[1], int(x) : int(x) + size[0]]
        region[...] = np.asarray(image)[: region.shape[0], : region.shape[1]]


@dataclass
class Bar(Element):
    """A bar that is filled to ``share``."""

    share: float
    units: float = 1.2

    def height(self, look: Look, width: float) -> float:
        return self.units * look.unit

    def draw(self, look: Look, x: float, y: float, width: float, height: float) -> None:
        if not look.dry and width > 8:
            look.canvas.rect(x, y, x + width - 1, y + height, fill=45)
            look.canvas.rect(x, y, x + (width - 1) * self.share, y + height, fill=190)


@dataclass
class Column(Element):
    """Elements below one another, ``gap`` units apart. What has no room is left out, and what follows it.

    An elastic :class:`Space`, or the child number ``elastic``, takes the height that the others leave.
    """

    children: Sequence[Element]
    gap: float = 0.0
    elastic: int | None = None

    def width(self, look: Look) -> float:
        return max((child.width(look) for child in self.children), default=0.0)

    def height(self, look: Look, width: float) -> float:
        heights = [child.height(look, width) for child in self.children]
        return sum(heights) + self.gap * look.unit * max(len(heights) - 1, 0)

    def draw(self, look: Look, x: float, y: float, width: float, height: float) -> None:
        heights = [child.height(look, width) for child in self.children]
        spare = height - sum(heights) - self.gap * look.unit * max(len(heights) - 1, 0)
        stretched = self.elastic
        for n, child in enumerate(self.children):
            if isinstance(child, Space) and child.elastic:
                stretched = n
        if stretched is not None:
            heights[stretched] = max(heights[stretched] + spare, 0.0)
        bottom = y + height
        for child, high in zip(self.children, heights, strict=True):
            room = bottom - y
            if room < min(high, look.faces["small"].height) - 1 or (high > room + 2 and not whole_or_less(child)):
                return
            child.draw(look, x, y, width, min(high, room))
            y += high + self.gap * look.unit


def whole_or_less(child: Element) -> bool:
    """Whether an element can be drawn in part."""
    return isinstance(child, Column | Panel | Row)


@dataclass
class Row(Element):
    """Elements side by side, ``gap`` units apart, in the middle of its height or at its ``top``.

    ``weights``: shares of the width, None for an element as wide as it would like to be; without any, all are so.
    ``panes``: each is read by itself.
    """

    children: Sequence[Element]
    weights: Sequence[float | None] = ()
    gap: float = 2.0
    top: bool = False
    panes: bool = False

    def width(self, look: Look) -> float:
        return sum(child.width(look) for child in self.children) + self.gap * look.unit * (len(self.children) - 1)

    def widths(self, look: Look, width: float) -> list[float]:
        weights = list(self.weights) or [None] * len(self.children)
        room = width - self.gap * look.unit * (len(self.children) - 1)
        own = [
            child.width(look) if weight is None else 0.0 for child, weight in zip(self.children, weights, strict=True)
        ]
        if sum(own) > room:
            return [room * w / sum(own) for w in own]
        total = sum(weight or 0.0 for weight in weights) or 1.0
        rest = room - sum(own)
        return [w if weight is None else rest * weight / total for w, weight in zip(own, weights, strict=True)]

    def height(self, look: Look, width: float) -> float:
        widths = self.widths(look, width)
        return max((child.height(look, w) for child, w in zip(self.children, widths, strict=True)), default=0.0)

    def draw(self, look: Look, x: float, y: float, width: float, height: float) -> None:
        if self.panes and not look.dry:
            look.pane()
        for child, w in zip(self.children, self.widths(look, width), strict=True):
            high = height if self.top else min(child.height(look, w), height)
            if w > 4:
                child.draw(look, x, y + (height - high) / 2, w, high)
            if self.panes and not look.dry:
                look.pane()
            x += w + self.gap * look.unit


@dataclass
class Panel(Element):
    """A rectangle around an element: ``fill`` and ``edge`` are coverages, ``pad`` units at its sides, above and below.

    ``dark``: what it holds is light on this coverage.
    """

    child: Element
    fill: int = 0
    edge: int = 0
    pad: tuple[float, float] = (2.0, 1.0)
    dark: int = 0
    square: bool = False
    snug: bool = False  # no wider than what it holds

    def width(self, look: Look) -> float:
        return self.child.width(look) + 2 * self.pad[0] * look.unit

    def height(self, look: Look, width: float) -> float:
        return self.child.height(look, width - 2 * self.pad[0] * look.unit) + 2 * self.pad[1] * look.unit

    def draw(self, look: Look, x: float, y: float, width: float, height: float) -> None:
        if self.snug:
            width = min(width, self.width(look))
        across, down = (p * look.unit for p in self.pad)
        radius = 0 if self.square else int(min(look.rounded * look.unit, height / 2))
        if not look.dry and self.fill | self.edge:
            plate(look.canvas.ink(), x, y, width, height, self.fill, self.edge, radius)
        self.child.draw(look, x + across, y + down, width - 2 * across, height - 2 * down)
        if not look.dry and self.dark:
            mask = np.asarray(shape_of(int(width), int(height), radius))[: look.canvas.height - int(y)]
            region = look.canvas.ink()[int(y) : int(y) + mask.shape[0], int(x) : int(x) + mask.shape[1]]
            mask = mask[: region.shape[0], : region.shape[1]] > 0
            light = self.dark - (region.astype(np.uint16) * self.dark // 255).astype(np.uint8)
            region[mask] = light[mask]


@lru_cache(256)
def shape_of(width: int, height: int, radius: int) -> Image.Image:
    """A filled rectangle with round corners."""
    image = Image.new("L", (max(width, 1), max(height, 1)), 0)
    ImageDraw.Draw(image).rounded_rectangle((0, 0, width - 1, height - 1), radius, fill=255)
    return image


def plate(ink: np.ndarray, x: float, y: float, width: float, height: float, fill: int, edge: int, radius: int) -> None:
    """Lays a rectangle with round corners on the ink, uint8 ``[height, width]``."""
    width, height = int(width), int(height)
    if min(width, height) < 3:
        return
    image = Image.new("L", (width, height), 0)
    draw = ImageDraw.Draw(image)
    draw.rounded_rectangle((0, 0, width - 1, height - 1), radius, fill=fill, outline=edge or fill)
    region = ink[int(y) : int(y) + height, int(x) : int(x) + width]
    np.maximum(region, np.asarray(image)[: region.shape[0], : region.shape[1]], out=region)


class Screen:
    """Builds a screen in a document: texts are made with :meth:`text`, questions rest on them."""

    def __init__(self, d: Document) -> None:
        self.d, self.r = d, d.r
        self.wide = d.shape[1] >= 440
        self._texts: list[Text] = []

    def text(self, text: str, face: str = "body", **options) -> Text:
        """A new text; ``face`` is body, bold, small, title or large."""
        made = Text(text, self.d.mark(), face, **options)
        self._texts.append(made)
        return made

    def texts(self, texts: Iterable[str], face: str = "body", **options) -> list[Text]:
        return [self.text(text, face, **options) for text in texts]

    def ask(self, questions: Sequence[str], answer: str, *needs: Text | Iterable[Text]) -> None:
        """A question that holds if all of ``needs`` can be read."""
        flat = [t for need in needs for t in ([need] if isinstance(need, Text) else need)]
        self.d.ask(questions, answer, [t.part for t in flat])

    def button(self, text: str, main: bool = False) -> tuple[Panel, Text]:
        """A button, dark if it is the ``main`` one."""
        label = self.text(text, align="c")
        return Panel(label, 0 if main else 15, 0 if main else 120, (3, 1), 210 if main else 0), label

    def show(self, root: Element, fixed: bool = False, dark: float = 0.4) -> None:
        """Adds the screen to the document; ``fixed``: letters of one width, ``dark``: share of dark themes."""
        block = Block("screen", [t.part for t in self._texts], [t.text for t in self._texts])
        block.options = {"root": root, "fixed": fixed, "dark": dark}
        self.d.blocks.append(block)


def draw_screen(s: Setter, block: Block, held: bool) -> tuple[set[Part], list[int]]:
    """Draws a screen on the whole page, in the largest type at which all of it has room.

    Returns:
        the parts that can be read, and the numbers of the canvas's items at which panes end.
    """
    r, canvas, root, fixed = s.r, s.canvas, block.options["root"], block.options["fixed"]
    plain = r.pick(faces_of(held, fixed)) if fixed or r.chance(SANS_SHARE) else s.style.body.path
    bold = s.style.bold.path if not fixed and r.chance(0.1) else bold_of(plain)
    largest, smaller, grey = r.pick(LARGEST), r.pick((1, 2, 2, 3)), r.pick((255, 200, 170, 150))
    rounded, dark = r.pick((0.0, 0.7, 1.5, 2.5)), r.pick((255, 240, 220)) if r.chance(block.options["dark"]) else 0
    inset = r.randint(5, max(6, canvas.width // 18)) if r.chance(0.2) else 0
    state = r.getstate()
    x, y, width, height = inset, inset, canvas.width - 2 * inset, canvas.height - 2 * inset
    tried: list[Look] = []
    for size in SIZES[largest:]:
        sizes = {"body": size, "bold": size, "small": max(size - smaller, 9), "title": round(size * 1.35)}
        faces = {name: face(bold if name in ("bold", "title") else plain, n) for name, n in sizes.items()}
        faces["large"] = face(bold, round(size * 1.9))
        look = Look(canvas, r, faces, grey, rounded, dry=True)
        root.draw(look, x, y, width, height)
        tried.append(look)
        if look.drawn.issuperset(block.parts):
            break
    most = max(len(look.drawn) for look in tried)
    faces = next(look.faces for look in tried if len(look.drawn) >= READABLE * most)
    r.setstate(state)
    if inset:
        canvas.rect(0, 0, canvas.width, canvas.height, fill=r.pick((30, 60, 110, 170)))
        canvas.rect(x, y, x + width - 1, y + height - 1, fill=0)
    look = Look(canvas, r, faces, grey, rounded)
    look.breaks = [len(canvas.items)]
    root.draw(look, x, y, width, height)
    look.pane()
    if dark:
        canvas.panel(x, y, x + width - 1, y + height - 1, dark, inverted=True)
    if inset:
        canvas.rect(x - 1, y - 1, x + width, y + height, outline=r.pick((160, 255)))
    return look.drawn, look.breaks
