"""Sets a :class:`~training.office.document.Document` on the ink canvas, with the styles of `training.pages.blocks`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

from training.office.charts import draw_chart
from training.office.document import Block, Document, spanned
from training.office.filling import blocks_in, fillings, type_share, widest_gap
from training.office.hand_forms import HandForm
from training.office.pictures import PICTURED, draw_picture
from training.office.plots import draw_plot
from training.office.screen import draw_screen
from training.office.series_charts import draw_series
from training.pages.blocks import Box, Setter
from training.pages.canvas import Canvas, Face, face, font_files, random_faces
from training.pages.facts import Fact
from training.pages.style import FIELD_STYLES, TABLE_STYLES, Style
from training.pages.values import Rng

SIZES, SIZE_WEIGHTS = (9, 10, 11, 12, 13, 14, 15, 16, 18, 20), (2, 4, 5, 5, 5, 4, 3, 2, 2, 1)
PART = "part"  # key of the facts that mark what was drawn
LARGER = (*range(9, 21), 22, 24, 27, 30, 34, 38, 43, 48, 54, 60, 68, 76)  # sizes that a page is set anew in
STYLES = tuple(s for s in FIELD_STYLES if s not in ("header", "strip"))


def office_style(r: Rng, width: int, held: bool, large: int | None = None) -> Style:
    """Typography of a page, from small print to large; ``large`` is the size of a poster's text."""
    body, bold = random_faces(r, held, latin=True)
    size = r.choices(SIZES, SIZE_WEIGHTS)[0]
    if width < 400:
        size = min(size, 14)
    size = large or size
    return Style(
        body=face(body, size),
        bold=face(bold, size + r.pick((0, 0, 0, 1))),
        small=face(r.pick((body, bold)), max(9, size - r.randint(0, 3))),
        title=face(bold, size + r.randint(2, 14)),
        leading=r.randint(3, large) if large else r.randint(1, 7),
        margin=r.randint(10, 52) if width >= 400 else r.randint(8, 22),
        fields=r.pick(STYLES),
        rule=r.pick((255, 190, 140, 90)),
        table=r.pick(TABLE_STYLES),
        grey=r.pick((255, 255, 200, 160)),
        value=None,
    )


