"""Pages put together from blocks in columns, side bars, bands, frames and cards; most facts have no label."""

# ruff: noqa: E501  (a list of blocks)

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from training.pages import values as v
from training.pages.blocks import Box, Setter
from training.pages.canvas import face
from training.pages.facts import Fact
from training.pages.parts import letterhead
from training.pages.sheet_lists import amounts, data, entries, goods, listing, two_stage
from training.pages.sheet_texts import DOCUMENTS, highlight, people, section, sentences, signature, studies, title

Block = Callable[[Setter, Box], None]


@contextmanager
def _resized(s: Setter, factor: float) -> Iterator[None]:
    """Other sizes of type for one block."""
    old = s.style
    scale = lambda f: face(f.path, min(max(11, round(f.size * factor)), 44))  # noqa: E731
    s.style = replace(old, body=scale(old.body), bold=scale(old.bold), small=scale(old.small), title=scale(old.title))
    yield
    s.style = old


BLOCKS: tuple[tuple[Block, float], ...] = (
    (people, 6), (data, 5), (amounts, 2), (listing, 3), (section, 3), (studies, 1), (highlight, 4), (sentences, 6), (signature, 2),
    (two_stage, 1), (goods, 2), (entries, 3),
)  # fmt: skip
NARROW = (people, data, section, highlight, sentences, studies, listing, signature)


def _stack(s: Setter, box: Box, n: int, narrow: bool = False) -> None:
    r, last = s.r, None
    for _ in range(n):
        block = r.pick(NARROW) if narrow else r.choices([b for b, _ in BLOCKS], [w for _, w in BLOCKS])[0]
        if block is last and block in (goods, studies, signature):
            continue
        last = block
        if not box.fits(3 * s.style.body.height):
            return
        with _resized(s, r.pick((1, 1, 1, 1, 0.85, 1.15, 1.3))):
            if r.chance(0.22) and block not in (highlight, goods):
                s.framed(box, lambda inner, block=block: block(s, inner))
            else:
                block(s, box)
        box.y += r.randint(3, 20)


def _sidebar(s: Setter, box: Box) -> None:
    """A narrow column over the whole height, plain, tinted, dark or ruled off."""
    r, look = s.r, s.r.pick(("dark", "dark", "tint", "line", "plain"))
    width, page = box.width * r.uniform(0.28, 0.4), s.canvas
    right = r.chance(0.3)
    x0, x1 = (box.x1 - width, box.x1) if right else (box.x0, box.x0 + width)
    pad = r.randint(0, 8)
    _stack(s, Box(x0 + pad, x1 - pad, box.y + pad, box.bottom), r.randint(2, 5), narrow=True)
    edge = (x0 - 4, box.y - 6, page.width - 1, page.height - 1) if right else (0, box.y - 6, x1 + 4, page.height - 1)
    if look == "dark":
        page.panel(*edge, r.pick((255, 240, 210, 180)), inverted=True)
    elif look == "tint":
        page.panel(*edge, r.randint(14, 40))
    elif look == "line":
        page.line(x0 - 6 if right else x1 + 5, box.y, x0 - 6 if right else x1 + 5, box.bottom - 4, s.style.rule)
    gap = r.randint(10, 22)
    main = Box(box.x0, x0 - gap, box.y, box.bottom) if right else Box(x1 + gap, box.x1, box.y, box.bottom)
    _stack(s, main, r.randint(2, 5))
    box.y = box.bottom


def _band(s: Setter, box: Box) -> None:
    """A bar over the whole width with words at its left and right."""
    r, f, page = s.r, s.style.title, s.canvas
    company, document = v.company(r), r.pick(DOCUMENTS)
    company = company.upper() if r.chance(0.15) else company
    document = document.upper() if r.chance(0.4) else document
    left, right = (company, document) if r.chance(0.6) else (document, company)
    while f.size > 12 and f.width(left) + f.width(right) + 24 > box.width:
        f = face(f.path, f.size - 1)
    top = box.y
    box.y += r.randint(4, 12)
    shown = {left} if s.put(box, box.x0 + 4, left, f) else set()
    if f.width(left) + f.width(right) + 24 <= box.width and r.chance(0.8) and s.put(box, box.x1 - 4, right, f, "r"):
        shown.add(right)
    if company in shown:
        s.facts.append(Fact("issuer", company))
    if document in shown:
        s.facts.append(Fact("title", document))
    box.y += f.height + r.randint(4, 12)
    wide = r.chance(0.5)
    edge = (0, 0 if wide else top, page.width - 1, box.y) if wide else (box.x0 - 4, top, box.x1 + 4, box.y)
    if r.chance(0.7):
        page.panel(*edge, r.pick((255, 240, 200, 170)), inverted=True)
    else:
        page.line(edge[0], box.y, edge[2], box.y, s.style.rule, r.randint(1, 5))
    box.y += r.randint(6, 22)


def sheet(s: Setter, box: Box) -> None:
    """A page of blocks: an optional band or title, then one to three zones of columns, a side bar or plain stacks."""
    r = s.r
    if r.chance(0.12):  # a card: everything inside one frame
        s.framed(box, lambda inner: _zones(s, inner), dark=0.1)
    else:
        _zones(s, box)


def _zones(s: Setter, box: Box) -> None:
    r, style = s.r, s.r.random()
    if style < 0.25:
        _band(s, box)
    elif style < 0.45:
        s.columns(box, lambda b: people(s, b), lambda b: title(s, b))
    elif style < 0.6:
        letterhead(s, box)
    elif style < 0.95:
        title(s, box)
    if box.width > 360 and r.chance(0.28):
        _sidebar(s, box)
        return
    for _ in range(r.randint(2, 6)):
        if not box.fits(4 * s.style.body.height):
            return
        n = r.choices((1, 2, 3), (5, 4, 1 if box.width > 480 else 0))[0] if box.width > 330 else 1
        if n == 1:
            _stack(s, box, r.randint(1, 4))
        else:
            sizes = [r.randint(1, 3) for _ in range(n)]
            stacks = [lambda b, size=size: _stack(s, b, size, narrow=True) for size in sizes]
            if r.chance(0.3):
                stacks = [lambda b, fill=fill: s.framed(b, fill) for fill in stacks]
            s.columns(box, *stacks)
        s.gap(box)
