"""Rubber stamps on finished pages: framed words at an angle, over or beside the print."""

from __future__ import annotations

import numpy as np
from PIL import Image, ImageDraw

from training.office.values import Dates
from training.pages.canvas import face, font_files
from training.pages.facts import Fact
from training.pages.values import Rng

STAMP_SHARE = 0.12  # of the kinds that offices stamp
STAMPED = frozenset(
    "letter contract minutes form_hand receipt_world bank_statement label certificate prescription utility_bill payslip "
    "report manual ticket".split()
)
WORDS = ("PAID", "RECEIVED", "COPY", "DRAFT", "APPROVED", "URGENT", "CONFIDENTIAL", "CANCELLED", "VOID", "ORIGINAL", "CHECKED",
         "REJECTED", "FINAL", "SAMPLE", "POSTED", "FILE COPY", "OVERDUE", "ENTERED")  # fmt: skip


def stamp(r: Rng, ink: np.ndarray, held: bool) -> tuple[list[str], list[Fact]]:
    """Presses a stamp on a page.

    Args:
        ink: coverage uint8 ``[height, width]``, changed in place; a stamp is fainter than print.
        held: letters of the held-out faces.

    Returns:
        The lines of the stamp and the facts that it states; none where the page is too small.
    """
    height, width = ink.shape
    lines = [r.pick(WORDS)] + ([Dates(r).date()] if r.chance(0.5) else [])
    f = face(r.pick(font_files(held, latin=True)), r.randint(16, 30))
    wide, high = int(max(map(f.width, lines))) + 24, (f.height + 2) * len(lines) + 12
    if wide + 40 > width or high + 90 > height:
        return [], []
    picture = Image.new("L", (wide, high), 0)
    draw = ImageDraw.Draw(picture)
    frame = draw.rounded_rectangle if r.chance(0.5) else draw.rectangle
    if r.chance(0.85):
        frame((2, 2, wide - 3, high - 3), outline=255, width=r.randint(1, 3))
    for i, line in enumerate(lines):
        draw.text((wide / 2, 6 + (i + 0.5) * (f.height + 2)), line, font=f.font, fill=255, anchor="mm")
    turned = np.asarray(picture.rotate(r.uniform(-24, 24), Image.Resampling.BILINEAR, expand=True))
    turned = turned[: height - 8, : width - 8]
    y, x = r.randint(4, height - turned.shape[0] - 4), r.randint(4, width - turned.shape[1] - 4)
    region = ink[y : y + turned.shape[0], x : x + turned.shape[1]]
    np.maximum(region, (turned.astype(np.uint16) * r.randint(90, 190) // 255).astype(np.uint8), out=region)
    asks = ("What does the stamp say?", "Which word is stamped?", "What is stamped on the page?", "What was stamped here?", "Read the stamp.")  # fmt: skip
    facts = [Fact("asked", lines[0], subject=asks[0], asks=asks)]
    if len(lines) > 1:
        asks = ("Which date is stamped?", "What is the date of the stamp?", "When was it stamped?", "What date does the stamp show?")  # fmt: skip
        facts.append(Fact("asked", lines[1], subject=asks[0], asks=asks))
    return lines, facts