class Engine:
    """Sets blocks one after the other; ``drawn`` are the parts that are on the page.

    ``lines`` hold the text in reading order: columns one after the other, cells of a row together. ``spread`` pixels
    are left free between two blocks.
    """

    def __init__(self, setter: Setter, held: bool, spread: float = 0.0) -> None:
        self.s, self.r, self.held, self.spread = setter, setter.r, held, spread
        hands, complete = font_files(held, hand=True), font_files(held, latin=True, hand=True)
        self.hand = self.r.pick(hands) if hands else None  # one person fills in a page
        self.accented = self.hand if self.hand in complete else self.r.pick(complete) if complete else None
        self.lines: list[str] = []

    @property
    def drawn(self) -> set[int]:
        return {int(fact.value) for fact in self.s.facts if fact.key == PART}

    def mark(self, part: int) -> Fact:
        return Fact(PART, str(part))

    def run(self, document: Document, box: Box) -> None:
        for number, block in enumerate(document.blocks):
            before = len(self.s.canvas.items)
            if number and box.fits(self.spread + self.s.style.body.height):
                box.y += self.spread
            getattr(self, f"set_{block.kind}")(block, box)
            if not block.inner and block.kind != "screen":
                self.lines += rows_of(self.s.canvas.items[before:])

    def set_heading(self, block: Block, box: Box) -> None:
        marks = [self.mark(part) for part in block.parts]
        if block.options["level"] == 1:
            if not self.s.heading(box, block.texts[0], marks, block.options["align"]):
                self.wrapped(block.texts[0], self.s.style.bold, box, marks, block.options["align"])
        elif box.fits(3 * self.s.style.bold.height):
            box.y += self.r.randint(1, 6)
            self.wrapped(block.texts[0], self.s.style.bold, box, marks, block.options["align"])

    def wrapped(self, text: str, f: Face, box: Box, marks: list[Fact], align: str | None = None) -> bool:
        """Text in another face than the body's, set whole or not at all."""
        style = self.s.style
        self.s.style = replace(style, body=f)
        done = self.s.paragraph(box, text, marks, align or "l")
        self.s.style = style
        return done

    def set_lines(self, block: Block, box: Box) -> None:
        style = self.s.style
        f = style.small if block.options["small"] else style.bold if block.options["bold"] else style.body
        align = block.options["align"]
        for text, part in zip(block.texts, block.parts, strict=True):
            x = {"l": box.x0, "c": (box.x0 + box.x1) / 2, "r": box.x1}[align]
            if f.width(text) > box.width:
                self.wrapped(text, f, box, [self.mark(part)], align)
            elif box.fits(f.height) and self.s.put(box, x, text, f, align):
                self.s.facts.append(self.mark(part))
                self.s.advance(box, f)

    def set_paragraph(self, block: Block, box: Box) -> None:
        if self.s.paragraph(box, block.texts[0], [self.mark(block.parts[0])]):
            box.y += self.r.pick((0, 2, self.s.style.leading, 7))

    def hand_for(self, texts: list[str]) -> str | None:
        """The writer's face, or another one where texts have characters that it lacks; None without such faces."""
        return self.hand if all(map(str.isascii, texts)) else self.accented

    def set_written(self, block: Block, box: Box) -> None:
        style = self.s.style
        hand = self.hand_for(block.texts)
        f = face(hand, max(15, style.body.size + self.r.randint(2, 8))) if hand else style.body
        self.wrapped(block.texts[0], f, box, [self.mark(block.parts[0])])

    def set_items(self, block: Block, box: Box) -> None:
        marker, f = block.options["marker"], self.s.style.body
        shown = [
            {"1": f"{i}.", "a": f"{chr(96 + i)})", "A": f"{chr(64 + i)}."}.get(marker, marker)
            for i in range(1, len(block.parts) + 1)
        ]
        indent = max(map(f.width, shown)) + 6
        for lead, text, part in zip(shown, block.texts, block.parts, strict=True):
            inner = Box(box.x0 + indent, box.x1, box.y, box.bottom)
            before = len(self.s.canvas.items)
            if self.s.paragraph(inner, text, [self.mark(part)]):
                baseline = self.s.canvas.items[before][0]
                self.s.canvas.text(box.x0, baseline, lead, f)
                box.y = inner.y

    def set_fields(self, block: Block, box: Box) -> None:
        style = self.s.style
        hand = self.hand_for([value for _, value in block.options["entries"]]) if block.options["hand"] else None
        if hand:
            written = face(hand, max(14, style.body.size + self.r.randint(1, 6)))
            self.s.style = replace(style, body=written, value=written, leading=style.leading + 2)
        entries = [(a, b, self.mark(p)) for (a, b), p in zip(block.options["entries"], block.parts, strict=True)]
        self.s.fields(box, entries, block.options["style"])
        self.s.style = style

    def set_table(self, block: Block, box: Box) -> None:
        o, s = block.options, self.s.style
        rows, header = o["rows"], o["header"]
        columns = len(rows[0]) if rows else len(header)
        align = ["l"] * (columns - o["numbers"]) + [self.r.pick("rrrc")] * o["numbers"]
        need = [max((s.body.width(row[i]) for row in rows), default=0) for i in range(columns)]
        if header:
            need = [max(n, s.bold.width(header[i])) for i, n in enumerate(need)]
        for text, under in zip(o["groups"], spanned(o["spans"], columns), strict=True):
            lack = s.bold.width(text) + 8 - sum(need[i] + 12 for i in under)
            for i in under:
                need[i] += max(lack, 0) / len(under)
        total = sum(need) + 12 * columns
        if total > box.width and s.body.size > 9:  # a smaller face rather than lost columns
            size = min(s.body.size - 1, int(s.body.size * (box.width - 12 * columns) / max(sum(need), 1)))
            size = max(9, size)
            self.s.style = replace(s, body=face(s.body.path, size), bold=face(s.bold.path, size))
            self.set_table(block, box)
            self.s.style = s
            return
        weights = [n + 12 for n in need]
        wide = self.r.chance(0.7) or total > 0.8 * box.width
        inner = box if wide else Box(box.x0, box.x0 + total, box.y, box.bottom)
        named = self.group_row(o["groups"], o["spans"], weights, inner) if o["groups"] else True
        shown, drawn = self.s.table(
            inner, header or [""] * columns, rows, align, weights, show_header=bool(header), starts=o["starts"]
        )
        if named and all(seen or not text for seen, text in zip(shown, header, strict=bool(header))):
            self.s.facts += [self.mark(block.parts[n]) for n in drawn]
        box.y = inner.y

    def group_row(self, groups: list[str], spans: list[int], weights: list[float], box: Box) -> bool:
        """Headings over the last columns; whether all of them are on the page."""
        s, f = self.s, self.s.style.bold
        if not box.fits(4 * f.height):
            return False
        edges, x = [], box.x0
        for weight in weights:
            edges.append(x)
            x += box.width * weight / sum(weights)
        edges.append(x)
        look, shown = self.r.pick(("boxes", "boxes", "lines", "lines", "band", "none")), True
        y1 = box.y + f.height + s.style.leading - 1
        if look == "band":
            s.canvas.rect(box.x0, box.y - 2, box.x1, y1, fill=35)
        for text, under in zip(groups, spanned(spans, len(weights)), strict=True):
            x0, x1 = edges[under[0]], edges[under[-1] + 1]
            shown = f.width(text) < x1 - x0 and s.put(box, (x0 + x1) / 2, text, f, "c") and shown
            if look == "boxes":
                s.canvas.rect(x0 + 1, box.y - 2, x1 - 1, y1, outline=s.style.rule)
            elif look == "lines":
                s.canvas.line(x0 + 4, y1, x1 - 4, y1, s.style.rule)
        s.advance(box, f, 2)
        return shown

    def set_strip(self, block: Block, box: Box) -> None:
        f, s = self.s.style.small, self.s
        gap = f.space * self.r.randint(2, 5)
        if sum(map(f.width, block.texts)) + gap * len(block.texts) > box.width or not box.fits(f.height + 6):
            return
        dark, x = block.options["dark"], box.x0 + 3
        if dark:
            s.canvas.rect(box.x0 - 3, box.y - 3, box.x1 + 3, box.y + f.height + 3, fill=self.r.pick((255, 215, 180)))
        done = []
        for text in block.texts:
            done.append(s.put(box, x, text, f, "l", 0 if dark else 255))
            x += f.width(text) + gap
        if all(done):
            s.facts.append(self.mark(block.parts[0]))
        s.advance(box, f, 6)

    def set_chart(self, block: Block, box: Box) -> None:
        plain = draw_series if "series" in block.options else draw_chart
        rich = block.options.get("rich", self.r.chance(0.65))
        rich_chart = draw_picture if block.options["form"] in PICTURED else draw_plot
        if (rich and rich_chart(self.s, box, block)) or ("rich" not in block.options and plain(self.s, box, block)):
            self.s.facts.append(self.mark(block.parts[0]))

    def set_hand_form(self, block: Block, box: Box) -> None:
        for part in HandForm(self.s, self.hand, self.accented, box).draw(block.options["rows"], block.parts):
            self.s.facts.append(self.mark(part))

    def set_screen(self, block: Block, box: Box) -> None:
        """A screenshot, which takes the whole page; its panes are read one after the other."""
        drawn, breaks = draw_screen(self.s, block, self.held)
        for first, last in pairwise(breaks):
            self.lines += rows_of(self.s.canvas.items[first:last])
        self.s.facts += [self.mark(part) for part in sorted(drawn)]
        box.y = box.bottom

    def set_rule(self, block: Block, box: Box) -> None:
        self.s.rule(box)

    def set_gap(self, block: Block, box: Box) -> None:
        self.s.gap(box)

    def set_columns(self, block: Block, box: Box) -> None:
        self.s.columns(box, *(lambda b, d=d: self.run(d, b) for d in block.inner))

    def set_framed(self, block: Block, box: Box) -> None:
        self.s.framed(box, lambda b: self.run(block.inner[0], b))


