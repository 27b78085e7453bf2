"""The text layer of PDF pages, for a reader to compare: the model reads the pixels."""

from __future__ import annotations

import html
from collections.abc import Sequence

from kvmm.media import Media

PAGE_CHARACTERS = 4_000  # shown of one page ...
ALL_CHARACTERS = 40_000  # ... and of all pages together; the page of the app stays light


def page_text_html(media: Sequence[Media]) -> str:
    """A closed note with the text of every page that has some; nothing where no page has."""
    pages = [item for item in media if item.text]
    if not pages:
        return ""
    left, parts = ALL_CHARACTERS, []
    for item in pages:
        shown = item.text[: min(PAGE_CHARACTERS, left)]
        left -= len(shown)
        missing = 0 if shown == item.text else item.text_length - len(shown)
        more = f"<small>and {missing:,} more characters</small>" if missing > 0 else ""
        parts.append(f"<h5>{html.escape(item.name)}, page {item.page}</h5><pre>{html.escape(shown)}</pre>{more}")
    count = f"{len(pages)} page{'s' * (len(pages) > 1)}"
    return (
        f'<details class="page-text" id="page-text"><summary>Text in the PDF, {count}</summary>'
        '<p class="hint">The text layer of the file, to compare. The model does not see it: it reads the pixels.</p>'
        f"{''.join(parts)}</details>"
    )


__all__ = ["ALL_CHARACTERS", "PAGE_CHARACTERS", "page_text_html"]
