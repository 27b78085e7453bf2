"""Writing an analysis to a folder: the report as JSON, every figure as PNG, and one HTML page with all of them.

The page needs nothing else: plotly.js is in it, once, and nothing is requested from outside. It follows the reader's
light or dark setting, as the figures have no background of their own. PNG goes through kaleido, which drives an
installed Chrome or Chromium; without one, JSON and HTML are written and :class:`Written` says what PNG needs.
"""

from __future__ import annotations

import html
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import plotly.io
from plotly.offline import get_plotlyjs

from kvmm.analysis.drift.report import Table
from kvmm.analysis.plots.style import FONT
from kvmm.errors import KVMMError

PNG_WIDTH = 900  # pixels, before ``scale``
NO_BROWSER = "PNG needs Chrome or Chromium: install one of them, or name it in the environment variable BROWSER_PATH."

_STYLE = """
:root { color-scheme: light dark; --page: #fff; --text: #1d2433; --faint: #5d6576; --line: #dfe3ea; }
@media (prefers-color-scheme: dark) {
  :root { --page: #14171d; --text: #e4e7ec; --faint: #9aa2b1; --line: #2c323d; }
}
body { font: 15px/1.55 FONT; color: var(--text); background: var(--page); max-width: 980px; margin: 0 auto;
  padding: 24px 16px 64px; }
h1 { font-size: 24px; margin: 0 0 4px; }
h2 { font-size: 17px; margin: 40px 0 4px; }
p { margin: 4px 0 12px; color: var(--faint); }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; margin: 8px 0; }
th, td { text-align: right; padding: 4px 12px 4px 0; border-bottom: 1px solid var(--line); white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
th { font-weight: 600; color: var(--faint); }
""".replace("FONT", FONT)


@dataclass(frozen=True)
class Figure:
    """One figure of a report: ``name`` is its file's, ``text`` one or two sentences that say how to read it."""

    name: str
    title: str
    text: str
    figure: go.Figure


@dataclass(frozen=True)
class Written:
    """The files of :func:`write_report`; ``note`` is one line about files that could not be written, or empty."""

    json: Path
    html: Path
    png: tuple[Path, ...]
    note: str = ""


def write_report(
    folder: str | Path,
    name: str,
    title: str,
    report: Mapping[str, Any],
    figures: Sequence[Figure],
    *,
    intro: str = "",
    tables: Sequence[Table] = (),
    png: bool = True,
    scale: float = 2.0,
) -> Written:
    """Write ``{name}.json``, ``{name}.html`` and a PNG for every figure.

    Args:
        folder: created if it is missing; files of the same names are replaced.
        name: of the JSON and the HTML file, without their endings.
        title, intro: head of the page.
        report: what a report's ``to_dict()`` returns.
        figures, tables: of the page; tables come first.
        png: whether to write pictures.
        scale: pixels of a PNG over those on the page.

    Raises:
        KVMMError: if the folder cannot be written to, or a figure cannot be drawn.
    """
    folder = Path(folder)
    files = Written(folder / f"{name}.json", folder / f"{name}.html", ())
    try:
        folder.mkdir(parents=True, exist_ok=True)
        text = json.dumps(report, ensure_ascii=False, allow_nan=False, indent=1)
        files.json.write_text(text + "\n", encoding="utf-8")
        files.html.write_text(page(title, figures, intro=intro, tables=tables), encoding="utf-8")
    except OSError as error:
        raise KVMMError(f"{folder} cannot be written to ({error.strerror}): name another folder.") from None
    if not png or not figures:
        return files
    pictures = tuple(folder / f"{one.name}.png" for one in figures)
    note = write_png([one.figure for one in figures], pictures, scale=scale)
    return Written(files.json, files.html, () if note else pictures, note)


def page(title: str, figures: Sequence[Figure], *, intro: str = "", tables: Sequence[Table] = ()) -> str:
    """One HTML page that stands alone: tables, then every figure under its title and text."""
    parts = [
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{html.escape(title)}</title>\n<style>{_STYLE}</style>",
        # Without this a reader's browser asks the server, or the disk, for an icon.
        '<link rel="icon" href="data:,">',
        f'<script type="text/javascript">{get_plotlyjs()}</script>' if figures else "",
        f"</head>\n<body>\n<h1>{html.escape(title)}</h1>",
        f"<p>{html.escape(intro)}</p>" if intro else "",
    ]
    parts += [_table(one) for one in tables]
    for one in figures:
        plot = plotly.io.to_html(
            one.figure,
            include_plotlyjs=False,
            full_html=False,
            div_id=f"figure-{one.name}",
            default_height=f"{_height(one.figure)}px",
            config={"displaylogo": False, "responsive": True, "showTips": False},
        )
        parts.append(f"<section><h2>{html.escape(one.title)}</h2>\n<p>{html.escape(one.text)}</p>\n{plot}</section>")
    return "\n".join(part for part in parts if part) + "\n</body>\n</html>\n"


def write_png(figures: Sequence[go.Figure], paths: Sequence[Path], *, scale: float = 2.0) -> str:
    """Draw figures with an installed Chrome or Chromium, on a transparent background.

    Returns:
        an empty string, or one line that says what is missing; then nothing was written.

    Raises:
        KVMMError: if there is a browser and it fails.
    """
    browser = _browser()
    if browser is None:
        return NO_BROWSER
    import kaleido

    drawn = [
        # to_dict by way of JSON: the browser gets what the page has
        {
            "fig": json.loads(figure.to_json()),
            "path": str(path),
            "opts": {"format": "png", "width": PNG_WIDTH, "height": _height(figure), "scale": scale},
        }
        for figure, path in zip(figures, paths, strict=True)
    ]
    # Nothing is fetched: formulas would come with MathJax from a server. Sandboxes do not start as root and kaleido
    # opens pages of its own only, so it leaves them off.
    options = {"path": browser, "n": 1, "mathjax": False}
    try:
        kaleido.write_fig_from_object_sync(drawn, kopts=options)
    except Exception as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise KVMMError(f"{browser} could not draw the figures ({lines[0]}): leave PNG out with --no-png.") from None
    return ""


def _browser() -> str | None:
    """An installed browser that kaleido can drive, or None."""
    try:
        from choreographer.browsers import Chromium
    except ImportError:  # kaleido is not installed
        return None
    named = os.environ.get("BROWSER_PATH")
    if named:
        return named if os.access(named, os.X_OK) and Path(named).is_file() else None
    return _found(Chromium)


def _found(browser_class: Any) -> str | None:
    path = browser_class.find_browser(skip_local=False)
    return str(path) if path else None


def _height(figure: go.Figure) -> int:
    return int(figure.layout.height or 450)


def _table(table: Table) -> str:
    head = "".join(f"<th>{html.escape(column)}</th>" for column in table.columns)
    rows = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in table.rows)
    caption = f"<p>{html.escape(table.caption)}</p>" if table.caption else ""
    return (
        f"<section><h2>{html.escape(table.title)}</h2>\n{caption}"
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div></section>'
    )


__all__ = ["NO_BROWSER", "Figure", "Table", "Written", "page", "write_png", "write_report"]
