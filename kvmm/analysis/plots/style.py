"""The look that all figures share: colours, fonts, bytes as text, bins of long prompts."""

from __future__ import annotations

from math import ceil, floor, log10
from typing import Any

import numpy as np
import plotly.graph_objects as go

MODALITY_COLORS = {"text": "#0072B2", "image": "#E69F00", "video": "#CC79A7", "audio": "#009E73"}
DENSE_COLOR = "rgba(128,134,148,0.38)"
TEXT_COLOR = "#7a8190"
GRID_COLOR = "rgba(128,134,148,0.22)"
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif"
MAX_COLUMNS = 512


def format_bytes(nbytes: float) -> str:
    """``nbytes`` in binary units with three significant digits: ``"38.2 KiB"``, ``"1.50 MiB"``."""
    value, units = float(nbytes), ["B", "KiB", "MiB", "GiB"]
    while value >= 1000 and len(units) > 1:
        value /= 1024
        units.pop(0)
    digits = 0 if units[0] == "B" or value >= 100 else 1 if value >= 10 else 2
    return f"{value:.{digits}f} {units[0]}"


def style(figure: go.Figure, *, height: int, revision: str, **layout: Any) -> go.Figure:
    """Give ``figure`` the look that all figures share, and return it; ``layout`` goes to plotly.

    ``revision`` is one constant a figure: a redraw keeps the zoom, the hover and the hidden traces of the reader.
    """
    figure.update_layout(
        height=height,
        uirevision=revision,
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font={"family": FONT, "size": 12, "color": TEXT_COLOR},
        hoverlabel={"font": {"family": FONT}},
        legend={"orientation": "h", "yanchor": "bottom", "y": 1.02, "xanchor": "left", "x": 0},
        **layout,
    )
    figure.update_traces(marker_line_width=0, selector={"type": "bar"})  # plotly's line is white, also in the dark
    axis = {"gridcolor": GRID_COLOR, "zerolinecolor": GRID_COLOR, "fixedrange": True, "automargin": True}
    figure.update_xaxes(**axis)
    figure.update_yaxes(**axis)
    return figure


def log_ticks(low: float, high: float) -> dict[str, Any]:
    """Ticks of a logarithmic axis from ``low`` to ``high`` (both positive), each with its whole number.

    Within three powers of ten 1, 2 and 5 times each of them, written out ("0.05"); else the powers of ten. plotly's own
    ticks of a short axis say "2" and "5" and leave the reader to guess of what.
    """
    first, last = floor(log10(low)), ceil(log10(high))
    short = high < 1e3 * low
    ticks = [step * 10.0**power for power in range(first, last + 1) for step in ((1, 2, 5) if short else (1,))]
    ticks = [tick for tick in ticks if low / 1.7 <= tick <= high * 1.7]
    text = [
        f"{tick:g}" if 1e-4 <= tick < 1e5 else f"{tick / 10.0**p:.0f}·10<sup>{p}</sup>"
        for tick, p in ((tick, floor(log10(tick) + 1e-9)) for tick in ticks)
    ]
    return {"tickvals": ticks, "ticktext": [one.removeprefix("1·") for one in text]}


def bins(tokens: int, columns: int = MAX_COLUMNS) -> np.ndarray:
    """First token of each column, int ``[C]`` with C <= ``columns``."""
    return np.unique(np.linspace(0, tokens, min(tokens, columns), endpoint=False).astype(int))
