"""Blocks of a page (headings, fields, tables, paragraphs, columns) and the many ways of setting them.

Content and style are drawn independently: the same invoice fields appear as "label: value", as a grid of boxes, as a
bordered table. Every element carries its facts; a fact enters the page only when all of its text was really drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from training.pages.canvas import Canvas, Face, face
from training.pages.facts import Fact
from training.pages.style import Style
from training.pages.values import Rng


@dataclass
class Box:
    """A column of the page being filled from the top."""

    x0: float
    x1: float
    y: float
    bottom: float

    @property
    def width(self) -> float:
        return self.x1 - self.x0

    def fits(self, height: float) -> bool:
        return self.y + height <= self.bottom


@dataclass
class Setter:
    """Draws blocks on a canvas and collects the facts that can be read there."""

    canvas: Canvas
    style: Style
    r: Rng
    facts: list[Fact] = field(default_factory=list)

    def put(
        self, box: Box, x: float, text: str, f: Face, align: str = "l", fill: int = 255, ascent: float | None = None
    ) -> bool:
        """Text at the top of ``box``; ``ascent`` is that of the tallest of several faces that share its baseline."""
        return self.canvas.text(x, box.y + (f.ascent if ascent is None else ascent), text, f, align, fill)

    def advance(self, box: Box, f: Face, extra: float = 0) -> None:
        box.y += f.height + self.style.leading + extra

    def heading(self, box: Box, text: str, facts: Sequence[Fact] = (), align: str | None = None) -> bool:
        r, f = self.r, self.style.title
        while f.width(text) > box.width and f.size > 11:
            f = face(f.path, f.size - 1)
        if f.width(text) > box.width or not box.fits(f.height + 4):
            return False
        align = align or r.pick("lllccr")
        x = {"l": box.x0, "c": (box.x0 + box.x1) / 2, "r": box.x1}[align]
        fill = 255
        if r.chance(0.16):  # a dark banner
            self.canvas.rect(box.x0 - 5, box.y - 3, box.x1 + 5, box.y + f.height + 3, fill=r.pick((255, 230, 180)))
            fill = 0
        if not self.put(box, x, text, f, align, fill):
            return False
        self.facts += facts
        self.advance(box, f, r.randint(0, 9))
        if r.chance(0.12):
            self.rule(box)
        return True

    def rule(self, box: Box) -> None:
        if self.r.chance(0.7) and box.fits(6):
            self.canvas.line(box.x0, box.y, box.x1, box.y, self.style.rule, self.r.pick((1, 1, 1, 2)))
        box.y += self.r.randint(3, 9)

    def gap(self, box: Box) -> None:
        box.y += self.r.randint(2, 16)

    def lines(
        self, box: Box, entries: Sequence[tuple[str, Fact | None]], align: str = "l", small: bool = False
    ) -> None:
        """Lines without labels, for example an address."""
        f = self.style.small if small else self.style.body
        for text, fact in entries:
            x = {"l": box.x0, "c": (box.x0 + box.x1) / 2, "r": box.x1}[align]
            if f.width(text) <= box.width and box.fits(f.height) and self.put(box, x, text, f, align):
                if fact:
                    self.facts.append(fact)
                self.advance(box, f)

    def paragraph(self, box: Box, text: str, facts: Sequence[Fact] = (), align: str = "l") -> bool:
        """Wrapped text. All or nothing: a fact must not be cut off."""
        f, rows, row = self.style.body, [], ""
        for token in text.split():
            longer = f"{row} {token}".strip()
            if f.width(longer) > box.width:
                if not row:
                    return False
                rows.append(row)
                row = token
            else:
                row = longer
        rows.append(row)
        if not box.fits(len(rows) * (f.height + self.style.leading)):
            return False
        x = {"l": box.x0, "c": (box.x0 + box.x1) / 2, "r": box.x1}[align]
        for row in rows:
            if not self.put(box, x, row, f, align):
                return False
            self.advance(box, f)
        self.facts += facts
        return True

    def fields(self, box: Box, entries: Sequence[tuple[str, str, Fact | None]], style: str | None = None) -> int:
        """Labelled values; returns how many were drawn. ``entries`` are (label, value, fact)."""
        style = style or self.style.fields
        columns = 1
        if style in ("above", "boxed", "grid"):
            columns = self.r.pick((1, 2, 2, 3, 4)) if box.width > 260 else self.r.pick((1, 2))
            return self._fields_above(box, entries, style, columns)
        if style == "inline":
            return self._fields_inline(box, entries)
        if style == "header":
            return self._fields_header(box, entries)
        if style == "strip":
            return self._fields_strip(box, entries)
        s, drawn = self.style, 0
        separator = self.r.pick((":", ":", "", " :")) if style != "colon" else self.r.pick((":", ":", ":", " -"))
        tab = box.x0 + box.width * self.r.uniform(0.28, 0.5)
        spacing = self.r.randint(0, 5)
        top, taller = box.y, max(s.body, s.bold, key=lambda f: f.height)
        ascent = max(s.body.ascent, s.bold.ascent)
        for label, value, fact in entries:
            lead = label + separator
            label_width, value_width = s.bold.width(lead), s.body.width(value)
            if not box.fits(taller.height + 2):
                break
            if style == "colon":
                x, align = box.x0 + label_width + s.bold.space + self.r.randint(0, 6), "l"
            elif style in ("tab", "ruled"):
                x, align = max(tab, box.x0 + label_width + 8), "l"
            else:
                x, align = box.x1, "r"
            left = x if align == "l" else x - value_width
            if left + value_width > box.x1 + 1 or left < box.x0 + label_width + 5:
                continue
            if not (
                self.put(box, box.x0, lead, s.bold, ascent=ascent)
                and self.put(box, x, value, s.body, align, ascent=ascent)
            ):
                continue
            if style == "dots":
                baseline, x0 = int(box.y + ascent) - 1, int(box.x0 + label_width + 4)
                for dot in range(x0, int(left) - 3, 5):
                    self.canvas.rect(dot, baseline, dot + 1, baseline + 1, fill=200)
            drawn += 1
            if fact:
                self.facts.append(fact)
            self.advance(box, taller, spacing)
            if style == "ruled":
                self.canvas.line(box.x0, box.y - spacing / 2 - 1, box.x1, box.y - spacing / 2 - 1, s.rule)
        if drawn and self.r.chance(0.08):
            self.canvas.rect(box.x0 - 4, top - 3, box.x1 + 4, box.y, outline=s.rule)
        return drawn

    def _fields_inline(self, box: Box, entries) -> int:
        """One to three "label value" pairs a line, as in running text."""
        between, link = self.r.pick((" | ", "   ", ", ", " - ", "; ")), self.r.pick((" ", " ", ": ", ". "))
        align, entries, drawn = self.r.pick("llrc"), list(entries), 0
        f = self.style.small if self.r.chance(0.3) else self.style.body
        while entries and box.fits(f.height):
            n = self.r.randint(1, 3)
            while n > 1 and f.width(between.join(a + link + b for a, b, _ in entries[:n])) > box.width:
                n -= 1
            chosen, entries = entries[:n], entries[n:]
            text = between.join(label + link + value for label, value, _ in chosen)
            x = {"l": box.x0, "c": (box.x0 + box.x1) / 2, "r": box.x1}[align]
            if f.width(text) <= box.width and self.put(box, x, text, f, align):
                self.facts += [fact for *_, fact in chosen if fact]
                drawn += n
                self.advance(box, f)
        return drawn

    def _fields_strip(self, box: Box, entries) -> int:
        """Two to four "label value" pairs spread evenly over a line, between rules or on a band."""
        s, drawn, entries = self.style, 0, list(entries)
        gap, plain, pad = s.bold.space + self.r.randint(1, 5), self.r.chance(0.3), self.r.randint(2, 7)
        decoration = self.r.pick(("none", "rules", "rules", "band", "box"))
        label_face, value_face = (s.bold, s.body) if self.r.chance(0.5) else (s.body, s.bold)
        colon, ascent = self.r.pick(("", "", ":")), max(s.body.ascent, s.bold.ascent)
        while entries and box.fits(s.body.height + 2 * pad + 4):
            n = self.r.randint(2, 4)
            widths = [label_face.width(a + colon) + gap + value_face.width(b) for a, b, _ in entries[:n]]
            while len(widths) > 1 and sum(widths) + 14 * (len(widths) - 1) > box.width - 8:
                widths.pop()
            chosen, entries = entries[: len(widths)], entries[len(widths) :]
            if sum(widths) > box.width - 8:
                continue
            space = 18 if plain else (box.width - 8 - sum(widths)) / max(len(widths) - 1, 1)
            x, top = box.x0 + 4, box.y
            box.y += pad
            for (label, value, fact), width in zip(chosen, widths, strict=True):
                shown = self.put(box, x, label + colon, label_face, ascent=ascent)
                at = x + label_face.width(label + colon) + gap
                if shown and self.put(box, at, value, value_face, ascent=ascent):
                    drawn += 1
                    if fact:
                        self.facts.append(fact)
                x += width + space
            box.y += max(s.body.height, s.bold.height) + pad
            if decoration == "rules":
                self.canvas.line(box.x0, top, box.x1, top, s.rule)
                self.canvas.line(box.x0, box.y, box.x1, box.y, s.rule)
            elif decoration == "band":
                self.canvas.panel(box.x0, top, box.x1, box.y, 32)
            elif decoration == "box":
                self.canvas.rect(box.x0, top, box.x1, box.y, outline=s.rule)
            box.y += s.leading + 3
        return drawn

    def _fields_header(self, box: Box, entries) -> int:
        """Small tables whose header holds the labels and whose only row holds the values."""
        drawn, align = 0, self.r.pick("llcr")
        entries = list(entries)
        while entries and box.fits(3 * self.style.body.height):
            n = self.r.randint(2, 5) if box.width > 300 else 2
            chosen, entries = entries[:n], entries[n:]
            widths = [max(self.style.bold.width(a), self.style.body.width(b)) + 14 for a, b, _ in chosen]
            while sum(widths) > box.width and len(chosen) > 1:
                entries.insert(0, chosen.pop())
                widths.pop()
            labels, values = [c[0] for c in chosen], [c[1] for c in chosen]
            shown, rows = self.table(box, labels, [values], [align] * len(chosen), widths)
            if rows:
                self.facts += [c[2] for c, visible in zip(chosen, shown, strict=True) if visible and c[2]]
                drawn += len(chosen)
        return drawn

    def entries(self, box: Box, rows: Sequence[tuple[str, Sequence[tuple[str, str]]]]) -> None:
        """A list of things with unlabelled details, such as the points of an agenda or the stations of a career.

        ``rows`` are (subject, [(attribute, value), ...]) with one to three attributes, the same in every row. Each is
        a fact "entry": the attribute's name is not printed, its place and look tell what it is.
        """
        s, r = self.style, self.r
        order = r.sample(range(len(rows[0][1])), len(rows[0][1]))
        layout, strong = r.randint(0, 3), r.chance(0.6)
        left = box.x0 + box.width * r.uniform(0.16, 0.3)
        boxed, spacing, tint = r.chance(0.45), r.randint(0, 9), r.pick((0, 0, 0, 22, 36))
        lead = s.body if r.chance(0.6) else s.bold
        bar = r.randint(2, 6) if r.chance(0.3) else 0
        for subject, details in rows:
            values = [details[i][1] for i in order]
            head = s.bold if strong else s.body
            height = s.body.height * 2 + s.leading + 2
            if not box.fits(height + 4):
                break
            y1, y2 = box.y + s.body.ascent + 1, box.y + s.body.height + s.leading + s.body.ascent + 1
            if layout == 0:  # first detail on the left, subject beside it, the others below and at the right edge
                places = [(left, y1, subject, head, "l"), (box.x0 + 8, y1, values[0], lead, "l")]
                places += [
                    (left, y2, v, s.body, "l") if i == 0 else (box.x1 - 4, y1, v, s.body, "r")
                    for i, v in enumerate(values[1:])
                ]
            elif layout == 1:  # subject, then one line of details
                places = [
                    (box.x0 + 4, y1, subject, head, "l"),
                    (box.x0 + 4, y2, r.pick((", ", " - ", " | ")).join(values), s.body, "l"),
                ]
            elif layout == 2:  # subject and the first detail on one line, the rest below
                places = [(box.x0 + 4, y1, subject, head, "l"), (box.x1 - 4, y1, values[0], s.body, "r")]
                places += [(box.x0 + 4, y2, ", ".join(values[1:]), s.body, "l")] if values[1:] else []
            else:  # everything on one line
                places = [(box.x0 + 8, y1, values[0], lead, "l"), (left, y1, subject, head, "l")]
                places += [(box.x1 - 4, y1, ", ".join(values[1:]), s.body, "r")] if values[1:] else []
            if not _clear(places, box):
                continue
            if all(self.canvas.text(x, y, text, f, align) for x, y, text, f, align in places):
                self.facts += [Fact("entry", value, name, subject) for name, value in details]
            two_lines = any(y == y2 for _, y, *_ in places)
            bottom = box.y + (height if two_lines else s.body.height) + 3
            if boxed and tint:
                self.canvas.panel(box.x0, box.y - 1, box.x1, bottom, tint)
            elif boxed:
                self.canvas.rect(box.x0, box.y - 1, box.x1, bottom, outline=s.rule)
            if bar:
                self.canvas.rect(box.x0 - 2, box.y - 1, box.x0 - 2 + bar, bottom, fill=s.rule)
            box.y += (height if two_lines else s.body.height + s.leading) + spacing + (6 if boxed else 0)

    def _fields_above(self, box: Box, entries, style: str, columns: int) -> int:
        """The label above its value, in a grid of ``columns``."""
        s, gutter, drawn = self.style, 10, 0
        width = (box.width - gutter * (columns - 1)) / columns
        large = s.value or s.body
        height = s.small.height + large.height + 3
        below = self.r.chance(0.06)  # the label under the value, as on forms that are signed
        column = 0
        for label, value, fact in entries:
            pad = 4 if style != "above" else 0
            if max(s.small.width(label), large.width(value)) > width - 2 * pad:
                continue
            if not box.fits(height + 6):
                break
            x = box.x0 + column * (width + gutter) + pad
            y_label, y_value = box.y + s.small.ascent + 1, box.y + s.small.height + 2 + large.ascent
            if below:
                y_value, y_label = box.y + large.ascent + 1, box.y + large.height + 2 + s.small.ascent
            if not (
                self.canvas.text(x, y_label, label, s.small, fill=s.grey) and self.canvas.text(x, y_value, value, large)
            ):
                continue
            if style != "above":
                self.canvas.rect(x - pad, box.y - 1, x - pad + width, box.y + height + 1, outline=s.rule)
            drawn += 1
            if fact:
                self.facts.append(fact)
            column = (column + 1) % columns
            if column == 0:
                box.y += height + s.leading + (3 if style != "grid" else 1)
        if column:
            box.y += height + s.leading + 3
        return drawn

    def table(
        self,
        box: Box,
        header: Sequence[str],
        rows: Sequence[Sequence[str]],
        align: Sequence[str],
        weights: Sequence[float],
        show_header: bool = True,
        starts: Sequence[int] = (),
    ) -> tuple[list[bool], list[int]]:
        """A table; returns which columns have a visible header and which rows were drawn whole.

        ``starts`` are the rows with which the merged cells of the first column begin, if it has any.
        """
        s, r, style = self.style, self.r, self.style.table
        total, edges, x = sum(weights), [], box.x0
        for weight in weights:
            edges.append((x, x + box.width * weight / total))
            x = edges[-1][1]
        pad = 4 if style in ("grid", "boxed") else 2
        extra = r.randint(0, 5)
        shown, top = [False] * len(header), box.y

        def cell(i: int, text: str, f: Face, fill: int = 255) -> bool:
            x0, x1 = edges[i]
            if f.width(text) > x1 - x0 - 2 * pad:
                return False
            x = {"l": x0 + pad, "c": (x0 + x1) / 2, "r": x1 - pad}[align[i]]
            return self.put(box, x, text, f, align[i], fill)

        if show_header and box.fits(s.bold.height * 2):
            dark = style == "header" and r.chance(0.6)
            if style in ("header", "boxed"):
                self.canvas.rect(
                    box.x0, box.y - 2, box.x1, box.y + s.bold.height + 1, fill=r.pick((255, 220)) if dark else 35
                )
            shown = [bool(title) and cell(i, title, s.bold, 0 if dark else 255) for i, title in enumerate(header)]
            self.advance(box, s.bold, extra)
            if style != "plain":
                self.canvas.line(box.x0, box.y - 2, box.x1, box.y - 2, s.rule)
        drawn = []
        for n, row in enumerate(rows):
            if not box.fits(s.body.height + 2):
                break
            widths_fit = all(
                s.body.width(text) <= edges[i][1] - edges[i][0] - 2 * pad for i, text in enumerate(row) if text
            )
            if not widths_fit:
                continue
            if style == "zebra" and (sum(start <= n for start in starts) if starts else n) % 2:
                self.canvas.rect(box.x0, box.y - 1, box.x1, box.y + s.body.height, fill=28)
            if all(cell(i, text, s.body) for i, text in enumerate(row) if text):
                drawn.append(n)
            self.advance(box, s.body, extra)
            if style == "grid":
                within = bool(starts) and n + 1 < len(rows) and n + 1 not in starts  # no line through a merged cell
                self.canvas.line(edges[int(within)][0], box.y - 2, box.x1, box.y - 2, s.rule)
            elif style not in ("plain", "zebra") and n + 1 in starts:
                self.canvas.line(box.x0, box.y - 2, box.x1, box.y - 2, s.rule)
        if style in ("grid", "boxed") and drawn:
            self.canvas.rect(box.x0, top - 2, box.x1, box.y - 2, outline=s.rule)
            if style == "grid":
                for _, x in edges[:-1]:
                    self.canvas.line(x, top - 2, x, box.y - 2, s.rule)
        box.y += r.randint(2, 10)
        return shown, drawn

    def framed(self, box: Box, fill, dark: float = 0.12) -> None:
        """``fill``, a function of its :class:`Box`, framed, tinted, reversed on a dark panel or plain."""
        r, pad = self.r, self.r.randint(5, 14)
        inner = Box(box.x0 + pad, box.x1 - pad, box.y + pad, box.bottom - pad)
        fill(inner)
        if inner.y <= box.y + pad:
            return
        x0, y0, x1, y1 = box.x0, box.y, box.x1, min(inner.y + pad - self.style.leading, box.bottom)
        look = r.random()
        if look < dark:
            self.canvas.panel(x0, y0, x1, y1, r.pick((255, 255, 235, 200, 170)), inverted=True)
        elif look < 0.35:
            self.canvas.panel(x0, y0, x1, y1, r.randint(12, 44))
        elif look < 0.8:
            for i in range(r.pick((1, 1, 1, 2, 3))):
                self.canvas.rect(x0 + i, y0 + i, x1 - i, y1 - i, outline=self.style.rule)
        if r.chance(0.15):
            self.canvas.rect(x0, y0, x0 + r.randint(2, 5), y1, fill=self.style.rule)
        box.y = y1 + r.randint(3, 12)

    def columns(self, box: Box, *fill) -> None:
        """Side-by-side columns; each ``fill`` is a function of its own :class:`Box`."""
        gutter = self.r.randint(12, 30)
        share = self.r.uniform(0.42, 0.58) if self.r.chance(0.8) else self.r.uniform(0.3, 0.7)
        widths = [share, 1 - share] if len(fill) == 2 else [1 / len(fill)] * len(fill)
        x, bottom = box.x0, box.y
        for width, function in zip(widths, fill, strict=True):
            x1 = x + (box.width + gutter) * width - gutter
            inner = Box(x, x1, box.y, box.bottom)
            function(inner)
            bottom = max(bottom, inner.y)
            x = x1 + gutter
        box.y = bottom + self.r.randint(0, 8)


def _clear(places: Sequence[tuple[float, float, str, Face, str]], box: Box) -> bool:
    """Whether texts (x, baseline, text, face, align) stay in the column and apart from each other."""
    spans: list[tuple[float, float, float]] = []
    for x, y, text, f, align in places:
        x0 = x if align == "l" else x - f.width(text)
        x1 = x0 + f.width(text)
        if x0 < box.x0 or x1 > box.x1 or any(y == row and x0 < end + 8 and start < x1 + 8 for row, start, end in spans):
            return False
        spans.append((y, x0, x1))
    return True
