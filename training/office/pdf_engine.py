"""A second engine: sets a :class:`~training.office.document.Document` with reportlab and rasterises it with pdfium.

Other letter spacing, justified text, merged cells and other charts than the canvas draws; glyphs are smoothed
as viewers do it. Where the two packages are missing, pages come from the canvas alone.
"""

from __future__ import annotations

import io
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from xml.sax.saxutils import escape

import numpy as np

from training.office.charts import in_valley
from training.office.document import Block, Document, spanned
from training.office.filling import blocks_in, fillings, type_share, widest_gap
from training.office.pdf_text import character_map, with_whole_rows, words_of
from training.pages.canvas import font_files, random_faces
from training.pages.values import Rng

try:
    import pypdfium2
    from reportlab.graphics.charts.barcharts import HorizontalBarChart, VerticalBarChart
    from reportlab.graphics.charts.linecharts import HorizontalLineChart
    from reportlab.graphics.charts.piecharts import Pie
    from reportlab.graphics.shapes import Drawing, Rect, String
    from reportlab.graphics.widgets.markers import makeMarker
    from reportlab.lib.colors import Color
    from reportlab.lib.styles import ParagraphStyle
    from reportlab.pdfbase import pdfmetrics
    from reportlab.pdfbase.ttfonts import TTFError, TTFont
    from reportlab.pdfgen.canvas import Canvas
    from reportlab.platypus import Flowable, Frame, HRFlowable, Paragraph, Spacer, Table
except ImportError:
    pypdfium2 = None

ALIGN = {"l": 0, "c": 1, "r": 2, "j": 4}
MARKERS = ("FilledCircle", "FilledSquare", "FilledTriangle", "FilledDiamond")  # of the points of lines
SMALLEST = 7.5  # size of type of a table that would break words
WRAPPED = 30  # characters from which the text of a column is wrapped


def available() -> bool:
    """Whether the packages of this engine are installed."""
    return pypdfium2 is not None


@lru_cache(None)
def register(path: str) -> str | None:
    """Name under which reportlab knows a TrueType file, or None for outlines that it cannot embed."""
    name = Path(path).stem
    try:
        pdfmetrics.registerFont(TTFont(name, path))
    except TTFError:
        return None
    return name


def random_fonts(r: Rng, held: bool) -> tuple[str, str, str]:
    """Names of the fonts of text, headings and handwriting."""
    for _ in range(60):
        names = [register(path) for path in random_faces(r, held, latin=True)]
        if None not in names:
            hands = [name for path in font_files(held, latin=True, hand=True) if (name := register(path))]
            return names[0], names[1], r.pick(hands) if hands else names[0]
    return "Helvetica", "Helvetica-Bold", "Helvetica-Oblique"


def can_set(document: Document) -> bool:
    """Whether this engine knows all blocks of a document."""
    return all(
        hasattr(Setter, f"set_{block.kind}") and "rich" not in block.options and all(map(can_set, block.inner))
        for block in document.blocks
    )


def grey(level: int) -> Color:
    """A shade by its coverage, 0 paper to 255 full ink."""
    return Color(*[1 - level / 255] * 3)


@dataclass
class Look:
    """Typography of one page."""

    body: str
    bold: str
    hand: str
    size: float
    justify: bool
    grid: str


