"""Invoices, pay slips and reports printed by ReportLab."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pypdfium2
from reportlab.graphics.charts.barcharts import VerticalBarChart
from reportlab.graphics.shapes import Drawing
from reportlab.lib import colors
from reportlab.lib.pagesizes import A4, landscape
from reportlab.lib.styles import ParagraphStyle
from reportlab.lib.units import mm
from reportlab.pdfbase import pdfmetrics
from reportlab.pdfbase.ttfonts import TTFont
from reportlab.platypus import PageBreak, Paragraph, SimpleDocTemplate, Spacer, Table

TRUETYPE = "/usr/share/fonts/truetype"
FONTS = {
    "Gentium": f"{TRUETYPE}/gentiumplus/GentiumPlus-Regular.ttf",
    "Lato": f"{TRUETYPE}/lato/Lato-Regular.ttf",
    "PTSans": f"{TRUETYPE}/paratype/PTS55F.ttf",
}


def styles(font: str, size: float = 10.5) -> tuple[ParagraphStyle, ParagraphStyle]:
    """Of plain text and of titles."""
    plain = ParagraphStyle("plain", fontName=font, fontSize=size, leading=size * 1.4)
    return plain, ParagraphStyle("title", fontName=font, fontSize=size * 1.7, leading=size * 2.4)


def grid(font: str, rows: list[list[str]], size: float = 10, **options: Any) -> Table:
    """A table with thin lines and a grey head."""
    style = [
        ("FONT", (0, 0), (-1, -1), font, size),
        ("LINEBELOW", (0, 0), (-1, -1), 0.4, colors.grey),
        ("BACKGROUND", (0, 0), (-1, 0), colors.Color(0.9, 0.9, 0.88)),
        ("ALIGN", (1, 0), (-1, -1), "RIGHT"),
    ]
    return Table(rows, style=style, hAlign="LEFT", **options)


def invoice_boats() -> list[Any]:
    """An invoice in pounds."""
    plain, title = styles("Gentium")
    rows = [
        ["Work", "Hours", "Rate", "Amount"],
        ["Re-caulking of the foredeck", "12½", "£46.00", "£575.00"],
        ["New rudder bearing, bronze", "3", "£46.00", "£138.00"],
        ["Varnish, five litres", "", "", "£121.50"],
        ["Crane, two lifts", "", "", "£90.00"],
    ]
    return [
        Paragraph("Tregenza & Sons, Boatbuilders", title),
        Paragraph("The Slip, Polruan PL23 · VAT GB 771 2048 36", plain),
        Spacer(1, 8 * mm),
        Paragraph("To: Commodore Isolde Farquhar, Yacht “Petrel”, Fowey Marina berth 61", plain),
        Paragraph("Invoice T-0926-14 of 28 September 2026, your order of 2 September", plain),
        Spacer(1, 6 * mm),
        grid("Gentium", rows, colWidths=[80 * mm, 24 * mm, 28 * mm, 30 * mm]),
        Spacer(1, 5 * mm),
        Paragraph("Net £924.50 &nbsp;&nbsp; VAT 20% £184.90 &nbsp;&nbsp; <b>To pay £1,109.40</b>", plain),
        Spacer(1, 6 * mm),
        Paragraph(
            "Payable by 26 October. If you pay within a week you may take 2% off. Sort code 30-91-77, account "
            "40221860. The old bearing is kept for you until Christmas, since you asked to see the wear.",
            plain,
        ),
    ]


def payslip() -> list[Any]:
    """A pay slip in a wide table."""
    plain, title = styles("PTSans")
    rows = [
        ["Description", "Units", "Rate", "This month", "Year to date"],
        ["Basic pay", "168 h", "€ 17,40", "€ 2.923,20", "€ 11.692,80"],
        ["Night allowance", "22 h", "€ 4,35", "€ 95,70", "€ 261,00"],
        ["Travel", "19 days", "€ 3,80", "€ 72,20", "€ 288,80"],
        ["Income tax", "", "", "− € 488,16", "− € 1.930,04"],
        ["Pension", "", "5,8 %", "− € 169,55", "− € 678,18"],
        ["Net pay", "", "", "€ 2.433,39", "€ 9.634,38"],
    ]
    return [
        Paragraph("Bakkerij Van der Meulen B.V. — pay slip April 2026", title),
        Paragraph("Employee: Joost Wiersma &nbsp;&nbsp; Number: 1093 &nbsp;&nbsp; Department: Ovens", plain),
        Paragraph("Date of birth: 12-08-1991 &nbsp;&nbsp; In service since: 01-11-2019", plain),
        Spacer(1, 6 * mm),
        grid("PTSans", rows, colWidths=[52 * mm, 28 * mm, 28 * mm, 40 * mm, 42 * mm]),
        Spacer(1, 6 * mm),
        Paragraph("Paid on 24 April to NL08 TRIO 0338 4411 90. Holiday left: 17,5 days.", plain),
    ]


def report_library() -> list[Any]:
    """Two pages: prose and a table, then a chart with a caption and prose."""
    plain, title = styles("Lato", 10)
    rows = [
        ["Branch", "Loans", "Visitors", "Staff"],
        ["Central", "61,240", "98,700", "11"],
        ["Harbour", "18,905", "27,310", "4"],
        ["Priory Lane", "9,477", "15,080", "2"],
        ["Mobile van", "6,012", "—", "1"],
    ]
    chart = VerticalBarChart()
    chart.x, chart.y, chart.width, chart.height = 30, 25, 330, 130
    chart.data = [(12, 19, 33, 28)]
    chart.categoryAxis.categoryNames = ["Crime", "Travel", "Children", "Cooking"]
    chart.valueAxis.valueMin, chart.valueAxis.valueMax, chart.valueAxis.valueStep = 0, 40, 10
    chart.bars[0].fillColor = colors.Color(0.2, 0.4, 0.6)
    chart.barLabels.nudge = 8
    chart.barLabelFormat = "%d"
    drawing = Drawing(400, 170)
    drawing.add(chart)
    return [
        Paragraph("Libraries of Marlowe County: the year 2025", title),
        Paragraph(
            "Loans rose by 6 per cent, although the Harbour branch was closed for five weeks after a pipe burst in "
            "February. The mobile van found 340 new readers on its round of the hill farms. Fines were abolished on "
            "1 July; since then more books have come back, not fewer.",
            plain,
        ),
        Spacer(1, 5 * mm),
        grid("Lato", rows, colWidths=[50 * mm, 30 * mm, 30 * mm, 25 * mm]),
        PageBreak(),
        Paragraph("What was bought", title),
        drawing,
        Paragraph("Figure 2. New books by kind, in hundreds.", plain),
        Spacer(1, 4 * mm),
        Paragraph(
            "The budget for 2026 is £187,000. A third of it goes into e-books, because the licences expire after two "
            "years. Josephine Tarrant, county librarian",
            plain,
        ),
    ]


def delivery_note() -> list[Any]:
    """A delivery note without prices."""
    plain, title = styles("PTSans")
    rows = [
        ["Article", "Ordered", "Delivered", "Pallet"],
        ["KL-204 Roof tile, red", "1 200", "1 200", "A"],
        ["KL-207 Ridge tile", "85", "60", "A"],
        ["DR-011 Gutter 3 m", "24", "24", "B"],
        ["DR-019 Gutter bracket", "96", "90", "B"],
    ]
    return [
        Paragraph("Tegelwerk Østby AS — Delivery note 88217", title),
        Paragraph("Site: Skolegata 3, Moss &nbsp;&nbsp; Lorry: BT 51470 &nbsp;&nbsp; Driver: Håkon Lie", plain),
        Paragraph("Date: 2026-08-19, unloaded 07:40 to 08:25", plain),
        Spacer(1, 5 * mm),
        grid("PTSans", rows, colWidths=[70 * mm, 28 * mm, 28 * mm, 24 * mm]),
        Spacer(1, 5 * mm),
        Paragraph(
            "The missing ridge tiles follow on Friday. Three tiles were broken and are credited. Received by: "
            "Aslaug Fjeld, foreman",
            plain,
        ),
    ]


PRINTED: dict[str, tuple[Callable[[], list[Any]], tuple[float, float]]] = {
    "invoice-boats": (invoice_boats, A4),
    "payslip-bakery": (payslip, landscape(A4)),
    "report-library": (report_library, A4),
    "delivery-tiles": (delivery_note, A4),
}


def render(out: Path, wanted: str = "") -> Iterator[tuple[str, list[str]]]:
    """Write the PDFs whose names contain ``wanted``; yields each name with its text layer by page."""
    for name, path in FONTS.items():
        pdfmetrics.registerFont(TTFont(name, path))
    for name, (story, size) in PRINTED.items():
        if wanted in name:
            path = out / f"{name}.pdf"
            SimpleDocTemplate(str(path), pagesize=size, title=name, author="", invariant=1).build(story())
            yield name, text_layers(path)


def text_layers(path: Path) -> list[str]:
    """The text layer of each page of a PDF."""
    with pypdfium2.PdfDocument(path) as document:
        return [page.get_textpage().get_text_range().replace("\r\n", "\n") for page in document]
