"""Render the documents of the blind set again, and the text on them.

python -m tests.blind.make.render [part of a name]      # needs chromium, playwright, reportlab, matplotlib, the fonts

Writes ``documents/`` and ``make/texts.json``; questions are written by hand in ``blind.json`` and are not touched.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.blind.make import browser, charts, drawn, printed

ROOT = Path(__file__).parents[1]


def main(wanted: str = "") -> None:
    """Render the documents whose names contain ``wanted``."""
    out, listing = ROOT / "documents", ROOT / "make" / "texts.json"
    out.mkdir(exist_ok=True)
    texts = json.loads(listing.read_text(encoding="utf-8")) if listing.is_file() else {}
    for engine in (browser, printed, charts, drawn):
        for name, pages in engine.render(out, wanted):
            path = out / f"{name}.pdf"
            texts[name] = printed.text_layers(path) if path.is_file() else pages
            print(name, len(texts[name]))
    listing.write_text(json.dumps(dict(sorted(texts.items())), ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:2])
