"""The live strip of key norms in tab Ask: a small picture, a column per token, a row per layer."""

from __future__ import annotations

import base64
import io
from functools import lru_cache

import numpy as np
from PIL import Image

from kvmm.analysis.plots.style import MODALITY_COLORS, bins
from kvmm.cache.key_norms import KeyNorms, present
from kvmm.modality import MODALITY_NAMES, PADDING

MAX_COLUMNS, MAX_ROWS = 256, 8
ANSWER_COLOR = "#D55E00"
_CIVIDIS = ("00224e", "123570", "3b496c", "575d6d", "707173", "8a8678", "a59c74", "c3b369", "e1cc55", "fee838")
_NO_NORM = (128, 134, 148)
_RIBBON_PIXELS, _ROW_PIXELS = 6, 7


def _rgb(color: str) -> tuple[int, ...]:
    return tuple(bytes.fromhex(color.removeprefix("#")))


_SCALE = np.array([_rgb(color) for color in _CIVIDIS], dtype=float)


@lru_cache(maxsize=8)  # figures beside it change with every token, the norms a few times a second
def strip_html(norms: KeyNorms | None) -> str:
    """Key norms of all tokens so far, as HTML of a few KB; nothing before there are any.

    Long prompts are binned to at most 256 columns, of which each shows its largest norm; of many layers eight are
    shown. A row has a scale of its own, from the 1 % to the 99 % quantile. Above lies the modality of every column.

    Args:
        norms: as a :class:`kvmm.models.conversation.Progress` has them.
    """
    if norms is None or not len(norms):
        return ""
    rows = np.unique(np.linspace(0, len(norms.layers) - 1, min(len(norms.layers), MAX_ROWS)).round().astype(int))
    starts = bins(len(norms), MAX_COLUMNS)
    cells = np.fmax.reduceat(norms.key[rows].astype(np.float32), starts, axis=1)  # [R, C]
    layers = ", ".join(str(norms.layers[row]) for row in rows)
    ribbon = _ribbon(norms, starts)
    height = _ROW_PIXELS * len(rows)
    names = [(MODALITY_NAMES[code], MODALITY_COLORS[MODALITY_NAMES[code]]) for code in present(norms)]
    names += [("answer", ANSWER_COLOR)] if norms.answer else []
    legend = "".join(f'<span><i class="dot" style="background:{color}"></i>{name}</span>' for name, color in names)
    each = "" if len(starts) == len(norms) else f", about {len(norms) / len(starts):.1f} per column"
    return (
        f'<div class="stat wide" id="norm-strip" data-tokens="{len(norms)}" data-answer="{norms.answer}">'
        f'<span>Key norms, live</span><div class="strip" role="img" aria-label="Key norms of {len(norms):,} tokens">'
        f'<img alt="" src="{_png(ribbon)}" style="height:{_RIBBON_PIXELS}px">'
        f'<img alt="" src="{_png(_colors(cells))}" style="height:{height}px"></div>'
        f'<div class="keys">{legend}</div><small>{len(norms):,} tokens from left to right{each}; layers {layers} from '
        "bottom to top, each on its own scale; bright: a large key.</small></div>"
    )


def _colors(cells: np.ndarray) -> np.ndarray:
    """uint8 ``[R, C, 3]`` of norms ``[R, C]``, the first row at the bottom."""
    low, high = np.nanquantile(np.where(np.isnan(cells).all(1, keepdims=True), 0, cells), [0.01, 0.99], axis=1)
    share = ((cells - low[:, None]) / np.maximum(high - low, 1e-6)[:, None]).clip(0, 1)
    at = np.nan_to_num(share) * (len(_SCALE) - 1)
    colors = np.stack([np.interp(at, np.arange(len(_SCALE)), _SCALE[:, i]) for i in range(3)], axis=-1)
    colors[np.isnan(share)] = _NO_NORM
    return colors[::-1].round().astype(np.uint8)


def _ribbon(norms: KeyNorms, starts: np.ndarray) -> np.ndarray:
    """uint8 ``[1, C, 3]``: the modality that most tokens of a column have, or that they are the answer's."""
    counts = np.add.reduceat(
        (norms.modality[None] == np.arange(len(MODALITY_NAMES))[:, None]).astype(int), starts, axis=1
    )
    palette = np.array([_rgb(MODALITY_COLORS[name]) for name in MODALITY_NAMES], dtype=np.uint8)
    colors = palette[counts.argmax(0)]
    colors[np.maximum.reduceat(norms.modality, starts) == PADDING] = _NO_NORM
    colors[starts >= len(norms) - norms.answer] = _rgb(ANSWER_COLOR)
    return colors[None]


def _png(pixels: np.ndarray) -> str:
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "PNG")
    return f"data:image/png;base64,{base64.b64encode(stream.getvalue()).decode()}"


__all__ = ["MAX_COLUMNS", "MAX_ROWS", "strip_html"]
