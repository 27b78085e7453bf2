"""What stands on a page of a PDF: its words, its lines with rows of tables whole, and where each character is."""

from __future__ import annotations

import numpy as np

from training.pages.canvas import CELL_HEIGHT, CELL_WIDTH, CHARACTERS

CLASS = {c: i for i, c in enumerate(CHARACTERS)}


def with_whole_rows(lines: list[str], rows: list[str]) -> list[str]:
    """Lines of which each row of a table is one, also where a cell of it is wrapped.

    pdfium reads such a cell to its end before the next one: its first line is one with the cells before it, its last
    one apart from those behind it, and a word that a narrow column breaks is two.

    Args:
        lines: in the order of drawing.
        rows: the text of rows of tables in that order; what is not on the page is passed over.
    """
    out, start = list(lines), 0
    for row in rows:
        letters = "".join(row.split())
        for first in range(start, len(out) if letters else 0):
            last, found = first, ""
            while last < len(out) and len(found) < len(letters):
                found += "".join(out[last].split())
                last += 1
            if found == letters:
                out[first:last], start = [row], first + 1
                break
    return out


def words_of(page) -> set[str]:
    """What stands between white space on a page."""
    return set(page.get_textpage().get_text_range().split())


def character_map(text, height: int, width: int) -> np.ndarray:
    """Classes of the characters in cells of 14 x 7 pixels, uint8 ``[height // 14, width // 7]``."""
    chars = np.zeros((height // CELL_HEIGHT, width // CELL_WIDTH), np.uint8)
    shown = text.get_text_range()
    for i in range(text.count_chars() - 1, -1, -1):  # the first of several characters in a cell wins
        c = CLASS.get(shown[i] if i < len(shown) else " ", 0)
        if c:
            left, bottom, right, top = text.get_charbox(i, loose=True)
            row, column = int((height - (top + bottom) / 2) // CELL_HEIGHT), int((left + right) / 2 // CELL_WIDTH)
            if 0 <= row < chars.shape[0] and 0 <= column < chars.shape[1]:
                chars[row, column] = c
    return chars