def rows_of(items: list[tuple[float, float, str]]) -> list[str]:
    """Texts in the order of drawing, those of one baseline joined."""
    rows: list[list[tuple[float, float, str]]] = []
    for item in items:
        for row in rows[-12:]:
            if abs(row[0][0] - item[0]) <= 3:
                row.append(item)
                break
        else:
            rows.append([item])
    rows.sort(key=lambda row: row[0][0])
    return [" ".join(text for _, _, text in sorted(row, key=lambda i: i[1])) for row in rows]


@dataclass
class Setting:
    """A page as it was set: ``bottom`` is where its text ends, in pixels."""

    canvas: Canvas
    drawn: set[int]
    lines: list[str]
    bottom: float


def enlarged(style: Style, factor: float) -> Style:
    """The typography in larger faces, of sizes that are few enough for their glyphs to be kept."""

    def larger(f: Face) -> Face:
        return face(f.path, max((size for size in LARGER if f.size < size <= f.size * factor), default=f.size))

    faces = {name: larger(getattr(style, name)) for name in ("body", "bold", "small", "title")}
    return replace(style, **faces, leading=round(style.leading * factor))


def set_on_canvas(
    document: Document, height: int, width: int, held: bool, style: Style | None = None
) -> tuple[Canvas, set[int], list[str]]:
    """Draws a document; returns the canvas, the parts that are on it and its lines in reading order.

    What would leave much of the page empty is mostly set again (:mod:`training.office.filling`), unless something would
    then be missing.

    Args:
        style: typography of an earlier page of the same document; drawn at random if not given.
    """
    r = document.r
    large = document.large_size() if style is None else None
    chosen = style or office_style(r, width, held, large)
    top, foot, framed = r.randint(8, height // 4 if large else 40), r.randint(8, 24), r.chance(0.06)
    share = type_share(r) if style is None else -1.0
    state = r.getstate()

    def setting(style: Style, top: int, spread: float) -> Setting:
        r.setstate(state)  # the same page, but for its typography
        setter = Setter(Canvas(height, width), style, r)
        box = Box(style.margin, width - style.margin, top, height - foot)
        if framed:
            setter.canvas.rect(3, 3, width - 4, height - 4, outline=style.rule)
        engine = Engine(setter, held, spread)
        engine.run(document, box)
        return Setting(setter.canvas, engine.drawn, engine.lines, box.y)

    found = setting(chosen, top, 0.0)
    used, room = found.bottom - top, height - foot - min(top, 40)
    gap = widest_gap(document, chosen.body.height)
    for factor, spread in fillings(share, used, room, blocks_in(document), gap):
        filled = setting(enlarged(chosen, factor), min(top, 40), spread)
        if filled.drawn >= found.drawn:
            found = filled
            break
    return found.canvas, found.drawn, found.lines