class Setter:
    """Turns blocks into flowables, each with the parts that it shows.

    Attributes:
        rows: the text of every row of a table so far, in the order of drawing.
    """

    def __init__(self, r: Rng, look: Look, width: float) -> None:
        self.r, self.look, self.width = r, look, width
        self.rows: list[str] = []

    def text(self, text: str, font: str = "", size: float = 0.0, align: str = "l", level: int = 255) -> Paragraph:
        size, font = size or self.look.size, font or self.look.body
        ascent, descent = pdfmetrics.getAscentDescent(font, size)
        style = ParagraphStyle(
            "s", fontName=font, fontSize=size, leading=max(1.22 * size, ascent - descent), alignment=ALIGN[align],
            textColor=grey(level), allowWidows=1,
        )  # fmt: skip
        return Paragraph(escape(text), style)

    def flowables(self, document: Document, width: float) -> list[tuple[Flowable, list[int]]]:
        outer, self.width, out = self.width, width, []
        for block in document.blocks:
            out += getattr(self, f"set_{block.kind}")(block)
        self.width = outer
        return out

    def set_heading(self, block: Block) -> list:
        size = self.look.size * (self.r.uniform(1.2, 1.9) if block.options["level"] == 1 else 1.05)
        return [
            (self.text(block.texts[0], self.look.bold, size, block.options["align"] or "l"), block.parts),
            (Spacer(1, self.r.randint(2, 7)), []),
        ]

    def set_lines(self, block: Block) -> list:
        o = block.options
        font, size = self.look.bold if o["bold"] else "", self.look.size * (0.85 if o["small"] else 1)
        texts = zip(block.texts, block.parts, strict=True)
        return [(self.text(text, font, size, o["align"]), [part]) for text, part in texts]

    def set_paragraph(self, block: Block) -> list:
        shown = self.text(block.texts[0], align="j" if self.look.justify else "l")
        return [(shown, block.parts), (Spacer(1, self.look.size * 0.4), [])]

    def set_items(self, block: Block) -> list:
        marker, out = block.options["marker"], []
        for i, (text, part) in enumerate(zip(block.texts, block.parts, strict=True), 1):
            lead = {"1": f"{i}.", "a": f"{chr(96 + i)})", "A": f"{chr(64 + i)}."}.get(marker, marker)
            indent = 1.9 * self.look.size
            out.append((self.table([[self.text(lead), self.text(text)]], [indent, self.width - indent], []), [part]))
        return out

    def table(self, rows: list, widths: list[float], style: list) -> Table:
        pad = [("VALIGN", (0, 0), (-1, -1), "TOP"), ("TOPPADDING", (0, 0), (-1, -1), 1)]
        pad += [("BOTTOMPADDING", (0, 0), (-1, -1), 2), ("LEFTPADDING", (0, 0), (-1, -1), 3)]
        pad += [("RIGHTPADDING", (0, 0), (-1, -1), 3)]
        return Table(rows, colWidths=widths, style=pad + style, hAlign="LEFT")

    def set_written(self, block: Block) -> list:
        return [(self.text(block.texts[0], self.look.hand, 1.15 * self.look.size), block.parts)]

    def set_fields(self, block: Block) -> list:
        font = self.look.hand if block.options["hand"] else ""
        right = block.options["style"] in ("right", "dots")
        labels = [label for label, _ in block.options["entries"]]
        widest = max((pdfmetrics.stringWidth(label, self.look.bold, self.look.size) for label in labels), default=0) + 7
        share, out = max(self.r.uniform(0.3, 0.5), min(widest / self.width, 0.6)), []
        for (label, value), part in zip(block.options["entries"], block.parts, strict=True):
            cells = [self.text(label, self.look.bold), self.text(value, font, align="r" if right else "l")]
            line = [("LINEBELOW", (0, 0), (-1, -1), 0.4, grey(120))] if self.look.grid == "rows" else []
            widths = [self.width * share, self.width * (1 - share)]
            out.append((self.table([cells], widths, line), [part]))
        return out

    def set_table(self, block: Block) -> list:
        """One table a row, or those that share a merged cell, so that those that do not fit are left out singly."""
        o, out = block.options, []
        rows = o["rows"]
        words = self.longest_words([o["header"], *rows] if o["header"] else rows)
        if sum(words) > self.width and self.look.size > SMALLEST:  # smaller type rather than broken words
            look, size = self.look, max(SMALLEST, 0.97 * self.look.size * self.width / sum(words))
            self.look = replace(look, size=size)
            out = self.set_table(block)
            self.look = look
            return out
        columns = len(rows[0]) if rows else 1
        need = [
            max([len(row[i]) for row in rows] + [len(o["header"][i]) if o["header"] else 1]) + 2 for i in range(columns)
        ]
        need = [min(n, WRAPPED) for n in need]  # a column of sentences leaves the others their words
        groups = list(zip(o["groups"], spanned(o["spans"], columns), strict=True))
        for text, under in groups:
            for i in under:
                need[i] = max(need[i], (len(text) + 2) / len(under))
        rest = self.width - sum(words)
        if rest < 0:
            widths = [self.width * width / sum(words) for width in words]
        else:
            widths = [width + rest * n / sum(need) for width, n in zip(words, need, strict=True)]
        if groups:
            cells, style = [""] * columns, []
            edge = self.r.pick(("BOX", "BOX", "LINEBELOW", "LINEBELOW", ""))
            for text, under in groups:
                ends = (under[0], 0), (under[-1], 0)
                cells[under[0]] = self.text(text, self.look.bold, align="c")
                style += [("SPAN", *ends), *([(edge, *ends, 0.5, grey(160))] if edge else [])]
            out.append((self.table([cells], widths, style), []))
        lines = {
            "grid": [("GRID", (0, 0), (-1, -1), 0.5, grey(150))],
            "rows": [("LINEBELOW", (0, 0), (-1, -1), 0.4, grey(120))],
        }.get(self.look.grid, [])
        if any(o["header"]):
            dark = self.r.chance(0.3)
            back = [("BACKGROUND", (0, 0), (-1, -1), grey(230 if dark else 40))] if dark or self.r.chance(0.4) else []
            head = self.cells(o["header"], o["numbers"], self.look.bold, 0 if dark else 255)
            out.append((self.table([head], widths, lines + back), []))
        starts = o["starts"] or list(range(len(rows)))
        centred = bool(o["starts"]) and self.r.chance(0.4)
        for i, (first, last) in enumerate(zip(starts, [*starts, len(rows)][1:], strict=True)):
            style = [("BACKGROUND", (0, 0), (-1, -1), grey(25))] if self.look.grid == "zebra" and i % 2 else []
            if last - first > 1:
                style += [("SPAN", (0, 0), (0, -1)), *([("VALIGN", (0, 0), (0, -1), "MIDDLE")] if centred else [])]
            cells = [self.cells(row, o["numbers"]) for row in rows[first:last]]
            out.append((self.table(cells, widths, lines + style), block.parts[first:last]))
        return out

    def longest_words(self, rows: list[list[str]]) -> list[float]:
        """Widths of columns that break no word."""
        return [
            max(pdfmetrics.stringWidth(word, self.look.bold, self.look.size) for word in ("", *words)) + 7
            for words in (" ".join(column).split() for column in zip(*rows, strict=True))
        ]

    def cells(self, row: list[str], numbers: int, font: str = "", level: int = 255) -> list[Paragraph]:
        """A row of a table, of which the last ``numbers`` cells stand at the right."""
        at = len(row) - numbers
        self.rows.append(" ".join(" ".join(row).split()))
        return [self.text(c, font, align="r" if i >= at else "l", level=level) for i, c in enumerate(row)]

    def set_strip(self, block: Block) -> list:
        dark = block.options["dark"]
        cells = [[self.text(text, size=self.look.size * 0.9, level=0 if dark else 255) for text in block.texts]]
        style = [("BACKGROUND", (0, 0), (-1, -1), grey(225 if dark else 30))]
        total = sum(map(len, block.texts)) + 2 * len(block.texts)
        return [(self.table(cells, [self.width * (len(t) + 2) / total for t in block.texts], style), block.parts)]

    def fit_labels(self, chart, labels: list[str], size: float) -> None:
        """Turns labels that are too wide to stand side by side aslant, and makes room for them."""
        widest = max(pdfmetrics.stringWidth(label, self.look.body, size) for label in labels)
        if widest + 3 > chart.width / len(labels):
            chart.categoryAxis.labels.angle, chart.categoryAxis.labels.boxAnchor = 35, "ne"
            chart.y, chart.height = chart.y + 25, chart.height - 25

    def set_series(self, block: Block) -> list:
        """Several series beside each other, on each other or as lines, with a legend above."""
        o, height, size = block.options, min(self.width * 0.6, 280), self.look.size * 0.8
        drawing = Drawing(self.width, height)
        chart = HorizontalLineChart() if o["form"] == "lines" else VerticalBarChart()
        chart.x, chart.y, chart.width, chart.height = self.width * 0.12, 30, self.width * 0.8, height - 50 - 2 * size
        chart.data, chart.categoryAxis.categoryNames = o["values"], block.texts
        if o["form"] == "stacked":
            chart.categoryAxis.style = "stacked"
        for axis in (chart.categoryAxis, chart.valueAxis):
            axis.labels.fontName, axis.labels.fontSize = self.look.body, size
        self.fit_labels(chart, block.texts, size)
        ticks = [value for value, _ in o["ticks"]]
        chart.valueAxis.valueMin, chart.valueAxis.valueMax = 0, ticks[-1]
        chart.valueAxis.valueSteps, chart.valueAxis.visibleGrid = ticks, 1
        chart.valueAxis.gridStrokeColor = grey(60)  # lines that run along the grid are to be seen
        if o["printed"]:
            chart.barLabelArray, chart.barLabelFormat, chart.barLabels.nudge = o["printed"], "values", 8
            chart.barLabels.fontName, chart.barLabels.fontSize = self.look.body, size
        x = 12.0
        for i, name in enumerate(o["series"]):
            shade = grey((230, 100, 170, 50)[i])
            if o["form"] == "lines":
                chart.lines[i].strokeColor, chart.lines[i].strokeWidth = shade, 1.8
                chart.lines[i].symbol = makeMarker(MARKERS[i])
            else:
                chart.bars[i].fillColor = shade
            drawing.add(Rect(x, height - size, size * 0.8, size * 0.8, fillColor=shade))
            drawing.add(String(x + size + 3, height - size, name, fontName=self.look.body, fontSize=size))
            x += pdfmetrics.stringWidth(name, self.look.body, size) + 2.6 * size
        drawing.add(chart)
        return [(drawing, block.parts if x < self.width else [])]

    def set_chart(self, block: Block) -> list:
        if "series" in block.options:
            return self.set_series(block)
        o, height = block.options, min(self.width * 0.6, 260)
        drawing = Drawing(self.width, height)
        form = {"bar": HorizontalBarChart, "column": VerticalBarChart, "line": HorizontalLineChart, "pie": Pie}[
            o["form"]
        ]
        chart = form()
        chart.x, chart.y, chart.width, chart.height = self.width * 0.2, 30, self.width * 0.66, height - 50
        size = self.look.size * 0.8
        if o["form"] == "pie":
            side = min(chart.width, chart.height)
            chart.x, chart.width, chart.height, chart.data = (self.width - side) / 2, side, side, o["values"]
            printed = o["printed"] or [""] * len(block.texts)
            chart.labels = [f"{a} {b}".strip() for a, b in zip(block.texts, printed, strict=True)]
            chart.slices.fontName, chart.slices.fontSize, chart.slices.strokeWidth = self.look.body, size, 0.7
            chart.sideLabels = 1
            for i in range(len(o["values"])):
                chart.slices[i].fillColor = grey((40, 80, 120, 160, 200, 235, 60, 140)[i % 8])
        else:
            chart.data = [o["values"]]
            if o["printed"]:
                if o["form"] == "line":
                    chart.lineLabelArray, chart.lineLabelFormat, labels = [o["printed"]], "values", chart.lineLabels
                    labels.dy = 9  # points above the line
                    for i in range(len(o["values"])):
                        if in_valley(o["values"], i):
                            labels[0, i].dy = -size
                else:
                    chart.barLabelArray, chart.barLabelFormat, labels = [o["printed"]], "values", chart.barLabels
                    labels.nudge = 9
                labels.fontName, labels.fontSize = self.look.body, size
            chart.categoryAxis.categoryNames = block.texts
            if o["form"] == "bar":
                chart.categoryAxis.reverseDirection = 1
            for axis in (chart.categoryAxis, chart.valueAxis):
                axis.labels.fontName, axis.labels.fontSize = self.look.body, size
            if o["form"] != "bar":
                self.fit_labels(chart, block.texts, size)
            chart.valueAxis.valueMin = 0
            if o["ticks"]:
                chart.valueAxis.valueMax, chart.valueAxis.valueStep = (
                    o["ticks"][-1][0],
                    max(o["ticks"][-1][0] / (len(o["ticks"]) - 1), 1),
                )
                chart.valueAxis.visibleGrid, chart.valueAxis.gridStrokeColor = 1, grey(70)
            if o["form"] == "line":
                chart.lines[0].strokeColor, chart.lines[0].strokeWidth = grey(220), 1.5
            else:
                chart.bars[0].fillColor = grey(o.get("shade", 150))
        drawing.add(chart)
        return [(drawing, block.parts)]

    def set_rule(self, block: Block) -> list:
        return [(HRFlowable(width="100%", thickness=0.7, color=grey(160), spaceBefore=3, spaceAfter=4), [])]

    def set_gap(self, block: Block) -> list:
        return [(Spacer(1, self.r.randint(3, 14)), [])]

    def set_columns(self, block: Block) -> list:
        width = self.width / len(block.inner)
        cells, parts = [], []
        for inner in block.inner:
            flows = self.flowables(inner, width - 12)
            cells.append([flow for flow, _ in flows] or [Spacer(1, 1)])
            parts += [part for _, own in flows for part in own]
        return [(Table([cells], colWidths=[width] * len(cells), style=[("VALIGN", (0, 0), (-1, -1), "TOP")]), parts)]

    def set_framed(self, block: Block) -> list:
        flows = self.flowables(block.inner[0], self.width - 16)
        box = [
            ("BOX", (0, 0), (-1, -1), self.r.pick((0.6, 1.2)), grey(200)),
            ("BACKGROUND", (0, 0), (-1, -1), grey(self.r.pick((0, 0, 25)))),
        ]
        return [
            (
                Table([[[flow for flow, _ in flows]]], colWidths=[self.width - 4], style=box),
                [p for _, own in flows for p in own],
            )
        ]


