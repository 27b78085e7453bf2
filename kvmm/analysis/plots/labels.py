"""Labels of the points of a scatter plot: all of them, without overlaps, on narrow and on wide pages.

A figure does not know how wide it will be drawn, and labels keep their size in pixels while points move apart. So a
place counts as free only if it is free at every width of ``WIDTHS``. A name that finds no room beside its point goes
further away and gets a line to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import cos, pi, sin
from typing import Any

import numpy as np

from kvmm.analysis.plots.style import TEXT_COLOR

WIDTHS = (260, 300, 350, 450, 620, 780, 980)  # pixels between the axes: a phone of 390 px to a page of 1360 px
HEIGHT = 430
LINE = 13  # pixels of a line of text
_CHARACTER, _BOLD = 6.1, 6.9  # widest usual width of a character, in pixels
_MARKER = 7  # half the side of a point, and a little
_FIXED = 10  # how much more a label on a point costs than one on a label, which may still move
_MOVES = 150  # of labels that lie on others, at most
_STEPS = np.linspace(0.12, 0.95, 8)  # where a leading line is looked at
_BESIDE = (
    ("left", "middle", 9, 0),
    ("right", "middle", -9, 0),
    ("center", "bottom", 0, 8),
    ("center", "top", 0, -8),
    ("left", "bottom", 6, 5),
    ("left", "top", 6, -5),
    ("right", "bottom", -6, 5),
    ("right", "top", -6, -5),
)


@dataclass(frozen=True)
class Label:
    """``text`` at ``(x, y)``, 0 to 1 from left to right and bottom to top; ``strong`` ones come first, in bold."""

    x: float
    y: float
    text: str
    strong: bool = False


class _Ring:
    """Candidates at one distance: ``places`` are (x anchor, y anchor, x shift, y shift)."""

    def __init__(self, places: Sequence[tuple[str, str, float, float]], has_line: bool) -> None:
        self.places, self.has_line = places, has_line
        x_share = [{"left": 0.0, "center": 0.5, "right": 1.0}[place[0]] for place in places]
        y_share = [{"bottom": 0.0, "middle": 0.5, "top": 1.0}[place[1]] for place in places]
        self.share = np.array([x_share, y_share]).T  # [C, 2]
        self.shift = np.array([place[2:] for place in places])  # [C, 2]


def _ring(radius: float, turns: int = 20) -> _Ring:
    places = []
    for turn in range(turns):
        dx, dy = radius * 1.25 * cos(2 * pi * turn / turns), radius * sin(2 * pi * turn / turns)
        anchor = "center" if abs(dx) < 8 else "left" if dx > 0 else "right"
        vertical = "middle" if anchor != "center" else "bottom" if dy > 0 else "top"
        places.append((anchor, vertical, dx, dy))
    return _Ring(places, True)


_RINGS = [_Ring(_BESIDE, False), *map(_ring, range(20, 190, 12))]  # nearest first


def text_width(label: Label) -> float:
    """Pixels that a label's text may take."""
    return len(label.text) * (_BOLD if label.strong else _CHARACTER)


def place_labels(labels: Sequence[Label]) -> list[dict[str, Any]]:
    """For each label the part of a plotly annotation that says where it goes, in the order given.

    Labels lie inside the plot, on no other label and no point, at all ``WIDTHS``; where that cannot be, they take the
    place that covers least.
    """
    places = _Places(labels)
    crowd = [int((np.abs(places.at - one).max(axis=(1, 2)) < 60).sum()) for one in places.at]
    for i in sorted(range(len(labels)), key=lambda i: (not labels[i].strong, -crowd[i], labels[i].x)):
        places.put(i)
    places.untangle()
    return [_annotation(label, places.chosen[i]) for i, label in enumerate(labels)]


@dataclass(frozen=True)
class _Choice:
    """A candidate at all widths: its place, its box ``[W, 4]`` and, if it has one, points of its line ``[W, S, 2]``."""

    place: tuple[str, str, float, float]
    box: np.ndarray
    line: np.ndarray | None


class _Places:
    """Where the labels are put, ``chosen`` by index of the label."""

    def __init__(self, labels: Sequence[Label]) -> None:
        self.labels, self.widths = labels, np.array(WIDTHS, dtype=float)
        size = np.stack([self.widths, np.full_like(self.widths, HEIGHT)], axis=-1)
        self.at = np.array([[label.x, label.y] for label in labels]).reshape(-1, 1, 2) * size  # [N, W, 2] pixels
        self.points = np.concatenate([self.at - _MARKER, self.at + _MARKER], axis=-1)  # boxes [N, W, 4]
        self.chosen: dict[int, _Choice] = {}
        self.weight = [1] * len(labels)  # of a label's box, more each time that another one took its place

    def put(self, i: int) -> None:
        """Choose the nearest place of label ``i`` that costs least beside the others."""
        others = {j: one for j, one in self.chosen.items() if j != i}
        points = [*self.points[:i], *self.points[i + 1 :]]
        names, lines = [one.box for one in others.values()], [one.line for one in others.values()]
        lines = [line for line in lines if line is not None]
        weights = np.array([_FIXED] * len(self.points) + [self.weight[j] for j in others])
        cheapest = np.inf
        for ring in _RINGS:
            boxes = _boxes(ring, self.at[i], text_width(self.labels[i]))  # [C, W, 4]
            cost = _outside(boxes, self.widths) + _crossed(boxes, lines)
            cost += _covered(boxes, [*self.points, *names]).sum(1) @ weights
            steps = self.at[i][None, :, None] + ring.shift[:, None, None] * _STEPS[:, None]  # [C, W, S, 2]
            if ring.has_line:
                cost += _on_boxes(steps, [*points, *names])
            best = int(cost.argmin())
            if cost[best] < cheapest:
                cheapest = float(cost[best])
                self.chosen[i] = _Choice(ring.places[best], boxes[best], steps[best] if ring.has_line else None)
            if cheapest == 0:
                break

    def covered(self, i: int) -> list[int]:
        """The labels that label ``i`` lies on at some width."""
        others = [j for j in self.chosen if j != i]
        if not others:
            return []
        shared = _covered(self.chosen[i].box[None], [self.chosen[j].box for j in others])[0].any(0)
        return [j for j, one in zip(others, shared, strict=True) if one]

    def untangle(self) -> None:
        """Move labels that lie on each other, and those that they then lie on, as rip-up and reroute of wires does.

        A label that was covered weighs more from then on, so two labels do not take turns for ever. The state with the
        fewest overlaps stays.
        """
        fewest, kept = np.inf, dict(self.chosen)
        for _ in range(_MOVES):
            overlaps = [(i, j) for i in self.chosen for j in self.covered(i) if i < j]
            if len(overlaps) < fewest:
                fewest, kept = len(overlaps), dict(self.chosen)
            if not overlaps:
                break
            i = min((i for pair in overlaps for i in pair), key=lambda i: (self.weight[i], self.labels[i].strong, i))
            self.put(i)
            for j in (i, *self.covered(i)):
                self.weight[j] += 1
        self.chosen = kept


def _boxes(ring: _Ring, at: np.ndarray, width: float) -> np.ndarray:
    """Left, low, right and high of every candidate of a ring around a point ``[W, 2]``: ``[C, W, 4]``."""
    corner = at[None] + ring.shift[:, None] - (ring.share * [width, LINE])[:, None]
    return np.concatenate([corner, corner + np.array([width, LINE])], axis=-1)


def _outside(boxes: np.ndarray, widths: np.ndarray) -> np.ndarray:
    """How many pixels stick out, over all widths; that weighs most: they would be cut."""
    out = np.maximum(-boxes[..., :2], 0).sum(-1) + np.maximum(boxes[..., 2] - widths, 0)
    return 100 * (out + np.maximum(boxes[..., 3] - HEIGHT, 0)).sum(-1)


def _covered(boxes: np.ndarray, taken: Sequence[np.ndarray]) -> np.ndarray:
    """Square pixels shared with each of the boxes that are there already, by width, ``[C, W, B]``."""
    others = np.stack(taken)[:, None]  # [B, 1, W, 4]
    wide, high = (
        np.maximum(np.minimum(boxes[..., 2 + i], others[..., 2 + i]) - np.maximum(boxes[..., i], others[..., i]), 0)
        for i in (0, 1)
    )
    return np.moveaxis(wide * high, 0, -1)


def _crossed(boxes: np.ndarray, lines: Sequence[np.ndarray]) -> np.ndarray:
    """How much of leading lines a label would cover, ``[C]``."""
    if not lines:
        return np.zeros(len(boxes))
    points = np.concatenate(lines, axis=1)[None]  # [1, W, S', 2]
    return 20.0 * _inside(points, boxes[:, :, None]).sum((1, 2))


def _on_boxes(steps: np.ndarray, others: Sequence[np.ndarray]) -> np.ndarray:
    """How much of other points and names a leading line would cross, ``[C]``."""
    if not others:
        return np.zeros(len(steps))
    boxes = np.stack(others)[:, None, :, None]  # [B, 1, W, 1, 4]
    return 20.0 * _inside(steps, boxes).sum((0, 2, 3))


def _inside(points: np.ndarray, boxes: np.ndarray) -> np.ndarray:
    """Which points ``[..., 2]`` lie in which boxes ``[..., 4]``. A coordinate at a time: an axis of two is slow."""
    (x, y), (left, low, right, high) = (np.ascontiguousarray(np.moveaxis(a, -1, 0)) for a in (points, boxes))
    return (x >= left) & (x <= right) & (y >= low) & (y <= high)


def _annotation(label: Label, choice: _Choice) -> dict[str, Any]:
    anchor, vertical, dx, dy = choice.place
    annotation: dict[str, Any] = {
        "text": f"<b>{label.text}</b>" if label.strong else label.text,
        "xanchor": anchor,
        "yanchor": vertical,
        "font": {"size": 12 if label.strong else 11, "color": TEXT_COLOR},
    }
    if choice.line is None:
        return annotation | {"showarrow": False, "xshift": dx, "yshift": dy}
    arrow = {"arrowhead": 0, "arrowwidth": 1, "arrowcolor": TEXT_COLOR, "opacity": 0.9, "standoff": 5}
    return annotation | {"showarrow": True, "ax": dx, "ay": -dy, "borderpad": 0} | arrow


__all__ = ["HEIGHT", "LINE", "WIDTHS", "Label", "place_labels", "text_width"]