def set_as_pdf(
    document: Document, height: int, width: int, held: bool
) -> tuple[np.ndarray, np.ndarray, set[int], list[str]]:
    """Sets a document on a PDF page of one point a pixel.

    Returns:
        ink uint8 ``[height, width]``, the character map as of :class:`training.pages.canvas.Canvas`, the parts that are
        on the page, and its lines in the order of drawing, a row of a table as one.
    """
    r = document.r
    body, bold, hand = random_fonts(r, held)
    size = r.choices((8.5, 9.5, 10.5, 11.5, 12.5, 14, 16), (2, 4, 5, 5, 4, 3, 2))[0]
    large = document.large_size()
    look = Look(
        body,
        bold,
        hand,
        large or (min(size, 12.5) if width < 400 else size),
        r.chance(0.4),
        r.pick(("grid", "rows", "zebra", "")),
    )
    margin = r.randint(12, 60) if width >= 400 else r.randint(8, 20)
    foot, share = r.randint(8, 24), type_share(r)
    state = r.getstate()

    def setting(look: Look, spread: float) -> tuple[pypdfium2.PdfPage, np.ndarray, set[int], list[str]]:
        r.setstate(state)  # the same page, but for its typography
        buffer, drawn = io.BytesIO(), set()
        canvas = Canvas(buffer, pagesize=(width, height))
        frame = Frame(margin, foot, width - 2 * margin, height - margin - 8, 0, 0, 0, 0)
        setter = Setter(r, look, width - 2 * margin)
        for number, block in enumerate(document.blocks):
            if number and spread:
                frame.add(Spacer(1, spread), canvas)
            for flow, parts in getattr(setter, f"set_{block.kind}")(block):
                if frame.add(flow, canvas):
                    drawn |= set(parts)
        canvas.showPage()
        canvas.save()
        page = pypdfium2.PdfDocument(buffer.getvalue())[0]
        return page, 255 - page.render(scale=1, grayscale=True).to_numpy()[:height, :width], drawn, setter.rows

    page, ink, drawn, table_rows = setting(look, 0.0)
    rows = np.flatnonzero(ink.reshape(height, width).max(1) > 60)
    used, room = int(np.ptp(rows)) if rows.size else 0, height - margin - 8
    gap = widest_gap(document, 1.22 * look.size)
    for factor, spread in fillings(share, used, room, blocks_in(document), gap):
        filled = setting(replace(look, size=look.size * factor), spread)
        if filled[2] >= drawn and words_of(filled[0]) >= words_of(page):  # no word is broken in a narrow column
            page, ink, drawn, table_rows = filled
            break
    text = page.get_textpage()
    lines = [line.strip() for line in text.get_text_range().replace("\r", "").split("\n")]
    return (
        np.ascontiguousarray(ink.reshape(height, width)),
        character_map(text, height, width),
        drawn,
        with_whole_rows([x for x in lines if x], table_rows),
    )
